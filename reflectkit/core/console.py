"""What a stage may tell and ask while it works, without printing: bars with figures, lines of news, and questions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Bar(Protocol):
    """One bar. `advance` moves it by `amount` and shows `figures` (name → value) beside it."""

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Move by `amount`."""
        ...


class Progress(Protocol):
    """Where bars and news go; the command line shows them, tests and libraries pass `Quiet()`."""

    def bar(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Bar]:
        """A bar of `total`, of which `done` is behind already; it goes when the context ends."""
        ...

    def news(self, text: str) -> None:
        """One line of text."""
        ...

    @property
    def attended(self) -> bool:
        """Whether somebody sits there, who can be asked: False where the answers come from a file, or from nowhere."""
        ...

    def ask(self, question: str) -> str | None:
        """The line that is answered; None at the end of all answers."""
        ...


class Quiet:
    """Shows nothing, and nobody answers."""

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Nothing to show."""

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A bar that shows nothing."""
        yield self

    def news(self, text: str) -> None:
        """Nothing to tell."""

    @property
    def attended(self) -> bool:
        """Nobody sits there."""
        return False

    def ask(self, question: str) -> str | None:
        """Nobody answers."""
        return None
