"""Endpoints of chat models: OpenAI, Azure, or any server with their protocol. Keys come from the environment alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.keys import header_text

KEYS = {"openai": "OPENAI_API_KEY", "azure": "AZURE_OPENAI_API_KEY", "local": "LOCAL_API_KEY"}
OPENAI, LOCAL = "https://api.openai.com/v1", "http://localhost:1234/v1"
ADDRESS = "OPENAI_BASE_URL"
"""The variable with the address of openai: models, unless a flag gives one."""
RESUMES = "run the same command again, it resumes from here"


class ApiError(ReflectkitError):
    """The server cannot be used: not reached, no key, no such model, or it keeps failing."""


class NoAccessError(ApiError):
    """No request will be answered until the user changes the key, the credit, the model or the address."""


class NoAnswerError(Exception):
    """A call that got no answer.

    fatal: the message if no call gets an answer. refused: whether the server rejected the request itself.
    """

    def __init__(self, reason: str, fatal: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.fatal, self.refused = fatal, refused


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
        check_address(address, base_url, KEYS[kind])
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


def check_address(name: str, address: str, key: str) -> None:
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


TOKENS = 1000
"""Size of the request whose price is looked up. Some models cost more per token beyond about 200,000, which no prompt
of ours reaches.
"""


class BudgetSpentError(ReflectkitError):
    """Calls stopped at the budget; answers so far are kept."""


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens read and written. known: False if the prices are unknown, and therefore 0."""

    read: float
    written: float
    known: bool = True

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Cost in US dollars."""
        return (prompt_tokens * self.read + completion_tokens * self.written) / 1e6


def prices_of(kind: str, model: str, read: float | None, written: float | None) -> Prices:
    """Today's prices of a model from the genai-prices package, unless `read` and `written` are given. Local models are
    free. Raises ConfigError.
    """
    if (read is None) != (written is None):
        raise ConfigError("--price-in and --price-out go together, in US dollars for a million tokens")
    if read is not None and written is not None:
        return Prices(read, written)
    if kind == "local":
        return Prices(0.0, 0.0)
    from genai_prices import Usage, calc_price

    try:
        price = calc_price(Usage(input_tokens=TOKENS, output_tokens=TOKENS), model, provider_id=kind)
    except LookupError:
        return Prices(0.0, 0.0, known=False)
    read, written = (float(part * 1_000_000 / TOKENS) for part in (price.input_price, price.output_price))
    return Prices(read, written) if read and written else Prices(0.0, 0.0, known=False)  # not a chat model


@dataclass(slots=True)
class Budget:
    """A budget in US dollars that several clients may share."""

    limit: float | None = None
    """None: unlimited."""
    paid: float = 0.0
    """Total cost of the answers in their journals."""
    reserved: list[float] = field(default_factory=list)
    """Maximum cost of each call in flight."""
    margin: float = 1.0
    """The largest ratio so far of an actual cost to its expected maximum."""
    released: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set, and replaced, when a reservation ends."""

    @contextlib.asynccontextmanager
    async def reserve(self, max_cost: float) -> AsyncIterator[bool]:
        """Reserve `max_cost` dollars, times the margin, for a call; yields False if the remaining budget is too small.

        Waits if only the reservations of calls in flight prevent it, since most calls cost less than they reserve.
        """
        while self._fits(max_cost) and not self._fits(max_cost + sum(self.reserved)):
            await self.released.wait()
        if not self._fits(max_cost):
            yield False
            return
        self.reserved.append(max_cost)
        try:
            yield True
        finally:
            self.reserved.remove(max_cost)
            self.released.set()
            self.released = asyncio.Event()

    def pay(self, cost: float, max_cost: float) -> None:
        """Add the cost of a call whose maximum, by our count of its tokens, was `max_cost`."""
        self.paid += cost
        if cost > max_cost > 0:
            self.margin = max(self.margin, cost / max_cost)

    def _fits(self, cost: float) -> bool:
        return self.limit is None or self.paid + cost * self.margin <= self.limit
