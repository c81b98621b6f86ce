"""The trainer: each update draws problems, plays them, estimates advantages, and updates the
policy.

`Trainer.train_step` is one update. `rollouts.episode.play_all` plays, `AlgorithmConfig.estimate`
computes the advantages (`train/advantages.py`), and a `Learner` changes the weights. `train.build`
makes a trainer.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reflectkit.agents.two_player import TwoPlayerAgent, cut_report
from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.eventloop import run_sync
from reflectkit.rollouts.async_rollouts import AsyncRollouts, Group
from reflectkit.rollouts.episode import UNSCORED, Episode, play_all
from reflectkit.rollouts.tool_errors import ToolErrors, broken_tool
from reflectkit.sampling.hf import LocalSampler
from reflectkit.seeding import derive, generator
from reflectkit.text import pluralize
from reflectkit.train import training_rows
from reflectkit.train.advantages import Estimates
from reflectkit.train.algorithms import AlgorithmConfig
from reflectkit.train.curriculum import Curriculum, Level, draw, validation_episodes
from reflectkit.train.learner import Learner
from reflectkit.train.novelty import Novelty, exploration_left
from reflectkit.train.processes import Processes
from reflectkit.train.reflector import ReflectorTrainer, by_return, share_true, visited
from reflectkit.train.rl_config import DistillConfig, StalenessConfig
from reflectkit.train.settings import OptimizerConfig
from reflectkit.train.state_table import StateTable
from reflectkit.types import NAMED, Decision, Sample, Status, Task, Trajectory, reports_success


def schedule_factor(
    schedule: str,
    step: int,
    steps: int,
    warmup: int = 0,
) -> float:
    """The factor of the peak learning rates, or of the entropy bonus, in update `step` (0 is the
    first) of `steps`.

    It rises linearly over the first `warmup` updates, none of which has 0. Then it falls to 0 after
    the last update: "linear", or "cosine" (arXiv 1608.03983, eq. 5); or it is "constant".
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule == "constant":
        return 1.0
    share = (step - warmup) / (steps - warmup)
    return 1 - share if schedule == "linear" else (1 + math.cos(math.pi * share)) / 2


class ReplayBuffer(deque[Trajectory]):
    """Holds the last `size` successful episodes, oldest first; 0 holds none."""

    def __init__(self, size: int) -> None:
        super().__init__(maxlen=size)

    def add(self, trajectories: Iterable[Trajectory]) -> None:
        """Keep those of `trajectories` that succeeded; ABORTED ones never did."""
        self.extend(
            episode
            for episode in trajectories
            if episode.success and episode.status is not Status.ABORTED
        )


@dataclass(frozen=True)
class TrainerConfig:
    """What to play and how to train.

    levels: the curriculum, in order. steps: updates in all. episodes: per update, of all processes.
    seed: of problems, rollouts and minibatches. width: episodes played at once in one process.
    advance_at: see `Curriculum`. optim: its schedule and warm-up. staleness: how far play may run
    ahead of learning, with a sampler in another process. distill: whether and where comments that
    the policy did not read are distilled into it. earlier_steps: the numbers of updates, ascending,
    that were planned before training was continued beyond them.
    """

    levels: Sequence[Level]
    steps: int
    episodes: int
    algo: AlgorithmConfig
    seed: int
    width: int
    advance_at: float = 0.0
    optim: OptimizerConfig = OptimizerConfig()
    staleness: StalenessConfig = StalenessConfig()
    distill: DistillConfig = DistillConfig()
    earlier_steps: tuple[int, ...] = ()

    def planned_steps(self, step: int) -> int:
        """The number of updates that were planned when update `step` (0 is the first) was made."""
        return next((planned for planned in self.earlier_steps if step < planned), self.steps)

    @property
    def groups(self) -> int:
        """Groups of an update."""
        return self.episodes // self.algo.repeats


class Trainer:
    """Training in progress.

    step: updates done. latest: the last update's fresh episodes, each with the advantages of its
    turns. counters: episodes, decisions and ABORTED episodes so far. reflector_trainer: trains the
    reflector, if it learns too. async_rollouts: the episodes that are played while the policy
    learns, once they have begun.
    """

    def __init__(
        self,
        config: TrainerConfig,
        agent: TwoPlayerAgent,
        learner: Learner,
        *,
        processes: Processes | None = None,
        reflector_trainer: ReflectorTrainer | None = None,
    ) -> None:
        self.config = config
        self.agent = agent
        self.learner = learner
        self.reflector_trainer = reflector_trainer
        self.processes = processes or Processes()
        self.replay = ReplayBuffer(config.algo.replay_size)
        self.novelty = Novelty(config.algo.novelty)
        self.table = StateTable(config.algo.table_coef, config.algo.gamma)
        self.curriculum = Curriculum(len(config.levels), config.advance_at)
        self.step = 0
        self.playing = False
        """Whether episodes are played, and nothing has changed since the last update."""
        self.latest: list[tuple[Trajectory, list[float]]] = []
        self.async_rollouts: AsyncRollouts | None = None
        self.counters = {"episodes": 0, "decisions": 0, "aborted": 0}
        self._published: int | None = None
        # What went wrong in an update, and is told the first time
        self._told: set[str] = set()
        self._tool_errors = ToolErrors(learner.notify)
        self.recorded: Sequence[Trajectory] = ()
        """Episodes of an earlier policy to learn from, instead of playing."""
        # The latest episodes, before they were played, by their seeds
        self._episodes: dict[int, Episode] = {}
        self._drawn: tuple[Level | None, int, list[Task]] = (None, 0, [])
        for sampler in self._local_samplers() if self.processes.count > 1 else ():
            sampler.reads = {}

    def train_step(self) -> dict[str, object]:
        """One update: play, then learn. Returns its figures as JSON values, a row of
        `metrics.jsonl`.

        Raises EnvironmentFailure: every episode was ABORTED. ConfigError: a tool's code always
        fails. DivergedError, MismatchError: see `Learner.update`.
        """
        start_s = time.perf_counter()
        counts_before = self._counts()
        for sampler in self._local_samplers():
            if sampler.reads is not None:
                sampler.reads.clear()

        # 1. The curriculum's level
        planned = self.config.planned_steps(self.step)
        if self.curriculum.begin(self.step, planned):
            self.replay.clear()
        level = self.config.levels[self.curriculum.level]

        # 2. Play with the present weights, or take what was played ahead
        self._publish()
        self.playing = True
        ages: dict[str, float] = {}
        if self.config.staleness.max_staleness:
            trajectories, ages = self._play_ahead()
        else:
            trajectories = self._play(level)
        tokens, requests, hits = self._usage(counts_before)
        rollout_s = time.perf_counter() - start_s
        self._check(trajectories)

        # 3. Advantages and rows
        fresh, old = training_rows.trainable(trajectories), list(self.replay)
        samples, estimates = self._rows(fresh, old)
        self.latest = list(zip(fresh, estimates.advantages, strict=False))

        # 4. Learn
        optim = self.config.optim
        rate = schedule_factor(optim.schedule, self.step, planned, optim.warmup_steps or 0)
        self.playing = False
        shuffle = generator(self.config.seed, "update", self.step)
        entropy_rate = schedule_factor(self.config.algo.entropy_schedule, self.step, planned)
        figures = self.learner.update(samples, shuffle, rate, entropy_rate).figures
        self.replay.add(fresh)
        overall = summary(trajectories)
        self.curriculum.end(overall.get("success_rate", 0.0))
        self.step += 1
        self._count(trajectories)
        tokens += sum(len(sample.tokens) for sample in samples)

        # 5. The reflector's turn, if it learns too
        reflector_figures: dict[str, Any] = {}
        if self.reflector_trainer is not None and self.reflector_trainer.is_due(self.step):
            reflector_figures = self._train_reflector(self.reflector_trainer, level, rate)
            tokens += reflector_figures["reflector_turn_tokens"]

        # 6. The row of figures
        seconds = time.perf_counter() - start_s
        return {
            "step": self.step,
            "level": level.name,
            "episodes": self.counters["episodes"],
            **overall,
            **figures,
            **reflector_figures,
            **ages,
            **(_comments(fresh, samples) if self.config.distill.weight else {}),
            "reflector_cache_hits": hits / requests if requests else None,
            "rows": len(samples),
            "replayed_episodes": len(old),
            "groups_without_spread": _share_without_spread(fresh, estimates),
            "tokens": tokens,
            "tokens_per_second": round(tokens / seconds, 1),
            "episodes_per_second": round(len(trajectories) / seconds, 3),
            "rollout_seconds": round(rollout_s, 3),
            "update_seconds": round(seconds - rollout_s, 3),
            **self._text_figures(trajectories),
            **env_figures(trajectories),
        }

    def _count(self, trajectories: Sequence[Trajectory]) -> None:
        """Add the episodes of an update to the counters."""
        self.counters["episodes"] += len(trajectories)
        for trajectory in trajectories:
            self.counters["decisions"] += len(trajectory.turns)
            self.counters["aborted"] += trajectory.status is Status.ABORTED

    def _text_figures(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Figures of the answers that are texts, if there are any. Reports that most have no end."""
        answers: list[Decision] = []
        for trajectory in trajectories:
            answers += [turn.decision for turn in trajectory.turns if not turn.observation.choices]
        if not answers:
            return {}
        self._tell_of_cut_answers(sum(answer.cut for answer in answers), len(answers))
        return {
            "answer_tokens": statistics.fmean(len(answer.token_ids) for answer in answers),
            "cut_answers": statistics.fmean(answer.cut for answer in answers),
        }

    def _usage(self, counts_before: Sequence[int]) -> tuple[int, int, int]:
        """(tokens processed, comments requested, comments that were in the memo) by all processes
        since `counts_before`, of this process. Shares new comments among them.
        """
        duplicates = self._share_comments()
        counts = [now - before for now, before in zip(self._counts(), counts_before, strict=True)]
        columns = zip(*self.processes.gather(counts), strict=True)
        tokens, requests, hits = (sum(column) for column in columns)
        tokens -= self._tokens_read_twice()
        if self.processes.sharded:  # each has requested all comments
            return tokens, counts[1], counts[2]
        return tokens, requests, hits + duplicates

    def _check(self, trajectories: Sequence[Trajectory]) -> None:
        """Raises EnvironmentFailure or ConfigError where there is nothing to learn from; reports
        the first episodes that were aborted or ended early, and the first comments that cannot be
        distilled.
        """
        failed = [each for each in trajectories if each.status is Status.ABORTED]
        engine_failed = any(not trajectory.reason.startswith(UNSCORED) for trajectory in failed)
        if len(failed) == len(trajectories) and engine_failed:
            raise EnvironmentFailure(
                f"every episode of update {self.step + 1} was aborted ({len(trajectories)}):"
                f" {failed[0].reason}; `reflectkit play` with the same --env shows such an episode;"
                " if it is rare, use a larger --episodes"
            )
        if broken := broken_tool(trajectories):
            raise ConfigError(f"update {self.step + 1}: {broken}")
        self._check_comments(trajectories)
        early = [each for each in trajectories if each.status is Status.TRUNCATED and each.reason]
        if len(early) == len(trajectories) and not any(each.turns for each in early):
            raise EnvironmentFailure(
                f"every episode of update {self.step + 1} ended at its first prompt:"
                f" {early[0].reason}"
            )
        episodes = pluralize(len(trajectories), "episode")
        for what, some in (("aborted", failed), ("ended early", early)):
            if some:
                self._tell_once(what, len(some), episodes, some[0].reason)

    def _tell_of_cut_answers(self, cut: int, answers: int) -> None:
        """Report that most answers have no end, in the first update in which it is so."""
        policy, what = self.agent.policy, "were cut"
        if what not in self._told:
            report = cut_report(
                cut, answers, self.agent.max_new_tokens, lambda: policy.tokenizer, policy.role
            )
            if report:
                self._told.add(what)
                self.learner.notify(f"update {self.step}: {report}")

    def forget_comments(self) -> None:
        """Forget the comments that were written since play began."""
        if reflector := self.agent.reflector:
            for state in reflector.new_comments():
                reflector.memo.pop(state, None)

    def _check_comments(self, trajectories: Sequence[Trajectory]) -> None:
        """Raises EnvironmentFailure if comments are to be distilled and none can be; reports the
        first such ones, and a reflector that never says anything.
        """
        # 1. Comments that are read
        comments = []
        for trajectory in trajectories:
            for turn in trajectory.turns:
                if turn.decision.reflection is not None:
                    comments.append(turn.decision.reflection)
        if comments and not any(map(str.strip, comments)):
            count = len(comments)
            self._tell_once("are empty", count, f"{count} comments", "nothing was written")

        # 2. Comments that are distilled
        hints, skipped = _hints(trajectories)
        why = next((decision.hint_failure for decision in skipped if decision.hint_failure), "")
        if why and len(skipped) == len(hints):
            raise EnvironmentFailure(
                f"no comment of update {self.step + 1} can be distilled ({len(hints)}): {why}"
            )
        if hints and not any(decision.hint for decision in hints):
            why = "it is empty"
        if why:
            self._tell_once("cannot be distilled", len(skipped), f"{len(hints)} comments", why)

    def _tell_once(
        self,
        what: str,
        count: int,
        among: str,
        why: str,
    ) -> None:
        """Report what happened to `count` of some things, in the first update in which it does."""
        if what not in self._told:
            self._told.add(what)
            self.learner.notify(
                f"update {self.step + 1}: {count} of {among} {what}, the first for: {why}"
            )

    def validate(self, level: Level) -> dict[str, Any]:
        """Figures of `play_greedily`, as of an update, named `validation_…`."""
        self.playing = True
        trajectories = self.play_greedily(level)
        self.playing = False
        if trajectories and all(trajectory.status is Status.ABORTED for trajectory in trajectories):
            return {"validation_aborted": 1.0}
        figures = summary(trajectories) | env_figures(trajectories)
        return {f"validation_{name}": value for name, value in figures.items()}

    def play_greedily(self, level: Level, *, show: bool = False) -> list[Trajectory]:
        """An episode of each problem of `level` with the most likely actions. show: with all
        probabilities.
        """
        greedy = copy.copy(self.agent)  # as the other one may be playing
        greedy.temperature, greedy.show = 0.0, show
        if greedy.distills:  # the policy is to act without comments
            greedy.commentator = None
        self._publish()
        trajectories = self._play_all(validation_episodes(level, self.config.seed), level, greedy)
        self._share_comments()
        return trajectories

    def close(self) -> None:
        """Stop playing ahead."""
        if self.async_rollouts is not None:
            self.async_rollouts.close()

    def _publish(self) -> None:
        """Give the sampler the present weights, if it does not have them."""
        if self._published != self.step:
            self.learner.publish(self.agent.policy, self.step)
            self._published = self.step

    def _group(self, number: int) -> Group:
        """Group `number` of all updates, at the curriculum's present level: the episodes of one
        problem, which start from one state if there are several.
        """
        # 1. The problem; the problems of an update are drawn once
        config = self.config
        level = config.levels[self.curriculum.level]
        step, place = divmod(number, config.groups)
        if self._drawn[:2] != (level, step):
            self._drawn = level, step, draw(level, step, config.groups, config.seed)
        problem = self._drawn[2][place]

        # 2. Its episodes
        repeats = config.algo.repeats
        start = derive(config.seed, "start", step, place) if repeats > 1 else None
        episodes = []
        for repeat in range(repeats):
            seed = derive(config.seed, "rollout", step, place * repeats + repeat)
            episodes.append(Episode(problem, seed, group=f"{step}/{place}", start=start))
        return Group(episodes, level.make)

    def _play(self, level: Level) -> list[Trajectory]:
        """This update's episodes in their order, played by all processes, with the critic's values.
        Recorded ones take their place.
        """
        if self.recorded:
            return self.learner.valued(self.recorded)
        first = self.step * self.config.groups
        groups = [self._group(number) for number in range(first, first + self.config.groups)]
        episodes = [episode for group in groups for episode in group.episodes]
        self._episodes = {episode.seed: episode for episode in episodes}
        return self._play_all(episodes, level, self.agent, valued=True)

    def _play_ahead(self) -> tuple[list[Trajectory], dict[str, float]]:
        """Episodes that were played ahead of this update, and figures of how stale they are."""
        # 1. The episodes
        config = self.config
        limits = config.staleness
        if self.async_rollouts is None:
            self.async_rollouts = AsyncRollouts(
                self._group,
                self.agent,
                groups=config.groups,
                staleness=limits.max_staleness,
                updates=config.steps,
                width=min(config.width, *(level.max_concurrency for level in config.levels)),
                timeout_s=limits.episode_timeout_s,
                step=self.step,
            )
        trajectories = self.async_rollouts.take(self.step)
        for trajectory in trajectories:
            self._tool_errors.see(trajectory)

        # 2. How many updates ago the weights were made that sampled each decision
        ages = []
        for trajectory in trajectories:
            for turn in trajectory.turns:
                if turn.decision.version is not None:
                    ages.append(self.step - turn.decision.version)
        figures = {
            "staleness": statistics.fmean(ages) if ages else 0.0,
            "staleness_max": max(ages, default=0),
            "groups_ahead": self.async_rollouts.waiting,
        }
        return self.learner.valued(trajectories), figures

    def _play_all(
        self,
        episodes: list[Episode],
        level: Level,
        agent: TwoPlayerAgent,
        *,
        valued: bool = False,
    ) -> list[Trajectory]:
        """`episodes` in their order, played by all processes. valued: with the critic's values of
        their decisions.
        """
        sharded = self.processes.sharded  # all play all episodes in lockstep and share the scoring
        share = episodes if sharded else self.processes.share(episodes)
        timeout_s = self.config.staleness.episode_timeout_s
        playing = play_all(
            share,
            level.make,
            agent,
            width=self.config.width,
            timeout_s=timeout_s,
            on_end=self._tool_errors.see,
        )
        if self.async_rollouts is not None:  # its event loop alone may use this process's models
            return self.async_rollouts.result(playing)
        mine = run_sync(playing)
        # Free memory for the update; a resumed run has no cached prompts either
        for sampler in self._local_samplers():
            sampler.forget()
        if valued:
            mine = self.learner.valued(mine)
        return mine if sharded else self.processes.gather_shares(mine)

    def _local_samplers(self) -> list[LocalSampler]:
        """The models that are sampled in this process."""
        samplers = (self.agent.policy, self.agent.reflector and self.agent.reflector.sampler)
        return [sampler for sampler in samplers if isinstance(sampler, LocalSampler)]

    def _share_comments(self) -> int:
        """Share new comments among the processes, so that all have the same memo. Returns how many
        were written by another process, too.
        """
        reflector = self.agent.reflector
        if reflector is None:
            return 0
        shares = self.processes.gather(reflector.new_comments())
        for new in shares:
            for key, comment in new.items():
                reflector.memo.setdefault(key, comment)
        return sum(map(len, shares)) - len(set().union(*shares))

    def _tokens_read_twice(self) -> int:
        """Number of tokens in this update's requests that another process has read, too."""
        if self.processes.count == 1:
            return 0
        total = 0
        for sampler in self._local_samplers():
            shares = self.processes.gather(sampler.reads)
            distinct = {request: tokens for share in shares for request, tokens in share.items()}
            total += sum(sum(share.values()) for share in shares) - sum(distinct.values())
        return total

    def _rows(
        self, fresh: Sequence[Trajectory], old: Sequence[Trajectory]
    ) -> tuple[list[Sample], Estimates]:
        """Training rows of fresh and replayed episodes, without those of groups without spread."""
        # 1. The critic's values; those of replayed episodes are computed anew
        values: list[list[float]] | None = None
        if self.learner.has_critic:
            values = []
            for trajectory in fresh:
                values.append([turn.decision.value or 0.0 for turn in trajectory.turns])
            prompts = [turn.decision.prompt_ids for trajectory in old for turn in trajectory.turns]
            old_values = iter(self.learner.values(prompts))
            for trajectory in old:
                values.append([next(old_values) for _ in trajectory.turns])

        # 2. Advantages, over the whole batch
        estimates = self.config.algo.estimate(fresh, old, values or [])
        planned = self.config.planned_steps(self.step)
        weight = self.novelty.weight_at(self.step, planned)
        estimates = self.novelty.added_to(estimates, fresh, weight)

        # 3. What the table of states has learned
        explores = exploration_left(self.step, planned) if self.novelty.weight else 0.0
        self.table.learn(fresh, explores)

        # 4. The labels of all choices
        trajectories = [*fresh, *old]
        labels_of: dict[tuple[str, ...], tuple[tuple[int, ...], ...]] = {}
        for trajectory in trajectories:
            for turn in trajectory.turns:
                choices = turn.observation.choices
                if choices and choices not in labels_of:
                    labels_of[choices] = self.agent.labels(choices)

        # 5. Rows of the episodes that teach something, by reward or by a comment
        distill = self.config.distill
        solved = {trajectory.group for trajectory in fresh if trajectory.success}
        samples: list[Sample] = []
        for number, trajectory in enumerate(trajectories):
            is_hard = distill.comments_on == "all" or trajectory.group not in solved
            with_distillation = bool(distill.weight) and is_hard
            with_reward = trajectory.group not in (estimates.groups_to_skip or ())
            if with_distillation or with_reward:
                is_fresh = number < len(fresh)
                has_targets = is_fresh and with_reward and self.table.weight
                samples += training_rows.rows(
                    [trajectory],
                    [estimates.advantages[number]],
                    [estimates.returns[number]],
                    labels_of,
                    [values[number]] if values is not None else None,
                    replayed=not is_fresh,
                    targets=[self.table.targets(trajectory)] if has_targets else (),
                    with_distillation=with_distillation,
                    with_reward=with_reward,
                )
        return samples, estimates

    def _train_reflector(
        self,
        trainer: ReflectorTrainer,
        level: Level,
        rate: float,
    ) -> dict[str, Any]:
        """The reflector's turn: it comments on states of the latest episodes anew, and learns which
        comments did more.

        What was scored or commented in it is forgotten, as it is in a run that is resumed after it.
        """
        reflector, turns = self.agent.reflector, trainer.config
        seed = derive(self.config.seed, "reflector", self.step)
        assert reflector is not None

        # 1. States of the latest episodes, each continued after several comments
        self._publish()
        read = self.agent.policy.tokens + reflector.sampler.tokens
        trajectories = [trajectory for trajectory, _ in self.latest]
        branches = visited(trajectories, self._episodes, turns.states, generator(seed, "states"))
        compared = run_sync(
            by_return(
                self.agent,
                branches,
                level.make,
                turns,
                self.config.algo.gamma,
                width=self.config.width,
                timeout_s=self.config.staleness.episode_timeout_s,
            )
        )
        read = self.agent.policy.tokens + reflector.sampler.tokens - read

        # 2. Learn which comments did more; both models' memories are out of date then
        comments = [state.comments for state in compared]
        figures = trainer.learn(comments, generator(seed, "update"), rate)
        trainer.learner.publish(reflector.sampler, self.step)
        reflector.forget()
        self.learner.forget()
        self._published = None

        # 3. Figures
        marks = [comment.true for row in comments for comment in row]
        return figures | {
            "states_left_out": len(branches) - len(compared),
            "comments_true": share_true([state.read for state in compared]),
            "sampled_comments_true": share_true(marks),
            "reflector_turn_tokens": read + figures["reflector_turn_tokens"],
        }

    def _counts(self) -> tuple[int, int, int]:
        """Tokens processed, comments requested and comments found in the memo, in this process so
        far.
        """
        reflector = self.agent.reflector
        if reflector is None:
            return self.agent.policy.tokens, 0, 0
        return (
            self.agent.policy.tokens + reflector.sampler.tokens,
            reflector.requests,
            reflector.hits,
        )


def _hints(trajectories: Iterable[Trajectory]) -> tuple[list[Decision], list[Decision]]:
    """(hints, skipped): the decisions with a comment to distill; and those of them whose comment
    was empty, unusable, or too long for the policy's context.
    """
    hints = []
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.decision.hint is not None:
                hints.append(turn.decision)
    skipped = [decision for decision in hints if not decision.hint_prompt_ids]
    return hints, skipped


def _comments(trajectories: Sequence[Trajectory], samples: Sequence[Sample]) -> dict[str, int]:
    """How many decisions of `samples` have a comment to learn from, and how many comments of
    `trajectories` were skipped.
    """
    commented_decisions = 0
    for sample in samples:
        commented_decisions += sum(map(bool, sample.commented))
    _, skipped = _hints(trajectories)
    return {"commented_decisions": commented_decisions, "comments_skipped": len(skipped)}


def _share_without_spread(trajectories: Sequence[Trajectory], estimates: Estimates) -> float | None:
    """The share of groups that are not trained on; None if the algorithm drops none, or there are
    none.
    """
    group_count = len({trajectory.group for trajectory in trajectories})
    if not group_count or estimates.groups_to_skip is None:
        return None
    return len(estimates.groups_to_skip) / group_count


OUR_FIGURES = frozenset({
    "step", "level", "episodes", "success_rate", "return", "return_std", "episode_steps", "aborted", "loss", "entropy",
    "value_loss", "kl_to_start", "kl", "ratio_deviation", "gradient_norm", "gradient_steps",
    "logprob_difference_mean", "logprob_difference_max", "effective_sample_size", "rows", "replayed_episodes",
    "groups_without_spread", "tokens", "tokens_per_second", "episodes_per_second", "rollout_seconds",
    "update_seconds", "learning_rate", "staleness", "staleness_max", "groups_ahead", "states_left_out",
    "states_without_spread", "comments_true", "sampled_comments_true", "divergence", "commented_decisions",
    "comments_skipped", "masked", "table_divergence", "requests_in_flight", "service_usd",
})  # fmt: skip
"""Names of our figures in a row."""
PREFIXES = ("validation_", "reflector_", "env_")
"""Names that begin so are ours, too."""


def env_figures(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """The means over episodes of the env's `info["figures"]`, and their names as NAMED; {} if it
    reported none. A figure whose name is ours is called `env_NAME`.

    An episode's figure is the mean over the turns that report it. ABORTED episodes are omitted, and
    those to which a figure does not apply. Episodes cut off before they reported a figure count 0.
    """
    # 1. The figures of each episode, and their names in the order of first occurrence
    by_episode = []
    for trajectory in trajectories:
        if trajectory.status is not Status.ABORTED:
            by_episode.append((trajectory.figures, trajectory.inapplicable))
    names: dict[str, None] = {}
    for figures, _ in by_episode:
        names |= dict.fromkeys(figures)

    # 2. Their means
    means: dict[str, Any] = {}
    for name in names:
        is_ours = name in OUR_FIGURES or name.startswith(PREFIXES)
        key = f"env_{name}" if is_ours else name
        means[key] = statistics.fmean(
            figures.get(name, 0.0)
            for figures, inapplicable in by_episode
            if name not in inapplicable
        )
    return means | {NAMED: list(means)} if means else {}


def summary(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Means of success, where the env reports it, return and steps over episodes that were not
    ABORTED, the standard deviation of the return, and the share that were ABORTED.
    """
    complete = [
        trajectory for trajectory in trajectories if trajectory.status is not Status.ABORTED
    ]
    count = max(1, len(complete))
    returns = [trajectory.total_return for trajectory in complete]
    success = {}
    if reports_success((trajectory.status, trajectory.reported_success) for trajectory in complete):
        success["success_rate"] = sum(trajectory.success for trajectory in complete) / count
    return success | {
        "return": sum(returns) / count,
        "return_std": statistics.pstdev(returns) if returns else 0.0,
        "episode_steps": sum(len(trajectory.turns) for trajectory in complete) / count,
        "aborted": 1 - len(complete) / max(1, len(trajectories)),
    }
