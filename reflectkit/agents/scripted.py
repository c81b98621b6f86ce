"""Agents that need no model: the oracle, with mistakes mixed in or not, a random agent, and replays of records."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from reflectkit.env import Action, Agent, Context, Teacher, teacher_of
from reflectkit.errors import ConfigError, DataError
from reflectkit.seeding import generator
from reflectkit.tools import PLAIN, parse, use_of
from reflectkit.types import Decision, Observation, ToolCall, ToolUse


class Demonstrator:
    """The oracle, which errs on purpose with probability `noise` (a wrong move that does not end the episode).

    Each decision carries the teacher's reflection on the state and a note: "mistake" for a wrong move, "correction" for
    the right move after it, "positive" for the rest.
    """

    def __init__(self, noise: float) -> None:
        self.noise = noise

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The oracle's action, or a mistake."""
        chance = generator(context.seed, "demonstrator")  # draws the comment before the mistake
        teacher = teacher_of(context.env)
        after_mistake = teacher.note() == "mistake"
        reflection = teacher.comment(chance)
        mistakes = teacher.mistakes()
        if mistakes and chance.random() < self.noise:
            return Decision(chance.choice(mistakes), reflection, note="mistake")
        note = "correction" if after_mistake else "positive"
        return Decision(_best(teacher), reflection, note=note)


def _best(teacher: Teacher) -> Action:
    """The teacher's action."""
    action = teacher.action()
    if isinstance(action, ToolUse) and action.calls and not action.text:
        return use_of(action.calls)  # with a text in the plain form, which records keep
    return action


class Recovery:
    """Plays a negative example: best actions, one of the env's `slips`, the correction by `teacher`, best actions."""

    def __init__(self, teacher: Agent) -> None:
        self.teacher = teacher

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """A best action, a slip, or the teacher's correction; the slip is drawn with the turn's seed."""
        teacher = teacher_of(context.env, "action", "slips", "note", "comment")
        if teacher.note() == "mistake":
            return await self.teacher.decide(observation, context)
        chance = generator(context.seed, "slip")
        slips = teacher.slips()
        if slips:
            return Decision(chance.choice(slips), teacher.comment(chance), note="mistake")
        return Decision(_best(teacher), teacher.comment(chance), note="positive")


class RandomAgent:
    """Any legal action, each as likely as the others."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """An action that the turn's own seed draws."""
        chance = generator(context.seed, "random")
        if observation.tools or observation.replies:
            return _any_calls(observation, chance)
        if observation.choices:
            return Decision(chance.randrange(len(observation.choices)))
        env: Any = context.env
        if not hasattr(env, "legal"):
            raise ConfigError(
                f"env '{env.name}' takes text, and has no legal(): nothing to draw at random; leave out the player"
                " random, or define legal(), a list of texts"
            )
        return Decision(chance.choice(env.legal()))


class AnyAction(RandomAgent):
    """Any legal action; where the env takes words, none."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """An action that the turn's own seed draws."""
        if observation.choices or observation.tools:
            return await super().decide(observation, context)
        return Decision("", truncation_reason="words")


class Oracle:
    """The best action, always."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The env's own answer."""
        return Decision(_best(teacher_of(context.env, "action")))


class Baseline:
    """The env's rule-based player called `name`."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """What the rule says."""
        env: Any = context.env
        return Decision(env.baseline(self.name))


class Replay:
    """Replays recorded steps; the env recreates the observations.

    steps: `Step`s of `data.problems`. where: the record's name in errors.
    """

    def __init__(self, steps: Sequence[Any], where: str) -> None:
        self.steps, self.where = steps, where
        self.next = 0
        """The index of the step that follows."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The next recorded step. Raises DataError if the env does not offer it."""
        if self.next >= len(self.steps):
            fix = "the demonstration ends before its episode does; make it again"
            raise DataError(self.where, fix)
        step = self.steps[self.next]

        # The text of the step as the env takes it: calls, or the index of a choice
        action: int | str | ToolUse = step.cmd
        if observation.tools:
            action = parse(step.cmd, observation.tools, PLAIN, replies=observation.replies)
        elif observation.choices:
            if step.cmd not in observation.choices:
                why = f"step {self.next}: the env does not offer {step.cmd!r}"
                raise DataError(self.where, why, field="cmd")
            action = observation.choices.index(step.cmd)
        self.next += 1
        return Decision(action, step.reflection, note=step.note)


class Marker(Replay):
    """Replays steps, and collects in `notes` the env's mark of the previous action before each."""

    def __init__(self, steps: Sequence[Any], where: str) -> None:
        super().__init__(steps, where)
        self.notes: list[str] = []
        self.teacher: Teacher | None = None

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The next recorded step. Raises DataError."""
        self.teacher = context.env.teacher()
        self.notes.append(self.teacher.note())
        return await super().decide(observation, context)

    def mistakes(self) -> list[bool]:
        """Whether each action so far was a mistake, as the env marks it."""
        last = [self.teacher.note()] if self.teacher else []
        return [note == "mistake" for note in [*self.notes[1:], *last]]


def _any_calls(observation: Observation, chance: random.Random) -> Decision:
    """Up to two random calls, or, in a conversation, one or a reply; texts consist of one to four words of the
    observation.
    """
    words = observation.text.split() or ["nothing"]
    count = 0
    if observation.tools:
        count = chance.randrange(2 if observation.replies else 3)
    calls = []
    for _ in range(count):
        tool = chance.choice(observation.tools)
        properties = tool.parameters.get("properties", {})
        arguments = {name: _any_value(schema, words, chance) for name, schema in properties.items()}
        calls.append(ToolCall(tool.name, arguments))
    if observation.replies and not calls:
        return Decision(ToolUse(_any_words(words, chance)))
    return Decision(use_of(calls))


def _any_value(
    schema: Mapping[str, Any] | bool, words: Sequence[str], chance: random.Random
) -> Any:
    """A value of the schema's type; text where it allows any."""
    if isinstance(schema, bool):
        schema = {}
    if schema.get("enum"):
        return chance.choice(schema["enum"])
    kind = schema.get("type", "string")
    if isinstance(kind, list) and kind:
        kind = chance.choice(kind)
    if kind == "null":
        return None
    if kind == "array":
        return [_any_value(schema.get("items", {}), words, chance)]
    simple = {"integer": 1, "number": 1.0, "boolean": True, "object": {}}
    return simple[kind] if kind in simple else _any_words(words, chance)


def _any_words(words: Sequence[str], chance: random.Random) -> str:
    return " ".join(chance.choices(words, k=chance.randint(1, 4)))
