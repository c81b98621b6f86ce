"""rlft --plan: three updates, without a file, tell what training will take."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from reflectkit.core.config import with_values
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError
from reflectkit.core.reports import Report
from reflectkit.core.text import counted
from reflectkit.stages.tuning.estimate import Estimate, Stopwatch, plan_report, sizes
from reflectkit.stages.tuning.rlft_trainer import trainer_of

if TYPE_CHECKING:
    from reflectkit.rl.loop import Level, Trainer
    from reflectkit.rl.processes import Processes
    from reflectkit.stages.tuning.rl_config import RLConfig

CALIBRATED = 64  # episodes of an update whose memory and time are measured


def plan_of(config: RLConfig, levels: list[Level], processes: Processes, progress: Progress) -> Report:
    """What training would take: three updates with some of the episodes are the calibration.

    Raises ConfigError in several processes.
    """
    if processes.count > 1 or config.processes > 1:
        raise ConfigError(
            "--plan runs in one process and says what several take; leave out --processes, torchrun or accelerate"
        )
    episodes = min(config.episodes, -(-CALIBRATED // config.algo.repeats) * config.algo.repeats)
    trainer = trainer_of(with_values(config, episodes=episodes), levels, None, processes, progress)
    watch = Stopwatch()
    with progress.bar("Calibrating", 3) as bar:
        for _ in range(3):
            watch.begin()
            figures = trainer.advance()
            watch.gradients_done()
            watch.end()
            bar.advance(1)
    trainer.close()
    learner, reflector = trainer.learner, trainer.agent.reflector
    models: list[Any] = [learner.player.model, *([learner.critic] if learner.critic else [])]
    if reflector is not None and hasattr(reflector.sampler, "player"):
        models.append(reflector.sampler.player.model)
    if learner.reference is not None and learner.reference.copy is not None:
        models.append(learner.reference.copy)
    known, share = sizes(models, config.optim.optimizer), config.episodes / episodes
    rows = int(str(figures["rows"]))
    wider = _widest(config, trainer, rows * share) / max(1.0, _widest(config, trainer, rows))
    said = f"three updates of {episodes} of the {config.episodes} episodes, the last with {counted(rows, 'row')}"
    plan = Estimate(
        **known,
        activations=int(max(0, watch.memory.peak - known["gradients"]) * max(1.0, wider)),
        tokens=float(str(figures["tokens"])) * share,
        seconds=watch.seconds * share,
        steps=config.max_steps,
        calibration=said if rows else f"{said}: no group differed, so that what learning takes is missing",
    )
    return plan_report("rlft", config.run.results_dir, plan, processes=True)


def _widest(config: RLConfig, trainer: Trainer, rows: float) -> float:
    """Tokens of the largest micro-batch of an update of `rows` rows like those of the last update."""
    prompts = [len(turn.decision.prompt_ids) for trajectory, _ in trainer.latest for turn in trajectory.turns]
    return min(config.max_tokens_per_batch, min(config.algo.minibatch, rows) * (fmean(prompts) if prompts else 0))
