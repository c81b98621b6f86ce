"""Agents without a model: the oracle, demonstrators, a random agent, and replays of records."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from reflectkit.env import Action, Agent, Context, Teacher, teacher_of
from reflectkit.errors import ConfigError, DataError
from reflectkit.seeding import generator
from reflectkit.tools import PLAIN, parse, use_of
from reflectkit.types import Decision, Observation, ToolCall, ToolUse


class Demonstrator:
    """The oracle, with a wrong move on purpose in a share `noise` of the turns.

    A wrong move never ends the episode. Each decision has the teacher's comment on the state, and a
    note: "mistake" for a wrong move, "correction" for the right move after it, and "positive" for
    any other.
    """

    def __init__(self, noise: float) -> None:
        self.noise = noise

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The oracle's action, or a mistake."""
        # 1. The comment, which is drawn before the mistake
        teacher = teacher_of(context.env)
        is_after_mistake = teacher.note() == "mistake"
        chance = generator(context.seed, "demonstrator")
        comment = teacher.comment(chance)

        # 2. A mistake
        mistakes = teacher.mistakes()
        if mistakes and chance.random() < self.noise:
            return Decision(chance.choice(mistakes), comment, note="mistake")

        # 3. Or the best action
        note = "correction" if is_after_mistake else "positive"
        return Decision(_best_action(teacher), comment, note=note)


def _best_action(teacher: Teacher) -> Action:
    """The teacher's action. Calls without a text get one in the plain form, which records keep."""
    action = teacher.action()
    if isinstance(action, ToolUse) and action.calls and not action.text:
        return use_of(action.calls)
    return action


class Recovery:
    """Plays a negative example: a slip, the correction by the agent `teacher`, and best actions.

    A slip is a mistake that the env offers for such examples. Until it offers one, best actions are
    played.
    """

    def __init__(self, teacher: Agent) -> None:
        self.teacher = teacher

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The agent's correction after a slip; otherwise a slip, or the best action."""
        teacher = teacher_of(context.env, "action", "slips", "note", "comment")
        if teacher.note() == "mistake":
            return await self.teacher.decide(observation, context)
        chance = generator(context.seed, "slip")
        slips = teacher.slips()
        if slips:
            return Decision(chance.choice(slips), teacher.comment(chance), note="mistake")
        return Decision(_best_action(teacher), teacher.comment(chance), note="positive")


class RandomAgent:
    """Draws any legal action, all equally likely."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """An action, drawn with the turn's seed. Raises ConfigError if the env does not list them."""
        chance = generator(context.seed, "random")
        if observation.tools or observation.replies:
            return _random_calls(observation, chance)
        if observation.choices:
            return Decision(chance.randrange(len(observation.choices)))
        env: Any = context.env
        if not hasattr(env, "legal"):
            raise ConfigError(
                f"env '{env.name}' takes text, and has no legal(): nothing to draw at random; leave"
                " out the player random, or define legal(), a list of texts"
            )
        return Decision(chance.choice(env.legal()))


class AnyAction(RandomAgent):
    """Draws any legal action. In an env that takes text, it ends the episode instead."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """An action that is drawn with the turn's seed, or a decision to end the episode."""
        if observation.choices or observation.tools:
            return await super().decide(observation, context)
        return Decision("", truncation_reason="words")


class InTurns(AnyAction):
    """Draws any legal action, after the other episodes have taken a step."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """See `AnyAction.decide`."""
        await asyncio.sleep(0)
        return await super().decide(observation, context)


class Oracle:
    """Takes the best action in each turn."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The action of the env's teacher."""
        teacher = teacher_of(context.env, "action")
        return Decision(_best_action(teacher))


class Baseline:
    """The env's rule-based player called `name`."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The action that the rule determines."""
        env: Any = context.env
        return Decision(env.baseline(self.name))


class Replay:
    """Replays the actions of recorded steps. The env makes the observations again.

    steps: `Step`s of `data.problems`. where: the name of the record, for errors.
    """

    def __init__(self, steps: Sequence[Any], where: str) -> None:
        self.steps = steps
        self.where = where
        self.next = 0
        """The index of the next step."""

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The next recorded step.

        Raises DataError if there are no more steps, or the env does not offer the action.
        """
        # 1. The next step
        if self.next >= len(self.steps):
            fix = "the demonstration ends before its episode does; make it again"
            raise DataError(self.where, fix)
        step = self.steps[self.next]

        # 2. Its text as the action that the env takes: calls, the index of a choice, or a text
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
    """Replays steps, and collects the env's notes on them."""

    def __init__(self, steps: Sequence[Any], where: str) -> None:
        super().__init__(steps, where)
        self.notes: list[str] = []
        """Before each step, the note on the step before it."""
        self.teacher: Teacher | None = None

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The next recorded step. Raises DataError."""
        self.teacher = context.env.teacher()
        self.notes.append(self.teacher.note())
        return await super().decide(observation, context)

    def mistakes(self) -> list[bool]:
        """Whether each step so far was a mistake, according to the env's note on it."""
        # The first note is about no step, and the note on the last step has not been collected
        notes = self.notes[1:]
        if self.teacher:
            notes = [*notes, self.teacher.note()]
        return [note == "mistake" for note in notes]


def _random_calls(observation: Observation, chance: random.Random) -> Decision:
    """Up to two random calls; in a conversation one call, or a reply.

    Texts consist of one to four words of the observation.
    """
    # 1. How many calls
    words = observation.text.split() or ["nothing"]
    most_calls = 1 if observation.replies else 2
    count = 0
    if observation.tools:
        count = chance.randrange(most_calls + 1)

    # 2. The calls, with a value for each parameter of the tool
    calls = []
    for _ in range(count):
        tool = chance.choice(observation.tools)
        properties = tool.parameters.get("properties", {})
        arguments = {}
        for name, schema in properties.items():
            arguments[name] = _random_value(schema, words, chance)
        calls.append(ToolCall(tool.name, arguments))

    # 3. Or a reply
    if observation.replies and not calls:
        return Decision(ToolUse(_random_words(words, chance)))
    return Decision(use_of(calls))


def _random_value(
    schema: Mapping[str, Any] | bool, words: Sequence[str], chance: random.Random
) -> Any:
    """A value of the schema's type, or a text if the schema allows any type."""
    # 1. One of the values that are listed
    if isinstance(schema, bool):
        schema = {}
    if schema.get("enum"):
        return chance.choice(schema["enum"])

    # 2. A value of the type, or of one of the types
    kind = schema.get("type", "string")
    if isinstance(kind, list) and kind:
        kind = chance.choice(kind)
    if kind == "null":
        return None
    if kind == "array":
        return [_random_value(schema.get("items", {}), words, chance)]
    values = {"integer": 1, "number": 1.0, "boolean": True, "object": {}}
    if kind in values:
        return values[kind]
    return _random_words(words, chance)


def _random_words(words: Sequence[str], chance: random.Random) -> str:
    """One to four of `words`."""
    count = chance.randint(1, 4)
    return " ".join(chance.choices(words, k=count))
