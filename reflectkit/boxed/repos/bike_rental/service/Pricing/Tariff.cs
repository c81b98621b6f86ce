// The price of a hire: started quarters, day caps, weeks.
using System;

namespace HarbourBikes.Pricing
{
    /// <summary>Price figures of one kind of bike, from the tariff table.</summary>
    public sealed record Tariff(string Kind, decimal PerHour, decimal DayCap, decimal PerWeek)
    {
        /// <summary>The first minutes after taking the bike are never charged.</summary>
        private static readonly TimeSpan FreeStart = TimeSpan.FromMinutes(6);

        /// <summary>From this many days on, the weekly price is tried as well.</summary>
        private const int WeekFromDays = 4;

        private const decimal NightFlat = 5.50m;

        /// <summary>
        /// Price of one hire. Time is charged in started quarters of an hour. A day of
        /// hire counts from the moment of taking, not from midnight, and never costs more
        /// than the cap. From four days on the weekly price is used if it is lower.
        /// </summary>
        public decimal Price(TimeSpan time)
        {
            TimeSpan charged = time - FreeStart;
            if (charged <= TimeSpan.Zero)
            {
                return 0m;
            }
            int days = (int)charged.TotalDays;
            TimeSpan rest = charged - TimeSpan.FromDays(days);
            decimal quarters = Math.Ceiling((decimal)rest.TotalMinutes / 15m);
            decimal price = days * DayCap + Math.Min(DayCap, quarters * PerHour / 4m);
            if (days >= WeekFromDays)
            {
                int weeks = (days + 7) / 7;
                price = Math.Min(price, weeks * PerWeek);
            }
            return price;
        }

        /// <summary>Flat price from 19:00 until 08:30 for residents of the harbour.</summary>
        public static decimal ResidentNight(DateTime from, DateTime to)
        {
            bool late = from.Hour >= 19;
            bool early = to.TimeOfDay <= new TimeSpan(8, 30, 0);
            bool nextDay = to.Date == from.Date.AddDays(1);
            return late && early && nextDay
                ? NightFlat
                : throw new ArgumentException("not a resident night");
        }
    }
}
