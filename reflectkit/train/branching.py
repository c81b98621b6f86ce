"""Rewards of comments: episodes are played again up to a state, where the reflector comments anew, several times.

The comments on a state are compared with each other, with everything else held fixed. The state is the same, since the
recorded actions are taken again from the same start. The dice are the same, since a turn's seed is that of the recorded
episode. This is the "vine" of TRPO (Schulman et al. 2015, arXiv 1502.05477, section 5.2), with comments as the actions.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.env import Context, Env, teacher_of
from reflectkit.errors import ConfigError
from reflectkit.rollouts.episode import Episode, play_all
from reflectkit.seeding import derive, generator
from reflectkit.types import Comment, Decision, Observation, Status, Trajectory

UNLIKE = "the env did not show the same again"
COMPARED = "its comments were compared"


@dataclass(frozen=True)
class Branch:
    """The state after the first `turn` turns of an episode that was played."""

    episode: Episode
    """How it was begun."""
    trajectory: Trajectory
    """How it went."""
    turn: int
    """0 … its number of turns - 1."""


@dataclass(frozen=True)
class Trial:
    """How comments are tried."""

    count: int
    """Comments on each state."""
    temperature: float
    """Of their sampling, > 0."""
    gamma: float
    """Discount factor of the return, 0 … 1."""
    width: int
    """Episodes played at once."""
    timeout_s: float = 0.0
    """Deadline of an episode; see `rollouts.episode.play`."""


@dataclass(frozen=True)
class Compared:
    """The comments on one state."""

    comments: tuple[Comment, ...]
    """Those that were sampled, with their rewards."""
    read: bool | None
    """Whether the env confirms the comment that the policy read there in the recorded episode; None: it cannot tell."""


async def by_return(
    agent: TwoPlayerAgent,
    branches: Sequence[Branch],
    make_env: Callable[[], Env],
    trial: Trial,
) -> list[Compared]:
    """Comments on each of `branches`, at most one per episode, rewarded with the discounted return from there on.

    The policy reads the comment in that state, and the agent's own ones after it. A state that the env does not show
    again, or with an episode that was ABORTED, is left out.
    """
    comments: list[list[Comment]] = [[] for _ in branches]
    read: list[bool | None] = [None for _ in branches]
    episodes = [branch.episode for branch in branches]
    for number in range(trial.count):  # one after the other, since they have the same seeds
        replay = _Replay(agent, branches, number, trial)
        played = await play_all(episodes, make_env, replay, width=trial.width, timeout_s=trial.timeout_s)
        for place, (branch, trajectory) in enumerate(zip(branches, played, strict=True)):
            comment = replay.comments.get(branch.episode.seed)
            if comment is not None and trajectory.status is not Status.ABORTED:
                comments[place].append(replace(comment, reward=_return_from(trajectory, branch.turn, trial.gamma)))
                read[place] = replay.read[branch.episode.seed]
    return [
        Compared(tuple(row), was_true) for row, was_true in zip(comments, read, strict=True) if len(row) == trial.count
    ]


async def by_judgement(
    agent: TwoPlayerAgent,
    branches: Sequence[Branch],
    make_env: Callable[[], Env],
    trial: Trial,
) -> list[Compared]:
    """Comments on each of `branches`, rewarded with 1 if the policy, after reading it, gives the teacher's action a
    greater probability than another action, else with 0.

    The other action is sampled by the policy, with the comment that it read there, from all but the teacher's. After
    Agentic Critical Training (arXiv 2603.08706), where a model is shown an expert's action and one of its own, and is
    rewarded for naming the better one; here the reflector is shown neither, as when it comments in an episode. Where
    several actions are equally good, the teacher's counts as better.

    Raises ConfigError in an env without a teacher's actions or enumerated ones. A state that the env does not show
    again, or that is too long for the policy, is left out.
    """
    replay = _JudgingReplay(agent, branches, trial)
    episodes = [branch.episode for branch in branches]
    await play_all(episodes, make_env, replay, width=trial.width, timeout_s=trial.timeout_s)
    return [replay.compared[episode.seed] for episode in episodes if episode.seed in replay.compared]


class _Replay:
    """Takes the recorded actions up to each branch's state, comments there, and then plays as `agent` does."""

    def __init__(self, agent: TwoPlayerAgent, branches: Sequence[Branch], number: int, trial: Trial) -> None:
        self.agent, self.number, self.trial = agent, number, trial
        self.comments: dict[int, Comment] = {}
        """The comment in each state, by the seed of its episode."""
        self.read: dict[int, bool | None] = {}
        """Of each state, see `Compared.read`."""
        self._places = {
            derive(branch.episode.seed, "turn", turn): (branch, turn)
            for branch in branches
            for turn in range(branch.turn + 1)
        }

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The recorded decision, or a new one."""
        if context.seed not in self._places:
            return await self.agent.decide(observation, context)
        branch, turn = self._places[context.seed]
        recorded = branch.trajectory.turns[turn]
        if observation != recorded.observation:
            return Decision(0, truncation_reason=UNLIKE)
        return recorded.decision if turn < branch.turn else await self._at(branch, observation, context)

    async def _at(self, branch: Branch, observation: Observation, context: Context) -> Decision:
        """The decision in the branch's state."""
        comment = await self._sampled(observation, context, self.number)
        self.comments[branch.episode.seed] = comment
        self.read[branch.episode.seed] = _confirmed(
            context.env, branch.trajectory.turns[branch.turn].decision.reflection
        )
        return await self.agent.act_on(observation, comment.text, context)

    async def _sampled(self, observation: Observation, context: Context, number: int) -> Comment:
        assert self.agent.reflector is not None
        seed = derive(context.seed, "comment to compare", number)
        comment = await self.agent.reflector.sampled(observation, self.trial.temperature, seed)
        return replace(comment, true=_confirmed(context.env, comment.text))


class _JudgingReplay(_Replay):
    """Takes the recorded actions up to each branch's state, and compares comments there."""

    def __init__(self, agent: TwoPlayerAgent, branches: Sequence[Branch], trial: Trial) -> None:
        shows = copy.copy(agent)
        shows.show = True
        super().__init__(shows, branches, 0, trial)
        self.compared: dict[int, Compared] = {}

    async def _at(self, branch: Branch, observation: Observation, context: Context) -> Decision:
        if not observation.choices:
            raise ConfigError("--reflector-reward judgement compares enumerated actions; use --reflector-reward return")
        better: Any = teacher_of(context.env, "action").action()
        reflection = branch.trajectory.turns[branch.turn].decision.reflection
        comments = await asyncio.gather(
            *(self._sampled(observation, context, number) for number in range(self.trial.count))
        )
        texts = [reflection, *(comment.text for comment in comments)]
        decisions = await asyncio.gather(*(self.agent.act_on(observation, text, context) for text in texts))
        others = [action for action in range(len(observation.choices)) if action != better]
        if others and not any(decision.truncation_reason for decision in decisions):
            before, *after = [decision.probabilities for decision in decisions]
            worse = generator(context.seed, "worse").choices(others, [before[action] + 1e-12 for action in others])[0]
            rewarded = [
                replace(comment, reward=float(shares[better] > shares[worse]))
                for comment, shares in zip(comments, after, strict=True)
            ]
            self.compared[branch.episode.seed] = Compared(tuple(rewarded), _confirmed(context.env, reflection))
        return Decision(0, truncation_reason=COMPARED)


def _confirmed(env: Env, comment: str | None) -> bool | None:
    """Whether `env` confirms `comment` on its state; None if it cannot tell, or there is none."""
    teacher = env.teacher()
    return teacher.confirms(comment) if comment is not None and teacher.has("confirms") else None


def _return_from(trajectory: Trajectory, turn: int, gamma: float) -> float:
    """The discounted return from `turn` on; if the policy could not act there, what that cost."""
    rewards = [later.reward for later in trajectory.turns[turn:]]
    if not rewards:  # the truncation penalty is part of the last turn's reward, or the episode's own before the first
        rewards = [
            trajectory.turns[-1].info.get("truncation_penalty", 0.0)
            if trajectory.turns
            else trajectory.truncation_penalty
        ]
    return sum(gamma**step * reward for step, reward in enumerate(rewards))
