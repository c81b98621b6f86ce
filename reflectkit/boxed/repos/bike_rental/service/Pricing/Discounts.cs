// Discounts: which exist, which may be combined, and in which order they apply.
using System;
using System.Collections.Generic;
using System.Linq;

namespace HarbourBikes.Pricing
{
    /// <summary>A customer's situation that may make a hire cheaper.</summary>
    public sealed record Situation(int PartySize, int HiresThisYear, bool FerryTicket,
                                   bool Student, bool RainAtStart, bool Employee);

    /// <summary>Works out the discount of one hire in percent.</summary>
    public static class Discounts
    {
        private const int Ceiling = 45;
        private const int LoyalFromHires = 9;
        private const int GroupFrom = 5;

        /// <summary>All discounts that apply, by name.</summary>
        public static Dictionary<string, int> Applicable(Situation s)
        {
            var found = new Dictionary<string, int>();
            if (s.PartySize >= GroupFrom) found["group"] = 18;
            if (s.HiresThisYear >= LoyalFromHires) found["loyal"] = 12;
            if (s.FerryTicket) found["ferry"] = 10;
            if (s.Student) found["student"] = 20;
            if (s.RainAtStart) found["rain"] = 25;
            return found;
        }

        /// <summary>
        /// Group and student exclude each other, the higher one stays. Everything else is
        /// added up, but never beyond 45 percent. Employees ride free and skip the rest.
        /// </summary>
        public static int Percent(Situation s)
        {
            if (s.Employee)
            {
                return 100;
            }
            Dictionary<string, int> found = Applicable(s);
            if (found.ContainsKey("group") && found.ContainsKey("student"))
            {
                found.Remove("group");
            }
            return Math.Min(Ceiling, found.Values.Sum());
        }

        /// <summary>Discounts touch the hire only, never fees, deposits or helmets.</summary>
        public static decimal Apply(decimal hire, Situation s) =>
            decimal.Round(hire * (100 - Percent(s)) / 100m, 1);
    }
}
