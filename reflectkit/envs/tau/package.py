"""The installed tau_bench package: its domains, tools and tasks. Nothing else imports it.

While it is imported, an empty module stands in for litellm, with which its own simulated users ask
models: litellm takes up to half a minute to import, and needs an older `openai` than reflectkit.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import marshal
import re
import sys
import types
import warnings
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

from reflectkit.errors import ConfigError
from reflectkit.types import ToolCall, ToolSpec

Tables = Mapping[str, dict[str, Any]]
"""Records by table and id; JSON values."""
Fields = list[dict[str, Any]]
"""Changed fields, each as {"record": "TABLE/ID", "field": dotted path, "before": value, "after":
value}, with null for what is not there.
"""


@dataclass(frozen=True, slots=True)
class Changes:
    """How a database differs from the original."""

    records: Mapping[str, str | None]
    """The changed records by TABLE/ID, each as the text that the package hashes; None for a removed
    one.
    """
    fields: Fields
    """The same, for people to read."""

    def verdict(self, expected: Changes) -> tuple[bool, bool, bool]:
        """(whether a record was changed otherwise than expected, whether a change is missing,
        whether a record was changed that was to stay).
        """
        actual, right = self.records, expected.records
        common = actual.keys() & right.keys()
        wrong = any(actual[record] != right[record] for record in common)
        return wrong, bool(right.keys() - actual.keys()), bool(actual.keys() - right.keys())


class EpisodeTable(UserDict[str, Any]):
    """A table of one episode. Each record is copied when it is first read, so that the original
    stays as it is.

    copies: the records that were read, changed or added, by id; None for a removed one.
    """

    def __init__(self, original: Mapping[str, Any]) -> None:
        self.data, self.copies = dict(original), dict[str, Any]()

    def __getitem__(self, key: str) -> Any:
        if self.copies.get(key) is None:
            # Faster than deepcopy, and records are JSON values
            self[key] = marshal.loads(marshal.dumps(self.data[key]))
        return self.data[key]

    def __setitem__(self, key: str, record: Any) -> None:
        self.data[key] = self.copies[key] = record

    def __delitem__(self, key: str) -> None:
        del self.data[key]
        self.copies[key] = None


class DomainDatabase:
    """The database as every episode finds it. canonical: the package's text of a record, equal for
    equal records.
    """

    def __init__(
        self,
        tables: Tables,
        canonical: Callable[[Any], str],
    ) -> None:
        self._tables, self._canonical = tables, canonical

    def copy(self) -> dict[str, EpisodeTable]:
        """Tables to change."""
        return {name: EpisodeTable(records) for name, records in self._tables.items()}

    def changes(self, tables: Mapping[str, EpisodeTable]) -> Changes:
        """How `tables` differ from the original."""
        records: dict[str, str | None] = {}
        fields: Fields = []
        for name, originals in self._tables.items():
            for key, after in sorted(tables[name].copies.items()):
                before = originals.get(key)
                # Most were only read; the package's text takes longer to make
                if repr(before) == repr(after):
                    continue
                # Then by the text that the package hashes
                text = None if after is None else self._canonical(after)
                if before is None or text != self._canonical(before):
                    record = f"{name}/{key}"
                    records[record] = text
                    for change in _differences(before, after, ""):
                        fields.append({"record": record} | change)
        return Changes(records, fields)


def _differences(
    before: Any,
    after: Any,
    path: str,
) -> Iterator[dict[str, Any]]:
    """The innermost fields in which two JSON values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before | after:
            yield from _differences(
                before.get(name),
                after.get(name),
                f"{path}.{name}" if path else name,
            )
    elif repr(before) != repr(after):
        yield {"field": path, "before": before, "after": after}


SPLITS = {"retail": ("train", "dev", "test"), "airline": ("test",)}
"""The splits of each domain."""
INSTALL = (
    "git clone https://github.com/sierra-research/tau-bench && pip install --no-deps -e ./tau-bench"
    " (packages of similar names on PyPI are unrelated)"
)
# A fourth certificate for one customer; the package's env fails there
NO_RESULT = "the tool returned nothing"
CALCULATE = "calculate"


@dataclass(frozen=True, slots=True)
class Problem:
    """One of the package's tasks."""

    customer: str
    """Id of the user's account."""
    instruction: str
    """What the user is told: who they are, what they want, and how they behave."""
    actions: tuple[ToolCall, ...]
    """The right calls."""
    outputs: tuple[str, ...]
    """Texts that the agent's replies must contain."""
    digest: str
    """Hash of the task, and of its domain's policy, tools and database."""


class Domain:
    """One of the package's domains: "retail" or "airline". env: the package's own env of it."""

    def __init__(self, env: Any) -> None:
        # The package's texts, tools and records
        functions = [tool["function"] for tool in env.tools_info]
        self.policy: str = env.wiki
        self.tools = tuple(
            ToolSpec(each["name"], each["description"], each["parameters"]) for each in functions
        )
        self.ending = frozenset(map(str, env.terminate_tools))
        """Tools whose call ends the conversation."""
        self.database = DomainDatabase(env.data, _canonical)
        self.digest = _digest(self.policy, functions, env.data)
        self._implementations = env.tools_map

    def execute(
        self,
        tables: Mapping[str, EpisodeTable],
        call: ToolCall,
    ) -> str:
        """The package's answer to `call`, which may change `tables` and the call's arguments."""
        # 1. What the package would not survive, or would not end
        tool = self._implementations.get(call.name)
        if tool is None:
            return f"Unknown action {call.name}"
        if call.name == CALCULATE and _too_large(str(call.arguments.get("expression", ""))):
            return "Error: the number is too large"
        # 2. The call
        try:
            with warnings.catch_warnings():
                # Python warns of the odd expressions that agents let it calculate
                warnings.simplefilter("ignore", SyntaxWarning)
                result = tool.invoke(data=tables, **call.arguments)
        except Exception as error:  # as the package does: the agent reads it
            return f"Error: {error}"
        return result if isinstance(result, str) else f"Error: {NO_RESULT}"


@cache
def domain(name: str) -> Domain:
    """The domain. Raises ConfigError if the package is missing."""
    return Domain(_env(name, SPLITS[name][0]))


@cache
def problems(name: str, split: str) -> tuple[Problem, ...]:
    """The domain's tasks of `split`, in the package's order. Raises ConfigError if the package is
    missing.
    """
    home = domain(name).digest
    result = []
    for task in _env(name, split).tasks:
        calls = tuple(ToolCall(action.name, action.kwargs) for action in task.actions)
        digest = _digest(
            home,
            task.user_id,
            task.instruction,
            [[call.name, call.arguments] for call in calls],
            task.outputs,
        )
        outputs = tuple(task.outputs)
        result.append(Problem(task.user_id, task.instruction, calls, outputs, digest))
    return tuple(result)


@cache
def expected(name: str, split: str, index: int) -> Changes:
    """The changes that the right calls of a task make; a call that ends the conversation is left
    out.
    """
    home = domain(name)
    tables = home.database.copy()
    for call in problems(name, split)[index].actions:
        if call.name not in home.ending:
            # A copy, since the problem's own calls stay as they are
            home.execute(tables, deepcopy(call))
    return home.database.changes(tables)


def installed(module: str) -> Any:
    """A module of the package. Raises ConfigError if it is missing."""
    with _without_litellm():
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise _lacking(error) from None


def _env(name: str, split: str) -> Any:
    """The package's env, with a user whose making asks no model. Raises ConfigError."""
    envs = installed("tau_bench.envs")
    try:
        return envs.get_env(
            name,
            user_strategy="human",
            user_model="",
            task_split=split,
            task_index=0,
        )
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise _lacking(error) from None


def _lacking(error: Exception) -> ConfigError:
    reason = " ".join(str(error).split())
    return ConfigError(f"env 'tau' needs the tau_bench package ({reason:.200}): {INSTALL}")


@contextlib.contextmanager
def _without_litellm() -> Iterator[None]:
    if "litellm" in sys.modules:
        yield
        return
    # All that the package looks up in it while it is imported
    stand_in = types.ModuleType("litellm")
    stand_in.completion = None  # type: ignore[attr-defined]
    sys.modules["litellm"] = stand_in
    try:
        yield
    finally:
        del sys.modules["litellm"]


def _canonical(record: Any) -> str:
    """The text of a record that the package hashes."""
    return str(installed("tau_bench.envs.base").to_hashable(record))


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _too_large(expression: str) -> bool:
    """Whether `calculate` may compute for ever: all powers but one with an exponent of up to four
    digits.
    """
    # 9**9**9 has more digits than memory has bytes
    exponent = expression.partition("**")[2]
    if not exponent:
        return False
    return "**" in exponent or not re.match(r"\s*[\d.]{1,4}(?![\d.])", exponent)
