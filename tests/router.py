"""A real HTTP server on loopback that speaks SGLang's `/generate`: token ids in, token ids and log-probs out."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from tests.handler import QuietHandler

Answer = Callable[[list[int]], Sequence[int] | str | dict[str, Any]]
"""From a prompt's ids to the sampled ids, to "abort", or to a whole response."""


@dataclass
class Router:
    """port: on 127.0.0.1. requests: every body, with its answer's ids and log-probs. headers: of each request."""

    port: int
    answer: Answer
    requests: list[tuple[dict[str, Any], list[int], list[float]]] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def respond(self, body: dict[str, Any]) -> dict[str, Any]:
        """SGLang's response: no two tokens have the same log-prob."""
        answer = self.answer(body["input_ids"])
        if isinstance(answer, dict):
            return answer
        if isinstance(answer, str):
            return {"text": "", "meta_info": {"finish_reason": {"type": answer}, "output_token_logprobs": []}}
        with self.lock:
            ids = list(answer)[: body["sampling_params"]["max_new_tokens"]]
            logprobs = [-next(self.numbers) / 1024 for _ in ids]
            self.requests.append((body, ids, logprobs))
        meta = {
            "finish_reason": {"type": "stop" if len(ids) == len(answer) else "length"},
            "output_token_logprobs": [[logprob, token, None] for logprob, token in zip(logprobs, ids, strict=True)],
            "weight_version": "3",
            "prompt_tokens": len(body["input_ids"]),
            "cached_tokens": 1,
        }
        if labels := body.get("token_ids_logprob"):
            meta["output_token_ids_logprobs"] = [[[-1.0 - place, label, None] for place, label in enumerate(labels)]]
        return {"text": "", "meta_info": meta}


@contextmanager
def serve_router(answer: Answer) -> Iterator[Router]:
    """A router for as long as the context lasts."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 (http.server calls it so)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/generate":
                router.headers.append(self.headers)
                self._send(router.respond(body))
            else:
                self._send({})

        def do_GET(self) -> None:  # noqa: N802 (http.server calls it so)
            self._send({"workers": []})

        def _send(self, value: dict[str, Any]) -> None:
            self.send(200, json.dumps(value).encode())

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    router = Router(listener.server_address[1], answer)
    threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield router
    finally:
        listener.shutdown()
        listener.server_close()
