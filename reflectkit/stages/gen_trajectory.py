"""gen-trajectory: demonstrations with reflections, from the oracle teacher with mistakes mixed in.

Every problem of the env is listed; `--demonstrations` of them get one episode each. The others are kept without, for RL and
evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass

from reflectkit.agents.scripted import Demonstrator
from reflectkit.core.config import at_least, fraction, option
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError
from reflectkit.core.jsonl import write_json
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.runs import Report, Table, open_run, write_permission
from reflectkit.core.seeding import derive, generator
from reflectkit.core.types import Trajectory
from reflectkit.data.trajectories import Record, from_trajectory, record_to_json
from reflectkit.envs import env_class
from reflectkit.stages.common import RECORDS, PlayConfig, check_level

DEMONSTRATIONS = 57  # of which a 7:2:1 split trains on 40
EXAMPLES = ("reflectkit gen-trajectory --env taxi --demonstrations 57 --noise 0.2",)


@dataclass(frozen=True)
class Config(PlayConfig):
    """Settings of gen-trajectory."""

    level: str = option("", help="Curriculum level of the problems; default: the env's last, the whole task.")
    demonstrations: int | None = option(None, help="Problems that get a demonstration; default: 57, or all if there are fewer.")
    noise: float = option(0.2, help="Chance that a step is a mistake that does not end the episode.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.demonstrations is not None:
            at_least("demonstrations", self.demonstrations, 1)
        fraction("noise", self.noise)
        if self.level:
            check_level(self.env, self.level)


def run(config: Config, progress: Progress) -> Report:
    """Write `data/<env>/data_reflection_negative.json`. Raises ConfigError where the env has fewer problems than asked."""
    known = env_class(config.env)
    level = config.level or known.levels[-1]
    if not hasattr(known, "tasks"):
        raise ConfigError(f"env '{config.env}' cannot list its problems: it lacks tasks(level)")
    tasks = known.tasks(level)
    count = min(DEMONSTRATIONS, len(tasks)) if config.demonstrations is None else config.demonstrations
    if count > len(tasks):
        raise ConfigError(f"--demonstrations is {count}, but level '{level}' has {len(tasks)} problems")
    write_permission(config.folder)
    with open_run("gen-trajectory", config) as current:
        if current.done:
            return current.done
        chosen = sorted(generator(config.seed, "chosen").sample(range(len(tasks)), count))
        episodes = [Episode(tasks[index], derive(config.seed, "demonstration", tasks[index].id)) for index in chosen]
        with progress.bar("Demonstrations", len(episodes)) as bar:
            played = rollout(
                episodes, config.maker(level), Demonstrator(config.noise), width=config.width, on_end=lambda _: bar.advance()
            )
        by_task = {trajectory.task.id: trajectory for trajectory in played}
        records = [
            Record(task, (from_trajectory(by_task[task.id], "oracle", "positive0"),) if task.id in by_task else ())
            for task in tasks
        ]
        path = config.folder / RECORDS
        write_json(path, [record_to_json(record) for record in records])
        figures = _figures(played, len(tasks))
        rows = tuple((name.replace("_", " "), str(value)) for name, value in figures.items())
        current.tables.append(Table(f"Demonstrations in {path}", ("what", "count"), rows))
        return current.finish(figures, [path])


def _figures(played: list[Trajectory], problems: int) -> dict[str, int]:
    notes = [turn.decision.note for trajectory in played for turn in trajectory.turns]
    return {
        "problems": problems,
        "demonstrations": len(played),
        "solved": sum(trajectory.success for trajectory in played),
        "steps": len(notes),
        "mistakes": notes.count("mistake"),
        "corrections": notes.count("correction"),
    }
