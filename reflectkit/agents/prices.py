"""Token prices, from the table in the genai-prices package. `--price-in` and `--price-out` override them."""

from __future__ import annotations

from dataclasses import dataclass

from reflectkit.core.errors import ConfigError

TOKENS = 1000
"""Size of the request whose price is looked up. Some models cost more per token beyond about 200,000, which no prompt
of ours reaches.
"""


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
    """Today's prices of a model; `read` and `written`, if both are given, override the table. Local models are free.
    Raises ConfigError.
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
