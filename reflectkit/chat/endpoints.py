"""Endpoints of chat models: OpenAI, Azure, or any server with their protocol. Keys come from the environment alone."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.keys import PLAIN, header_text

KEYS = {"openai": "OPENAI_API_KEY", "azure": "AZURE_OPENAI_API_KEY", "local": "LOCAL_API_KEY"}
OPENAI, LOCAL = "https://api.openai.com/v1", "http://localhost:1234/v1"
ADDRESS = "OPENAI_BASE_URL"
"""The variable with the address of openai: models, unless a flag gives one."""
NETWORK = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


class ApiError(ReflectkitError):
    """The server cannot be used: not reached, no key, no such model, or it keeps failing."""


class NoAccessError(ApiError):
    """No request will be answered until the user changes the key, the credit, the model or the address."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """kind: "openai", "azure" or "local". model: name, or Azure deployment. base_url: of a compatible server."""

    kind: str
    model: str
    base_url: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.model}"

    @property
    def thinks(self) -> bool:
        """Whether the model, by its name, writes hidden tokens before it answers; such models take no temperature."""
        name = self.model.rpartition("/")[2]
        return name.startswith(("o1", "o3", "o4", "gpt-5")) and not name.startswith("gpt-5-chat")


def parse_endpoint(
    text: str, base_url: str | None, flag: str = "--teacher", alone: str = "oracle, ", address: str = "--base-url"
) -> Endpoint:
    """The endpoint that `flag` names: `openai:MODEL`, `azure:DEPLOYMENT` or `local:MODEL`. Raises ConfigError.

    alone: what else the flag takes, and address: the flag of `base_url`, for the message.
    """
    kind, _, model = text.partition(":")
    if kind not in KEYS or not model:
        raise ConfigError(f"{flag} {text!r}: write {alone}openai:MODEL, azure:DEPLOYMENT or local:MODEL")
    if base_url is None and kind == "openai":
        base_url, address = _address_in_environment(), ADDRESS
    if base_url is not None:
        _check_address(address, base_url, KEYS[kind])
    return Endpoint(kind, model, base_url or (LOCAL if kind == "local" else None))


def address_in_use(endpoints: Iterable[Endpoint]) -> dict[str, str]:
    """OPENAI_BASE_URL, if one of `endpoints` has its address from there; else nothing."""
    address = _address_in_environment()
    if address is None or not any(endpoint.kind == "openai" and endpoint.base_url == address for endpoint in endpoints):
        return {}
    return {ADDRESS: address}


def _address_in_environment() -> str | None:
    """The address of openai: models from the environment; None for OpenAI's own."""
    address = os.environ.get(ADDRESS, "").strip()
    return address if address.rstrip("/") not in ("", OPENAI) else None


def _check_address(name: str, address: str, key: str) -> None:
    """Raises ConfigError, without showing a password, if `address`, of flag or variable `name`, is not one of HTTP."""
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{name} {address.rpartition('@')[2]!r}: write one like {LOCAL}")
    if parts.username or parts.password or parts.query:
        raise ConfigError(f"{name} must not hold a user, key or query; put the key in the environment as {key}")


def key_of(endpoint: Endpoint) -> str:
    """The key from the environment; "" for a local server without one. Raises ConfigError if it is missing."""
    key = header_text(KEYS[endpoint.kind])
    if not key and endpoint.kind != "local":
        raise ConfigError(f"{endpoint} needs a key: export {KEYS[endpoint.kind]}=…")
    return key


def connect(endpoint: Endpoint, on_response: Callable[[Any], Awaitable[None]]) -> Any:
    """openai's client, without its retries and timeouts. on_response: called with each response before openai reads it.

    Raises
    ------
    ConfigError: a key or an address is missing, or the environment's proxy or certificates cannot be used; ApiError:
    no local server listens.
    """
    import httpx2
    import openai

    key, address = key_of(endpoint), endpoint.base_url
    try:
        pool = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,  # a key is for the address that was given
            event_hooks={"response": [on_response]},
        )
    except (ImportError, ValueError, httpx2.InvalidURL, OSError) as error:
        names = " and ".join(name for name in NETWORK if name in os.environ or name.lower() in os.environ)
        raise ConfigError(
            f"the environment's {names} cannot be used to connect ({type(error).__name__}); correct or unset it"
        ) from None
    client: Any
    options: dict[str, Any] = {"max_retries": 0, "timeout": None, "http_client": pool, "default_headers": PLAIN}
    if endpoint.kind == "azure":
        source = "--base-url" if address else "AZURE_OPENAI_ENDPOINT"
        address = address or os.environ.get(source, "")
        if not address:
            raise ConfigError(
                f"{endpoint} needs an address: export {source}=https://….openai.azure.com, or give --base-url"
            )
        _check_address(source, address, KEYS[endpoint.kind])
        version = os.environ.get("OPENAI_API_VERSION", "2024-10-21")
        client = openai.AsyncAzureOpenAI(api_key=key, azure_endpoint=address, api_version=version, **options)
    else:
        if endpoint.kind == "local":
            _knock(str(address))
        client = openai.AsyncOpenAI(api_key=key or "none", base_url=address or OPENAI, **options)
    account = [header_text(name) or None for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID")]
    client.organization, client.project = account if endpoint.kind == "openai" else (None, None)
    return client


def _knock(base_url: str) -> None:
    """Raises ApiError at once if no server listens, instead of after all the retries."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), timeout=10).close()
    except OSError as error:
        raise ApiError(
            f"nothing listens at {base_url} ({error.strerror or error}); start the server, or give --base-url"
        ) from None
