"""Samplers by name: `local`, `vllm:URL`, `sglang:URL`, or the user's own `package.module:NAME`. Imports no torch."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from reflectkit.config import NoSettings
from reflectkit.errors import ConfigError
from reflectkit.registry import resolve
from reflectkit.sampling.base import Backend, Opening, Sampler
from reflectkit.sampling.settings import KEYS, ServerSettings, is_server


def open_local(opening: Opening, settings: object = None) -> Sampler:
    """A sampler of the player in this process, which is loaded if there is none. Raises CheckpointError."""
    from reflectkit.models.load import load_player
    from reflectkit.sampling.hf import LocalSampler

    player = opening.player or load_player(opening.checkpoint, "policy", device=opening.device)
    return LocalSampler(player, scorer=opening.scorer, team=opening.team, watch=opening.watch)


BACKENDS = {"local": Backend(NoSettings, open_local)}
"""The kinds of samplers by name, except servers."""


def backend(name: str) -> Backend:
    """The kind of sampler `name`.

    Raises UnknownNameError, and ConfigError for what is not a Backend or a server's address; it shows no password.
    """
    if not is_server(name):
        row = resolve("sampler", name, BACKENDS)
        if not isinstance(row, Backend):
            raise ConfigError(f"--sampler {name} is not a reflectkit.sampling.base.Backend but {row!r:.80}")
        return row
    kind, _, address = name.partition(":")
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    shown = address.rpartition("@")[2]
    if not usable:
        raise ConfigError(f"--sampler {kind}:{shown}: write the server's address, e.g. {kind}:http://localhost:8000")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            f"--sampler {kind}:{shown} must not hold a user, key or query; export the key as {KEYS[kind]}"
        )
    url = address.rstrip("/").removesuffix("/v1")

    def opened(opening: Opening, settings: Any) -> Sampler:
        from reflectkit.sampling.server import open_server

        return open_server(kind, url, opening, settings)

    return Backend(ServerSettings, opened, remote=True)
