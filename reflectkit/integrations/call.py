"""A command called from Python: its settings may be objects, its result has figures, tables and
pictures, and its progress is shown in a terminal or below a notebook's cell.
"""

from __future__ import annotations

import html
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from reflectkit.cli.app import run_stage
from reflectkit.cli.screen import RichProgress, Screen
from reflectkit.commands import config_class, stage_module
from reflectkit.console import Bar, Progress, Report, Table, visible
from reflectkit.envs import env_class
from reflectkit.envs.python_classes import has_source, name_of
from reflectkit.errors import ConfigError, brief
from reflectkit.integrations.agent import LoadedAgent, load_agent
from reflectkit.jsonl import read_json, read_jsonl
from reflectkit.models.refs import ModelRef

if TYPE_CHECKING:
    import pandas

PLAYERS = ("policy", "reflector", "model")
"""Settings that name a model, and take a `Result`."""
WITH_FILE = {
    "metrics.jsonl": "results of rlft and sft have metrics, and those of evaluate have episodes",
    "episodes.jsonl": "results of evaluate have episodes; rlft keeps some with keep_episodes=4",
    "held_out.json": "results of rlft have it, unless validate_problems=0",
}
"""Which results have a file."""


@dataclass(frozen=True)
class Result:
    """What a command did."""

    report: Report

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.report.folder

    @property
    def figures(self) -> dict[str, Any]:
        """Its figures by name, as in `report.json`."""
        return self.report.figures

    @property
    def metrics(self) -> pandas.DataFrame:
        """A row for each update of `rlft`, or for each logged step of `sft`, as in `metrics.jsonl`."""
        return self._frame("metrics.jsonl")

    @property
    def episodes(self) -> pandas.DataFrame:
        """A row for each episode of `evaluate`: player, task, success, return, number of steps."""
        frame = self._frame("episodes.jsonl")
        columns = [name for name in ("name", "task", "level", "success", "return") if name in frame]
        return frame[columns].assign(steps=frame["turns"].map(len))

    @property
    def held_out(self) -> pandas.DataFrame:
        """The outcome of each held-out problem of `rlft`: player (before, after or random), task,
        success, return.
        """
        import pandas

        path = self._existing("held_out.json")
        rows = [
            {"player": player, **row}
            for player, outcomes in read_json(path).items()
            for row in outcomes
        ]
        return pandas.DataFrame(rows)

    @property
    def policy(self) -> LoadedAgent:
        """The agent that was trained, ready to act; it is loaded each time."""
        return load_agent(str(self.folder))

    def plot(self, **settings: Any) -> Picture:
        """The picture of `reflectkit plot`: curves of a training run, bars of an evaluation.
        settings: as its flags.
        """
        # An evaluation has bars, and training has curves
        source = (
            {"evals": (self.folder,)}
            if self.report.stage == "evaluate"
            else {"runs": (str(self.folder),)}
        )
        return Picture(call("plot", source | settings).report.outputs[0])

    def _existing(self, name: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise ConfigError(
                f"{self.folder}: `{self.report.stage}` has written no {name}; {WITH_FILE[name]}"
            )
        return path

    def _frame(self, name: str) -> pandas.DataFrame:
        import pandas

        return pandas.DataFrame([row for _, row in read_jsonl(self._existing(name))])

    @override
    def __repr__(self) -> str:
        return f"<Result of {self.report.stage} in {self.folder}>"

    def _repr_html_(self) -> str:
        """The tables of the report, for a notebook."""
        return "\n".join(
            [
                *map(_html, self.report.tables),
                f"<p><code>{html.escape(str(self.folder))}</code></p>",
            ]
        )


@dataclass(frozen=True)
class Picture:
    """A picture that a notebook shows."""

    path: Path

    def _repr_png_(self) -> bytes | None:
        return self.path.read_bytes() if self.path.suffix == ".png" else None

    def _repr_svg_(self) -> str | None:
        return self.path.read_text(encoding="utf-8") if self.path.suffix == ".svg" else None


def call(stage: str, settings: Mapping[str, Any], env_settings: Any = None) -> Result:
    """Run a command with these settings, and those of the env. Raises ReflectkitError."""
    if not isinstance(env_settings, Mapping | None):
        raise ConfigError(f"env_settings is {brief(env_settings)}; give a dict, e.g. {{'size': 8}}")
    values = {**settings, **(env_settings or {})}
    with _progress() as progress:
        # 1. Objects become the texts that a person would type
        env = values.get("env", "")
        if not isinstance(env, str | type):
            env_class(env)  # raises
        if isinstance(env, type):
            values["env"] = name_of(env)
            several = (
                f"{env.__name__} is a class of this program, which other processes do not know"
            )
            if int(values.get("processes", 1)) > 1:
                raise ConfigError(
                    f"{several}; leave out processes, or save it in a file and pass 'FILE.py:CLASS'"
                )
            if not has_source(env):
                progress.news(f"{env.__name__} has no source here, so this run cannot be resumed")
        for name in PLAYERS:
            if name in values:
                values[name] = _player(values[name])

        # 2. As the command line does
        config = config_class(stage).from_flat(**values)
        return Result(run_stage(stage_module(stage), config, progress))


def _player(value: Any) -> Any:
    """A player as text: a result stands for what it trained, and a mapping names its players."""
    if isinstance(value, Mapping):
        # A baseline is written by its name alone
        players = {name: _player(player) for name, player in value.items()}
        return tuple(
            player if player == name else f"{name}={player}" for name, player in players.items()
        )
    if isinstance(value, list | tuple):
        return tuple(map(_player, value))
    if isinstance(value, Result):
        return str(value.folder)
    if not isinstance(value, str | Path | ModelRef):
        raise ConfigError(
            f"a player is {brief(value)}; give a name, a path or a Result (an agent of your own"
            " plays with reflectkit.rollout)"
        )
    return str(value)


def _html(table: Table) -> str:
    heads = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><caption>{html.escape(table.title)}</caption><tr>{heads}</tr>{body}</table>"


# -----------------------------------------------------------------------------------------------------------
# progress


@contextmanager
def _progress() -> Iterator[Progress]:
    """Bars of the kind that can be drawn here."""
    if _in_notebook():
        yield NotebookProgress()
        return
    with RichProgress(Screen()) as progress:
        yield progress


def _in_notebook() -> bool:
    # Without importing it
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")


class NotebookProgress(Progress):
    """Bars and lines below a notebook's cell."""

    @contextmanager
    @override
    def bar(self, title: str, total: int, start: int = 0) -> Iterator[Bar]:
        """A bar of tqdm."""
        with _tqdm()(total=total, initial=start, desc=visible(title), mininterval=0.5) as bar:
            yield _NotebookBar(bar)

    @override
    def news(self, text: str) -> None:
        _tqdm().write(visible(text))


def _tqdm() -> Any:
    """The class of tqdm's bars: widgets where these are installed, else text."""
    if importlib.util.find_spec("ipywidgets"):
        from tqdm.notebook import tqdm
    else:
        from tqdm.std import tqdm
    return tqdm


class _NotebookBar(Bar):
    def __init__(self, bar: Any) -> None:
        self._bar = bar

    @override
    def advance(self, amount: int = 1, **figures: float) -> None:
        self._bar.set_postfix(
            {name: f"{value:.3g}" for name, value in figures.items()}, refresh=False
        )
        self._bar.update(amount)
