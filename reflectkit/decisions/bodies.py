"""Request bodies of both protocols: strict JSON, checked against the form of a request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from reflectkit.jsonl import finite, unique_keys

MOST_ERRORS = 20
"""How many errors of a request are reported."""
LONGEST_MESSAGE = 500
"""Characters of an error, which may quote what was sent."""


class InvalidRequestError(Exception):
    """A request that breaks the protocol.

    detail: its errors, each with a place in the body (`loc`), a message (`msg`) and a kind
    (`type`).
    """

    def __init__(self, message: str, detail: Sequence[dict[str, Any]]) -> None:
        super().__init__(message)
        self.detail = list(detail)


def invalid(
    message: str,
    kind: str,
    *place: str | int,
) -> InvalidRequestError:
    """An error with one entry. place: keys and indices that lead to the wrong value in the body."""
    entry = {"loc": ["body", *place], "msg": message, "type": kind}
    return InvalidRequestError(_at(place, message), [entry])


Body = TypeVar("Body", bound=BaseModel)


def read_body(kind: type[Body], body: bytes) -> Body:
    """The request in `body`, an instance of `kind`.

    Raises InvalidRequestError if the body is not JSON, an object has a key twice, or a field is
    missing or wrong. NaN, half a surrogate pair and a number too large for a float are not JSON.
    """
    # 1. Parse the JSON: pydantic limits its depth to 200 levels, and Python's parser finds the
    # repeated keys and the large numbers that pydantic accepts
    parse_float = partial(finite, fault="the number {:.80} is too large")
    try:
        from_json(body, allow_inf_nan=False)
        json.loads(body, object_pairs_hook=unique_keys, parse_float=parse_float)
    except ValueError as error:
        raise invalid(str(error), "json_invalid") from None

    # 2. Check its fields
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        detail = []
        for entry in errors[:MOST_ERRORS]:
            place = ["body", *entry["loc"]]
            message = f"{entry['msg']:.{LONGEST_MESSAGE}}"
            detail.append({"loc": place, "msg": message, "type": entry["type"]})
        raise InvalidRequestError(fault_of(error, body), detail) from None


def refuse_repeated_keys(body: bytes) -> None:
    """Raises ValueError if an object in the JSON value `body` has a key twice."""
    json.loads(body, object_pairs_hook=unique_keys)


def fault_of(error: ValidationError, body: bytes) -> str:
    """What is wrong in `body`, after the keys and indices that lead to it."""
    # 1. Of a union, an error in the type that fits best: deep, and among few
    faults = error.errors(include_url=False)
    counts = Counter(fault["loc"][:-1] for fault in faults)
    fault = max(faults, key=lambda fault: (len(fault["loc"]), -counts[fault["loc"][:-1]]))
    message = fault["msg"].removeprefix("Value error, ")
    if not fault["loc"]:
        return message

    # 2. Its place, without the names of types, which are no part of what was sent
    place: list[str | int] = []
    value: Any = json.loads(body)
    for part in fault["loc"]:
        is_key = isinstance(value, dict) and part in value
        if is_key or (isinstance(value, list) and isinstance(part, int)):
            value = value[part]
        elif fault["type"] != "missing" or part != fault["loc"][-1]:
            continue
        place.append(part)
    return _at(place, message)


def _at(place: Sequence[str | int], message: str) -> str:
    """The message after its place, if it has one."""
    return f"{'.'.join(map(str, place))}: {message}" if place else message
