// What it costs to bring a bike back late, dirty or to the wrong station.
using System;

namespace HarbourBikes.Pricing
{
    /// <summary>Fees that are added when the bike comes back.</summary>
    public static class LateFees
    {
        private const decimal PerStartedHalfHour = 3.20m;
        private const decimal LateCeiling = 48m;
        private const decimal WrongStation = 9m;
        private const decimal WrongStationIsland = 31m;
        private const decimal MudFee = 7.50m;
        private const decimal LostKey = 26m;
        private const int ForgivenMinutes = 15;

        /// <summary>
        /// Late fee: 3.20 for each half hour begun, after fifteen forgiven minutes. The fee
        /// stops growing at 48; from there on the bike counts as not returned.
        /// </summary>
        public static decimal Late(TimeSpan late)
        {
            if (late.TotalMinutes <= ForgivenMinutes)
            {
                return 0m;
            }
            decimal halves = Math.Ceiling((decimal)late.TotalMinutes / 30m);
            return Math.Min(LateCeiling, halves * PerStartedHalfHour);
        }

        /// <summary>Dearer on the island, since the bike has to go back by ferry.</summary>
        public static decimal Station(string agreed, string actual) =>
            agreed == actual ? 0m : actual == "Lighthouse" ? WrongStationIsland : WrongStation;

        /// <summary>Mud is charged only if it covers the number plate; sand never is.</summary>
        public static decimal Dirt(bool plateHidden) => plateHidden ? MudFee : 0m;

        /// <summary>All fees of one return. In storms of force nine nothing is charged.</summary>
        public static decimal Total(TimeSpan late, string agreed, string actual,
                                    bool plateHidden, bool keyLost, int windForce)
        {
            if (windForce >= 9)
            {
                return 0m;
            }
            return Late(late) + Station(agreed, actual) + Dirt(plateHidden)
                + (keyLost ? LostKey : 0m);
        }
    }
}
