// Deposits: how much is held, when it is given back, what may be kept.
using System;
using System.Collections.Generic;

namespace HarbourBikes.Bookings
{
    /// <summary>Rules of deposits. They are held on a card or paid in notes.</summary>
    public static class Deposits
    {
        private static readonly Dictionary<string, decimal> PerKind = new()
        {
            ["city"] = 60m,
            ["touring"] = 90m,
            ["racing"] = 220m,
            ["cargo"] = 180m,
            ["electric"] = 250m,
            ["tandem"] = 130m,
            ["child"] = 0m,
        };

        private const decimal PartyCeiling = 520m;
        private const int ReleaseDays = 3;
        private const int ScratchFreeCentimetres = 10;

        /// <summary>Sum for a party; it never rises above 520 in all.</summary>
        public static decimal ForParty(IEnumerable<string> kinds)
        {
            decimal sum = 0m;
            foreach (string kind in kinds)
            {
                sum += PerKind[kind];
            }
            return Math.Min(PartyCeiling, sum);
        }

        /// <summary>Cards are released after three days; notes at once at the counter.</summary>
        public static DateTime ReleasedOn(DateTime returned, bool card) =>
            card ? returned.Date.AddDays(ReleaseDays) : returned;

        /// <summary>
        /// What is kept for a scratch: nothing up to ten centimetres, then 1.40 for each
        /// further centimetre, at most a third of the deposit.
        /// </summary>
        public static decimal KeptForScratch(string kind, int centimetres)
        {
            int charged = Math.Max(0, centimetres - ScratchFreeCentimetres);
            return Math.Min(PerKind[kind] / 3m, charged * 1.40m);
        }

        /// <summary>Regular customers leave a house number plate instead of money.</summary>
        public static bool Waived(int blamelessHires, bool racing) =>
            blamelessHires >= 14 && !racing;
    }
}
