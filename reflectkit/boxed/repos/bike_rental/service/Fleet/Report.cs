// Monthly report about the fleet: use per bike, idle bikes, what to buy.
using System.Collections.Generic;
using System.Linq;
using System.Text;

namespace HarbourBikes.Fleet
{
    /// <summary>Use of one bike in one month.</summary>
    public sealed record BikeUse(string Id, BikeKind Kind, double HoursOut, int Refused);

    /// <summary>Figures for the meeting on the first Wednesday.</summary>
    public static class Report
    {
        /// <summary>Hours per month in which stations are open.</summary>
        private const double OpenHours = 364;
        private const double IdleShare = 0.07;
        private const int RefusalsPerNewBike = 22;

        /// <summary>Share of the open time that the bike was out.</summary>
        public static double Share(BikeUse use) => use.HoursOut / OpenHours;

        /// <summary>Bikes out for less than 7 percent; they are moved to another station.</summary>
        public static IEnumerable<string> Idle(IEnumerable<BikeUse> uses) =>
            uses.Where(u => Share(u) < IdleShare).Select(u => u.Id);

        /// <summary>One new bike for every 22 customers that had to be refused.</summary>
        public static Dictionary<BikeKind, int> ToBuy(IEnumerable<BikeUse> uses) =>
            uses.GroupBy(u => u.Kind)
                .ToDictionary(g => g.Key, g => g.Sum(u => u.Refused) / RefusalsPerNewBike);

        /// <summary>Plain text; kinds by alphabet, child bikes left out on purpose.</summary>
        public static string Render(IReadOnlyList<BikeUse> uses)
        {
            var text = new StringBuilder("Fleet, use per kind\n");
            var groups = uses.Where(u => u.Kind != BikeKind.Child).GroupBy(u => u.Kind);
            foreach (var group in groups.OrderBy(g => g.Key.ToString()))
            {
                text.AppendLine($"{group.Key,-10}{group.Average(Share),8:P0}");
            }
            text.AppendLine("idle: " + string.Join(" ", Idle(uses)));
            return text.ToString();
        }
    }
}
