"""The oracle teacher of a chunk: its calls, its mistakes and its comments, from the chunk's facts and what is shown."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reflectkit.envs.memory.rewards import Fact, ValidFacts
from reflectkit.envs.memory.store import CORE, LISTS, SEMANTIC, UPDATE, Item, deletion, insertion, replacement
from reflectkit.tools import use_of
from reflectkit.types import ToolCall, ToolUse


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the teacher knows. shown: the items that the agent sees. facts: the chunk's. valid: those before it."""

    shown: Sequence[Item]
    facts: Sequence[Fact]
    valid: ValidFacts

    def calls(self) -> list[ToolCall]:
        """Insert what is new, update what has changed, delete duplicates and what is to be forgotten."""
        duplicates = [item for item, _ in self._duplicates()]
        calls = [deletion(item) for item in duplicates]
        shown = [item for item in self.shown if item not in duplicates]
        new_facts = self._new_facts()
        if any(fact.kind == CORE for fact in new_facts):
            after = ValidFacts(dict(self.valid.facts))
            after.learn(new_facts)
            calls.append(ToolCall(UPDATE, {"memory_type": CORE, "new_content": after.core()}))
        for fact in (fact for fact in new_facts if fact.kind != CORE):
            old = _held(fact, shown)
            if old:
                calls.append(replacement(old, fact.text) if fact.text else deletion(old))
            elif fact.text:
                calls.append(insertion(fact.kind, fact.text))
        return calls

    def mistakes(self) -> list[ToolUse]:
        """A changed fact inserted as a new item instead of updating the old one."""
        calls = self.calls()
        wrong = []
        for index, call in enumerate(calls):
            if call.name == UPDATE and call.arguments["memory_type"] in LISTS:
                insert = insertion(call.arguments["memory_type"], call.arguments["new_content"])
                wrong.append(use_of([*calls[:index], insert, *calls[index + 1 :]]))
        return wrong

    def comment(self, generator: random.Random) -> str:
        """What is new, has changed or is to be forgotten, and the id of its item."""
        parts = [f"{item.id} is older than {newer.id}." for item, newer in self._duplicates()]
        for fact in self._new_facts():
            old = _held(fact, self.shown)
            if fact.kind == CORE:
                parts.append(f"{fact.key} is for the core{generator.choice(('', ' memory'))}.")
            elif not fact.text:
                parts.append(f"Forget {fact.key}" + (f", {old.id}." if old else "."))
            elif old:
                parts.append(f"{fact.key} changed, {old.id}.")
            else:
                parts.append(f"{fact.key} is {generator.choice(('new', 'new here'))}.")
        return " ".join(parts) or generator.choice(("Nothing to keep.", "Nothing here is worth keeping."))

    def _new_facts(self) -> list[Fact]:
        """The facts that the chunk adds, changes or retracts, in their final form."""
        last = {fact.key: fact for fact in self.facts}
        valid = self.valid.facts
        return [fact for key, fact in last.items() if (valid.get(key) != fact if fact.text else key in valid)]

    def _duplicates(self) -> list[tuple[Item, Item]]:
        """(older, newer) pairs of shown items about the same fact."""
        keyed = [(item, item.text.rpartition(" is ")[0]) for item in self.shown if item.kind == SEMANTIC]
        pairs = []
        for index, (item, key) in enumerate(keyed):
            newer = [other for other, others_key in keyed[index + 1 :] if key and others_key == key]
            pairs += [(item, newer[0])] if newer else []
        return pairs


def _held(fact: Fact, items: Iterable[Item]) -> Item | None:
    """The latest of `items` about the same key as `fact`."""
    about = [item for item in items if item.kind == fact.kind and item.text.startswith(f"{fact.key} ")]
    return about[-1] if about else None
