"""A reflector that answers questions about the state with probabilities, in one pass; its comment is made of them.

The questions are those that its checkpoint was trained on (`sft --role reflection --typed`). Each is read as
`decisions.questions` renders it, so a state is read once for all of them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from reflectkit.agents.two_player import CommentSource, PromptMemo, Reflector
from reflectkit.decisions.questions import NO, YES, Question
from reflectkit.env import Context
from reflectkit.errors import CheckpointError
from reflectkit.models.checkpoint_metadata import QUESTIONS
from reflectkit.models.labels import choice_ids
from reflectkit.prompts import one_line, policy_prompt
from reflectkit.sampling.base import Sampler, SampleRequest
from reflectkit.types import (
    ANSWERS,
    SCORE,
    Observation,
    StateQuestion,
    TypedComment,
    from_json,
)

LIKELY_OPTIONS, LEAST_LIKELY = 3, 0.01
"""Most options of a question in a comment, and the least probability of one."""


def question_about(question: StateQuestion, observation: Observation) -> Question | None:
    """`question` about the state of `observation`; None where there are no options to choose among."""
    options = question.options or observation.choices
    if not options:
        return None
    if options == (YES, NO):
        return Question("predicate", question.text, options)
    return Question("choice", question.text, tuple(options))


def comment_on(answers: Sequence[tuple[str, Sequence[str], Sequence[float]]]) -> str:
    """One line of answers, each (name of the question, options, probabilities); of yes and no, that of yes.

    >>> likely = "likely", ("cat a.py", "cd docs", "cd .."), (0.62, 0.375, 0.005)
    >>> comment_on([likely, ("here", ("yes", "no"), (1, 0))])
    'likely: cat a.py 0.62, cd docs 0.38; here: 1.00'
    """
    parts = []
    for name, options, shares in answers:
        if tuple(options) == (YES, NO):
            parts.append(f"{name}: {shares[0]:.2f}")
            continue
        order = sorted(range(len(shares)), key=lambda index: -shares[index])
        likely = []
        for index in order[:LIKELY_OPTIONS]:
            if shares[index] >= LEAST_LIKELY:
                likely.append(f"{one_line(options[index])} {shares[index]:.2f}")
        parts.append(f"{name}: {', '.join(likely)}")
    return "; ".join(parts)


class TypedReflector:
    """A model here that comments with its answers to `questions`."""

    reads_choices = True
    """Whether the comment depends on the actions that are offered."""

    def __init__(
        self,
        sampler: Sampler,
        questions: Sequence[StateQuestion],
        answer: str = ANSWERS[0],
    ) -> None:
        self.sampler = sampler
        self.questions = tuple(questions)
        self.answer = answer
        self._prompts = PromptMemo(sampler.tokenizer)

    async def remark(self, observation: Observation, context: Context) -> TypedComment:
        """The comment on `observation`."""
        return await self.comment(observation)

    async def comment(self, observation: Observation, seed: int = 0) -> TypedComment:
        """The comment on `observation`, which depends on nothing else; "" where nothing can be asked, or read."""
        # 1. The questions that this state has options for
        questions: list[tuple[str, Question]] = []
        for state_question in self.questions:
            question = question_about(state_question, observation)
            if question is not None:
                questions.append((state_question.name, question))

        # 2. Their answers, at once
        work = [self._answer(question, observation.text) for _, question in questions]
        rows = await asyncio.gather(*work)

        # 3. The comment of those that fit the model
        answers = []
        for (name, question), row in zip(questions, rows, strict=True):
            if row:
                answers.append((name, question.options, row))
        comment = TypedComment(comment_on(answers))
        comment.answers = {name: row for name, _, row in answers}
        return comment

    async def comments(
        self, observations: Sequence[Observation], seeds: Sequence[int]
    ) -> list[str]:
        """A comment on each observation."""
        return list(await asyncio.gather(*map(self.comment, observations, seeds)))

    async def _answer(self, question: Question, state: str) -> tuple[float, ...]:
        """The probability of each option; none if the question does not fit the model."""
        if len(question.options) == 1:
            return (1.0,)
        prompt = self._prompts.ids(policy_prompt(question.observation(state), None, self.answer))
        labels = choice_ids(self.sampler.tokenizer, question.options, self.answer)
        is_shared = len(self.questions) > 1  # all of them begin with the state
        request = SampleRequest(
            prompt,
            labels,
            temperature=0.0,
            shared=is_shared,
            separately=self.answer == SCORE,
        )
        output = await self.sampler.sample(request)
        return tuple(map(math.exp, output.label_logprobs))


def questions_of(facts: Mapping[str, Any], source: str) -> list[StateQuestion]:
    """The questions that a typed reflector was trained on, from its facts; none of another one. Raises
    CheckpointError.
    """
    entries = facts.get(QUESTIONS, [])
    if not isinstance(entries, list):
        raise CheckpointError(
            f"{source}: its questions are {entries!r:.60}; restore reflectkit.json"
        )
    return [from_json(StateQuestion, entry, path=source) for entry in entries]


def reflector_of(
    sampler: Sampler,
    facts: Mapping[str, Any],
    source: str,
    temperature: float = 0.0,
) -> CommentSource:
    """The reflector of a checkpoint: one that writes, or one that answers questions. temperature: of what it writes."""
    questions = questions_of(facts, source)
    if questions:
        return TypedReflector(sampler, questions, str(facts.get("answer", ANSWERS[0])))
    return Reflector(sampler, temperature=temperature)
