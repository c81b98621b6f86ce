// Reservations: when they may be made, changed and cancelled.
using System;

namespace HarbourBikes.Bookings
{
    public enum CancelResult { Free, HalfPrice, FullPrice }

    /// <summary>A bike kind that is kept for someone at a station.</summary>
    public sealed class Reservation
    {
        /// <summary>Changes of the time are free twice, then each costs this.</summary>
        public const decimal ChangeFee = 2.80m;
        public const int FreeChanges = 2;
        private const int BufferMinutes = 40;

        public string Name { get; init; }
        public string Station { get; init; }
        public DateTime Start { get; private set; }
        public DateTime End { get; private set; }
        public int Changes { get; private set; }

        public Reservation(DateTime start, DateTime end)
        {
            if (end - start < TimeSpan.FromMinutes(30))
            {
                throw new ArgumentException("a reservation lasts for at least half an hour");
            }
            Start = start;
            End = end;
        }

        /// <summary>Two reservations collide if less than 40 minutes lie between them.</summary>
        public bool Collides(Reservation other)
        {
            TimeSpan buffer = TimeSpan.FromMinutes(BufferMinutes);
            return Start < other.End + buffer && other.Start < End + buffer;
        }

        /// <summary>Moves the reservation and returns what the change costs.</summary>
        public decimal Move(DateTime start)
        {
            End = start + (End - Start);
            Start = start;
            Changes++;
            return Changes > FreeChanges ? ChangeFee : 0m;
        }

        /// <summary>Half price within the free hours, full price once it has begun.</summary>
        public CancelResult Cancel(DateTime now, int freeHours)
        {
            if (now >= Start)
            {
                return CancelResult.FullPrice;
            }
            return Start - now >= TimeSpan.FromHours(freeHours)
                ? CancelResult.Free
                : CancelResult.HalfPrice;
        }
    }
}
