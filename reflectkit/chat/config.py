"""Chat and decision models: their endpoints, with keys from the environment alone, prices,
settings, and what calls would cost.

An endpoint is OpenAI, Azure, or any server with their protocol; of a decision model, also one with
System One's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from reflectkit.config import Config, Rule, option
from reflectkit.console import Table
from reflectkit.errors import ConfigError, ReflectkitError
from reflectkit.keys import check_address, header_text

ORACLE = "oracle"
HISTORY_TOKENS = 4000  # of the earlier turns in a request, approximately
HISTORY_HELP = (
    "Approximate tokens of earlier turns shown to a chat model: the first turn, and as many of"
    " the newest as fit."
)
OF_CHAT_MODELS = ("base_url", "max_cost_usd", "price_in", "price_out", "dry_run")
"""Settings that do nothing where no chat model is asked."""


KEYS = {"openai": "OPENAI_API_KEY", "azure": "AZURE_OPENAI_API_KEY", "local": "LOCAL_API_KEY"}
DECISION_KEYS = {"decisions": "OPENAI_API_KEY", "systemone": "TYPESAFE_API_KEY"}
"""The same for decision models, by their protocol. A key is needed only at the protocol's own
address.
"""
OPENAI, LOCAL = "https://api.openai.com/v1", "http://localhost:1234/v1"
SYSTEM_ONE = "https://api.typesafe.ai/v1"
ADDRESS = "OPENAI_BASE_URL"
"""The variable with the address of openai: models, unless a flag gives one."""
AT_OPENAI = ("openai", "decisions")
"""The kinds that OpenAI serves."""
RESUMES = "run the same command again, it resumes from here"


class ApiError(ReflectkitError):
    """The server cannot be used: not reached, no key, no such model, or it keeps failing."""


class NoAccessError(ApiError):
    """No request will be answered until the user changes the key, the credit, the model or the
    address.
    """


class NoAnswerError(Exception):
    """A call that got no answer.

    fatal: the message if no call gets an answer. refused: whether the server rejected the request
    itself.
    """

    def __init__(
        self,
        reason: str,
        fatal: str,
        *,
        refused: bool = False,
    ) -> None:
        super().__init__(reason)
        self.fatal, self.refused = fatal, refused


@dataclass(frozen=True, slots=True)
class Endpoint:
    """kind: "openai", "azure" or "local"; of a decision model "decisions" or "systemone". model:
    name, or Azure deployment. base_url: of a compatible server.
    """

    kind: str
    model: str
    base_url: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.model}"

    @property
    def decides(self) -> bool:
        """Whether it answers questions with probabilities, and writes nothing."""
        return self.kind in DECISION_KEYS

    @property
    def key_name(self) -> str:
        """The environment variable with its key."""
        return (KEYS | DECISION_KEYS)[self.kind]

    @property
    def thinks(self) -> bool:
        """Whether the model, by its name, writes hidden tokens before it answers; such models take
        no temperature.
        """
        if self.decides:
            return False
        name = self.model.rpartition("/")[2]
        return name.startswith(("o1", "o3", "o4", "gpt-5")) and not name.startswith("gpt-5-chat")


def example_model(text: str) -> str:
    """The name of a chat model in an example: `text` if it may be one, else MODEL.

    >>> example_model("gpt-4o-mini"), example_model("openai"), example_model("results/maze")
    ('gpt-4o-mini', 'MODEL', 'MODEL')
    """
    is_name = text and text not in KEYS | DECISION_KEYS and not set(text) & set(":/ ")
    return text if is_name else "MODEL"


def parse_endpoint(
    text: str,
    base_url: str | None,
    flag: str = "--teacher",
    alternatives: str = "oracle, ",
    address: str = "--base-url",
    *,
    decides: bool = False,
) -> Endpoint:
    """The endpoint that `flag` names: `openai:MODEL`, `azure:DEPLOYMENT` or `local:MODEL`. Raises
    ConfigError.

    alternatives: what else the flag takes, and address: the flag of `base_url`, for the message.
    decides: whether it may be a decision model, `decisions:MODEL` or `systemone:MODEL`.
    """
    # 1. What it is
    kind, _, model = text.partition(":")
    if kind not in (KEYS | DECISION_KEYS if decides else KEYS) or not model:
        name = example_model(text)
        raise ConfigError(
            f"{flag} {text!r}: write {alternatives}openai:{name}, azure:DEPLOYMENT or local:{name}"
        )
    # 2. Where it is
    if base_url is None and kind in AT_OPENAI:
        base_url, address = _address_in_environment(), ADDRESS
    if base_url is not None:
        check_address(address, base_url, (KEYS | DECISION_KEYS)[kind], LOCAL)
    return Endpoint(kind, model, base_url or (LOCAL if kind == "local" else None))


def address_in_use(endpoints: Iterable[Endpoint]) -> dict[str, str]:
    """OPENAI_BASE_URL, if one of `endpoints` has its address from there; else nothing."""
    address = _address_in_environment()
    if address is None:
        return {}
    for endpoint in endpoints:
        if endpoint.kind in AT_OPENAI and endpoint.base_url == address:
            return {ADDRESS: address}
    return {}


def _address_in_environment() -> str | None:
    """The address of openai: models from the environment; None for OpenAI's own."""
    address = os.environ.get(ADDRESS, "").strip()
    return address if address.rstrip("/") not in ("", OPENAI) else None


def key_of(endpoint: Endpoint) -> str:
    """The key from the environment; "" for a local server without one. Raises ConfigError if it is
    missing.
    """
    key = header_text(endpoint.key_name)
    # Other servers of decision models may need none
    is_other_server = endpoint.decides and endpoint.base_url is not None
    if not key and endpoint.kind != "local" and not is_other_server:
        raise ConfigError(f"{endpoint} needs a key: export {endpoint.key_name}=…")
    return key


TOKENS = 1000
"""Size of the request whose price is looked up. Some models cost more per token beyond about
200,000, which no prompt of ours reaches.
"""


class BudgetSpentError(ReflectkitError):
    """Calls stopped at the budget; answers so far are kept."""


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens read and written. known: False if the prices are unknown, and
    therefore 0.
    """

    read: float
    write: float
    known: bool = True

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Cost in US dollars."""
        return (prompt_tokens * self.read + completion_tokens * self.write) / 1e6


def prices_of(
    kind: str,
    model: str,
    read: float | None,
    write: float | None,
) -> Prices:
    """Today's prices of a model from the genai-prices package, unless `read` and `write` are
    given. Local models are free. Raises ConfigError.
    """
    if (read is None) != (write is None):
        raise ConfigError(
            "--price-in and --price-out go together, in US dollars for a million tokens"
        )
    if read is not None and write is not None:
        return Prices(read, write)
    if kind == "local":
        return Prices(0.0, 0.0)
    from genai_prices import Usage, calc_price

    try:
        # 1,000 tokens each way, scaled to a million
        provider = "openai" if kind in AT_OPENAI else kind
        price = calc_price(
            Usage(input_tokens=TOKENS, output_tokens=TOKENS),
            model,
            provider_id=provider,
        )
    except LookupError:
        return Prices(0.0, 0.0, known=False)
    read = float(price.input_price * 1_000_000 / TOKENS)
    write = float(price.output_price * 1_000_000 / TOKENS)
    # Without one of them it is no chat model
    if not read or not write:
        return Prices(0.0, 0.0, known=False)
    return Prices(read, write)


class ChatConfig(Config):
    """Chat models: how they are asked."""

    base_url: str | None = option(
        None,
        help="URL of a server with OpenAI's protocol; default: for local: http://localhost:1234/v1,"
        " for openai: OPENAI_BASE_URL, or OpenAI's own.",
    )
    concurrency: int = option(8, help="Number of concurrent requests.", ge=1, identity=False)
    max_answer_tokens: int | None = option(
        None,
        help="Maximum tokens of an answer, reasoning included; default: what the answer needs, and"
        " 4,000 more for local models and those of OpenAI that think.",
        ge=1,
    )
    timeout_s: float = option(
        120.0,
        help=(
            "Timeout of a whole call in seconds, to its last byte; then it is retried, at most"
            " twice."
        ),
        gt=0,
        identity=False,
    )
    max_cost_usd: float | None = option(
        None,
        help=(
            "Stop cleanly before this budget is exceeded; what the model's answers in the journal"
            " cost counts."
        ),
        gt=0,
        identity=False,
    )
    price_in: float | None = option(
        None,
        help="US dollars per million prompt tokens, for models with an unknown price.",
        ge=0,
        identity=False,
    )
    price_out: float | None = option(
        None,
        help="US dollars per million completion tokens, for models with an unknown price.",
        ge=0,
        identity=False,
    )
    dry_run: bool = option(
        False,
        help=(
            "Show the expected calls, tokens and dollars, and a bound of the cost; send no"
            " requests."
        ),
        identity=False,
    )

    def check_budget(self, endpoint: Endpoint) -> None:
        """Raises ConfigError if the budget cannot be enforced for `endpoint`."""
        if self.max_cost_usd is not None and not self.prices_at(endpoint).known:
            raise ConfigError(
                f"--max-cost-usd needs the price of {endpoint}: give --price-in and --price-out"
            )

    def prices_at(self, endpoint: Endpoint) -> Prices:
        """The token prices of `endpoint`. Raises ConfigError."""
        return prices_of(endpoint.kind, endpoint.model, self.price_in, self.price_out)


class DecisionConfig(Config):
    """Decision models: how they are asked."""

    plain_questions: bool = option(
        False,
        help=(
            "Ask decision models without the environment's rules, as policies that were trained"
            " here are asked."
        ),
    )


class TeacherConfig(Config):
    """Teacher: who demonstrates, comments or asks questions."""

    name: str = option(
        ORACLE,
        help="oracle (no network), openai:MODEL, azure:DEPLOYMENT or local:MODEL.",
        name="teacher",
        essential=True,
    )
    chat: ChatConfig = ChatConfig()

    @override
    def contradictions(self) -> Iterator[Rule]:
        if not self.is_oracle:
            self.chat.check_budget(self.endpoint)
        yield from ()

    @property
    def is_oracle(self) -> bool:
        """Whether it is the oracle, which is free."""
        return self.name == ORACLE

    @property
    def endpoint(self) -> Endpoint:
        """The teacher's endpoint. Raises ConfigError."""
        return parse_endpoint(self.name, self.chat.base_url)

    @property
    @override
    def environment(self) -> dict[str, str]:
        return address_in_use([] if self.is_oracle else [self.endpoint])

    @property
    def prices(self) -> Prices:
        """The teacher's token prices. Raises ConfigError."""
        return self.chat.prices_at(self.endpoint)

    @property
    def model_name(self) -> str:
        """The teacher's name in records."""
        return ORACLE if self.is_oracle else self.endpoint.model


def free_estimate() -> tuple[dict[str, Any], tuple[Path, ...], tuple[Table, ...]]:
    """Figures, outputs and tables of a dry run of the oracle, which is free."""
    names = ("calls", "prompt tokens", "completion tokens", "US dollars")
    rows = tuple((name, "0", "0") for name in names)
    figures = {"calls": 0, "prompt_tokens": 0, "completion_tokens": 0, "usd": 0.0, "most_usd": 0.0}
    return figures, (), (Table("Estimate for the oracle", ("what", "expected", "at most"), rows),)
