"""Trajectories to training rows, from the tokens that were sampled; nothing is decoded and
tokenised again.

A choice is a row of its own. For text, a turn whose prompt extends the row's tokens is appended to
it, with the env's tokens masked; a prompt that was rebuilt starts a new row. ABORTED episodes give
no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from reflectkit.types import Comment, Decision, Sample, Status, Trajectory, Turn


def trainable(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories to train on: not ABORTED, and with at least one decision."""
    return [
        trajectory
        for trajectory in trajectories
        if trajectory.status is not Status.ABORTED and trajectory.turns
    ]


def rows(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[Sequence[float]],
    returns: Sequence[Sequence[float]],
    labels_of: Mapping[tuple[str, ...], tuple[tuple[int, ...], ...]],
    values: Sequence[Sequence[float]] | None = None,
    replayed: bool = False,
    *,
    taught: bool = False,
    rewarded: bool = True,
) -> list[Sample]:
    """The rows of `trajectories`, given the advantages, returns and, with a critic, values of their
    decisions.

    labels_of: the tokens of each choice's label, by the choices of an observation. taught: whether
    comments that the policy did not read are distilled into it. rewarded: whether the advantages
    matter; if not, rows from which nothing is distilled are left out.
    """
    samples: list[Sample] = []
    for number, trajectory in enumerate(trajectories):
        if trajectory.status is Status.ABORTED:
            continue
        row: RowBuilder | None = None
        for step, turn in enumerate(trajectory.turns):
            value = None if values is None else values[number][step]
            # 1. A thought before an action is a row of its own
            if (thought := turn.decision.thought) is not None:
                if row is not None:
                    samples.append(row.sample(trajectory.group, replayed))
                    row = None
                thought_row = RowBuilder(())
                thought_row.write(thought, advantages[number][step], returns[number][step], value)
                samples.append(thought_row.sample(trajectory.group, replayed))
            # 2. A choice starts a row, and so does a text whose prompt was rebuilt
            if row is None or turn.observation.choices or not row.is_extended_by(turn):
                if row is not None:
                    samples.append(row.sample(trajectory.group, replayed))
                choices = turn.observation.choices
                row = RowBuilder(labels_of[choices] if choices else ())
            # 3. The new part of the prompt, and what was sampled
            row.write(turn.decision, advantages[number][step], returns[number][step], value)
        if row is not None:
            samples.append(row.sample(trajectory.group, replayed))
    # Without distillation comments teach nothing; without reward only they do
    if not taught:
        samples = [
            replace(sample, commented=()) if sample.commented else sample for sample in samples
        ]
    if rewarded:
        return samples
    return [replace(sample, only_distilled=True) for sample in samples if sample.commented]


def commented_row(sample: Sample, decision: int) -> Sample:
    """The tokens that the policy wrote in a decision of `sample`, after its prompt with a comment."""
    prompt = sample.commented[decision]
    if sample.choices:
        answer, trained = sample.tokens[sample.start :], 1
    else:
        answer = tuple(
            token
            for token, number in zip(sample.tokens, sample.decisions, strict=True)
            if number == decision
        )
        trained = len(answer)
    mask = (0,) * len(prompt) + (1,) * trained + (0,) * (len(answer) - trained)
    zeros = (0.0,) * len(mask)
    numbers = tuple(flag - 1 for flag in mask)
    return Sample(
        (*prompt, *answer), mask, numbers, zeros, zeros, zeros, (), sample.choices, sample.group_id
    )


class RowBuilder:
    """A row under construction."""

    def __init__(self, choices: tuple[tuple[int, ...], ...]) -> None:
        self.choices = choices
        self.tokens: list[int] = []
        self.mask: list[int] = []
        self.decisions: list[int] = []
        self.commented: list[tuple[int, ...]] = []
        # Log-probabilities, advantages, returns, values
        self.columns: tuple[list[float], ...] = ([], [], [], [])
        self.valued = True

    def is_extended_by(self, turn: Turn) -> bool:
        """Whether `turn`'s prompt starts with the row's tokens so far."""
        return (
            not self.choices and list(turn.decision.prompt_ids[: len(self.tokens)]) == self.tokens
        )

    def write(
        self,
        decision: Decision | Comment,
        advantage: float,
        target: float,
        value: float | None,
    ) -> None:
        """Append the new part of the prompt, masked, and the tokens of `decision`."""
        # 1. Lengths: of the new part of the prompt, of what is trained, and of the rest of a label,
        #    whose first token stands for all
        new = decision.prompt_ids[len(self.tokens) :]
        count = len(decision.logprobs)
        rest = len(decision.token_ids) - count
        # 2. Tokens, mask and decisions
        self.valued = self.valued and value is not None
        self.tokens += [*new, *decision.token_ids]
        self.mask += [0] * len(new) + [1] * count + [0] * rest
        self.decisions += [-1] * len(new) + [len(self.commented)] * count + [-1] * rest
        self.commented.append(decision.hint_prompt_ids if isinstance(decision, Decision) else ())
        # 3. Numbers of the trained tokens
        numbers = (
            decision.logprobs,
            [advantage] * count,
            [target] * count,
            [value or 0.0] * count,
        )
        for column, part in zip(self.columns, numbers, strict=True):
            column += [0.0] * len(new) + list(part) + [0.0] * rest

    def sample(self, group: str, replayed: bool) -> Sample:
        """The finished row."""
        logprobs, advantages, returns, values = map(tuple, self.columns)
        return Sample(
            tokens=tuple(self.tokens),
            loss_mask=tuple(self.mask),
            decisions=tuple(self.decisions),
            logprobs=logprobs,
            advantages=advantages,
            returns=returns,
            values=values if self.valued else (),
            choices=self.choices,
            group_id=group,
            replayed=replayed,
            commented=tuple(self.commented) if any(self.commented) and not replayed else (),
        )
