"""The reflector as a second player: its comments are actions, each compared with others on the same
state.

Episodes are played again up to a state, where the reflector comments anew, several times. The state
is the same, since the recorded actions are taken again from the same start, and so are the dice,
since a turn's seed is that of the recorded episode: the "vine" of TRPO (Schulman et al. 2015, arXiv
1502.05477, section 5.2), with comments as the actions. The advantage of a comment is its reward
minus the mean reward of the others on that state. Leaving the comment out of its own baseline keeps
the gradient unbiased (RLOO, arXiv 2402.14740, eq. 6).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.env import Context, Env
from reflectkit.rollouts.episode import Episode, play_all
from reflectkit.seeding import derive
from reflectkit.train.advantages import SPREAD, deviation, leave_one_out
from reflectkit.train.training_rows import RowBuilder
from reflectkit.types import Comment, Decision, Observation, Sample, Status, Trajectory

if TYPE_CHECKING:
    from reflectkit.train.learner import Learner
    from reflectkit.train.rl_config import ReflectorTrainingConfig

FIGURES = ("loss", "entropy", "kl_to_start", "ratio_deviation", "gradient_norm")
"""What is reported of the learner's figures."""
UNLIKE = "the env did not show the same again"


@dataclass(frozen=True)
class Branch:
    """The state after the first `turn` turns of an episode that began as `episode` and went as
    `trajectory`.
    """

    episode: Episode
    trajectory: Trajectory
    turn: int


@dataclass(frozen=True)
class Compared:
    """The comments on one state, with their rewards. read: whether the env confirms the comment
    that the policy read there in the recorded episode; None: it cannot tell.
    """

    comments: tuple[Comment, ...]
    read: bool | None


async def by_return(
    agent: TwoPlayerAgent,
    branches: Sequence[Branch],
    make_env: Callable[[], Env],
    config: ReflectorTrainingConfig,
    gamma: float,
    *,
    width: int,
    timeout_s: float = 0.0,
) -> list[Compared]:
    """Comments on each of `branches`, at most one per episode, rewarded with the return from there
    on, discounted by `gamma`. width, timeout_s: see `rollouts.episode.play_all`.

    The policy reads the comment in that state, and the agent's own ones after it. A state that the
    env does not show again, or with an episode that was ABORTED, is left out.
    """
    comments: dict[int, list[Comment]] = {branch.episode.seed: [] for branch in branches}
    read: dict[int, bool | None] = {}
    episodes = [branch.episode for branch in branches]
    # 1. Each comment is tried in a replay, one after the other, since they have the same seeds
    for number in range(config.comments):
        replay = _Replay(agent, branches, number, config.temperature)
        replays = await play_all(episodes, make_env, replay, width=width, timeout_s=timeout_s)
        for branch, trajectory in zip(branches, replays, strict=True):
            comment = replay.comments.get(trajectory.seed)
            if comment is not None and trajectory.status is not Status.ABORTED:
                reward = _return_from(trajectory, branch.turn, gamma)
                comments[trajectory.seed].append(replace(comment, reward=reward))
        read |= replay.read

    # 2. States on which all comments could be tried
    compared = []
    for seed, row in comments.items():
        if len(row) == config.comments:
            compared.append(Compared(tuple(row), read[seed]))
    return compared


class _Replay:
    """Takes the recorded actions up to each branch's state, comments there, and then plays as
    `agent` does.

    comments: the comment in each state, by the seed of its episode. read: of each state, see
    `Compared`.
    """

    def __init__(
        self,
        agent: TwoPlayerAgent,
        branches: Sequence[Branch],
        number: int,
        temperature: float,
    ) -> None:
        self.agent = agent
        self.number = number
        self.temperature = temperature
        self.comments: dict[int, Comment] = {}
        self.read: dict[int, bool | None] = {}
        self._places: dict[int, tuple[Branch, int]] = {}
        """The branch and the turn, by the seed of the turn."""
        for branch in branches:
            for turn in range(branch.turn + 1):
                seed = derive(branch.episode.seed, "turn", turn)
                self._places[seed] = (branch, turn)

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The recorded decision, or a new one."""
        # 1. After the branch's state, the agent plays
        if context.seed not in self._places:
            return await self.agent.decide(observation, context)

        # 2. Up to it, the recorded decisions
        branch, turn = self._places[context.seed]
        recorded = branch.trajectory.turns[turn]
        if observation != recorded.observation:
            return Decision(0, truncation_reason=UNLIKE)
        if turn < branch.turn:
            return recorded.decision

        # 3. There, a new comment
        assert self.agent.reflector is not None
        seed = derive(context.seed, "comment to compare", self.number)
        comment = await self.agent.reflector.sampled(observation, self.temperature, seed)
        self.comments[branch.episode.seed] = replace(
            comment, true=_confirmed(context.env, comment.text)
        )
        self.read[branch.episode.seed] = _confirmed(context.env, recorded.decision.reflection)
        return await self.agent.act_on(observation, comment.text, context)


def _confirmed(env: Env, comment: str | None) -> bool | None:
    """Whether `env` confirms `comment` on its state; None if it cannot tell, or there is none."""
    teacher = env.teacher()
    if comment is None or not teacher.has("confirms"):
        return None
    return teacher.confirms(comment)


def _return_from(
    trajectory: Trajectory,
    turn: int,
    gamma: float,
) -> float:
    """The discounted return from `turn` on; if the policy could not act there, what that cost."""
    rewards = [later.reward for later in trajectory.turns[turn:]]
    # The truncation penalty is part of the last turn's reward, or the episode's own before the
    # first
    if not rewards and trajectory.turns:
        rewards = [trajectory.turns[-1].info.get("truncation_penalty", 0.0)]
    elif not rewards:
        rewards = [trajectory.truncation_penalty]
    return sum(gamma**step * reward for step, reward in enumerate(rewards))


@dataclass(frozen=True)
class ReflectorTrainer:
    """Trains the reflector. learner: holds it, its optimizer, and the frozen one that it started
    from.
    """

    learner: Learner
    config: ReflectorTrainingConfig
    normalize: bool = True
    """Whether advantages are divided by their standard deviation."""

    def is_due(self, step: int) -> bool:
        """Whether it takes its turn after the policy's update number `step`."""
        return step % self.config.every == 0

    def learn(
        self,
        compared: Sequence[Sequence[Comment]],
        chance: random.Random,
        rate: float,
    ) -> dict[str, float]:
        """Learn from the comments on each state; `chance` shuffles them. Returns figures named
        `reflector_…`.

        rate: the schedule's factor for the learning rate, 0 … 1. Raises DivergedError, see
        `Learner.update`.
        """
        # 1. Rewards, less the cost of long comments
        cost = self.config.length_cost
        charged = []
        for comments in compared:
            row = []
            for comment in comments:
                reward = comment.reward - cost * len(comment.token_ids)
                row.append(replace(comment, reward=reward))
            charged.append(row)
        rewards = [[comment.reward for comment in row] for row in charged]

        # 2. Advantages among the comments on one state, and an update
        samples = rows(charged, advantages(rewards, self.normalize))
        figures: dict[str, float] = {}
        if self.config.learning_rate:
            figures = self.learner.update(samples, chance, rate).figures

        # 3. Figures
        every = [comment for comments in compared for comment in comments]
        count = max(1, len(every))
        alike = sum(max(row) - min(row) <= SPREAD for row in rewards)
        tokens_read = sum(len(sample.tokens) for sample in samples) if figures else 0
        ours = {f"reflector_{name}": figures[name] for name in FIGURES if name in figures}
        return ours | {
            "reflector_states": len(rewards),
            "reflector_rows": len(samples),
            "reflector_reward": sum(comment.reward for comment in every) / count,
            "reflector_tokens": sum(len(comment.token_ids) for comment in every) / count,
            "states_without_spread": alike / max(1, len(rewards)),
            "reflector_turn_tokens": tokens_read,
        }


def advantages(rewards: Sequence[Sequence[float]], normalize: bool) -> list[list[float]]:
    """Each comment's reward minus the mean reward of the other comments on its state, by state.

    normalize: divide by the standard deviation over the states whose comments differ; the others
    have 0.

    >>> advantages([[3.0, 0.0, 0.0], [1.0, 1.0, 1.0]], normalize=False)
    [[3.0, -1.5, -1.5], [0.0, 0.0, 0.0]]
    """
    # 1. The comments on a state are a group of episodes of one step
    result = []
    for row in rewards:
        steps = leave_one_out([[reward] for reward in row], [0] * len(row))
        result.append([value for (value,) in steps])
    if not normalize:
        return result

    # 2. Their standard deviation
    values = []
    for row in result:
        if any(abs(value) > SPREAD for value in row):
            values += row
    divisor = deviation(values)
    return [[value / divisor for value in row] for row in result]


def rows(
    compared: Sequence[Sequence[Comment]], advantages: Sequence[Sequence[float]]
) -> list[Sample]:
    """A training row for each comment, of the tokens that were sampled; none of states whose
    comments did equally well, or on which a comment has no tokens.
    """
    samples = []
    for place, (comments, row) in enumerate(zip(compared, advantages, strict=True)):
        are_alike = all(abs(value) <= SPREAD for value in row)
        if are_alike or not all(comment.token_ids for comment in comments):
            continue
        for comment, advantage in zip(comments, row, strict=True):
            builder = RowBuilder(())
            builder.write(comment, advantage, comment.reward, None)
            samples.append(builder.sample(str(place), replayed=False))
    return samples


def visited(
    trajectories: Sequence[Trajectory],
    episodes: Mapping[int, Episode],
    count: int,
    chance: random.Random,
) -> list[Branch]:
    """A turn of each of at most `count` of the `trajectories`, drawn evenly; all have turns.

    episodes: by their seeds.
    """
    branches = []
    for trajectory in chance.sample(list(trajectories), min(count, len(trajectories))):
        turn = chance.randrange(len(trajectory.turns))
        branches.append(Branch(episodes[trajectory.seed], trajectory, turn))
    return branches


def share_true(marks: Sequence[bool | None]) -> float | None:
    """The share of True among the marks that are not None; None if there are none."""
    known_marks = [mark for mark in marks if mark is not None]
    return sum(known_marks) / len(known_marks) if known_marks else None
