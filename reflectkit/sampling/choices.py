"""Samplers by name: `local`, `vllm:URL`, `sglang:URL`, or the user's own `package.module:NAME`. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import model_validator

from reflectkit.config import Config, NoSettings, option
from reflectkit.errors import ConfigError
from reflectkit.registry import resolve
from reflectkit.sampling.base import Backend, Opening, Sampler

KEYS = {"vllm": "VLLM_API_KEY", "sglang": "SGLANG_API_KEY"}
"""The kinds of servers, and the environment variable with the key of each."""


class ServerSettings(Config):
    """How to use an inference server."""

    served_model: str = option(
        "",
        help="Name under which the server serves the policy's base; default: the one whose path is the base's.",
        identity=False,
    )
    reflector_served_model: str = option(
        "",
        help="Name under which the server of --reflector-sampler serves the reflector's base; default: as above.",
        identity=False,
    )
    adapter_dir: Path | None = option(
        None,
        help="Folder where trained weights are written for the server to load; default: a temporary one.",
        identity=False,
    )
    server_adapter_dir: str = option(
        "",
        help="Path of --adapter-dir on the server's machine, if it differs from the one here.",
        identity=False,
    )
    server_timeout_s: float = option(
        120.0, help="Seconds after which a request to the server is sent again.", gt=0, identity=False
    )
    server_patience_s: float = option(
        900.0,
        help="Seconds that the server may be away, e.g. to restart, before the command stops.",
        ge=0,
        identity=False,
    )
    server_connections: int = option(128, help="Most requests that the server is sent at once.", ge=1, identity=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.server_adapter_dir and self.adapter_dir is None:
            raise ConfigError("--server-adapter-dir is the server's path of --adapter-dir; give that too")
        return self


def open_local(opening: Opening, settings: object = None) -> Sampler:
    """A sampler of the player in this process, which is loaded if there is none. Raises CheckpointError."""
    from reflectkit.models.load import load_player
    from reflectkit.sampling.hf import LocalSampler

    player = opening.player or load_player(opening.checkpoint, "policy", device=opening.device)
    return LocalSampler(player, scorer=opening.scorer, team=opening.team, watch=opening.watch)


BACKENDS = {"local": Backend(NoSettings, open_local)}
"""The kinds of samplers by name, except servers."""


def is_server(name: str) -> bool:
    """Whether `name` is a server, e.g. "vllm:http://localhost:8000"."""
    return name.partition(":")[0] in KEYS and ":" in name


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
