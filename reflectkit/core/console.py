"""How a stage reports progress and asks questions without printing: progress bars, lines of text, and prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Bar(Protocol):
    """One progress bar. `advance` moves it by `amount` and shows `figures` (name → value) next to it."""

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Move by `amount`."""
        ...


class Progress(Protocol):
    """Receives bars and lines of text. The command line shows them; tests and libraries pass `Quiet()`."""

    def bar(self, title: str, total: int, done: int = 0) -> AbstractContextManager[Bar]:
        """A bar of `total` that starts at `done`; it disappears when the context ends."""
        ...

    def news(self, text: str) -> None:
        """One line of text."""
        ...

    def show(self, text: str) -> None:
        """Text to read, of one or several lines: wrapped at words where they are too long for the terminal."""
        ...

    @property
    def attended(self) -> bool:
        """Whether a person can answer questions; False if answers come from a file or nowhere."""
        ...

    def ask(self, question: str) -> str | None:
        """The line entered in reply; None at the end of the input."""
        ...


class Quiet:
    """Shows nothing and answers nothing."""

    def advance(self, amount: int = 1, **figures: float) -> None:
        """Nothing to show."""

    @contextmanager
    def bar(self, title: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A bar that shows nothing."""
        yield self

    def news(self, text: str) -> None:
        """Nothing to show."""

    def show(self, text: str) -> None:
        """Nothing to show."""

    @property
    def attended(self) -> bool:
        """Nobody can answer."""
        return False

    def ask(self, question: str) -> str | None:
        """No answer."""
        return None
