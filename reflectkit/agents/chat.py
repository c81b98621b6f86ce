"""Chat models as teachers and as players: a teacher acts, or comments while an expert acts; and negative examples,
corrected.

Departs from the Reflect-RL code, which asked twice a step, took any text for a command, and told the model to go on
when it failed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from reflectkit.agents.client import ChatClient, Outcome, Request
from reflectkit.agents.requests import (
    ANALYSIS_WORDS,
    HISTORY_TOKENS,
    action_words,
    answer_text,
    commenting_request,
    playing_request,
    reflecting_request,
    teaching_request,
)
from reflectkit.agents.scripted import require_oracle
from reflectkit.core.errors import ConfigError
from reflectkit.core.prompts import label, one_line
from reflectkit.core.protocols import Agent, Context
from reflectkit.core.seeding import generator
from reflectkit.core.tools import PLAIN, parse, plain_text, reads_as_calls
from reflectkit.core.types import Decision, Observation, ToolUse

LONGEST_ANALYSIS = 120  # words; a longer one is not an analysis in a line
REPLY = re.compile(
    r"analysis\W*?[:\-]\s*(?P<analysis>.+?)\s*\**\bchoice\W*?[:\-]\s*[*`\"'\[(<]*\s*(?P<choice>\S[^\n]*)",
    re.IGNORECASE | re.DOTALL,
)
COMMENT_HEAD = re.compile(r"^\W*(?:comment|reflection|analysis)\W*?:\W*", re.IGNORECASE)

Action = int | str | ToolUse


class UnreadableError(ValueError):
    """An answer that is not in the form asked for, so that no action can be read in it."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a teacher is asked about one state. right: the best action where an expert acts; None where the teacher
    does.
    """

    request: Request
    observation: Observation
    right: Action | None = None

    def read(self, text: str) -> tuple[str, Action | None]:
        """(comment, action) of an answer; no action where an expert acts. Raises ValueError saying what is wrong with
        it.
        """
        if self.right is None:
            return parse_reply(text, self.observation.choices)
        return parse_comment(text, self.observation, self.right), None


class ChatTeacher:
    """Asks the model behind `client` for an analysis and an action in one call; or for a comment alone where an `actor`
    acts.

    actor: an expert, who also marks each action. The model is then told the env's best action, and may not name it.
    """

    def __init__(self, client: ChatClient, actor: Agent | None = None, history_tokens: int = HISTORY_TOKENS) -> None:
        self.client, self.actor, self.history_tokens = client, actor, history_tokens

    def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
        """One decision for each observation; one without a usable answer carries its `failure`."""
        lessons = self.lessons(observations, contexts)
        outcomes = self.client.ask(
            [lesson.request for lesson in lessons], lambda number, text: lessons[number].read(text)
        )
        return self.decisions(observations, contexts, outcomes)

    def lessons(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Lesson]:
        """What is asked about each observation."""
        return [self._lesson(observation, context) for observation, context in zip(observations, contexts, strict=True)]

    def decisions(
        self,
        observations: Sequence[Observation],
        contexts: Sequence[Context],
        outcomes: Sequence[Outcome[tuple[str, Action | None]]],
    ) -> list[Decision]:
        """What the answers come to: the model's own actions, or the expert's with the model's comments."""
        acted = self.actor.act(observations, contexts) if self.actor else [Decision(0) for _ in observations]
        decisions = []
        for outcome, context, decision in zip(outcomes, contexts, acted, strict=True):
            if outcome.value is None:
                rejected = outcome.rejected
                why = f"{rejected.reason} (it said: {rejected.text!r})" if rejected else "the budget is spent"
                decisions.append(Decision(0, failure=why))
                continue
            comment, action = outcome.value
            if action is None:
                decisions.append(replace(decision, reflection=comment, answer=comment))
            else:
                note = "correction" if _mistaken(context) else "positive"
                decisions.append(Decision(action, comment, note=note, answer=answer_text(comment, action)))
        return decisions

    def _lesson(self, observation: Observation, context: Context) -> Lesson:
        if self.actor is None:
            request = teaching_request(observation, context, _mistaken(context), self.history_tokens)
            return Lesson(request, observation)
        right: Action = require_oracle(context.env).oracle()
        words = action_words(observation, right)
        request = commenting_request(observation, context, words, _mistaken(context), self.history_tokens)
        return Lesson(request, observation, right)


class Rehearsal:
    """Plays the part of `teacher` with the answers that its journal holds, and asks nobody: where one is missing,
    `stand_in` acts and comments. requests: all that would be asked for.
    """

    def __init__(self, teacher: ChatTeacher, stand_in: Agent) -> None:
        self.teacher, self.stand_in = teacher, stand_in
        self.requests: list[Request] = []

    def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
        """One decision for each observation."""
        lessons = self.teacher.lessons(observations, contexts)
        outcomes: list[Outcome[tuple[str, Action | None]]] = []
        for lesson, guess in zip(lessons, self.stand_in.act(observations, contexts), strict=True):
            outcome = self.teacher.client.replay(lesson.request, lesson.read)
            guessed = guess.reflection or "", guess.action if lesson.right is None else None
            outcomes.append(outcome or Outcome(guessed))
            self.requests.append(lesson.request)
        return self.teacher.decisions(observations, contexts, outcomes)


class ChatPolicy:
    """A chat model that plays by itself, for comparison: it thinks in a line and acts, in one call a step; no hints.

    Where tools are offered it writes calls in the plain form. reflector: a model that comments in a line on each state
    first, as a reflector does (two calls a step); None for none. history_tokens: about how much of the earlier turns
    both are shown.
    """

    def __init__(
        self, client: ChatClient, reflector: ChatClient | None = None, history_tokens: int = HISTORY_TOKENS
    ) -> None:
        self.client, self.reflector, self.history_tokens = client, reflector, history_tokens

    def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
        """One decision for each observation; one without a usable answer carries its `failure`, or its `overflow` where
        answers came, but none was a legal action.
        """
        room = self.history_tokens
        comments: list[Outcome[str]] = [Outcome("") for _ in observations]
        if self.reflector is not None:
            asked = [
                reflecting_request(observation, context, room)
                for observation, context in zip(observations, contexts, strict=True)
            ]
            comments = self.reflector.ask(asked, lambda _, text: plain_comment(text))
        able = [index for index, comment in enumerate(comments) if comment.value is not None]
        read = [comment.value if self.reflector else None for comment in comments]
        requests = [playing_request(observations[index], contexts[index], read[index], room) for index in able]
        unreadable: Counter[int] = Counter()

        def parsed(number: int, text: str) -> tuple[str | None, int | ToolUse]:
            try:
                return _played(text, observations[able[number]])
            except UnreadableError:
                unreadable[able[number]] += 1
                raise

        outcomes = dict(zip(able, self.client.ask(requests, parsed), strict=True))
        return [
            self._decision(comment, outcomes.get(index), unreadable[index]) for index, comment in enumerate(comments)
        ]

    def _decision(
        self,
        comment: Outcome[str],
        outcome: Outcome[tuple[str | None, int | ToolUse]] | None,
        unreadable: int,
    ) -> Decision:
        """outcome: None where there was no comment to act on. unreadable: how many of its answers could not be read."""
        clients = [self.client] + ([self.reflector] if self.reflector else [])
        cost = comment.cost_usd + (outcome.cost_usd if outcome else 0.0)
        price = cost if all(client.prices.known for client in clients) else None
        said = comment.value if self.reflector else None
        illegal = outcome.unfit - unreadable if outcome else 0
        if outcome is not None and outcome.value is not None:
            thought, action = outcome.value
            if isinstance(action, ToolUse):
                unreadable += not reads_as_calls(action.text, PLAIN)
            return Decision(
                action,
                thought if said is None else said,
                illegal=illegal,
                unreadable=unreadable,
                price_usd=price,
                tokens=outcome.tokens,
                answer=answer_text(thought, action),
            )
        asked = clients[-1] if outcome is None else self.client
        rejected = (outcome or comment).rejected
        why = f"{asked.endpoint}: {rejected.reason if rejected else 'the budget is spent'}"
        if rejected and outcome is not None and outcome.unfit:
            return Decision(0, said, overflow=why, illegal=illegal, unreadable=unreadable, price_usd=price)
        return Decision(0, said, failure=why, price_usd=price)


class Recovery:
    """A negative example: the best way, one of the env's `slips`, what `teacher` corrects it with, and the best way
    again.
    """

    def __init__(self, teacher: Agent) -> None:
        self.teacher = teacher

    def act(self, observations: Sequence[Observation], contexts: Sequence[Context]) -> list[Decision]:
        """One decision for each observation; the slip is drawn with the turn's own seed."""
        decisions: list[Decision | None] = [self._walked(context) for context in contexts]
        wrong = [index for index, decision in enumerate(decisions) if decision is None]
        corrected = self.teacher.act([observations[i] for i in wrong], [contexts[i] for i in wrong]) if wrong else []
        for index, decision in zip(wrong, corrected, strict=True):
            decisions[index] = decision
        return [decision for decision in decisions if decision is not None]

    def _walked(self, context: Context) -> Decision | None:
        """What needs no teacher; None where a mistake is to be corrected."""
        env: Any = require_oracle(context.env)
        if not hasattr(env, "slips"):
            raise ConfigError(
                f"env '{env.name}' makes no negative examples (no slips()); use --noise, and --negatives 0"
            )
        if env.note() == "mistake":
            return None
        chance = generator(context.seed, "slip")
        if slips := env.slips():
            return Decision(chance.choice(slips), env.reflection(chance), note="mistake")
        return Decision(env.oracle(), env.reflection(chance), note="positive")


def _played(text: str, observation: Observation) -> tuple[str | None, int | ToolUse]:
    """(the thought, the action) of a reply. Raises ValueError."""
    if observation.tools:
        return None, parse(text, observation.tools, PLAIN)
    return parse_reply(text, observation.choices)


def parse_reply(text: str, choices: Sequence[str]) -> tuple[str, int]:
    """(analysis, index of the choice) of a reply.

    Raises
    ------
    ValueError: saying what is wrong with it; UnreadableError where it is not in the form asked for, so names no action.

    >>> parse_reply("Analysis: The fee is set elsewhere.\\nChoice: 1", ["cd app", "cd conf"])
    ('The fee is set elsewhere.', 1)
    """
    found = REPLY.search(text)
    if found is None:
        raise UnreadableError("not two lines, `Analysis: …` and `Choice: …`")
    analysis = one_line(found["analysis"]).strip("* ")
    if not any(character.isalnum() for character in analysis):
        raise UnreadableError("an empty analysis")
    if len(analysis.split()) > LONGEST_ANALYSIS:
        raise UnreadableError(f"an analysis of {len(analysis.split())} words, at most {ANALYSIS_WORDS} were asked for")
    chosen = found["choice"].strip("*`\"'[]()<> ").removesuffix(".")
    labels = [label(index).strip() for index in range(len(choices))]
    for index, (mark, choice) in enumerate(zip(labels, choices, strict=True)):
        if chosen in (mark, choice, f"{mark} {choice}", f"{mark}. {choice}"):
            return analysis, index
    raise ValueError(f"the choice {chosen[:40]!r} is none of the {len(choices)} actions")


def plain_comment(text: str) -> str:
    """A comment on one line, without the heading that some models put before it.

    >>> plain_comment("**Comment:** The goal is\\nnear.")
    'The goal is near.'
    """
    return COMMENT_HEAD.sub("", one_line(text)) or one_line(text)


def parse_comment(text: str, observation: Observation, right: Action) -> str:
    """A teacher's comment on one line. Raises ValueError where it is empty or too long, or names the right action."""
    comment = plain_comment(text)
    if not any(character.isalnum() for character in comment):
        raise ValueError("an empty comment")
    if len(comment.split()) > LONGEST_ANALYSIS:
        raise ValueError(f"a comment of {len(comment.split())} words, at most {ANALYSIS_WORDS} were asked for")
    if name := named(comment, observation, right):
        raise ValueError(f"the comment names the right action: {name!r:.80}")
    return comment


def named(comment: str, observation: Observation, action: Action) -> str:
    """By which words `comment` names `action`, or "": the choice or command itself, its number as such, a call or its
    tool.

    >>> from reflectkit.core.types import Message
    >>> seen = Observation((Message("user", "a map"),), ("south", "pickup"))
    >>> named("Pickup is due.", seen, 1), named("Take action 1.", seen, 1), named("Row 1 holds the passenger.", seen, 1)
    ('pickup', 'action 1', '')
    """
    words = [action_words(observation, action)]
    if isinstance(action, ToolUse):
        words = [*(plain_text([call]) for call in action.calls), *dict.fromkeys(call.name for call in action.calls)]
    said = one_line(comment).casefold()
    for name in map(one_line, words):
        if re.search(rf"(?<!\w){re.escape(name.casefold())}(?!\w)", said):
            return name
    if isinstance(action, int):
        mark = re.escape(label(action).strip().casefold())
        found = re.search(rf"\b(?:action|choice|option|number|label|no\.)\W{{0,3}}{mark}(?!\w)", said)
        return found[0] if found else ""
    return ""


def _mistaken(context: Context) -> bool:
    note = getattr(context.env, "note", None)
    return note is not None and note() == "mistake"
