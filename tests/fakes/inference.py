"""An inference server on loopback that speaks vLLM's and SGLang's protocols with a real model's probabilities, and
fails on request. Its answers have the fields of the servers' own: vLLM 0.32.0's as recorded, SGLang's as in its source.
"""

from __future__ import annotations

import copy
import json
import math
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from reflectkit.models.load import LoadedModel
from tests.handler import QuietHandler

Reply = tuple[int, Any]


@dataclass
class Inference:
    """A server of `player`'s model.

    root: what it says its path is. faults: what the next requests for tokens meet, first in first out: a status, "hang"
    (until `released`), "drop" (the connection), or "kill": the server goes away, forgets what it was given, and comes
    back after `away_s`. processed: log-probabilities after the temperature.
    adapters, logprobs, decodes: what it can do. lie: changes the tokens, their log-probabilities and those of the
    tokens asked for, each a list by place. keeps: of an adapter after the first, says that it is loaded, but has the
    "old" one or the "base" in its place. tokenizer: another one than the player's. asked: the names of the weights of
    each request for tokens. loaded: all that was ever loaded.
    """

    player: LoadedModel
    root: str
    faults: list[Any] = field(default_factory=list)
    away_s: float = 0.2
    processed: bool = False
    adapters: bool = True
    logprobs: bool = True
    decodes: bool = True
    lie: Callable[[list[Any], list[Any], list[dict[Any, Any]]], None] | None = None
    keeps: str = ""
    context: int = 512
    tokenizer: Any = None
    asked: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    weights: dict[str, Any] = field(default_factory=dict)
    base_version: str = "default"
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.RLock = field(default_factory=threading.RLock)
    port: int = 0
    kills: int = 0
    _pristine: Any = None
    _base: Any = None
    _listener: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, at the same port as before if there was one, with nothing but the base."""
        if self._pristine is None:  # what tests do to the player does not reach the server
            self._pristine = copy.deepcopy(self.player.model).eval()
        self.weights, self._base, self.base_version = {}, self._pristine, "default"
        self._listener = _Listener(("127.0.0.1", self.port), _handler(self))
        self.port = self._listener.server_address[1]
        threading.Thread(target=self._listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._listener.hang_up()

    def kill(self) -> None:
        """Go away at once, and come back without what was loaded."""
        self.kills += 1
        self.stop()
        threading.Timer(self.away_s, self.start).start()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Reply:
        """(status, JSON value) of a request."""
        if method == "GET":
            return self._about(path)
        if path == "/detokenize":
            tokenizer = self.tokenizer or self.player.tokenizer
            text = tokenizer.decode(body["tokens"])
            return (200, {"prompt": text, "text": text}) if self.decodes else (404, {"detail": "Not Found"})
        if path in ("/v1/load_lora_adapter", "/load_lora_adapter"):
            return self._load(body["lora_name"], body["lora_path"], path)
        if path in ("/v1/unload_lora_adapter", "/unload_lora_adapter"):
            found = self.weights.pop(body["lora_name"], None) is not None
            return (200, "removed") if found else (404, {"error": {"message": "The lora adapter cannot be found."}})
        if path == "/update_weights_from_disk":
            from transformers import AutoModelForCausalLM

            self._base = AutoModelForCausalLM.from_pretrained(body["model_path"]).eval()
            self.base_version = body["weight_version"]
            self.loaded.append(body["weight_version"])
            return 200, {"success": True, "message": "Succeeded to update model weights."}
        if path == "/v1/completions":
            return self._complete(body)
        if path == "/generate":
            return self._generate(body)
        return 404, {"detail": "Not Found"}

    def _about(self, path: str) -> Reply:
        if path == "/v1/models":
            base = {
                "id": self.root,
                "object": "model",
                "root": self.root,
                "parent": None,
                "max_model_len": self.context,
            }
            return 200, {"data": [base, *({"id": name, "root": name, "parent": self.root} for name in self.weights)]}
        if path == "/model_info":
            return 200, {"model_path": self.root, "is_generation": True, "weight_version": self.base_version}
        return 404, {"detail": "Not Found"}

    def _load(self, name: str, place: str, path: str) -> Reply:
        from peft import PeftModel

        if not self.adapters:
            return 404, {"detail": "Not Found"}
        if name in self.weights:
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        try:
            kept = {"old": [*self.weights.values()][-1:], "base": [self._pristine]}.get(self.keeps, [])
            if self.loaded and kept:
                self.weights[name] = kept[0]
            else:
                self.weights[name] = PeftModel.from_pretrained(copy.deepcopy(self._pristine), place).eval()
        except (OSError, ValueError) as error:
            return 500, {"error": {"message": f"Loading lora {name} failed: {error}"}}
        self.loaded.append(name)
        return (200, "Success") if path.startswith("/v1") else (200, {"success": True, "error_message": None})

    def _complete(self, body: dict[str, Any]) -> Reply:
        name = body["model"]
        if name != self.root and name not in self.weights:
            return 404, {"error": {"message": f"The model `{name}` does not exist.", "type": "NotFoundError"}}
        self.asked.append(name)
        model = self.weights.get(name, self._base)
        wanted = body.get("logprob_token_ids")
        ids, logprobs, rows = self._said(model, body["prompt"], body["max_tokens"], body["temperature"],
            body.get("seed") or 0, set(body.get("stop_token_ids") or ()), wanted or [])  # fmt: skip
        held = {
            "tokens": [f"token_id:{one}" for one in ids],
            "token_logprobs": logprobs,
            "top_logprobs": [{f"token_id:{token}": value for token, value in row.items()} for row in rows],
        }
        choice = {"text": "", "token_ids": ids, "finish_reason": "length", "logprobs": held if self.logprobs else None}
        return 200, {"choices": [choice], "model": name}

    def _generate(self, body: dict[str, Any]) -> Reply:
        name, sampling = body.get("lora_path"), body["sampling_params"]
        if name and name not in self.weights:
            return 400, {"error": {"message": f"Got LoRA adapter that has never been loaded: {name}"}}
        self.asked.append(name or self.base_version)
        model = self.weights[name] if name else self._base
        stops = set(() if sampling["ignore_eos"] else sampling.get("stop_token_ids") or ())
        ids, logprobs, rows = self._said(model, body["input_ids"], sampling["max_new_tokens"],
            sampling["temperature"], 0, stops, body.get("token_ids_logprob") or [])  # fmt: skip
        pairs = [[value, one, None] for value, one in zip(logprobs, ids, strict=True)]
        meta = {"finish_reason": {"type": "length"}, "weight_version": self.base_version}
        if self.logprobs:
            meta["output_token_logprobs"] = pairs
            meta["output_token_ids_logprobs"] = [[[value, one, None] for one, value in row.items()] for row in rows]
        return 200, {"text": "", "output_ids": ids, "meta_info": meta}

    def _said(
        self, model: Any, prompt: Sequence[int], limit: int, temperature: float, seed: int, stops: set[int],
        wanted: Sequence[int],
    ) -> tuple[list[Any], list[Any], list[dict[Any, Any]]]:  # fmt: skip
        """(tokens, their log-probabilities, those of the `wanted` ones), as the server says it."""
        ids, rows = self._drawn(model, prompt, limit, temperature, seed, stops)
        said: list[Any] = list(ids)
        logprobs: list[Any] = [float(row[one]) for one, row in zip(ids, rows, strict=True)]
        found = [{token: max(float(row[token]), -9999.0) for token in wanted} for row in rows]
        if self.lie is not None:
            self.lie(said, logprobs, found)
        return said, logprobs, found

    @torch.no_grad()
    def _drawn(
        self, model: Any, prompt: Sequence[int], limit: int, temperature: float, seed: int, stops: set[int]
    ) -> tuple[list[int], list[torch.Tensor]]:
        """(sampled tokens, log-probabilities (V) at each place)."""
        chance = torch.Generator().manual_seed(seed % 2**63)
        ids: list[int] = []
        rows = []
        while len(ids) < limit and not stops & set(ids[-1:]):
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, -1]
            scaled = torch.log_softmax(logits / (temperature or 1.0), -1)
            rows.append(scaled if self.processed else torch.log_softmax(logits, -1))
            ids.append(
                int(scaled.argmax() if temperature == 0 else torch.multinomial(scaled.exp(), 1, generator=chance))
            )
        assert all(math.isfinite(float(row.max())) for row in rows)
        return ids, rows


@contextmanager
def serve_model(player: LoadedModel, root: str, **settings: Any) -> Iterator[Inference]:
    """A server of `player`'s model for as long as the context lasts."""
    server = Inference(player, root, **settings)
    server.start()
    try:
        yield server
    finally:
        server.released.set()
        with suppress(OSError):
            server.stop()


class _Listener(ThreadingHTTPServer):
    """A server that can drop the connections that it has."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        self.sockets: set[socket.socket] = set()
        super().__init__(*arguments)

    def hang_up(self) -> None:
        for one in list(self.sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _handler(server: Inference) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler):
        def setup(self) -> None:
            super().setup()
            self.server.sockets.add(self.connection)  # type: ignore[attr-defined]

        def finish(self) -> None:
            self.server.sockets.discard(self.connection)  # type: ignore[attr-defined]
            with suppress(OSError):
                super().finish()

        def do_GET(self) -> None:  # noqa: N802 (http.server calls it so)
            self._reply({})

        def do_POST(self) -> None:  # noqa: N802 (http.server calls it so)
            self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _reply(self, body: dict[str, Any]) -> None:
            sampling = self.path in ("/v1/completions", "/generate")
            with server.lock:
                server.headers.append(self.headers)
                if sampling:
                    server.bodies.append(body)
                fault = server.faults.pop(0) if sampling and server.faults else None
            if fault == "hang":
                server.released.wait(20)
            if fault == "kill":
                server.kill()
            if fault in ("drop", "kill", "hang"):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            with server.lock:
                status, value = (
                    server.answer(self.command, self.path, body) if fault is None else (fault, {"error": "x"})
                )
            content = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send(status, content)

    return Handler
