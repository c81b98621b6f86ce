"""What several stages need: where an env's files lie, its horizon, and the settings of a stage that plays episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from reflectkit.agents.endpoints import parse_endpoint
from reflectkit.core.config import PACKAGED, StageConfig, flag, fraction, one_of, option, within
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, DataError, unknown_name
from reflectkit.core.protocols import Env
from reflectkit.core.types import Task
from reflectkit.envs import ENVS, env_class, folder_name, make
from reflectkit.envs.alfworld.expert import EXPERTS
from reflectkit.envs.alfworld.games import inside

RECORDS = "data_reflection_negative.json"
DEFAULT_HORIZON = 15
MOST_TOKENS = 1_000_000  # of a prompt, or what is written in answer
EXTRACTIVE = "extractive"
ENV_SETTINGS = (
    "repos_dir", "leaveout_prob", "accept_teacher_answers", "result_tokens", "prompt_tokens",
    "games_dir", "expert", "typed",
    "reader", "reader_url", "recent", "related", "compression_weight", "content_weight", "brief",
)  # fmt: skip
"""Settings that some envs alone know."""


@dataclass(frozen=True)
class EnvConfig(StageConfig):
    """What a stage takes that works on one environment."""

    env: str = option(help=f"Environment: {', '.join(ENVS)}, or your own as package.module:Class.")

    def __post_init__(self) -> None:
        super().__post_init__()
        env_class(self.env)

    @property
    def env_name(self) -> str:
        """What the env calls itself, as tasks do."""
        return str(env_class(self.env).name)

    @property
    def env_folder(self) -> Path:
        """The env's folder."""
        return self.data_dir / folder_name(self.env)

    @property
    def folder(self) -> Path:
        """Where the env's records, splits and rows lie."""
        return self.env_folder / getattr(env_class(self.env), "records_folder", "")

    @property
    def repos_folder(self) -> Path:
        """Where filtered repositories lie, unless a setting says otherwise."""
        return self.env_folder / "repos_filtered"

    @property
    def games_folder(self) -> Path:
        """Where ALFWorld's games lie, unless a setting says otherwise."""
        return self.env_folder / "games"


@dataclass(frozen=True)
class WorldConfig(EnvConfig):
    """What a stage takes that makes environments. What an env does not know may not be set for it."""

    PANEL: ClassVar = "Environments"
    shuffle_action: bool = option(False, help="Draw the order of the actions, and so their labels, anew at each step.")
    repos_dir: Path | None = option(
        None, help="auto_explore: the filtered repositories; default: repos_filtered in its data folder."
    )
    leaveout_prob: float = option(
        0.0, help="auto_explore: share of the unrelated files that an episode leaves out at random."
    )
    accept_teacher_answers: bool = option(
        False, help="auto_explore: a file that the teacher named counts as right too."
    )
    games_dir: Path | None = option(
        None, help="alfworld: folder of the games (json_2.1.1 in it); default: games in its data folder."
    )
    expert: str = option(
        "search", help="alfworld: the oracle: search (knows what it saw), handcoded or planner (the package's)."
    )
    result_tokens: int = option(
        400, help="auto_explore, alfworld: tokens, about, that are shown of a command's output."
    )
    prompt_tokens: int = option(
        800, help="auto_explore, alfworld: tokens, about, of a whole prompt; the oldest commands go first."
    )
    typed: bool = option(False, help="alfworld: commands are written as text; none are offered to choose from.")
    reader: str = option(
        EXTRACTIVE, help="memory: who answers at the end: extractive, openai:MODEL, azure:… or local:MODEL."
    )
    reader_url: str | None = option(None, help="memory: the reader's server; for local: http://localhost:1234/v1.")
    recent: int = option(5, help="memory: items of each list that are shown for being the most recent.")
    related: int = option(5, help="memory: items of each list that are shown for being the most like the chunk.")
    brief: bool = option(
        False, help="memory: no instructions in the prompt, for a model that was trained to do without."
    )
    compression_weight: float = option(
        0.05, help="memory: weight of the memory's shortness in the reward, the paper's β."
    )
    content_weight: float = option(0.1, help="memory: weight of what is written being right, the paper's γ.")

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("leaveout_prob", self.leaveout_prob)
        one_of("expert", self.expert, EXPERTS)
        within("result_tokens", self.result_tokens, 1, MOST_TOKENS)
        within("prompt_tokens", self.prompt_tokens, 50, MOST_TOKENS)
        for name in ("recent", "related", "compression_weight", "content_weight"):
            within(name, getattr(self, name), 0, 1000)
        if self.reader_url is not None and self.reader == EXTRACTIVE:
            raise ConfigError("--reader-url needs a --reader, e.g. local:MODEL")
        if self.reader != EXTRACTIVE:
            parse_endpoint(self.reader, self.reader_url, "--reader", "extractive, ")
        known = set(getattr(env_class(self.env), "settings", ()))
        known |= {"reader_url"} & {f"{name}_url" for name in known}
        for name in self.departed(name for name in ENV_SETTINGS if name not in known):
            raise ConfigError(f"env '{self.env}' has no setting {flag(name)}")

    def make(self, horizon: int | None) -> Env:
        """A fresh env with these settings."""
        known = getattr(env_class(self.env), "settings", ())
        settings = {name: getattr(self, name) for name in known if hasattr(self, name) and name != "horizon"}
        if "repos_dir" in settings:
            settings["repos_dir"] = self.repos_dir or self.repos_folder
        if "games_dir" in settings:
            settings["games_dir"] = self.games_dir or self.games_folder
        if "reader" in settings:
            settings["reader"] = _reader(self.reader, self.reader_url, self.env_folder / "reader.jsonl")
        return make(self.env, horizon, shuffle=self.shuffle_action, **settings)

    def worlds(self, tasks: Iterable[Task]) -> list[Path]:
        """The files and folders that these tasks are set in, beside their records: inputs of a run."""
        known = getattr(env_class(self.env), "settings", ())
        if "games_dir" in known:
            folder = self.games_dir or self.games_folder
            return sorted({game for task in tasks if (game := inside(folder, task.data.get("game"))) and game.is_dir()})
        if "repos_dir" not in known:
            return []
        folder = self.repos_dir or self.repos_folder
        roots = sorted({str(task.data.get("root")) for task in tasks})
        return [folder / root for root in roots if "/" not in root and (folder / root).is_dir()]


@cache
def _reader(name: str, url: str | None, journal: Path) -> Any:
    """The reader of env memory, one for all envs; None for its own."""
    from reflectkit.agents.reader import ChatReader

    return None if name == EXTRACTIVE else ChatReader(parse_endpoint(name, url, "--reader", "extractive, "), journal)


@dataclass(frozen=True)
class PlayConfig(WorldConfig):
    """What a stage takes that plays episodes."""

    horizon: int = option(0, help="Steps after which an episode is cut off; 0: the env's own default for the level.")
    width: int = option(128, help="Episodes played side by side; changes speed and memory, not results.")

    def __post_init__(self) -> None:
        super().__post_init__()
        within("horizon", self.horizon, 0, 100_000)
        within("width", self.width, 1, 4096)

    def horizon_at(self, level: str) -> int:
        """The horizon for `level`."""
        return self.horizon or int(getattr(env_class(self.env), "horizons", {}).get(level, DEFAULT_HORIZON))

    def maker(self, level: str) -> Callable[[], Env]:
        """Makes fresh envs with the horizon for `level`."""
        steps = self.horizon_at(level)
        return lambda: self.make(steps)


def told_apart(folders: Sequence[Path]) -> list[str]:
    """A name for each: its own, with as many of the folders above as it takes to tell them apart."""
    parts = [folder.absolute().parts for folder in folders]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(map(str, folders))


def model_source(name: str, data_dir: Path, progress: Progress) -> str:
    """`name`, or where a packaged model of that name lies, after it was converted into `data_dir`. Raises
    CheckpointError.
    """
    if name not in PACKAGED:
        return name
    folder = data_dir / "models" / name
    if not (folder / "config.json").is_file():
        from reflectkit.models.packaged import convert

        with progress.bar(f"{name}: converting into {folder}, once", 1) as bar:
            convert(name, folder)
            bar.advance()
    return str(folder)


def check_level(env: str, level: str) -> None:
    """Raises UnknownNameError unless `env` has `level`."""
    levels: tuple[str, ...] = env_class(env).levels
    if level not in levels:
        raise unknown_name(f"level of env '{env}'", level, levels)


def at_level(env: str, tasks: list[Task], level: str, path: Path) -> list[Task]:
    """`tasks` as problems of `level`, each once. Raises DataError where there is none."""
    known: Any = env_class(env)
    if hasattr(known, "at_level"):
        moved = [known.at_level(task, level) for task in tasks]
    else:
        moved = [task if task.level == level else None for task in tasks]
    kept = {task.id: task for task in moved if task is not None}
    if not kept:
        there = ", ".join(sorted({task.level for task in tasks}))
        raise DataError(path, f"holds no task of level '{level}', but of {there}; choose one of them, or make some")
    return list(kept.values())


def explore_only(stage: str, env: str) -> None:
    """Raises ConfigError for an env whose problems are not about repositories."""
    if not hasattr(env_class(env), "records_folder"):
        raise ConfigError(
            f"{stage} works on repositories, for --env auto_explore; '{env}' lists its own problems (gen-trajectory)"
        )
