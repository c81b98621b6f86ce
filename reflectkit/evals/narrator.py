"""Shows a person, step by step, what a player sees and does: observations, comments, decisions, rewards."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from reflectkit.agents.human import HELP_KEYS, LEFT, Human, action_text, keys
from reflectkit.console import Progress
from reflectkit.env import Agent, Context, Env, StepResult, Wrapper, rules_of
from reflectkit.eventloop import followed
from reflectkit.prompts import ACTION_MARKER, one_line
from reflectkit.types import AGENT_MARKER, Decision, Message, Observation, Task, ToolUse, Trajectory

LONGEST = 200  # characters of a value


def verdict_text(trajectory: Trajectory) -> str:
    """The verdict in lines; empty where the env reports none."""
    if not trajectory.turns or not trajectory.turns[-1].observation.replies:
        return ""
    info = trajectory.turns[-1].info
    reasons = [name.replace("_", " ") for name, value in trajectory.figures.items() if value]
    lines = [] if trajectory.success or not reasons else [f"Why: {', '.join(reasons)}."]
    lines += [f"  {line}" for line in differences(info.get("changes") or (), info.get("expected") or ())]
    untold = info.get("untold") or ()
    return "\n".join([*lines, *([f"Not told to the user: {'; '.join(map(str, untold))}."] if untold else [])])


def differences(changes: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each field that was changed, or was to be.

    >>> change = {"record": "W1", "field": "status", "before": "pending", "after": "cancelled"}
    >>> differences([change], [change])
    ['right: W1 status pending → cancelled']
    >>> differences([], [change])
    ['missing: W1 status pending → cancelled']
    """
    made, right = ({(one["record"], one["field"]): one for one in some} for some in (changes, expected))
    lines = []
    for key in {**right, **made}:
        if key not in made:
            lines.append(f"missing: {_change(right[key])}")
        elif key not in right:
            lines.append(f"forbidden: {_change(made[key])}")
        elif made[key]["after"] == right[key]["after"]:
            lines.append(f"right: {_change(made[key])}")
        else:
            lines.append(f"wrong: {_change(made[key])}; it should be {_value(right[key]['after'])}")
    return lines


def _change(change: Mapping[str, Any]) -> str:
    return f"{change['record']} {change['field']} {_value(change['before'])} → {_value(change['after'])}"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


MOST_SHOWN = 4  # maximum number of choices shown with their probabilities
LEAST_SHOWN = 0.005  # minimum probability of a shown choice
NEXT = "Enter: take it; h: the rules; q: leave > "


class Commentator(Protocol):
    """Who comments on an observation."""

    def __call__(self, observation: Observation, context: Context) -> Awaitable[str]:
        """The comment."""


class Narrator:
    """Shows what `agent` observes, the comments on it, and its actions. wait: wait for a key before each step."""

    def __init__(self, agent: Agent, commentator: Commentator | None, progress: Progress, *, wait: bool) -> None:
        self.agent, self.commentator, self.progress, self.wait = agent, commentator, progress, wait
        self.stopped = False
        self.begin()

    @property
    def left(self) -> bool:
        """Whether the person has quit."""
        return self.stopped or (isinstance(self.agent, Human) and self.agent.left)

    def begin(self) -> None:
        """Start a new episode."""
        self.steps, self.before = 0, tuple[Message, ...]()

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The agent's decision."""
        self.steps += 1
        self.heading(f"Step {self.steps}")
        self.see(observation)
        if self.steps == 1 and isinstance(self.agent, Human):
            self.progress.show(f"Keys: {keys(context.env)}")
        comment = None if self.commentator is None else one_line(await self.commentator(observation, context))
        if comment is not None:
            self.progress.show(f"Reflection: {comment}")
        decision = await self.agent.decide(observation, context)
        if isinstance(self.agent, Human):
            return replace(decision, reflection=comment)
        decision = replace(decision, reflection=decision.reflection if comment is None else comment)
        self.progress.show(decision_text(observation, decision, commented=comment is not None))
        if self.wait and not decision.truncation_reason and not decision.failure:
            self.stopped = not self._goes_on(context.env)
        return replace(decision, truncation_reason=LEFT) if self.stopped else decision

    def heading(self, text: str) -> None:
        """Show a heading."""
        self.progress.show(f"── {text} ──")

    def see(self, observation: Observation) -> None:
        """Show what is new in `observation`; of a conversation not what the agent wrote, which was shown before."""
        new = spoken_text if observation.replies else seen_text
        if text := new(self.before, observation.messages):
            self.progress.show(text)
        self.before = observation.messages

    def _goes_on(self, env: Env) -> bool:
        """Whether the person who watches wants the next step."""
        while (answer := self.progress.ask(NEXT)) is not None:
            key = answer.strip().casefold()
            if key in ("", "q"):
                return not key
            self.progress.show(rules_of(env) if key in HELP_KEYS else f"{answer.strip()[:60]!r} is no key.")
        return False


class Reporter(Wrapper):
    """Shows the reward of each step, and the final view."""

    def __init__(self, env: Env, narrator: Narrator) -> None:
        super().__init__(env)
        self.narrator = narrator

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`."""
        self._total = 0.0
        return self.env.reset(task, seed)

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """Take one step, and show its reward."""
        return followed(self.env.step(action), self._stepped)

    def _stepped(self, result: StepResult) -> StepResult:
        self._total += result.reward
        ended = result.terminated or result.truncated
        if ended or result.reward or not result.observation.replies:
            self._report(result.reward)
        if ended:
            self.narrator.heading("The end")
            self.narrator.see(result.observation)
        return result

    def _report(self, reward: float) -> None:
        self.narrator.progress.show(f"Reward {reward:+.3g}, return so far {self._total:+.3g}.")


def seen_text(earlier: Sequence[Message], current: Sequence[Message]) -> str:
    """The text to show; of several messages, only those behind the ones that `earlier` began with too, with their
    roles.
    """
    if len(current) == 1:
        return current[0].content
    same = next((i for i, pair in enumerate(zip(earlier, current, strict=False)) if pair[0] != pair[1]), len(earlier))
    new = current[same:] or current[-1:]
    return "\n".join(f"[{message.name or message.role}] {message.content}" for message in new)


def spoken_text(earlier: Sequence[Message], current: Sequence[Message]) -> str:
    """What the others said in a conversation since `earlier`, with their names."""
    same = len(earlier) if tuple(current[: len(earlier)]) == tuple(earlier) else 0
    return "\n".join(message.line for message in current[same:] if message.role != "assistant")


def decision_text(observation: Observation, decision: Decision, *, commented: bool) -> str:
    """A decision in words: the reflection unless already shown, the probabilities, and the action."""
    lines = []
    if decision.reflection is not None and not commented:
        lines.append(f"Reflection: {one_line(decision.reflection)}")
    if decision.truncation_reason or decision.failure:
        return "\n".join([*lines, str(decision.truncation_reason or decision.failure)])
    likely = sorted(enumerate(decision.probabilities), key=lambda item: -item[1])[:MOST_SHOWN]
    shares = [
        f"{100 * share:.0f} % {one_line(observation.choices[index])}" for index, share in likely if share >= LEAST_SHOWN
    ]
    if shares:
        lines.append("Policy: " + ", ".join(shares))
    if decision.value is not None:
        lines.append(f"Value: {decision.value:+.3g}")
    marker = AGENT_MARKER if observation.replies else ACTION_MARKER
    written = action_text(observation, decision.action).lstrip(" ")  # models begin with a space, as their rows do
    return "\n".join([*lines, f"{marker} {written}"])
