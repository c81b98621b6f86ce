"""A chat model that an env asks: its client opens with the first question, and its answers are kept in a journal."""

from __future__ import annotations

import atexit
import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from reflectkit.agents.budget import Budget, BudgetSpentError
from reflectkit.agents.client import ChatClient, open_client
from reflectkit.agents.endpoints import ApiError, Endpoint, NoAccessError
from reflectkit.agents.exchange import Request
from reflectkit.agents.journal import JournalHeldError
from reflectkit.agents.prices import prices_of
from reflectkit.core.errors import EnvironmentFailure

HOPELESS = 3  # failures in a row; those of calls that were under way together are one
MOST_PROCESSES = 256  # that ask at the same time

Value = TypeVar("Value")


class EnvAsker:
    """Asks `endpoint`; a subclass says as what. The same question is asked once, as `journal` keeps the answers.

    concurrency: calls at once, of all episodes together. budget_usd: the most that may be spent, in US dollars, by all
    processes together; calls that several of them make at the same moment may exceed it.
    """

    role: ClassVar[str]
    """Who the model is to the env, in errors, and the flag that names it."""
    temperature: ClassVar[float] = 0.0

    def __init__(
        self,
        endpoint: Endpoint,
        journal: Path,
        timeout_s: float = 120.0,
        concurrency: int = 8,
        budget_usd: float | None = None,
    ) -> None:
        self.endpoint, self.journal, self.timeout_s, self.concurrency = endpoint, journal, timeout_s, concurrency
        self.budget = Budget(budget_usd)
        self._client: ChatClient | None = None
        self._failures = 0
        self._stack = contextlib.ExitStack()
        atexit.register(self.close)

    async def ask(self, requests: Sequence[Request], parse: Callable[[str], Value]) -> list[Value]:
        """The answers, as `parse` reads them.

        Raises
        ------
        EnvironmentFailure: the server cannot be used, after its bounded retries, or gives nothing usable. ApiError:
        three of that came one after the other; NoAccessError: the key, the credit, the model or the address must be
        put right first. BudgetSpentError: the budget does not allow the next call.
        """
        client, failures = self._opened(), self._failures
        client.catch_up(self._journals_of_others(client.journal.path))
        try:
            outcomes = await client.ask_all(requests, lambda _, text: parse(text))
        except ApiError as error:
            self._failures = max(self._failures, failures + 1)
            flag = f"--{self.role}-url"
            reason = f"the {self.role} {self.endpoint} cannot be asked: {str(error).replace('--base-url', flag)}"
            if isinstance(error, NoAccessError):
                raise NoAccessError(reason) from None
            if self._failures >= HOPELESS:
                raise ApiError(f"{reason} ({HOPELESS} times in a row)") from None
            raise EnvironmentFailure(reason) from None
        self._failures = 0
        answers = [outcome.value for outcome in outcomes if outcome.value is not None]
        if len(answers) < len(requests) and client.stopped:
            raise BudgetSpentError(
                f"the {self.role} {self.endpoint} may spend {self.budget.limit:g} US dollars, and the next call could"
                f" exceed that; raise --{self.role}-max-usd and run the same command again"
            )
        if len(answers) < len(requests):
            reason = next(outcome.rejected.explained for outcome in outcomes if outcome.rejected is not None)
            raise EnvironmentFailure(f"the {self.role} {self.endpoint} gave no usable answer: {reason}")
        return answers

    @property
    def usage(self) -> dict[str, float]:
        """What this process has asked until now, as `ChatClient.usage`; empty if nothing."""
        return self._client.usage if self._client else {}

    def close(self) -> None:
        """End the connection and let the journal go."""
        self._stack.close()
        self._client = None

    def _journals_of_others(self, own: Path) -> list[Path]:
        """The journals of other processes that ask the same, or did so earlier."""
        numbered = re.compile(rf"{re.escape(self.journal.stem)}(-\d+)?{re.escape(self.journal.suffix)}")
        files = self.journal.parent.iterdir()
        return sorted(path for path in files if path != own and numbered.fullmatch(path.name))

    def _opened(self) -> ChatClient:
        if self._client is None:
            self.journal.parent.mkdir(parents=True, exist_ok=True)
            prices = prices_of(self.endpoint.kind, self.endpoint.model, None, None)
            settings: dict[str, Any] = {
                "temperature": self.temperature,
                "timeout_s": self.timeout_s,
                "concurrency": self.concurrency,
                "budget": self.budget,
            }
            for number in range(MOST_PROCESSES):
                journal = self.journal.with_stem(f"{self.journal.stem}-{number}") if number else self.journal
                with contextlib.suppress(JournalHeldError):  # another process asks too; it has a journal of its own
                    self._client = self._stack.enter_context(open_client(self.endpoint, journal, prices, **settings))
                    break
            else:
                raise ApiError(f"{MOST_PROCESSES} processes hold a journal beside {self.journal}; end some")
        return self._client
