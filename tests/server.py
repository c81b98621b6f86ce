"""A real HTTP server on loopback that speaks OpenAI's chat protocol, and fails on request."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from tests.handler import QuietHandler

Answer = Callable[[dict[str, Any]], str]


@dataclass
class Server:
    """url: to give as --base-url. faults: what the next requests meet, first in first out: see `Handler`. answer: body
    → text.
    respond: body → response, with that text in it unless set.

    refused: a parameter that no request may have. requests: every body that came in. authorization: every such header.
    headers: all of each. answered: how many got an answer that costs. sent_mib: of an endless one.
    """

    url: str
    answer: Answer
    faults: list[Any] = field(default_factory=list)
    refused: str = ""
    respond: Callable[[dict[str, Any]], dict[str, Any]] = field(init=False)
    requests: list[dict[str, Any]] = field(default_factory=list)
    authorization: list[str] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    answered: int = 0
    sent_mib: int = 0
    most_at_once: int = 0
    delay_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    open_now: int = 0

    def __post_init__(self) -> None:
        self.respond = lambda body: completion(self.answer(body))


def completion(text: str | None, finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }


@contextmanager
def serve(answer: Answer) -> Iterator[Server]:
    """A server for as long as the context lasts."""

    class Handler(QuietHandler):
        """A fault is ("status", code, headers, error), ("sent", code, headers, bytes), ("json", body), ("raw", bytes),
        ("drip",): white space without an end, or ("endless", code, headers): the same at full speed.
        """

        def do_POST(self) -> None:  # noqa: N802 (http.server calls it so)
            with server.lock:
                server.open_now += 1
                server.most_at_once = max(server.most_at_once, server.open_now)
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    server.requests.append(body)
                    server.authorization.append(self.headers.get("Authorization") or self.headers.get("api-key") or "")
                    server.headers.append(self.headers)
                    fault = server.faults.pop(0) if server.faults else None
                    if server.refused in body:
                        error = {"message": f"Unsupported value: '{server.refused}'", "param": server.refused}
                        fault = ("status", 400, {}, error)
                time.sleep(server.delay_s)
                self._reply(body, fault)
            finally:
                with server.lock:
                    server.open_now -= 1

        def _reply(self, body: dict[str, Any], fault: Any) -> None:
            if fault is None or fault[0] == "json":
                content = json.dumps(server.respond(body) if fault is None else fault[1]).encode()
                with server.lock:
                    server.answered += 1
                self.send(200, content)
            elif fault[0] == "status":
                _, code, headers, content = fault
                self.send(code, json.dumps({"error": content}).encode(), headers)
            elif fault[0] == "sent":
                self.send(fault[1], fault[3], fault[2])
            elif fault[0] == "raw":
                self.send(200, fault[1])
            elif fault[0] == "endless":
                self.send(fault[1], b"", {**fault[2], "Content-Length": str(10**15)})
                while not closing.is_set() and server.sent_mib < 1000:
                    self.wfile.write(b" " * 2**20)
                    server.sent_mib += 1
            else:
                self.send(200, b" ", {"Content-Length": "1000000"})
                while not closing.wait(0.02):
                    self.wfile.write(b" ")

    closing = threading.Event()
    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    server = Server(f"http://127.0.0.1:{listener.server_address[1]}/v1", answer)
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        closing.set()
        listener.shutdown()
        listener.server_close()
