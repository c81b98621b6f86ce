"""The online training loop: draw problems, play them, estimate advantages, update the policy, report figures."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.env import Env
from reflectkit.errors import EnvironmentFailure
from reflectkit.eventloop import run_sync
from reflectkit.rollout.async_rollouts import AsyncRollouts, Group, StalenessLimits
from reflectkit.rollout.episode import Episode, play_all
from reflectkit.sampling.hf import LocalSampler
from reflectkit.seeding import derive, generator
from reflectkit.train import batch
from reflectkit.train.advantages import Estimates
from reflectkit.train.algorithms import Objective
from reflectkit.train.branching import Branch, Trial, by_judgement, by_return
from reflectkit.train.learner import Learner
from reflectkit.train.metrics import env_figures, summary
from reflectkit.train.processes import Processes
from reflectkit.train.reflector import JUDGEMENT, ReflectorTrainer, share_true, visited
from reflectkit.types import Sample, Status, Task, Trajectory

WINDOW = 3  # updates over which the success rate is averaged to decide whether to advance


def level_at(step: int, steps: int, levels: int) -> int:
    """The index of the level of `step` (0 … steps-1) if each of `levels` gets an equal share of the steps, in order.

    >>> [level_at(step, 6, 3) for step in range(6)]
    [0, 0, 1, 1, 2, 2]
    """
    return min(step * levels // steps, levels - 1)


@dataclass
class Curriculum:
    """Progress through `levels` levels."""

    levels: int
    steps: int
    """Updates in total."""
    threshold: float | None = None
    """A level ends once the mean success rate of its last WINDOW updates reaches this; None: equal steps per level."""
    level: int = 0
    """The current level, from 0."""
    rates: list[float] = field(default_factory=list)
    """Success rates of this level's latest updates."""

    def begin(self, step: int) -> bool:
        """To be called before each update; True if it starts a new level (other than the first)."""
        due = self.level
        if self.threshold is None:
            due = level_at(step, self.steps, self.levels)
        elif len(self.rates) >= WINDOW and sum(self.rates[-WINDOW:]) / WINDOW >= self.threshold:
            due = min(self.level + 1, self.levels - 1)
        if due == self.level:
            return False
        self.level, self.rates = due, []
        return True

    def end(self, success_rate: float) -> None:
        """To be called after each update with the success rate of its episodes, 0 … 1."""
        self.rates = [*self.rates, success_rate][-WINDOW:]


def draw(tasks: Sequence[Task], step: int, count: int, seed: int) -> list[Task]:
    """The `count` problems of `step`, dealt from a deck that is reshuffled whenever it is used up."""
    chosen: list[Task] = []
    position = step * count
    while len(chosen) < count:
        turn, place = divmod(position + len(chosen), len(tasks))
        deck = list(tasks)
        generator(seed, "deck", turn).shuffle(deck)
        chosen += deck[place : place + count - len(chosen)]
    return chosen


class ReplayBuffer:
    """Holds the last `size` successful episodes, oldest first; 0 holds none."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._episodes: deque[Trajectory] = deque(maxlen=size)

    def add(self, played: Iterable[Trajectory]) -> None:
        """Keep those of `played` that succeeded; ABORTED ones never did."""
        self._episodes.extend(
            trajectory for trajectory in played if trajectory.success and trajectory.status is not Status.ABORTED
        )

    def clear(self) -> None:
        """Remove all episodes, as at the start of a level."""
        self._episodes.clear()

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self._episodes)

    def __len__(self) -> int:
        return len(self._episodes)


@dataclass(frozen=True)
class Level:
    """One stage of the curriculum. make: a fresh env, its horizon included. widest: most envs at once."""

    name: str
    tasks: Sequence[Task]
    make: Callable[[], Env]
    widest: int = 2**31


@dataclass(frozen=True)
class TrainerConfig:
    """What to play and how to train."""

    levels: Sequence[Level]
    """The curriculum, in order."""
    steps: int
    """Updates in all."""
    episodes: int
    """Episodes per update, over all processes."""
    objective: Objective[Any]
    """The algorithm with its settings."""
    seed: int
    """Seed of problems, rollouts and minibatches."""
    width: int
    """Episodes played at once in one process."""
    repeats: int = 1
    """Episodes of each drawn problem; they start from the same state and form a group."""
    schedule: str = "linear"
    """See `learning_rate_factor`."""
    warmup: int = 0
    """Updates in which learning rates rise."""
    staleness: int = 0
    """Updates that play may run ahead of learning, with a sampler in another process; see `rollout.async_rollouts`."""
    oversample: float = 1.0
    """See `rollout.async_rollouts.StalenessLimits`."""
    timeout_s: float = 0.0
    """Deadline of an episode; see `rollout.episode.play`."""


class Trainer:
    """Training in progress.

    step: updates done. latest: the last update's fresh episodes, each with the advantages of its turns. counters:
    episodes, decisions and ABORTED episodes so far. second: the reflector, if it learns too.
    """

    def __init__(
        self,
        plan: TrainerConfig,
        agent: TwoPlayerAgent,
        learner: Learner,
        *,
        replay_size: int = 0,
        threshold: float | None = None,
        processes: Processes | None = None,
        second: ReflectorTrainer | None = None,
    ) -> None:
        self.plan, self.agent, self.learner, self.second = plan, agent, learner, second
        self.processes = processes or Processes()
        self.replay = ReplayBuffer(replay_size)
        self.curriculum = Curriculum(len(plan.levels), plan.steps, threshold)
        self.step = 0
        self._published: int | None = None
        self.latest: list[tuple[Trajectory, list[float]]] = []
        self.ahead: AsyncRollouts | None = None
        self.begin_at: tuple[int, list[int]] | None = None
        """Number of the first group that is not learned from yet, and of later ones that are: after a restart."""
        self._begun: dict[int, Episode] = {}
        """The latest episodes, before they were played, by their seeds."""
        self._stale: dict[str, float] = {}
        self._drawn: tuple[Level | None, int, list[Task]] = (None, 0, [])
        self.counters = {"episodes": 0, "decisions": 0, "aborted": 0}

    def train_step(self) -> dict[str, object]:
        """One update: play, then learn. Returns its figures as JSON values, a row of `metrics.jsonl`.

        Raises
        ------
        EnvironmentFailure: every episode was ABORTED. DivergedError, MismatchError: see
        `Learner.update`.
        """
        started = time.perf_counter()
        before = self._counts()
        if self.curriculum.begin(self.step):
            self.replay.clear()
        level = self.plan.levels[self.curriculum.level]
        played = self._play(level)
        self._share_comments()
        counts = [after - earlier for after, earlier in zip(self._counts(), before, strict=True)]
        tokens, asked, hits = (sum(column) for column in zip(*self.processes.gather(counts), strict=True))
        played_s = time.perf_counter() - started

        fresh, old = batch.trainable(played), list(self.replay)
        if played and all(trajectory.status is Status.ABORTED for trajectory in played):
            raise EnvironmentFailure(
                f"every episode of update {self.step + 1} was aborted ({len(played)}): {played[0].reason}"
            )
        samples, estimates = self._rows(fresh, old)
        self.latest = list(zip(fresh, estimates.advantages, strict=False))
        rate = learning_rate_factor(self.plan.schedule, self.step, self.plan.steps, self.plan.warmup)
        figures = self.learner.update(samples, generator(self.plan.seed, "update", self.step), rate)
        self.replay.add(fresh)
        overall = summary(played)
        self.curriculum.end(overall["success_rate"])
        self.step += 1
        self.counters["episodes"] += len(played)
        self.counters["decisions"] += sum(len(trajectory.turns) for trajectory in played)
        self.counters["aborted"] += sum(trajectory.status is Status.ABORTED for trajectory in played)
        tokens += sum(len(sample.tokens) for sample in samples)
        second_figures: dict[str, Any] = {}
        if self.second is not None and self.second.is_due(self.step):
            second_figures = self._reflect(self.second, level, rate)
            tokens += second_figures["reflector_turn_tokens"]
        seconds = time.perf_counter() - started
        groups, dropped = len({trajectory.group for trajectory in fresh}), estimates.dropped
        row = {
            "step": self.step,
            "level": level.name,
            "episodes": self.counters["episodes"],
            **overall,
            **figures,
            **second_figures,
            **self._stale,
            "reflector_cache_hits": hits / asked if asked else None,
            "rows": len(samples),
            "replayed_episodes": len(old),
            "groups_without_spread": len(dropped) / groups if groups and dropped is not None else None,
            "tokens": tokens,
            "tokens_per_second": round(tokens / seconds, 1),
            "episodes_per_second": round(len(played) / seconds, 3),
            "rollout_seconds": round(played_s, 3),
            "update_seconds": round(seconds - played_s, 3),
        }
        return row | env_figures(played)

    def _reflect(self, second: ReflectorTrainer, level: Level, rate: float) -> dict[str, Any]:
        """The reflector's turn: it comments on states of the latest episodes anew, and learns which comments did more.

        What was scored or commented in it is forgotten, so that a run resumed behind it goes on with the same numbers.
        """
        reflector, turns, seed = self.agent.reflector, second.turns, derive(self.plan.seed, "reflector", self.step)
        assert reflector is not None
        self._publish()
        read = self.agent.policy.tokens + reflector.sampler.tokens
        states = visited([trajectory for trajectory, _ in self.latest], turns.states, generator(seed, "states"))
        branches = [Branch(self._begun[trajectory.seed], trajectory, turn) for trajectory, turn in states]
        trial = Trial(
            turns.comments, turns.temperature, self.plan.objective.gamma, self.plan.width, self.plan.timeout_s
        )
        compare = by_judgement if turns.reward == JUDGEMENT else by_return
        compared = run_sync(compare(self.agent, branches, level.make, trial))
        read = self.agent.policy.tokens + reflector.sampler.tokens - read
        comments = [one.comments for one in compared]
        figures = second.learn(comments, generator(seed, "update"), rate)
        run_sync(reflector.renew(second.learner.player, self.step))
        self.learner.forget_values()
        self._published = None
        return figures | {
            "states_left_out": len(branches) - len(compared),
            "comments_true": share_true([one.read for one in compared]),
            "sampled_comments_true": share_true([comment.true for row in comments for comment in row]),
            "reflector_turn_tokens": read + figures["reflector_turn_tokens"],
        }

    def validate(self, level: Level) -> dict[str, Any]:
        """Play each problem of `level` once with the most likely actions: figures as from `advance`, named
        `validation_…`.
        """
        episodes = [Episode(task, derive(self.plan.seed, "validate", task.id)) for task in level.tasks]
        greedy = copy.copy(self.agent)  # as the other one may be playing
        greedy.temperature = 0.0
        played = self._rolled(episodes, level, greedy)
        self._share_comments()
        if played and all(trajectory.status is Status.ABORTED for trajectory in played):
            return {"validation_aborted": 1.0}
        figures = summary(played) | env_figures(played)
        return {f"validation_{name}": value for name, value in figures.items()}

    def settle(self) -> None:
        """Forget what a run that is resumed from here does not have either: then both write the same comments, even
        where rounding decides between two words. A run that plays ahead is not repeated exactly, and goes on playing.
        """
        if self.ahead is not None:
            return
        for sampler in self._local_samplers:
            sampler.forget()

    @property
    def _local_samplers(self) -> list[LocalSampler]:
        """The samplers whose models this process holds."""
        both = (self.agent.policy, self.agent.reflector and self.agent.reflector.sampler)
        return [sampler for sampler in both if isinstance(sampler, LocalSampler)]

    def close(self) -> None:
        """Stop playing ahead."""
        if self.ahead is not None:
            self.ahead.close()

    def _play(self, level: Level) -> list[Trajectory]:
        """This update's episodes in their order, played by all processes."""
        if self.plan.staleness:
            return self._taken()
        tasks = draw(level.tasks, self.step, self._groups, self.plan.seed)
        groups = [self._episodes(task, self.step, number) for number, task in enumerate(tasks)]
        episodes = [episode for group in groups for episode in group]
        self._begun = {episode.seed: episode for episode in episodes}
        return self._rolled(episodes, level, self.agent, valued=True)

    @property
    def _groups(self) -> int:
        """Groups of an update."""
        return self.plan.episodes // self.plan.repeats

    def _episodes(self, task: Task, step: int, number: int) -> list[Episode]:
        """The episodes of group `number` of update `step`: of one problem, from one state if there are several."""
        plan = self.plan
        return [
            Episode(
                task,
                derive(plan.seed, "rollout", step, number * plan.repeats + repeat),
                group=f"{step}/{number}",
                start=derive(plan.seed, "start", step, number) if plan.repeats > 1 else None,
            )
            for repeat in range(plan.repeats)
        ]

    def _taken(self) -> list[Trajectory]:
        """Episodes that were played ahead of this update."""
        self._publish()
        if self.ahead is None:
            first, skip = self.begin_at or (self.step * self._groups, [])
            last = self.plan.steps * self._groups
            bounds = StalenessLimits(self._groups, self.plan.staleness, self.plan.oversample, last)
            self.ahead = AsyncRollouts(
                self._group,
                self.agent,
                bounds,
                width=min(self.plan.width, *(level.widest for level in self.plan.levels)),
                timeout_s=self.plan.timeout_s,
                first=first,
                skip=skip,
            )
        taken = self.ahead.take(self.step)
        ages = [
            self.step - turn.decision.version
            for one in taken.played
            for turn in one.turns
            if turn.decision.version is not None
        ]
        self._stale = {
            "staleness": statistics.fmean(ages) if ages else 0.0,
            "staleness_max": max(ages, default=0),
            "stale_groups_dropped": taken.dropped,
            "groups_ahead": taken.waiting,
        }
        return self.learner.valued(taken.played)

    def _group(self, number: int) -> Group:
        """Group `number` of the stream, at the curriculum's present level."""
        level = self.plan.levels[self.curriculum.level]
        step, place = divmod(number, self._groups)
        if self._drawn[:2] != (level, step):
            self._drawn = level, step, draw(level.tasks, step, self._groups, self.plan.seed)
        return Group(self._episodes(self._drawn[2][place], step, place), level.make)

    def _publish(self) -> None:
        """Give the sampler the present weights, if it does not have them."""
        if self._published != self.step:
            run_sync(self.agent.policy.publish(self.learner.player, self.step))
            self._published = self.step

    def _rolled(
        self, episodes: list[Episode], level: Level, agent: TwoPlayerAgent, *, valued: bool = False
    ) -> list[Trajectory]:
        """`episodes` in their order, played by all processes. valued: with the critic's values of their decisions."""
        self._publish()
        sharded = self.processes.sharded  # then all play all episodes in lockstep and share the scoring
        share = episodes if sharded else self.processes.share(episodes)
        playing = play_all(share, level.make, agent, width=self.plan.width, timeout_s=self.plan.timeout_s)
        if self.ahead is not None:  # in the loop that plays, which alone uses the models of this process meanwhile
            return self.ahead.result(playing)
        mine = run_sync(playing)
        for sampler in self._local_samplers:  # memory for the update, and a resumed run has nothing kept either
            sampler.kept.clear()
        if valued:
            mine = self.learner.valued(mine)
        return mine if sharded else self.processes.gather_shares(mine)

    def _share_comments(self) -> None:
        """Share new comments among the processes, so that all have the same memo."""
        reflector = self.agent.reflector
        if reflector is None:
            return
        for new in self.processes.gather(reflector.new_comments()):
            for key, comment in new.items():
                reflector.memo.setdefault(key, comment)

    def _rows(self, fresh: Sequence[Trajectory], old: Sequence[Trajectory]) -> tuple[list[Sample], Estimates]:
        """Training rows of fresh and replayed episodes, without those of groups without spread."""
        values: list[list[float]] | None = None
        if self.learner.critic is not None:
            values = [[turn.decision.value or 0.0 for turn in trajectory.turns] for trajectory in fresh]
            current = iter(
                self.learner.values([turn.decision.prompt_ids for trajectory in old for turn in trajectory.turns])
            )
            values += [[next(current) for _ in trajectory.turns] for trajectory in old]
        estimates = self.plan.objective.estimate(fresh, old, values or [])
        offered = {turn.observation.choices for trajectory in (*fresh, *old) for turn in trajectory.turns} - {()}
        labels_of = {choices: self.agent.labels(choices) for choices in offered}
        samples: list[Sample] = []
        for part, first, replayed in ((fresh, 0, False), (old, len(fresh), True)):
            kept = [
                number for number, trajectory in enumerate(part) if trajectory.group not in (estimates.dropped or ())
            ]
            samples += batch.rows(
                [part[number] for number in kept],
                [estimates.advantages[first + number] for number in kept],
                [estimates.returns[first + number] for number in kept],
                labels_of,
                [values[first + number] for number in kept] if values is not None else None,
                replayed,
            )
        return samples, estimates

    def _counts(self) -> tuple[int, int, int]:
        """Tokens processed, comments requested and comments found in the memo, in this process so far."""
        reflector = self.agent.reflector
        if reflector is None:
            return self.agent.policy.tokens, 0, 0
        return self.agent.policy.tokens + reflector.sampler.tokens, reflector.requests, reflector.hits


def learning_rate_factor(schedule: str, step: int, steps: int, warmup: int) -> float:
    """The factor of the peak learning rates in update `step` (0 is the first) of `steps`.

    It rises linearly over the first `warmup` updates, none of which has 0. Then it falls to 0 behind the last update,
    so that the final policy hardly moves: "linear", or "cosine" (arXiv 1608.03983, eq. 5); or it is "constant".
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule == "constant":
        return 1.0
    share = (step - warmup) / (steps - warmup)
    return 1 - share if schedule == "linear" else (1 + math.cos(math.pi * share)) / 2
