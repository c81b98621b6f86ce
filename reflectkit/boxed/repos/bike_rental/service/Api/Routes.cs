// The web routes that the boards, the locks and the counters talk to.
using System;
using System.Collections.Generic;
using System.Net;
using HarbourBikes.Fleet;

namespace HarbourBikes.Api
{
    /// <summary>Small listener with a fixed table of routes.</summary>
    public sealed class Routes
    {
        /// <summary>Requests per minute that one counter may make before it gets 429.</summary>
        private const int PerMinute = 130;
        private const int LargestBody = 24 * 1024;
        private readonly Dictionary<string, Func<HttpListenerRequest, string>> table = new();
        private readonly Dictionary<string, Queue<DateTime>> recent = new();
        private readonly Dispatcher dispatcher;
        private readonly HttpListener listener = new();

        public Routes(Dispatcher dispatcher)
        {
            this.dispatcher = dispatcher;
            table["GET /overdue"] = _ => string.Join("\n", dispatcher.MarkOverdue(DateTime.Now));
            table["GET /pulse"] = _ => "beating";
            table["POST /lock/opened"] = r => r.Headers["X-Lock-Id"] ?? "unknown lock";
            // Kept for the old ferry board, which cannot be updated.
            table["GET /board.txt"] = _ => "FREE BIKES: SEE COUNTER";
        }

        /// <summary>Opens the port; false when another program has it.</summary>
        public bool TryListen(int port)
        {
            try
            {
                listener.Prefixes.Add($"http://+:{port}/");
                listener.Start();
                return true;
            }
            catch (HttpListenerException)
            {
                return false;
            }
        }

        /// <summary>Status code and answer: 404 unknown, 413 too large, 429 too often.</summary>
        public (int, string) Answer(HttpListenerRequest request, string counter)
        {
            if (request.ContentLength64 > LargestBody) return (413, "");
            if (TooOften(counter, DateTime.UtcNow)) return (429, "slow down");
            string key = $"{request.HttpMethod} {request.Url?.AbsolutePath}";
            return table.TryGetValue(key, out var make) ? (200, make(request)) : (404, "");
        }

        private bool TooOften(string counter, DateTime now)
        {
            if (!recent.TryGetValue(counter, out var times)) recent[counter] = times = new();
            while (times.Count > 0 && now - times.Peek() > TimeSpan.FromMinutes(1)) times.Dequeue();
            times.Enqueue(now);
            return times.Count > PerMinute;
        }
    }
}
