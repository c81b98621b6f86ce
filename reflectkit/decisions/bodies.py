"""Request bodies of both protocols: strict JSON, checked against the form of a request."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

MOST_ERRORS = 20
"""How many errors of a request are reported."""


class InvalidRequestError(Exception):
    """A request that breaks the protocol.

    detail: its errors, each with a place in the body (`loc`), a message (`msg`) and a kind
    (`type`).
    """

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
    """An error with one entry. place: keys and indices that lead to the wrong value in the body."""
    entry = {"loc": ["body", *place], "msg": message, "type": kind}
    return InvalidRequestError([entry])


Body = TypeVar("Body", bound=BaseModel)


def read_body(kind: type[Body], body: bytes) -> Body:
    """The request in `body`, an instance of `kind`.

    Raises InvalidRequestError if the body is not JSON, an object has a key twice, or a field is
    missing or wrong. NaN, half a surrogate pair and a number too large for a float are not JSON.
    """
    # 1. Parse the JSON: pydantic limits its depth to 200 levels, and Python's parser finds the
    # repeated keys and the large numbers that pydantic accepts
    try:
        value = from_json(body, allow_inf_nan=False)
        json.loads(body, object_pairs_hook=_unique, parse_float=_finite)
    except ValueError as error:
        raise invalid(str(error), "json_invalid") from None

    # 2. Check its fields
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        detail = []
        for entry in errors[:MOST_ERRORS]:
            place = ["body", *entry["loc"]]
            detail.append({"loc": place, "msg": entry["msg"], "type": entry["type"]})
        raise InvalidRequestError(detail) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these (key, value) pairs. Raises ValueError if a key is there twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {twice!r:.80} twice")
    return value


def _finite(text: str) -> float:
    """The number in `text`. Raises ValueError if no float is that large."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text:.80} is too large")
    return number
