"""rlft: online policy gradient, in which a frozen reflector comments on each step before the policy acts.

Without a reflector it is the "SFT + RL" arm. Killed and started again, it goes on from its last checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reflectkit.core.config import above, at_least, fraction, one_of, option
from reflectkit.core.console import Progress
from reflectkit.core.jsonl import read_jsonl, write_jsonl
from reflectkit.core.runs import Report, figures_table, open_run
from reflectkit.data.trajectories import read_records
from reflectkit.envs import env_class
from reflectkit.stages.common import PlayConfig, at_level, check_level

if TYPE_CHECKING:
    from reflectkit.agents.two_player import TwoPlayerAgent
    from reflectkit.rl.learner import Learner
    from reflectkit.rl.loop import Plan

EXAMPLES = (
    "reflectkit rlft --env taxi --load-dir results/6_sft/checkpoint-250 --reflect-load-dir results/4_sft/checkpoint-700",
    "reflectkit rlft --env taxi --load-dir results/7_sft/checkpoint-600 --curriculum pickup --curriculum full",
)
BASELINES = ("none", "batch", "critic")


@dataclass(frozen=True)
class Config(PlayConfig):
    """Settings of rlft."""

    load_dir: Path = option(help="Checkpoint of the policy to train.")
    reflect_load_dir: Path | None = option(None, help="Checkpoint of the frozen reflector; none: the SFT + RL arm.")
    task_file: Path | None = option(None, help="Problems to train on; default: train.json in the env's data folder.")
    curriculum: tuple[str, ...] = option((), help="Levels with equal steps, in order (repeat the flag); default: the last.")
    max_steps: int = option(60, help="Updates.")
    episodes: int = option(128, help="Episodes played for each update.")
    learning_rate: float = option(2.5e-4, help="Adam's rate, at its highest.")
    schedule: str = option("linear", help="Of the rate: linear (falls to 0 at the last update) or constant.")
    baseline: str = option("critic", help="What a return is compared with: none, batch (mean), critic (a linear value head).")
    gamma: float = option(0.95, help="Discount of the return-to-go; the paper has 1.")
    entropy: float = option(0.02, help="Weight of the entropy bonus, over the legal actions.")
    max_grad_norm: float = option(0.3, help="Gradients are scaled down to this norm.")
    clip: float = option(0.2, help="How far the ratio to the sampling policy may count.")
    epochs: int = option(1, help="Passes over each batch; 1 is REINFORCE's.")
    minibatch: int = option(512, help="Rows a gradient step.")
    temperature: float = option(2.0, help="Of the policy's sampling, in play and in the loss.")
    reflect_prob: float = option(1.0, help="Share of the steps that see their comment.")
    reflect_temperature: float = option(0.0, help="Of the comments; 0 decodes greedily and memoises.")
    save_steps: int = option(20, help="Updates between checkpoints.")
    device: str = option("auto", help="auto, cpu, cuda, …")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_steps", "episodes", "epochs", "minibatch", "save_steps"):
            at_least(name, getattr(self, name), 1)
        for name in ("learning_rate", "temperature", "max_grad_norm", "clip"):
            above(name, getattr(self, name), 0)
        for name in ("entropy", "reflect_temperature"):
            at_least(name, getattr(self, name), 0)
        fraction("gamma", self.gamma)
        fraction("reflect_prob", self.reflect_prob)
        one_of("baseline", self.baseline, BASELINES)
        one_of("schedule", self.schedule, ("linear", "constant"))
        for level in self.curriculum:
            check_level(self.env, level)


def run(config: Config, progress: Progress) -> Report:
    """Train and write `metrics.jsonl` and `checkpoint-<step>/`. Raises CheckpointError, DataError, DivergedError."""
    source = config.task_file or config.folder / "train.json"
    records = read_records(source, config.env_name)
    models = [config.load_dir, *([config.reflect_load_dir] if config.reflect_load_dir else [])]
    with open_run("rlft", config, [source, *models, *config.worlds(record.task for record in records)]) as current:
        if current.done:
            return current.done
        from reflectkit.rl.loop import Plan

        levels = config.curriculum or (env_class(config.env).levels[-1],)
        tasks = [record.task for record in records]
        plan = Plan(
            {level: at_level(config.env, tasks, level, source) for level in levels},
            {level: config.maker(level) for level in levels},
            levels, config.max_steps, config.episodes, config.gamma, config.seed, config.width, config.schedule == "linear",
        )  # fmt: skip
        agent, learner, done = _players(config, current.folder)
        progress.news(f"rlft: {len(tasks)} problems of {source} → {current.folder}")
        target = _loop(config, plan, agent, learner, done, current.folder, progress)
        history = [row for _, row in read_jsonl(current.folder / "metrics.jsonl")]
        last = history[-max(1, len(history) // 10) :]
        figures = {
            "steps": config.max_steps,
            "episodes": config.max_steps * config.episodes,
            "success_rate": sum(row["success_rate"] for row in last) / len(last),
            "return": sum(row["return"] for row in last) / len(last),
        }
        current.tables.append(figures_table(f"RL in {target} (rates: last tenth, training problems)", "value", figures))
        return current.finish(figures, [target, current.folder / "metrics.jsonl"])


def _players(config: Config, folder: Path) -> tuple[TwoPlayerAgent, Learner, int]:
    """The agent, its learner, and how many updates an earlier, killed process has done."""
    from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
    from reflectkit.models.load import load_player
    from reflectkit.rl import checkpoint
    from reflectkit.rl.learner import Learner, Settings

    resumed = checkpoint.latest(folder)
    policy = load_player(resumed or config.load_dir, "policy", device=config.device)
    reflector = None
    if config.reflect_load_dir is not None:
        player = load_player(config.reflect_load_dir, "reflection", device=config.device)
        reflector = Reflector(player, temperature=config.reflect_temperature)
    settings = Settings(
        learning_rate=config.learning_rate,
        clip=config.clip,
        entropy=config.entropy,
        max_grad_norm=config.max_grad_norm,
        epochs=config.epochs,
        minibatch=config.minibatch,
        baseline=config.baseline,
        temperature=config.temperature,
    )
    learner = Learner(policy, settings)
    done = checkpoint.restore(resumed, learner) if resumed else 0
    agent = TwoPlayerAgent(
        policy,
        reflector,
        temperature=config.temperature,
        reflect_prob=config.reflect_prob,
        critic=learner.critic if config.baseline == "critic" else None,
    )
    return agent, learner, done


def _loop(
    config: Config, plan: Plan, agent: TwoPlayerAgent, learner: Learner, done: int, folder: Path, progress: Progress
) -> Path:
    """Updates `done` … max_steps-1; metrics and checkpoints are written as they come. Returns the last checkpoint."""
    from reflectkit.rl import checkpoint
    from reflectkit.rl.loop import train_step

    metrics = folder / "metrics.jsonl"
    history = [row for _, row in read_jsonl(metrics)] if done else []
    history = [row for row in history if row["step"] <= done]
    facts = {"env": config.env, "reflector": str(config.reflect_load_dir) if config.reflect_load_dir else None}
    target = folder / f"checkpoint-{done}"
    title = "Reflect-RL" if config.reflect_load_dir else "SFT + RL"
    with progress.bar(title, config.max_steps, done) as bar:
        for step in range(done, config.max_steps):
            figures = train_step(step, plan, agent, learner)
            history.append(figures)
            write_jsonl(metrics, history)
            if (step + 1) % config.save_steps == 0 or step + 1 == config.max_steps:
                target = checkpoint.save(folder, step + 1, learner, facts)
            recent = [row["success_rate"] for row in history[-10:]]
            bar.advance(1, success=sum(recent) / len(recent), entropy=float(str(figures.get("entropy", "nan"))))
    return target
