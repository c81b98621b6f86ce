"""The scores of a conversation's answers: by rules, or by a judge where there is one and the question has a rubric."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from reflectkit.env import Claim, Judge
from reflectkit.envs.memory.scoring import RUBRIC, Question, score
from reflectkit.eventloop import followed


def scores(
    questions: Sequence[Question], answers: Sequence[str], judge: Judge | None
) -> list[float] | Awaitable[list[float]]:
    """The score of each answer, 0 … 1; awaitable if the judge is. Raises EnvironmentFailure if it cannot be reached."""
    claims = {
        number: Claim(question.question, "; ".join(question.answers), answer.split("</think>")[-1].strip())
        for number, (question, answer) in enumerate(zip(questions, answers, strict=True))
        if judge is not None and question.kind == RUBRIC
    }
    by_rule = [
        0.0 if number in claims else score(question, answer)
        for number, (question, answer) in enumerate(zip(questions, answers, strict=True))
    ]
    if judge is None or not claims:
        return by_rule

    def merged(verdicts: list[bool]) -> list[float]:
        judged = dict(zip(claims, map(float, verdicts), strict=True))
        return [judged.get(number, ruled) for number, ruled in enumerate(by_rule)]

    return followed(judge.verdicts(list(claims.values())), merged)
