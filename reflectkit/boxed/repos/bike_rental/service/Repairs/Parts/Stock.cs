// Spare parts: when to order, how many, and who may take them.
using System;

namespace HarbourBikes.Repairs.Parts
{
    /// <summary>One shelf position of the spare part store.</summary>
    public sealed class StockItem
    {
        public string Code { get; init; }
        public int OnShelf { get; set; }
        public double PerWeek { get; init; }
        public int LeadDays { get; init; }
        public int PackSize { get; init; } = 1;
    }

    /// <summary>Ordering rules.</summary>
    public static class Stock
    {
        private const double SummerFactor = 1.8;
        private const int SafetyDays = 9;
        private const int CoverWeeks = 7;
        private const int DeadAfterMonths = 26;

        /// <summary>Use per week; from May to September it is 1.8 times as much.</summary>
        public static double Use(StockItem item, int month) =>
            month is >= 5 and <= 9 ? item.PerWeek * SummerFactor : item.PerWeek;

        /// <summary>Order point: use during the delivery time and nine days of safety.</summary>
        public static int OrderPoint(StockItem item, int month) =>
            (int)Math.Ceiling(Use(item, month) / 7 * (item.LeadDays + SafetyDays));

        /// <summary>Order for seven weeks, rounded up to whole packs; 0 if nothing is due.</summary>
        public static int ToOrder(StockItem item, int month)
        {
            if (item.OnShelf > OrderPoint(item, month))
            {
                return 0;
            }
            double wanted = Use(item, month) * CoverWeeks - item.OnShelf;
            int packs = (int)Math.Ceiling(Math.Max(0, wanted) / item.PackSize);
            return packs * item.PackSize;
        }

        /// <summary>Parts not touched for 26 months go to the school's tinkering club.</summary>
        public static bool IsDead(DateTime lastTaken, DateTime now) =>
            lastTaken.AddMonths(DeadAfterMonths) < now;

        /// <summary>Motors and displays are signed out by the head of the workshop only.</summary>
        public static bool NeedsSignature(string code) =>
            code.StartsWith("MO", StringComparison.Ordinal)
            || code.StartsWith("DI", StringComparison.Ordinal);
    }
}
