"""Token prices: OpenAI's of 2025. `--price-in` and `--price-out` override this table."""

from __future__ import annotations

from dataclasses import dataclass

from reflectkit.core.errors import ConfigError

USD_PER_MILLION = {
    "gpt-3.5-turbo": (0.50, 1.50),
    "gpt-4": (30.0, 60.0),
    "gpt-4-turbo": (10.0, 30.0),
    "gpt-4.1": (2.0, 8.0),
    "gpt-4.1-mini": (0.40, 1.60),
    "gpt-4.1-nano": (0.10, 0.40),
    "gpt-4o": (2.50, 10.0),
    "gpt-4o-mini": (0.15, 0.60),
    "gpt-5": (1.25, 10.0),
    "gpt-5-mini": (0.25, 2.0),
    "gpt-5-nano": (0.05, 0.40),
    "o3": (2.0, 8.0),
    "o4-mini": (1.10, 4.40),
}
"""(prompt, completion) by model; dated versions cost the same."""


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
    """The prices of a model; `read` and `written`, if both are given, override the table. Local models are free.
    Raises ConfigError.
    """
    if (read is None) != (written is None):
        raise ConfigError("--price-in and --price-out go together, in US dollars for a million tokens")
    if read is not None and written is not None:
        return Prices(read, written)
    if kind == "local":
        return Prices(0.0, 0.0)
    matching = [
        name for name in USD_PER_MILLION if model == name or model.startswith((f"{name}-20", f"{name}-0", f"{name}-1"))
    ]
    return Prices(*USD_PER_MILLION[max(matching, key=len)]) if matching else Prices(0.0, 0.0, known=False)
