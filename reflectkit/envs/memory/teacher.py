"""The teacher of env `memory`: its calls, mistakes and comments, from the chunk's facts and the items shown."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, ClassVar

from reflectkit.env import Teacher
from reflectkit.envs.memory.rewards import ConversationFact, ValidFacts
from reflectkit.envs.memory.store import CORE, LISTS, SEMANTIC, UPDATE, Item, deletion, insertion, replacement
from reflectkit.errors import DataError
from reflectkit.tools import use_of
from reflectkit.types import ToolCall, ToolUse, Trajectory


class MemoryTeacher(Teacher):
    """What would be right in `Memory`, given only the prompt. Raises DataError where the conversation's facts are not
    known.
    """

    noise: ClassVar[float] = 0.1

    def action(self) -> ToolUse:
        """Insert what is new, update what has changed, delete duplicates and what is to be forgotten."""
        return use_of(self._calls())

    def mistakes(self) -> list[ToolUse]:
        """A changed fact inserted as a new item instead of updating the old one; none at the last chunk."""
        calls = [] if self.env.is_last else self._calls()
        wrong = []
        for index, call in enumerate(calls):
            if call.name == UPDATE and call.arguments["memory_type"] in LISTS:
                insert = insertion(call.arguments["memory_type"], call.arguments["new_content"])
                wrong.append(use_of([*calls[:index], insert, *calls[index + 1 :]]))
        return wrong

    def note(self) -> str:
        """The mark of the last chunk's calls, "" at the start; see `mark`."""
        mark: str = self.env.mark
        return mark

    def mark(self, action: ToolUse) -> str:
        """The mark of `action` now: "mistake" if one of the teacher's calls is missing, else "good"."""
        if not self.env.valid.complete:
            return "good"
        return "good" if all(call in action.calls for call in self._calls()) and not action.errors else "mistake"

    def comment(self, generator: random.Random) -> str:
        """What is new, has changed or is to be forgotten, and the id of its item."""
        parts = [f"{item.id} is older than {newer.id}." for item, newer in self._duplicates()]
        for fact in self._new_facts():
            old = _held(fact, self.env.shown)
            if fact.kind == CORE:
                parts.append(f"{fact.key} is for the core{generator.choice(('', ' memory'))}.")
            elif not fact.text:
                parts.append(f"Forget {fact.key}" + (f", {old.id}." if old else "."))
            elif old:
                parts.append(f"{fact.key} changed, {old.id}.")
            else:
                parts.append(f"{fact.key} is {generator.choice(('new', 'new here'))}.")
        return " ".join(parts) or generator.choice(("Nothing to keep.", "Nothing here is worth keeping."))

    def _calls(self) -> list[ToolCall]:
        duplicates = [item for item, _ in self._duplicates()]
        calls = [deletion(item) for item in duplicates]
        shown = [item for item in self.env.shown if item not in duplicates]
        new_facts = self._new_facts()
        if any(fact.kind == CORE for fact in new_facts):
            after = ValidFacts(dict(self.env.valid.facts))
            after.learn(new_facts)
            calls.append(ToolCall(UPDATE, {"memory_type": CORE, "new_content": after.core()}))
        for fact in (fact for fact in new_facts if fact.kind != CORE):
            old = _held(fact, shown)
            if old:
                calls.append(replacement(old, fact.text) if fact.text else deletion(old))
            elif fact.text:
                calls.append(insertion(fact.kind, fact.text))
        return calls

    def _new_facts(self) -> list[ConversationFact]:
        """The facts that the chunk adds, changes or retracts, in their final form."""
        if not self.env.valid.complete:
            raise DataError(self.env.name, "the facts of these conversations are not known, so there is no oracle")
        last = {fact.key: fact for fact in self.env.facts}
        valid = self.env.valid.facts
        return [fact for key, fact in last.items() if (valid.get(key) != fact if fact.text else key in valid)]

    def _duplicates(self) -> list[tuple[Item, Item]]:
        """(older, newer) pairs of shown items about the same fact."""
        keyed = [(item, item.text.rpartition(" is ")[0]) for item in self.env.shown if item.kind == SEMANTIC]
        pairs = []
        for index, (item, key) in enumerate(keyed):
            newer = [other for other, others_key in keyed[index + 1 :] if key and others_key == key]
            pairs += [(item, newer[0])] if newer else []
        return pairs

    @classmethod
    def taught_by_chat(cls, settings: Any) -> bool:
        """By calls for each chunk."""
        return True

    @classmethod
    def reward_of(cls, trajectory: Trajectory) -> float:
        """The mean of its chunks' rewards, each with the share that the last chunk got: 2.15 at most by default."""
        if not trajectory.turns:
            return trajectory.total_return
        shared = float(trajectory.turns[-1].info.get("shared_reward", 0.0))
        return (trajectory.total_return - shared) / len(trajectory.turns) + shared


def _held(fact: ConversationFact, items: Iterable[Item]) -> Item | None:
    """The latest of `items` about the same key as `fact`."""
    about = [item for item in items if item.kind == fact.kind and item.text.startswith(f"{fact.key} ")]
    return about[-1] if about else None
