"""Fit, the third of rlft's four steps: one loop over updates, and callbacks that each do one thing
next to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from typing_extensions import override

from reflectkit.agents.two_player import CommentSource
from reflectkit.config import flag
from reflectkit.console import Progress
from reflectkit.data.episodes import episode_to_json
from reflectkit.env import cut_at_default
from reflectkit.envs import cluster_of
from reflectkit.errors import CheckpointError, DivergedError, ReflectkitError
from reflectkit.evals.calibration import Advised, best_choices, fit_temperature, log_scores
from reflectkit.jsonl import append, rewrite, rows_until, write_jsonl
from reflectkit.models.checkpoint_metadata import BETTER, CALIBRATION, best_checkpoint, model_facts
from reflectkit.runs.run import checkpoints
from reflectkit.text import pluralize
from reflectkit.train import checkpoint, held_out
from reflectkit.train.algorithms import AlgorithmConfig
from reflectkit.train.build import build_trainer
from reflectkit.train.processes import stopped_between
from reflectkit.train.resolve import RLRun
from reflectkit.train.settings import tracking
from reflectkit.train.trainer import Trainer
from reflectkit.types import Status, Trajectory, to_json

STOPPED = "stopped after {}; the same command goes on from there"
FLAT_UPDATES = 3
"""Updates in a row that must teach nothing before the user is told."""


@dataclass
class FitState:
    """Training in progress, as the callbacks see it."""

    run: RLRun
    trainer: Trainer
    folder: Path
    progress: Progress
    checkpoint: Path
    """The newest checkpoint; before the first one is written, the folder where it will be."""
    saved_step: int
    """The update after which it was written."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """The figures of all updates."""
    figures: dict[str, Any] = field(default_factory=dict)
    """More figures for the run's report."""
    is_regular: bool = False
    """Whether a checkpoint follows the latest update by --save-steps, or as training ends there."""
    is_due: bool = False
    """Whether one follows it for any reason."""

    @property
    def metrics(self) -> Path:
        """The file with a row for each update."""
        return self.folder / "metrics.jsonl"

    @property
    def ends(self) -> tuple[int, ...]:
        """The numbers of updates after which training ends, or ended before it was continued."""
        return (*self.trainer.config.earlier_steps, self.run.config.max_steps)

    @property
    def has_lost_patience(self) -> bool:
        """Whether --patience ends training."""
        patience = self.run.config.patience
        return bool(patience) and validations_since_best(self.history) >= patience

    @property
    def is_over(self) -> bool:
        """Whether no update is left to be made."""
        return self.trainer.step >= self.run.config.max_steps or self.has_lost_patience

    def save(self, figures: Mapping[str, Any]) -> None:
        """Write a checkpoint. figures: of the latest update, of which it records how good it is.

        All processes must call this.
        """
        facts = {**self.run.facts, **_marks(figures)}
        keep = self.run.config.checkpoints.keep_checkpoints
        self.checkpoint = checkpoint.save(self.folder, self.trainer, self.run.settings, facts, keep)
        self.saved_step = self.trainer.step
        # No process goes on before the checkpoint is whole
        self.trainer.processes.wait()


class Callback:
    """Something that is done next to training. By default it is nothing."""

    def begin(self, state: FitState, contexts: ExitStack) -> None:
        """Before the first update. contexts: what is left when training ends, however it does."""

    def measure(self, state: FitState) -> dict[str, Any]:
        """More figures of the update that was just made."""
        return {}

    def after_update(self, state: FitState, figures: Mapping[str, Any]) -> None:
        """After an update, whose figures are the last of `state.history`."""

    def end(self, state: FitState) -> None:
        """After the last update."""


def fit(
    run: RLRun,
    trainer: Trainer,
    folder: Path,
    callbacks: Sequence[Callback],
    progress: Progress,
) -> FitState:
    """Make the remaining updates.

    Raises DivergedError, which names a file with the rows of the update, and what
    `Trainer.train_step` raises.
    """
    state = FitState(
        run, trainer, folder, progress, folder / f"checkpoint-{trainer.step}", trainer.step
    )
    with ExitStack() as contexts:
        for callback in callbacks:
            callback.begin(state, contexts)
        # Play ends at once; what one process has begun to learn from it is learned
        stop = contexts.enter_context(
            stopped_between("update", progress, at_once=lambda: _loses_only_play(trainer))
        )
        while not state.is_over:
            # 1. The update
            figures = _update(state, callbacks)
            state.history.append(figures)

            # 2. Whether a checkpoint follows
            is_validated = bool(_marks(figures))
            is_best = is_validated and figures["validation_return"] == max(_returns(state.history))
            # Where one process is told to stop, all stop after the same update
            is_stopping = any(trainer.processes.gather(bool(stop)))
            save_steps = run.config.checkpoints.save_steps
            ends_here = trainer.step in state.ends or state.has_lost_patience
            state.is_regular = ends_here or trainer.step % save_steps == 0
            state.is_due = state.is_regular or is_best or is_stopping

            # 3. All that is done next to it
            for callback in callbacks:
                callback.after_update(state, figures)
            # Told to stop meanwhile: another update need not be played
            if stop and trainer.processes.count == 1 and not is_stopping:
                is_stopping = True
                state.save(figures)
            if is_stopping:
                progress.news(STOPPED.format(pluralize(trainer.step, "update")))
                raise KeyboardInterrupt

    # 4. Why it ended early, and what is done at the end
    if trainer.step < run.config.max_steps:
        validations = pluralize(validations_since_best(state.history), "validation")
        progress.news(
            f"ended by --patience {run.config.patience} after {pluralize(trainer.step, 'update')}:"
            f" {validations} without a better return"
        )
    for callback in callbacks:
        callback.end(state)
    return state


def default_callbacks(run: RLRun, chat: CommentSource | None) -> list[Callback]:
    """What rlft does next to training. chat: the chat model that comments, if one does."""
    return [Metrics(), KeptEpisodes(), HeldOut(), Validation(), Checkpoints(), Trackers(), ProgressBar(), Advice(),
        Calibration(chat)]  # fmt: skip


def _update(state: FitState, callbacks: Iterable[Callback]) -> dict[str, Any]:
    """One update and its figures."""
    figures: dict[str, Any] = {}
    try:
        figures = state.trainer.train_step()
        for callback in callbacks:
            figures |= callback.measure(state)
        return figures
    except DivergedError as error:
        raise _with_rows(error, state) from None
    except BaseException:
        if state.saved_step < state.trainer.step and state.trainer.processes.first:
            _keep_updates(state, figures)
        raise


def _loses_only_play(trainer: Trainer) -> bool:
    """Whether nothing but episodes of the next update is lost if training is interrupted now."""
    return trainer.playing and trainer.processes.count == 1 and trainer.async_rollouts is None


def _keep_updates(state: FitState, figures: dict[str, Any]) -> None:
    """Save the updates since the last checkpoint, if play was interrupted; otherwise they are lost.
    figures: of an update whose validation was interrupted.
    """
    # What was played since the last update is lost; the updates themselves are not
    trainer = state.trainer
    message = (
        f"updates {state.saved_step + 1} to {trainer.step} are lost; a lower --save-steps loses"
        " less"
    )
    if _loses_only_play(trainer):
        append(state.metrics, [figures] if figures else [])
        trainer.forget_comments()
        state.save({})
        message = STOPPED.format(pluralize(trainer.step, "update"))
    state.progress.news(message)


def _with_rows(error: DivergedError, state: FitState) -> ReflectkitError:
    """`error`, naming a file to which the rows of the update that diverged are written."""
    # The rows that were learned from when it happened, and a checkpoint from before it
    path = state.folder / f"diverged-{state.trainer.step + 1}.jsonl"
    if state.trainer.processes.first:
        write_jsonl(path, _readable_rows(error, state.trainer))
    saved = checkpoints(state.folder)
    fix = (
        f"resume with --resume-from {saved[-1]} and a lower --learning-rate"
        if saved
        else "lower --learning-rate"
    )
    return DivergedError(f"{error}; {fix} (the rows are in {path})")


def _readable_rows(error: DivergedError, trainer: Trainer) -> Iterator[dict[str, Any]]:
    """The rows with their text; NaN and infinity become text, since JSON does not have them."""
    for sample in error.samples:
        row = to_json(sample) | {"text": trainer.agent.policy.tokenizer.decode(sample.tokens)}
        for name, column in row.items():
            if isinstance(column, list):
                row[name] = [_json_number(value) for value in column]
        yield row


def _json_number(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _marks(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of how good it is, if the update with these figures was validated."""
    return {name: figures[name] for name in BETTER if name in figures}


def _returns(history: Iterable[Mapping[str, Any]]) -> list[float]:
    """The returns of the validations."""
    return [row["validation_return"] for row in history if "validation_return" in row]


def validations_since_best(history: Sequence[Mapping[str, Any]]) -> int:
    """How many validations have followed the one with the best return, the first of equals; 0
    without any.
    """
    returns = _returns(history)
    return len(returns) - 1 - returns.index(max(returns)) if returns else 0


class Metrics(Callback):
    """A row of figures in metrics.jsonl for each update."""

    @override
    def begin(self, state: FitState, contexts: ExitStack) -> None:
        """Read the rows of the updates before, and remove those after the checkpoint that training
        resumes from.
        """
        # 1. Rows of this run up to the checkpoint; damaged lines count as missing
        state.history, damaged = rows_until(
            state.metrics, state.trainer.step, {"return": int | float}
        )
        # 2. What is lost of the file is lost to plots only, unless it says when training ends
        missing = state.trainer.step - len(state.history)
        is_lost = state.run.config.resume_from is None and missing > 0
        if is_lost and state.run.config.patience:
            raise CheckpointError(
                f"{state.metrics}: the figures of {pluralize(missing, 'update')} are lost, which"
                " --patience needs; --force trains again, and --resume-from a checkpoint begins"
                " a run with another --name"
            )
        if damaged:
            state.progress.news(
                f"{state.metrics}: damaged lines dropped: {damaged}; training itself is not affected"
            )
        if is_lost:
            figures = f"the figures of {pluralize(missing, 'update')} are lost"
            state.progress.news(
                f"{state.metrics}: {figures}, though what they learned is not; --force trains again"
            )
        if state.trainer.processes.first:
            rewrite(state.metrics, state.history)

    @override
    def after_update(self, state: FitState, figures: Mapping[str, Any]) -> None:
        if state.trainer.processes.first:
            append(state.metrics, [dict(figures)], sync=state.is_due)


class KeptEpisodes(Callback):
    """The first episodes of an update in episodes.jsonl, with each regular checkpoint
    (--keep-episodes).
    """

    @override
    def begin(self, state: FitState, contexts: ExitStack) -> None:
        path = state.folder / "episodes.jsonl"
        if state.trainer.processes.first and path.is_file():
            rewrite(path, rows_until(path, state.trainer.step, {})[0])

    @override
    def after_update(self, state: FitState, figures: Mapping[str, Any]) -> None:
        count, step = state.run.config.keep_episodes, state.trainer.step
        if not (count and state.is_regular and state.trainer.processes.first):
            return
        cluster = partial(cluster_of, state.run.config.env.name)
        episodes = [
            episode_to_json(f"update {step}", trajectory, advantages, cluster(trajectory.task))
            | {"step": step}
            for trajectory, advantages in state.trainer.latest[:count]
        ]
        append(state.folder / "episodes.jsonl", episodes, sync=True)


class HeldOut(Callback):
    """Outcomes on held-out problems before the first update and after the last."""

    @override
    def begin(self, state: FitState, contexts: ExitStack) -> None:
        level = state.run.problems.held_out
        if level is None:
            return
        if state.trainer.step == 0:
            held_out.measure(level, held_out.BEFORE, state.folder, state.trainer)
            return
        is_continued = state.run.config.resume_from is None
        if (
            is_continued
            and state.trainer.processes.first
            and not held_out.earlier(state.folder, level)
        ):
            state.progress.news(
                f"{state.folder / held_out.OUTCOMES} is missing or damaged: what the policy did"
                " before training is lost; training goes on"
            )

    @override
    def end(self, state: FitState) -> None:
        if state.run.problems.held_out is not None:
            held_out.measure(
                state.run.problems.held_out, held_out.AFTER, state.folder, state.trainer
            )


class Validation(Callback):
    """Greedy play on all problems for validation (--validate-steps)."""

    @override
    def begin(self, state: FitState, contexts: ExitStack) -> None:
        """Make up for a validation that was interrupted, whose update was saved."""
        if not state.history:
            return
        latest = state.history[-1]
        is_validated = any(name.startswith("validation_") for name in latest)
        if latest["step"] != state.trainer.step or is_validated or not self._is_wanted(state):
            return
        latest |= self.measure(state)
        if state.trainer.processes.first:
            rewrite(state.metrics, state.history)
        state.save(latest)

    @override
    def measure(self, state: FitState) -> dict[str, Any]:
        level = state.run.problems.validation
        return state.trainer.validate(level) if level is not None and self._is_wanted(state) else {}

    def _is_wanted(self, state: FitState) -> bool:
        every, step = state.run.config.validate_steps, state.trainer.step
        is_wanted = bool(every) and (step in state.ends or step % every == 0)
        return is_wanted and state.run.problems.validation is not None


class Checkpoints(Callback):
    """A checkpoint after each update after which one is due."""

    @override
    def after_update(self, state: FitState, figures: Mapping[str, Any]) -> None:
        if state.is_due:
            state.save(figures)


class Trackers(Callback):
    """The figures of each update to the trackers of --report-to."""

    @override
    def begin(self, state: FitState, contexts: ExitStack) -> None:
        trackers = state.run.config.checkpoints.report_to
        self.log = contexts.enter_context(tracking(trackers, state.folder, state.run.settings))

    @override
    def after_update(self, state: FitState, figures: Mapping[str, Any]) -> None:
        self.log(figures, state.trainer.step)


class ProgressBar(Callback):
    """The bar, with means of the last ten updates."""

    @override
    def begin(self, state: FitState, contexts: ExitStack) -> None:
        title = "Reflect-RL" if state.run.facts["reflector"] else "RL"
        bar = state.progress.bar(title, state.run.config.max_steps, state.trainer.step)
        self.bar = contexts.enter_context(bar)

    @override
    def after_update(self, state: FitState, figures: Mapping[str, Any]) -> None:
        numbers = recent_means(state.history)
        # Missing if there was nothing to learn
        if isinstance(entropy := figures.get("entropy"), float):
            numbers["entropy"] = entropy
        self.bar.advance(1, **numbers)


def recent_means(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over the last ten updates: success, and the return where success is not reported or 0."""
    means, recent = {}, history[-10:]
    if all("success_rate" in row for row in history):
        means["success"] = fmean(row["success_rate"] for row in recent)
    if not means.get("success"):
        means["return"] = fmean(row["return"] for row in recent)
    return means


class Advice(Callback):
    """What the user is told where updates teach nothing."""

    flat_updates = 0
    """This process's updates in a row that taught nothing."""

    @override
    def after_update(self, state: FitState, figures: Mapping[str, Any]) -> None:
        if state.trainer.recorded:
            return
        trajectories = [trajectory for trajectory, _ in state.trainer.latest]
        in_groups = state.run.config.algo.compares_groups
        learned = figures.get("commented_decisions") or not is_flat(trajectories, in_groups)
        self.flat_updates = 0 if learned else self.flat_updates + 1
        if state.trainer.step == 1:
            self._tell_of_horizon(state, trajectories)
        choices = {
            len(turn.observation.choices)
            for trajectory in trajectories
            for turn in trajectory.turns
        }
        if choices != {1}:
            self._tell_if_flat(state, trajectories)
        elif state.trainer.step == 1:
            state.progress.news("nothing to decide: each state of these episodes offers one choice")
        if state.trainer.step == 1 and "success_rate" not in figures:
            self._tell_of_success(state)

    def _tell_of_horizon(self, state: FitState, trajectories: Sequence[Trajectory]) -> None:
        # A limit that nobody has chosen
        level = state.trainer.config.levels[state.trainer.curriculum.level].name
        kind = state.run.config.env.kind
        is_default = not state.run.config.rollout.horizon and level not in kind.horizons
        limit = kind.default_horizon
        cut = [
            each.status is Status.TRUNCATED and len(each.turns) == limit for each in trajectories
        ]
        if is_default and any(cut):
            state.progress.news(cut_at_default(sum(cut), len(cut), limit))

    def _tell_of_success(self, state: FitState) -> None:
        """Which settings do nothing without success."""
        config, news = state.run.config, state.progress.news
        news(f"env '{config.env.name}' does not say which episodes succeed, so the return is shown")
        for value, name in (
            (config.curriculum.advance_at, "advance_at"),
            (config.algo.replay_size, "replay_size"),
        ):
            if value:
                news(
                    f"{flag(name)} {value:g} waits for successes; leave it out, or report"
                    " 'success' in the info"
                )

    def _tell_if_flat(self, state: FitState, trajectories: Sequence[Trajectory]) -> None:
        """Not if training has won all."""
        step, flat = state.trainer.step, self.flat_updates
        if flat != min(FLAT_UPDATES, state.run.config.max_steps):
            return
        returns = {trajectory.total_return for trajectory in trajectories}
        if len(returns) == 1 and max(returns) > 0:
            if step == flat:  # otherwise training has come there
                state.progress.news(
                    f"nothing to learn: every episode of update {step} has a return of"
                    f" {max(returns):.3g}, whatever the policy did; let the reward depend on its"
                    " actions, or make the problems harder"
                )
        elif not all(trajectory.success for trajectory in trajectories):
            mean = fmean(trajectory.total_return for trajectory in trajectories)
            state.progress.news(_flat_told(state.run.config.algo, step - flat + 1, step, mean))


def _flat_told(algo: AlgorithmConfig, first: int, last: int, mean: float) -> str:
    """What is said of updates `first` to `last`, whose returns do not differ where they are
    compared. mean: of the returns.
    """
    others = "easier problems, a reward for partial success"
    if not algo.compares_groups:
        return (
            f"nothing to learn: every episode of updates {first} to {last} has a return of"
            f" {mean:.3g}; try more --episodes, {others}, or demonstrations first"
        )
    no_scale = "--no-normalize, if steps cost and success is rare; " if algo.normalize else ""
    return (
        f"nothing to learn: all rewards are equal in each group of updates {first} to {last} (mean"
        f" return {mean:.3g}); try {no_scale}{others}, a larger --group-size or --temperature, or a"
        " better starting model"
    )


def is_flat(trajectories: Sequence[Trajectory], in_groups: bool) -> bool:
    """Whether all episodes have equal returns, or, `in_groups`, those of each group."""
    returns: dict[str, set[float]] = {}
    for trajectory in trajectories:
        group = trajectory.group if in_groups else ""
        returns.setdefault(group, set()).add(trajectory.total_return)
    return all(len(group_returns) == 1 for group_returns in returns.values())


class Calibration(Callback):
    """A temperature for the decisions of the checkpoint that the run stands for, stored there
    (--calibrate).
    """

    def __init__(self, chat: CommentSource | None) -> None:
        self.chat = chat

    @override
    def end(self, state: FitState) -> None:
        """Add the temperature to the report, with the log scores at 1 and at it, in nats.

        Nothing is added if nothing was decided. Problems are played greedily, so the actions do not
        depend on the temperature.
        """
        run, trainer = state.run, state.trainer
        level = run.problems.held_out or run.problems.validation
        if not run.config.calibrate or level is None:
            return

        # 1. The best checkpoint, or the last one, which the trainer has
        inside = checkpoints(state.folder)
        place = best_checkpoint(inside) or inside[-1]
        if place.name != f"checkpoint-{trainer.step}":
            trainer = build_trainer(run, trainer.processes, state.progress, self.chat, place)
            checkpoint.restore(place, trainer)

        # 2. Its decisions, and what would be right there
        level_with_advice = replace(level, make=lambda: Advised(level.make()))
        rows = []
        for trajectory in trainer.play_greedily(level_with_advice, show=True):
            for turn in trajectory.turns:
                best = best_choices(turn.info)
                if best and len(turn.observation.choices) > 1:
                    rows.append((turn.decision.probabilities, best))
        if not rows:
            return

        # 3. The temperature
        temperature = fit_temperature(rows)
        before = fmean(log_scores(rows, 1.0))
        after = fmean(log_scores(rows, temperature))

        # 4. The checkpoint again, with it
        facts = model_facts(place) | {CALIBRATION: temperature}
        checkpoint.save(
            state.folder, trainer, run.settings, facts, run.config.checkpoints.keep_checkpoints
        )
        trainer.processes.wait()
        scores = {"log_score_before": before, "log_score_after": after, "decisions": len(rows)}
        state.figures |= {CALIBRATION: temperature} | scores
