// Foresees when parts wear out from kilometres, salt and weight.
using System;
using System.Collections.Generic;

namespace HarbourBikes.Repairs
{
    /// <summary>Kilometres that parts last, and what shortens them.</summary>
    public static class WearModel
    {
        private static readonly Dictionary<string, int> LifeKm = new()
        {
            ["chain"] = 2400,
            ["brake pads"] = 1700,
            ["rear tyre"] = 3100,
            ["front tyre"] = 4600,
            ["cassette"] = 7000,
            ["bottom bracket"] = 9500,
        };

        private const double SaltFactor = 1.6;
        private const double CargoFactor = 1.35;
        private const double MotorChainFactor = 1.9;
        private const double WarnShare = 0.85;

        /// <summary>
        /// Wear per kilometre. Salt counts for metal only, so tyres are left out; a motor
        /// nearly doubles the wear of the chain, and load wears everything.
        /// </summary>
        public static double Factor(string part, bool coast, bool cargo, bool motor)
        {
            double factor = 1.0;
            if (coast && !part.EndsWith("tyre", StringComparison.Ordinal))
            {
                factor *= SaltFactor;
            }
            if (cargo)
            {
                factor *= CargoFactor;
            }
            if (motor && part == "chain")
            {
                factor *= MotorChainFactor;
            }
            return factor;
        }

        /// <summary>Share of the life that is used up; 1 means worn out.</summary>
        public static double Used(string part, int km, bool coast, bool cargo, bool motor) =>
            km * Factor(part, coast, cargo, motor) / LifeKm[part];

        /// <summary>"ok", "order" from 85 percent on, "change" from the full life on.</summary>
        public static string Advice(double used) =>
            used >= 1 ? "change" : used >= WarnShare ? "order" : "ok";
    }
}
