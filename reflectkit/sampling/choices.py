"""Samplers by name: `local`, `vllm:URL`, `sglang:URL`, or the user's own `package.module:NAME`. Imports no torch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from reflectkit.config import NoSettings
from reflectkit.errors import ConfigError
from reflectkit.registry import resolve
from reflectkit.sampling.base import Backend, Opening, Sampler
from reflectkit.sampling.settings import ServerSettings, checked_address, is_server


def open_local(opening: Opening, settings: object = None) -> Sampler:
    """A sampler of the player in this process, which is loaded if there is none. Raises CheckpointError."""
    from reflectkit.models.load import load_player
    from reflectkit.sampling.hf import LocalSampler

    player = opening.player or load_player(opening.checkpoint, "policy", device=opening.device)
    return LocalSampler(player, scorer=opening.scorer, team=opening.team, watch=opening.watch)


BACKENDS = {"local": Backend(NoSettings, open_local)}
"""The kinds of samplers by name, besides servers."""


def backend(name: str) -> Backend:
    """The kind of sampler `name`. Raises UnknownNameError, and ConfigError for what is not a Backend."""
    if is_server(name):
        return _server(name)
    row = resolve("sampler", name, BACKENDS)
    if not isinstance(row, Backend):
        raise ConfigError(f"--sampler {name} is not a reflectkit.sampling.base.Backend but {row!r:.80}")
    return row


@lru_cache(maxsize=16)
def _server(name: str) -> Backend:
    """The server `name`, "vllm:URL" or "sglang:URL". Raises ConfigError if its address is not one."""
    kind, _, address = name.partition(":")
    checked = checked_address(kind, address)

    def opened(opening: Opening, settings: Any) -> Sampler:
        from reflectkit.sampling.server import open_server

        return open_server(kind, checked, opening, settings)

    return Backend(ServerSettings, opened, remote=True)
