"""How answers of inference servers are checked, and what an error says that a user can mend."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from reflectkit.core.errors import CheckpointError, ConfigError, EnvironmentFailure
from reflectkit.models.servers.protocols import Drawn, Weights
from reflectkit.models.servers.wire import GoneError, RefusedError, Wire


def checked(drawn: Drawn, url: str) -> Drawn:
    """`drawn`. Raises EnvironmentFailure unless every token has a finite log-probability."""
    if (
        not drawn.token_ids
        or len(drawn.token_ids) != len(drawn.logprobs)
        or not all(map(math.isfinite, drawn.logprobs))
    ):
        raise EnvironmentFailure(f"{url}: {len(drawn.token_ids)} tokens with log-probabilities {drawn.logprobs!r:.100}")
    return drawn


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
