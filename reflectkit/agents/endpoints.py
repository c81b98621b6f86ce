"""Where a chat teacher is asked: OpenAI, Azure, or any server with the same protocol. Keys come from the environment alone."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from reflectkit.core.errors import ConfigError, ReflectkitError

THINKING = ("o1", "o3", "o4", "gpt-5")
KEYS = {"openai": "OPENAI_API_KEY", "azure": "AZURE_OPENAI_API_KEY", "local": "LOCAL_API_KEY"}


class ApiError(ReflectkitError):
    """The server cannot be used: not reached, no key, no such model, or it keeps failing."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask. kind: "openai", "azure" or "local". model: name, or Azure deployment. base_url: of a compatible server."""

    kind: str
    model: str
    base_url: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.model}"

    @property
    def thinks(self) -> bool:
        """Whether the model, by its name, writes tokens unseen before it answers; such models take no temperature."""
        name = self.model.rpartition("/")[2]
        return name.startswith(THINKING) and not name.startswith("gpt-5-chat")


def parse_endpoint(text: str, base_url: str | None, flag: str = "--teacher", alone: str = "oracle, ") -> Endpoint:
    """The endpoint of a --teacher, or of another `flag`: `openai:MODEL`, `azure:DEPLOYMENT` or `local:MODEL`. Raises
    ConfigError. alone: what else the flag takes, for the message.
    """
    kind, _, model = text.partition(":")
    if kind not in KEYS or not model:
        raise ConfigError(f"{flag} {text!r}: write {alone}openai:MODEL, azure:DEPLOYMENT or local:MODEL")
    if base_url is None:
        return Endpoint(kind, model, "http://localhost:1234/v1" if kind == "local" else None)
    try:
        parts = urlsplit(base_url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError:
        port_is_fine = False
    if not port_is_fine or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--base-url {base_url.rpartition('@')[2]!r}: write one like http://localhost:1234/v1")
    if parts.username or parts.password or parts.query:
        raise ConfigError(f"--base-url must not hold a user, key or query; put the key in the environment as {KEYS[kind]}")
    return Endpoint(kind, model, base_url)


def key_of(endpoint: Endpoint) -> str:
    """The key from the environment; "" for a local server without one. Raises ConfigError where one is needed."""
    key = os.environ.get(KEYS[endpoint.kind], "")
    if not key and endpoint.kind != "local":
        raise ConfigError(f"{endpoint} needs a key: export {KEYS[endpoint.kind]}=…")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ConfigError(f"{KEYS[endpoint.kind]} holds spaces around the key, or characters that no key has; set it again")
    return key


def connect(endpoint: Endpoint) -> Any:
    """The package's client, without retries and limits on time of its own.

    Raises
    ------
    ConfigError: a key or an address is missing; ApiError: nothing listens at a local server's.
    """
    import openai

    key = key_of(endpoint)
    pool = openai.DefaultAsyncHttpxClient(follow_redirects=False)  # a key is for the address that was given
    options: dict[str, Any] = {"max_retries": 0, "timeout": None, "http_client": pool}
    if endpoint.kind == "local":
        _knock(str(endpoint.base_url))
        return openai.AsyncOpenAI(api_key=key or "none", base_url=endpoint.base_url, **options)
    if endpoint.kind == "openai":
        return openai.AsyncOpenAI(api_key=key, base_url=endpoint.base_url or "https://api.openai.com/v1", **options)
    address = endpoint.base_url or os.environ.get("AZURE_OPENAI_ENDPOINT", "")
    if not address:
        raise ConfigError(
            f"{endpoint} needs an address: export AZURE_OPENAI_ENDPOINT=https://….openai.azure.com, or give --base-url"
        )
    version = os.environ.get("OPENAI_API_VERSION", "2024-10-21")
    return openai.AsyncAzureOpenAI(api_key=key, azure_endpoint=address, api_version=version, **options)


def _knock(base_url: str) -> None:
    """Raises ApiError at once where nothing listens, instead of after all the retries."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), timeout=10).close()
    except OSError as error:
        raise ApiError(
            f"nothing listens at {base_url} ({error.strerror or error}); start the server, or give --base-url"
        ) from None


def secrets() -> tuple[str, ...]:
    """The keys that are set, which no text may hold."""
    return tuple(value for name in KEYS.values() if len(value := os.environ.get(name, "")) > 3)
