"""Settings of a sampler that asks an inference server. Imports neither torch nor an HTTP client."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from reflectkit.config import Config, option
from reflectkit.errors import ConfigError

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


def is_server(name: str) -> bool:
    """Whether `name` is a server, e.g. "vllm:http://localhost:8000"."""
    return name.partition(":")[0] in KEYS and ":" in name
