"""Bodies of requests in both protocols: what is read is exactly what was sent, or the request is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

MOST_ERRORS = 20  # of a request that are reported


class InvalidRequestError(Exception):
    """A request that breaks the protocol. detail: its errors, each with the place (`loc`), message and kind."""

    def __init__(self, detail: Sequence[dict[str, Any]]) -> None:
        first = detail[0]
        place = ".".join(map(str, first["loc"][1:]))
        super().__init__(f"{place}: {first['msg']}" if place else first["msg"])
        self.detail = list(detail)


def invalid(
    message: str,
    kind: str,
    *place: str | int,
) -> InvalidRequestError:
    """The error of a request for one reason. place: keys and indices that lead to what is wrong in the body."""
    return InvalidRequestError([{"loc": ["body", *place], "msg": message, "type": kind}])


Body = TypeVar("Body", bound=BaseModel)


def read_body(kind: type[Body], body: bytes) -> Body:
    """The request in `body`.

    Raises InvalidRequestError: an object has a key twice, a field is missing or wrong, or it is no JSON. NaN, half a
    surrogate pair and a number that no float holds are none.
    """
    # 1. JSON, which pydantic reads to 200 levels, and Python's reader checks for what that lets pass
    try:
        value = from_json(body, allow_inf_nan=False)
        json.loads(body, object_pairs_hook=_unique, parse_float=_finite)
    except ValueError as error:
        raise invalid(str(error), "json_invalid") from None

    # 2. The request
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        detail = []
        for each in errors[:MOST_ERRORS]:
            place = ["body", *each["loc"]]
            detail.append({"loc": place, "msg": each["msg"], "type": each["type"]})
        raise InvalidRequestError(detail) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {twice!r:.80} twice")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text:.80} is too large")
    return number
