"""Shows a person, step by step, what a player sees and does: observations, comments, decisions, rewards."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from reflectkit.agents.human import HELP_KEYS, LEFT, Human, action_text, keys
from reflectkit.console import Progress
from reflectkit.env import Agent, Context, Env, StepResult, Wrapper, rules_of
from reflectkit.eventloop import followed
from reflectkit.prompts import ACTION_MARKER, one_line
from reflectkit.types import AGENT_MARKER, Decision, Message, Observation, Task, ToolUse, Trajectory

MOST_SHOWN = 4  # maximum number of choices shown with their probabilities
LEAST_SHOWN = 0.005  # minimum probability of a shown choice
NEXT = "Enter: take it; h: the rules; q: leave > "
Comment = Callable[[Observation, Context], Awaitable[str]]


class Narrator:
    """Shows what `agent` observes, the comments on it, and its actions. wait: wait for a key before each step."""

    def __init__(self, agent: Agent, comment: Comment | None, progress: Progress, *, wait: bool) -> None:
        self.agent, self.comment, self.progress, self.wait = agent, comment, progress, wait
        self.stopped = False
        self.begin()

    @property
    def left(self) -> bool:
        """Whether the person has quit."""
        return self.stopped or (isinstance(self.agent, Human) and self.agent.left)

    def begin(self) -> None:
        """Start a new episode."""
        self.steps, self.total, self.before = 0, 0.0, tuple[Message, ...]()

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The agent's decision."""
        self.steps += 1
        self.see(f"Step {self.steps}", observation)
        person = isinstance(self.agent, Human)
        if self.steps == 1 and person:
            self.progress.show(f"Keys: {keys(context.env)}")
        comment = None if self.comment is None else one_line(await self.comment(observation, context))
        if comment is not None:
            self.progress.show(f"Reflection: {comment}")
        decision = await self.agent.decide(observation, context)
        if not person:
            self.progress.show(decision_text(observation, decision, commented=comment is not None))
        if comment is not None or person:
            decision = replace(decision, reflection=comment)
        if self.wait and not decision.truncation_reason and not decision.failure:
            self.stopped = not self._wants_next(context.env)
        return replace(decision, truncation_reason=LEFT) if self.stopped else decision

    def see(self, heading: str, observation: Observation) -> None:
        """Show what is new in `observation`: of several messages those that were not shown before, and of a
        conversation not what the agent wrote, which was shown as its decision.
        """
        self.progress.show(f"── {heading} ──")
        pairs = enumerate(zip(self.before, observation.messages, strict=False))
        same = next((place for place, (old, new) in pairs if old != new), len(self.before))
        if observation.replies:
            new = observation.messages[same if same == len(self.before) else 0 :]
            lines = [message.line for message in new if message.role != "assistant"]
        elif len(observation.messages) == 1:
            lines = [observation.messages[0].content]
        else:
            new = observation.messages[same:] or observation.messages[-1:]
            lines = [f"[{message.name or message.role}] {message.content}" for message in new]
        self.before = observation.messages
        if text := "\n".join(lines):
            self.progress.show(text)

    def _wants_next(self, env: Env) -> bool:
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
        return self.env.reset(task, seed)

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """Take one step, and show its reward."""
        return followed(self.env.step(action), self._stepped)

    def _stepped(self, result: StepResult) -> StepResult:
        self.narrator.total += result.reward
        ended = result.terminated or result.truncated
        if ended or result.reward or not result.observation.replies:
            total = self.narrator.total
            self.narrator.progress.show(f"Reward {result.reward:+.3g}, return so far {total:+.3g}.")
        if ended:
            self.narrator.see("The end", result.observation)
        return result


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


def verdict_text(trajectory: Trajectory) -> str:
    """Why a conversation failed, and the changes of records made and expected; empty where the env does not judge."""
    if not trajectory.turns or not trajectory.turns[-1].observation.replies:
        return ""
    info = trajectory.turns[-1].info
    reasons = [name.replace("_", " ") for name, value in trajectory.figures.items() if value]
    lines = [] if trajectory.success or not reasons else [f"Why: {', '.join(reasons)}."]
    for title in ("changes", "expected"):
        lines += [f"  {title}: {_change(change)}" for change in info.get(title) or ()]
    untold = info.get("untold") or ()
    return "\n".join([*lines, *([f"Not told to the user: {'; '.join(map(str, untold))}."] if untold else [])])


def _change(change: Mapping[str, Any]) -> str:
    before, after = (json.dumps(change[name], ensure_ascii=False) for name in ("before", "after"))
    return f"{change['record']} {change['field']} {before:.200} → {after:.200}"
