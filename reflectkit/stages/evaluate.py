"""evaluate: several players on the same held-out problems, each with or without a reflector; success with its 95 % interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectkit.core.config import at_least, option
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError
from reflectkit.core.jsonl import write_json, write_jsonl
from reflectkit.core.protocols import Agent
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.runs import Report, Table, open_run
from reflectkit.core.seeding import derive
from reflectkit.core.stats import bootstrap, by_task, wilson
from reflectkit.core.types import Status, Task, Trajectory
from reflectkit.data.episodes import episode_to_json
from reflectkit.data.trajectories import read_records
from reflectkit.envs import env_class
from reflectkit.stages.common import PlayConfig, at_level, check_level

EXAMPLES = (
    "reflectkit evaluate --env taxi --policy oracle --policy random",
    'reflectkit evaluate --env taxi --policy "SFT=results/7_sft/checkpoint-600"'
    ' --policy "Reflect-RL=results/8_rlft/checkpoint-60+results/4_sft/checkpoint-700"',
)
SCRIPTED = ("oracle", "random")
COLUMNS = ("policy", "level", "success", "95 % interval", "tasks", "episodes", "return", "steps")


@dataclass(frozen=True)
class Config(PlayConfig):
    """Settings of evaluate."""

    policy: tuple[str, ...] = option(
        help="NAME=CHECKPOINT, NAME=CHECKPOINT+REFLECTOR, oracle, random, or a baseline of the env (repeat the flag)."
    )
    task_file: Path | None = option(None, help="Held-out problems; default: test.json in the env's data folder.")
    level: tuple[str, ...] = option((), help="Curriculum levels to play (repeat the flag); default: the last.")
    eval_reps: int = option(1, help="Episodes a problem; more help only where play is random.")
    temperature: float = option(0.0, help="Of the policy's sampling; 0 takes the likeliest action.")
    max_new_tokens: int = option(128, help="Tokens of an answer, in an environment without enumerated actions.")
    device: str = option("auto", help="auto, cpu, cuda, …")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("eval_reps", self.eval_reps, 1)
        at_least("max_new_tokens", self.max_new_tokens, 1)
        at_least("temperature", self.temperature, 0)
        if not self.policy:
            raise ConfigError("evaluate needs at least one --policy NAME=CHECKPOINT")
        names = [parse_policy(text, self.baselines)[0] for text in self.policy]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"--policy: the name {twice[0]!r} is given twice")
        for level in self.level:
            check_level(self.env, level)

    @property
    def baselines(self) -> tuple[str, ...]:
        """The env's own, by name."""
        return tuple(getattr(env_class(self.env), "baselines", ()))


def parse_policy(text: str, baselines: Sequence[str] = ()) -> tuple[str, Path | None, Path | None]:
    """(name, policy's checkpoint, reflector's checkpoint) of a --policy; `baselines` have no checkpoint. Raises ConfigError.

    >>> parse_policy("ours=a/b+c/d")
    ('ours', PosixPath('a/b'), PosixPath('c/d'))
    """
    if text in SCRIPTED or text in baselines:
        return text, None, None
    name, equals, paths = text.partition("=")
    policy, plus, reflector = paths.partition("+")
    known = ", ".join((*SCRIPTED, *baselines))
    if not (name and equals and policy) or (plus and not reflector):
        raise ConfigError(f"--policy {text!r}: write NAME=CHECKPOINT, NAME=CHECKPOINT+REFLECTOR, or one of {known}")
    return name, Path(policy), Path(reflector) if reflector else None


def run(config: Config, progress: Progress) -> Report:
    """Write `eval.json` (a row a policy and level) and `episodes.jsonl`. Raises CheckpointError, DataError."""
    source = config.task_file or config.folder / "test.json"
    records = read_records(source, config.env_name)
    entrants = [parse_policy(text, config.baselines) for text in config.policy]
    models = list(dict.fromkeys(path for _, *paths in entrants for path in paths if path))
    with open_run("evaluate", config, [source, *models, *config.worlds(record.task for record in records)]) as current:
        if current.done:
            return current.done
        levels = config.level or (env_class(config.env).levels[-1],)
        tasks = [record.task for record in records]
        players = Players(config.device)
        rows: list[dict[str, Any]] = []
        episodes: list[dict[str, Any]] = []
        for name, policy, reflector in entrants:
            for level in levels:
                problems = at_level(config.env, tasks, level, source)
                agent = players.agent(name, policy, reflector, config.temperature, config.max_new_tokens)
                played = _play(config, problems, config.maker(level), agent, f"{name} ({level})", progress)
                rows.append(row(name, config.env_name, level, played))
                episodes += [episode_to_json(name, trajectory) | {"level": level} for trajectory in played]
        write_jsonl(current.folder / "episodes.jsonl", episodes)
        write_json(current.folder / "eval.json", {"rows": rows})
        current.tables.append(table(f"Held-out problems of {source}", rows))
        current.tables += figures_tables(rows)
        return current.finish({"rows": rows}, [current.folder / "eval.json", current.folder / "episodes.jsonl"])


class Players:
    """Opens the players; a reflector is opened once, and its memo kept for all who share it."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._reflectors: dict[Path, Any] = {}

    def agent(
        self, name: str, policy: Path | None, reflector: Path | None, temperature: float, max_new_tokens: int = 128
    ) -> Agent:
        """The agent that `name` stands for."""
        from reflectkit.agents.scripted import Baseline, Oracle, RandomAgent

        if policy is None:
            return Oracle() if name == "oracle" else RandomAgent() if name == "random" else Baseline(name)
        from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
        from reflectkit.models.load import load_player

        if reflector is not None and reflector not in self._reflectors:
            self._reflectors[reflector] = Reflector(load_player(reflector, "reflection", device=self.device))
        commentator = self._reflectors[reflector] if reflector else None
        player = load_player(policy, "policy", device=self.device)
        return TwoPlayerAgent(player, commentator, temperature=temperature, max_new_tokens=max_new_tokens, show=True)


def row(name: str, env: str, level: str, played: list[Trajectory]) -> dict[str, Any]:
    """One row of eval.json. success, low and high are shares of 1 over distinct tasks; ABORTED episodes are left out."""
    counted = [trajectory for trajectory in played if trajectory.status is not Status.ABORTED]
    rates = by_task((trajectory.task.id, float(trajectory.success)) for trajectory in counted)
    low, high = wilson(sum(rates.values()), len(rates))
    count = max(1, len(counted))
    return {
        "name": name,
        "env": env,
        "level": level,
        "success": sum(rates.values()) / max(1, len(rates)),
        "low": low,
        "high": high,
        "tasks": len(rates),
        "episodes": len(counted),
        "return": sum(trajectory.total_return for trajectory in counted) / count,
        "steps": sum(len(trajectory.turns) for trajectory in counted) / count,
        "aborted": len(played) - len(counted),
        "figures": figures_of((trajectory.task.id, trajectory.figures) for trajectory in counted),
    }


def figures_of(played: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """What the env reports of its episodes, (task id, figures) each, with the bootstrap's 95 % interval over distinct tasks."""
    episodes = list(played)
    names = dict.fromkeys(name for _, figures in episodes for name in figures)
    found = {}
    for name in names:
        told = by_task((task, figures[name]) for task, figures in episodes if name in figures)
        low, high = bootstrap(list(told.values()))
        found[name] = {"mean": sum(told.values()) / len(told), "low": low, "high": high}
    return found


def table(title: str, rows: list[dict[str, Any]]) -> Table:
    """Rows of eval.json for a person."""
    cells = tuple(
        (
            row["name"],
            row["level"],
            f"{100 * row['success']:.1f} %" if row["episodes"] else "all aborted",
            f"{100 * row['low']:.0f} to {100 * row['high']:.0f} %" if row["episodes"] else "",
            str(row["tasks"]),
            str(row["episodes"]),
            f"{row['return']:.2f}",
            f"{row['steps']:.1f}",
        )
        for row in rows
    )
    return Table(title, COLUMNS, cells)


def figures_tables(rows: list[dict[str, Any]]) -> list[Table]:
    """The env's own figures for a person, a table each: what they are on average, and their intervals."""
    tables = []
    for name in dict.fromkeys(name for row in rows for name in row.get("figures", {})):
        told = [(row, row["figures"][name]) for row in rows if name in row.get("figures", {})]
        cells = tuple(
            (row["name"], row["level"], f"{one['mean']:.3g}", f"{one['low']:.3g} to {one['high']:.3g}") for row, one in told
        )
        tables.append(Table(name.replace("_", " "), ("policy", "level", "mean", "95 % interval"), cells))
    return tables


def _play(
    config: Config, problems: list[Task], maker: Callable[[], Any], agent: Agent, title: str, progress: Progress
) -> list[Trajectory]:
    episodes = [
        Episode(task, derive(config.seed, "evaluate", task.id, repeat))
        for task in problems
        for repeat in range(config.eval_reps)
    ]
    with progress.bar(title, len(episodes)) as bar:
        return rollout(episodes, maker, agent, width=config.width, on_end=lambda _: bar.advance())
