"""Typed reflectors: a comment made of the probabilities that a model gives to answers.

Its checkpoint was trained on questions about states (`sft --role reflection --typed`). Each
question is a prompt that `decisions.questions` renders. These prompts begin with the state, which
is read once for all of them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from reflectkit.agents.two_player import CommentSource, PromptMemo, Reflector
from reflectkit.decisions.questions import NO, YES, Question, question_about
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

LIKELY_OPTIONS = 3
"""How many options of a question a comment has at most."""
LEAST_PROBABILITY = 0.01
"""Options that are less likely are left out of a comment."""


def comment_on(answers: Sequence[tuple[str, Sequence[str], Sequence[float]]]) -> str:
    """A comment in one line, with the likeliest options of each answer and their probabilities.

    answers: (name of the question, options, probabilities) of each. Of yes and no, the comment has
    only the probability of yes.

    >>> likely = "likely", ("cat a.py", "cd docs", "cd .."), (0.62, 0.375, 0.005)
    >>> comment_on([likely, ("here", ("yes", "no"), (1, 0))])
    'likely: cat a.py 0.62, cd docs 0.38; here: 1.00'
    """
    parts = []
    for name, options, probabilities in answers:
        if tuple(options) == (YES, NO):
            parts.append(f"{name}: {probabilities[0]:.2f}")
            continue
        pairs = sorted(
            zip(options, probabilities, strict=True), key=lambda pair: pair[1], reverse=True
        )
        likely = []
        for option, probability in pairs[:LIKELY_OPTIONS]:
            if probability >= LEAST_PROBABILITY:
                likely.append(f"{one_line(option)} {probability:.2f}")
        parts.append(f"{name}: {', '.join(likely)}")
    return "; ".join(parts)


class TypedReflector:
    """A model that comments with its answers to `questions`."""

    reads_choices = True
    """Whether the comment depends on the legal actions."""

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
        """The comment on `observation`, whatever the seed.

        It is "" if there is no question with options, or none fits into the model's context.
        """
        # 1. The questions for which this state has options
        questions: list[tuple[str, Question]] = []
        for state_question in self.questions:
            question = question_about(state_question, observation)
            if question is not None:
                questions.append((state_question.name, question))

        # 2. The answers to all of them, at once
        work = [self._answer(question, observation.text) for _, question in questions]
        rows = await asyncio.gather(*work)

        # 3. A comment made of the answers to questions that fit into the context
        answers = []
        for (name, question), probabilities in zip(questions, rows, strict=True):
            if probabilities:
                answers.append((name, question.options, probabilities))
        comment = TypedComment(comment_on(answers))
        comment.answers = {name: probabilities for name, _, probabilities in answers}
        return comment

    async def comments(
        self, observations: Sequence[Observation], seeds: Sequence[int]
    ) -> list[str]:
        """A comment on each observation."""
        return list(await asyncio.gather(*map(self.comment, observations, seeds)))

    async def _answer(self, question: Question, state: str) -> tuple[float, ...]:
        """The probability of each option (K); empty if the prompt does not fit into the context."""
        if len(question.options) == 1:
            return (1.0,)
        prompt = self._prompts.ids(policy_prompt(question.observation(state), None, self.answer))
        labels = choice_ids(self.sampler.tokenizer, question.options, self.answer)
        # The prompts of several questions begin with the same state
        is_shared = len(self.questions) > 1
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
    """The questions that a typed reflector was trained on, from its facts; none for other models.

    source: the folder of the model, for errors. Raises CheckpointError.
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
    """The reflector of a checkpoint, which writes comments, or answers questions if it is typed.

    sampler: of the model. facts: of the checkpoint. source: its folder, for errors. temperature: of
    the comments that it writes. Raises CheckpointError.
    """
    questions = questions_of(facts, source)
    if questions:
        return TypedReflector(sampler, questions, str(facts.get("answer", ANSWERS[0])))
    return Reflector(sampler, temperature=temperature)
