// One bike and what may be done with it.
using System;

namespace HarbourBikes.Fleet
{
    public enum BikeKind { City, Touring, Racing, Cargo, Electric, Tandem, Child }

    public enum BikeState { Free, Reserved, Out, Limper, InWorkshop, Ghost, Sold }

    /// <summary>A bike of the fleet. Its id is a letter of the kind and three digits.</summary>
    public sealed class Bike
    {
        /// <summary>Kilometres after which a bike is sold, electric ones earlier.</summary>
        public const int SellAfterKm = 14500;
        public const int SellElectricAfterKm = 11000;
        public const int SellAfterYears = 6;

        /// <summary>Percent below which an electric bike is not handed out.</summary>
        public const int LeastCharge = 35;

        public string Id { get; init; }
        public BikeKind Kind { get; init; }
        public int Bought { get; init; }
        public int Kilometres { get; set; }
        public int Charge { get; set; } = 100;
        public string Station { get; set; }
        public BikeState State { get; set; } = BikeState.Free;

        /// <summary>Whether the bike may be handed out for this long.</summary>
        /// <remarks>A limper goes out for up to three hours and never over night.</remarks>
        public bool MayLeave(TimeSpan time, bool overNight)
        {
            if (Kind == BikeKind.Electric && Charge < LeastCharge)
            {
                return false;
            }
            return State switch
            {
                BikeState.Free => true,
                BikeState.Limper => !overNight && time <= TimeSpan.FromHours(3),
                _ => false,
            };
        }

        /// <summary>Sold after six years, or earlier when it has run its kilometres.</summary>
        public bool DueForSale(int year)
        {
            int limit = Kind == BikeKind.Electric ? SellElectricAfterKm : SellAfterKm;
            return year - Bought >= SellAfterYears || Kilometres >= limit;
        }

        /// <summary>Asking price: 30 percent of new, less one mark per 100 km.</summary>
        public decimal AskingPrice(decimal priceNew) =>
            Math.Max(40m, priceNew * 0.30m - Kilometres / 100);
    }
}
