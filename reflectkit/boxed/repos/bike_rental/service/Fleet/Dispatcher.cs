// Chooses which bike a customer gets, and watches for bikes that stay away.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;

namespace HarbourBikes.Fleet
{
    /// <summary>Keeps the list of bikes and hands them out.</summary>
    public sealed class Dispatcher
    {
        private const int GhostAfterHours = 30;
        private static readonly TimeSpan OverdueGrace = TimeSpan.FromMinutes(15);
        private readonly Dictionary<string, Bike> bikes = new();
        private readonly Dictionary<string, DateTime> dueBack = new();

        /// <summary>Reads the fleet table; rows beginning with # are passed over.</summary>
        public static Dispatcher FromFile(string path)
        {
            var result = new Dispatcher();
            foreach (string line in File.ReadLines(path).Skip(1).Where(l => !l.StartsWith('#')))
            {
                string[] cell = line.Split(',');
                result.Add(new Bike
                {
                    Id = cell[0],
                    Kind = Enum.Parse<BikeKind>(cell[1], ignoreCase: true),
                    Bought = int.Parse(cell[4]),
                    Kilometres = int.Parse(cell[5]),
                    Station = cell[6],
                });
            }
            return result;
        }

        public static Dispatcher WithDemoBikes()
        {
            var result = new Dispatcher();
            foreach (string name in new[] { "Ant", "Bee", "Cricket" })
            {
                result.Add(new Bike { Id = name, Bought = 2023, Station = "Ferry Hall" });
            }
            return result;
        }

        public void Add(Bike bike) => bikes[bike.Id] = bike;

        /// <summary>The bike with the fewest kilometres, so that wear is spread evenly.</summary>
        public Bike Choose(string station, BikeKind kind, TimeSpan time, bool overNight) =>
            bikes.Values
                .Where(b => b.Station == station && b.Kind == kind && b.MayLeave(time, overNight))
                .OrderBy(b => b.Kilometres)
                .FirstOrDefault();

        /// <summary>Overdue is late by more than 15 minutes; a ghost by 30 hours.</summary>
        public IReadOnlyList<string> MarkOverdue(DateTime now)
        {
            foreach (var (id, due) in dueBack.Where(d => (now - d.Value).TotalHours > GhostAfterHours))
            {
                bikes[id].State = BikeState.Ghost;
            }
            return dueBack.Where(d => now - d.Value > OverdueGrace).Select(d => d.Key).ToList();
        }
    }
}
