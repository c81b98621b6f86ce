// The queue of the two workshops: who repairs what, and in which order.
using System;
using System.Collections.Generic;
using System.Linq;

namespace HarbourBikes.Repairs
{
    /// <summary>A bike that waits for repair.</summary>
    public sealed record Job(string BikeId, string Fault, int Minutes, DateTime Since, bool Reserved);

    /// <summary>Orders and divides jobs.</summary>
    public static class Workshop
    {
        private const int NorthMinutesPerDay = 400;
        private const int SouthMinutesPerDay = 260;
        private const int QuickMinutes = 12;
        private const int OldAfterDays = 8;

        /// <summary>Only South has the frame jig and the charger bench.</summary>
        private static readonly HashSet<string> SouthOnly = new() { "bent frame", "motor", "battery", "display" };

        /// <summary>
        /// Urgency, higher is sooner: a bike promised to someone 50, a quick job of up to 12
        /// minutes 20, and five per day of waiting beyond eight days.
        /// </summary>
        public static int Urgency(Job job, DateTime now)
        {
            int waiting = (int)(now - job.Since).TotalDays;
            int points = job.Reserved ? 50 : 0;
            if (job.Minutes <= QuickMinutes)
            {
                points += 20;
            }
            return points + Math.Max(0, waiting - OldAfterDays) * 5;
        }

        /// <summary>Which workshop takes the job.</summary>
        public static string Place(Job job) => SouthOnly.Contains(job.Fault) ? "South" : "North";

        /// <summary>Jobs of one day for one workshop; a job that does not fit is skipped.</summary>
        public static List<Job> Day(IEnumerable<Job> jobs, string place, DateTime now)
        {
            int left = place == "South" ? SouthMinutesPerDay : NorthMinutesPerDay;
            var chosen = new List<Job>();
            foreach (Job job in jobs.Where(j => Place(j) == place).OrderByDescending(j => Urgency(j, now)))
            {
                if (job.Minutes <= left)
                {
                    chosen.Add(job);
                    left -= job.Minutes;
                }
            }
            return chosen;
        }
    }
}
