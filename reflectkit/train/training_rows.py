"""Trajectories to training rows, from the tokens that were sampled; nothing is decoded and
tokenised again.

A choice is a row of its own. For text, a turn whose prompt extends the row's tokens is appended to
it, with the env's tokens masked; a prompt that was rebuilt starts a new row. ABORTED episodes give
no rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from reflectkit.types import ChoiceTarget, Comment, Decision, Sample, Status, Trajectory, Turn

LabelsOf = Mapping[tuple[str, ...], tuple[tuple[int, ...], ...]]
"""The token ids of each choice's label, by the choices of an observation."""


def trainable(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories to train on: not ABORTED, and with at least one decision."""
    result = []
    for trajectory in trajectories:
        if trajectory.status is not Status.ABORTED and trajectory.turns:
            result.append(trajectory)
    return result


def rows(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[Sequence[float]],
    returns: Sequence[Sequence[float]],
    labels_of: LabelsOf,
    values: Sequence[Sequence[float]] | None = None,
    replayed: bool = False,
    *,
    targets: Sequence[Sequence[ChoiceTarget | None]] = (),
    with_distillation: bool = False,
    with_reward: bool = True,
) -> list[Sample]:
    """The training rows of `trajectories`.

    Parameters
    ----------
    advantages, returns: of each decision, by trajectory.
    values: the critic's, of each decision; None without a critic.
    replayed: whether an earlier policy played the trajectories.
    targets: what each decision is drawn towards, by trajectory; empty for nothing.
    with_distillation: whether comments that the policy did not read are distilled into it.
    with_reward: whether the advantages count. If not, only rows with such comments are returned.
    """
    # 1. The rows of each episode
    samples: list[Sample] = []
    for number, trajectory in enumerate(trajectories):
        if trajectory.status is Status.ABORTED:
            continue
        episode_values = None if values is None else values[number]
        samples += _episode_rows(
            trajectory,
            advantages[number],
            returns[number],
            episode_values,
            labels_of,
            targets[number] if targets else None,
            replayed,
        )

    # 2. Without distillation, comments teach nothing
    if not with_distillation:
        samples = [replace(sample, commented=()) for sample in samples]

    # 3. Without reward, only comments do
    if with_reward:
        return samples
    return [replace(sample, only_distilled=True) for sample in samples if sample.commented]


def _episode_rows(
    trajectory: Trajectory,
    advantages: Sequence[float],
    returns: Sequence[float],
    values: Sequence[float] | None,
    labels_of: LabelsOf,
    targets: Sequence[ChoiceTarget | None] | None,
    replayed: bool,
) -> list[Sample]:
    """The rows of one episode. advantages, returns, values, targets: of each of its decisions."""
    builders: list[RowBuilder] = []
    current: RowBuilder | None = None
    for step, turn in enumerate(trajectory.turns):
        value = None if values is None else values[step]
        numbers = (advantages[step], returns[step], value)

        # 1. A thought before an action is a row of its own
        thought = turn.decision.thought
        if thought is not None:
            thought_row = RowBuilder(())
            thought_row.write(thought, *numbers)
            builders.append(thought_row)
            current = None

        # 2. A choice starts a row, and so does a text whose prompt was rebuilt
        choices = turn.observation.choices
        if current is None or choices or not current.is_extended_by(turn):
            target = targets[step] if targets is not None else None
            current = RowBuilder(labels_of[choices] if choices else (), target)
            builders.append(current)

        # 3. The new part of the prompt, and what was sampled
        current.write(turn.decision, *numbers)
    return [builder.sample(trajectory.group, replayed) for builder in builders]


def commented_row(sample: Sample, decision: int) -> Sample:
    """The tokens that the policy wrote in a decision of `sample`, after its prompt with a comment.

    decision: its index within the row.
    """
    # 1. What the policy wrote. Of a label, the first token stands for all
    prompt = sample.commented[decision]
    if sample.choices:
        answer = sample.tokens[sample.start :]
        trained_count = 1
    else:
        pairs = zip(sample.tokens, sample.decisions, strict=True)
        answer = tuple(token for token, number in pairs if number == decision)
        trained_count = len(answer)

    # 2. The row, of which this is decision 0. The loss of distillation needs no other numbers
    mask = (0,) * len(prompt) + (1,) * trained_count + (0,) * (len(answer) - trained_count)
    zeros = (0.0,) * len(mask)
    return Sample(
        tokens=(*prompt, *answer),
        loss_mask=mask,
        decisions=tuple(flag - 1 for flag in mask),
        logprobs=zeros,
        advantages=zeros,
        returns=zeros,
        values=(),
        choices=sample.choices,
        group_id=sample.group_id,
    )


class RowBuilder:
    """A row under construction. choices: the labels, if the row ends with one of them. target: what
    that choice is drawn towards.
    """

    def __init__(
        self,
        choices: tuple[tuple[int, ...], ...],
        target: ChoiceTarget | None = None,
    ) -> None:
        self.choices = choices
        self.target = target
        self.tokens: list[int] = []
        self.mask: list[int] = []
        self.decisions: list[int] = []
        self.logprobs: list[float] = []
        self.advantages: list[float] = []
        self.returns: list[float] = []
        self.values: list[float] = []
        self.has_values = True
        """Whether all decisions so far have a value."""
        self.commented: list[tuple[int, ...]] = []
        """The prompt with a comment of each decision, or ()."""

    def is_extended_by(self, turn: Turn) -> bool:
        """Whether `turn`'s prompt starts with the row's tokens so far. A row with choices ends with
        one.
        """
        if self.choices:
            return False
        beginning = turn.decision.prompt_ids[: len(self.tokens)]
        return list(beginning) == self.tokens

    def write(
        self,
        decision: Decision | Comment,
        advantage: float,
        return_to_go: float,
        value: float | None,
    ) -> None:
        """Append the new part of the prompt, masked, and the tokens of `decision`."""
        # 1. The new part of the prompt, the trained tokens, and the rest of a label, whose first
        #    token stands for all
        context = decision.prompt_ids[len(self.tokens) :]
        trained_count = len(decision.logprobs)
        rest_count = len(decision.token_ids) - trained_count

        # 2. Tokens, mask and decisions
        number = len(self.commented)
        self.tokens += [*context, *decision.token_ids]
        self.mask += [0] * len(context) + [1] * trained_count + [0] * rest_count
        self.decisions += [-1] * len(context) + [number] * trained_count + [-1] * rest_count
        self.commented.append(decision.hint_prompt_ids if isinstance(decision, Decision) else ())

        # 3. Numbers of the trained tokens, and 0 elsewhere
        before = [0.0] * len(context)
        after = [0.0] * rest_count
        self.logprobs += [*before, *decision.logprobs, *after]
        self.advantages += before + [advantage] * trained_count + after
        self.returns += before + [return_to_go] * trained_count + after
        self.values += before + [value or 0.0] * trained_count + after
        self.has_values = self.has_values and value is not None

    def sample(self, group: str, replayed: bool) -> Sample:
        """The finished row."""
        has_comments = any(self.commented) and not replayed
        return Sample(
            tokens=tuple(self.tokens),
            loss_mask=tuple(self.mask),
            decisions=tuple(self.decisions),
            logprobs=tuple(self.logprobs),
            advantages=tuple(self.advantages),
            returns=tuple(self.returns),
            values=tuple(self.values) if self.has_values else (),
            choices=self.choices,
            group_id=group,
            replayed=replayed,
            commented=tuple(self.commented) if has_comments else (),
            target=self.target,
        )
