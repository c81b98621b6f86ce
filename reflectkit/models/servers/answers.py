"""How answers of inference servers are checked, and what an error says that a user can mend."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reflectkit.core.errors import CheckpointError, ConfigError
from reflectkit.models.servers.protocols import FLOOR, Drawn, Weights
from reflectkit.models.servers.wire import GoneError, RefusedError, Wire

LEAST_DRAWN = math.log(2.0**-149)
"""Log-probability of float32's smallest number, -103.3: what is less likely has probability 0, and is never drawn."""
ROUNDING = 1e-4
"""How far above 0 rounding may lift a log-probability."""
SURPLUS = 1e-2
"""How far above 1 rounding may lift the sum of a distribution's probabilities."""


def scores(values: Mapping[int, Any], url: str) -> dict[int, float]:
    """The log-probabilities of different tokens in one place. Raises ConfigError if they are none."""
    result = {token: _logprob(value, FLOOR, url) for token, value in values.items()}
    total = math.fsum(map(math.exp, result.values()))
    if total > 1 + SURPLUS:
        raise wrong(url, f"log-probabilities of {len(result)} tokens whose probabilities add up to {total:.4g}")
    return result


def text(drawn: Drawn, stop_ids: frozenset[int], limit: int, vocabulary: int, url: str) -> Drawn:
    """`drawn`. Raises ConfigError unless it is a text of at most `limit` tokens, each of the `vocabulary` (its size)
    and with the log-probability of a token that can be drawn, and ends where a stop token does.
    """
    ids = drawn.token_ids
    if len(ids) != len(drawn.logprobs):
        raise wrong(url, f"{len(ids)} tokens with {len(drawn.logprobs)} log-probabilities")
    if not 1 <= len(ids) <= limit:
        raise wrong(url, f"{len(ids)} tokens where 1 to {limit} were asked for")
    for one in ids:
        if type(one) is not int or not 0 <= one < vocabulary:
            raise wrong(url, f"the token {one!r:.40}, but the model's are 0 to {vocabulary - 1}")
    early = stop_ids.intersection(ids[:-1])
    if early:
        raise wrong(url, f"more tokens after the stop token {min(early)}")
    return replace(drawn, logprobs=tuple(_logprob(value, LEAST_DRAWN, url) for value in drawn.logprobs))


def _logprob(value: Any, least: float, url: str) -> float:
    """The JSON value as a log-probability. Raises ConfigError if it is not a number from `least` to 0."""
    if type(value) not in (int, float) or not least <= value <= ROUNDING:
        raise wrong(url, f"the log-probability {value!r:.40}, which is no number from {least:.0f} to 0")
    return float(value)


def wrong(url: str, what: str) -> ConfigError:
    """The error for an answer that no server gives that works."""
    return ConfigError(f"{url} answered with {what}; use another version of the server, or sample in this process")


async def known(wire: Wire, path: str, kind: str) -> Any:
    """The JSON value at `path`, which a server of this `kind` has. Raises ConfigError."""
    try:
        return await wire.get(path, patient=False)
    except RefusedError as error:
        if error.status in (401, 403):
            raise ConfigError(f"{wire.url} refuses the key ({error.reason}); export the right one") from None
        raise other_server(wire.url, kind) from None


def listed(models: Any, url: str, kind: str) -> list[dict[str, Any]]:
    """The entries of `/v1/models`. Raises ConfigError if it does not list models."""
    data = models.get("data") if isinstance(models, dict) else None
    if not isinstance(data, list) or not all(isinstance(one, dict) and "id" in one for one in data):
        raise other_server(url, kind)
    return data


def other_server(url: str, kind: str) -> ConfigError:
    """The error for an address where something else answers."""
    return ConfigError(f"{url} answers, but is not a server of {kind}; correct the address or the kind of server")


async def decoded(wire: Wire, body: Mapping[str, Any], field: str) -> str:
    """The text that `/detokenize` returns in `field`. Raises ConfigError if it returns none."""
    try:
        answer = await wire.post("/detokenize", body, patient=False)
    except RefusedError as error:
        raise ConfigError(
            f"{wire.url} does not decode the policy's tokens ({error.reason}), so its tokenizer cannot be compared;"
            " serve the policy's own base, with its tokenizer"
        ) from None
    text = answer.get(field) if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise ConfigError(f"{wire.url}/detokenize does not answer with a text but {answer!r:.100}; use a newer server")
    return text


async def unload(wire: Wire, path: str, name: str) -> None:
    """Have the server forget adapter `name`."""
    with contextlib.suppress(RefusedError, GoneError):  # it was restarted, or dropped it
        await wire.post(path, {"lora_name": name}, patient=False, final=(500, 501))


def no_logprobs(url: str, advice: str) -> CheckpointError:
    """The error for an answer without the log-probabilities that were asked for."""
    return CheckpointError(f"{url} does not return the log-probabilities that were asked for; {advice}")


def not_loaded(url: str, weights: Weights, error: RefusedError, advice: str) -> ConfigError:
    """The error for weights that the server refused to load. advice: how it is started to load them."""
    what = f"adapter {weights.path}" if weights.adapter else f"weights {weights.path}"
    if error.status in (404, 405) and "not" in error.reason.lower() and weights.path not in error.reason:
        return ConfigError(f"{url} does not load adapters; start it with: {advice}")
    return ConfigError(
        f"{url} cannot load the {what}: {error.reason}; it must see that folder and be started with: {advice}"
    )
