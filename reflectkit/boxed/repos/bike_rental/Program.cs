// Starts the rental service: reads the feeds, opens the routes, runs the clock.
using System;
using System.IO;
using System.Threading;
using HarbourBikes.Api;
using HarbourBikes.Fleet;

namespace HarbourBikes
{
    /// <summary>Entry point. Exit codes: 0 stopped by hand, 8 no feeds, 9 port taken.</summary>
    public static class Program
    {
        private const int DefaultPort = 8417;
        private const int ExitNoFeeds = 8;
        private const int ExitPortTaken = 9;
        private static readonly TimeSpan Tick = TimeSpan.FromSeconds(20);

        public static int Main(string[] args)
        {
            string feeds = Argument(args, "--feeds");
            int port = int.TryParse(Argument(args, "--port"), out int p) ? p : DefaultPort;
            if (feeds != null && !Directory.Exists(feeds))
            {
                Console.Error.WriteLine($"no folder {feeds}");
                return ExitNoFeeds;
            }

            Dispatcher dispatcher = feeds == null
                ? Dispatcher.WithDemoBikes()
                : Dispatcher.FromFile(Path.Combine(feeds, "bikes.csv"));
            var routes = new Routes(dispatcher);
            if (!routes.TryListen(port))
            {
                return ExitPortTaken;
            }

            using var stop = new ManualResetEventSlim();
            Console.CancelKeyPress += (_, e) => { e.Cancel = true; stop.Set(); };
            // The clock looks for overdue hires three times a minute.
            while (!stop.Wait(Tick))
            {
                dispatcher.MarkOverdue(DateTime.Now);
            }
            return 0;
        }

        /// <summary>The word after a flag, or null when the flag is missing.</summary>
        private static string Argument(string[] args, string flag)
        {
            int at = Array.IndexOf(args, flag);
            return at >= 0 && at + 1 < args.Length ? args[at + 1] : null;
        }
    }
}
