// Daily report about takings: per station, per kind, and what looks strange.
using System;
using System.Collections.Generic;
using System.Linq;

namespace HarbourBikes.Pricing
{
    /// <summary>One paid hire.</summary>
    public sealed record Taking(string Station, string Kind, decimal Paid, decimal Fees, bool Cash);

    /// <summary>Report that is mailed to Marisol at 22:15.</summary>
    public static class Report
    {
        private const decimal CashLimit = 600m;
        private const decimal StrangeFeeShare = 0.5m;
        private const decimal VatPercent = 21m;
        private const decimal TownSharePercent = 3.5m;

        /// <summary>Stations where more than 600 in cash lies; the van fetches it.</summary>
        public static IEnumerable<string> CashToFetch(IEnumerable<Taking> takings) =>
            takings.Where(t => t.Cash)
                .GroupBy(t => t.Station)
                .Where(g => g.Sum(t => t.Paid) > CashLimit)
                .Select(g => g.Key);

        /// <summary>Hires whose fees make up more than half of what was paid.</summary>
        public static IEnumerable<Taking> Strange(IEnumerable<Taking> takings) =>
            takings.Where(t => t.Paid > 0 && t.Fees / t.Paid > StrangeFeeShare);

        /// <summary>Net takings: value added tax is taken out first, then the town's share.</summary>
        public static decimal Net(IEnumerable<Taking> takings)
        {
            decimal gross = takings.Sum(t => t.Paid);
            decimal withoutTax = gross / (1 + VatPercent / 100m);
            return Math.Round(withoutTax * (1 - TownSharePercent / 100m), 2);
        }

        /// <summary>One line per station, best first.</summary>
        public static IEnumerable<string> Lines(IEnumerable<Taking> takings) =>
            takings.GroupBy(t => t.Station)
                .OrderByDescending(g => g.Sum(t => t.Paid))
                .Select(g => $"{g.Key,-16}{g.Count(),5} hires{g.Sum(t => t.Paid),10:F1}");
    }
}
