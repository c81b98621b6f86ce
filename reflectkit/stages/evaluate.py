"""evaluate: several players on the same held-out problems, each with or without a reflector; success with its 95 % interval."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from reflectkit.core.config import at_least, option
from reflectkit.core.console import Progress
from reflectkit.core.errors import ConfigError, EnvironmentFailure
from reflectkit.core.jsonl import dumps, write_json, write_jsonl, write_text
from reflectkit.core.protocols import Agent
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.runs import Report, open_run
from reflectkit.core.seeding import derive
from reflectkit.core.types import Status, Task, Trajectory
from reflectkit.data.episodes import episode_to_json
from reflectkit.data.trajectories import read_records
from reflectkit.envs import env_class
from reflectkit.stages.common import PlayConfig, at_level, check_level
from reflectkit.stages.comparing import csv_text, differences, differences_table, figures_tables, markdown, row, table

EXAMPLES = (
    "reflectkit evaluate --env taxi --policy oracle --policy random",
    'reflectkit evaluate --env taxi --policy "SFT=results/7_sft/checkpoint-600"'
    ' --policy "Reflect-RL=results/8_rlft/checkpoint-60+results/4_sft/checkpoint-700"',
)
SCRIPTED = ("oracle", "random")


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
    """Write `eval.json`, `eval.md` and `eval.csv` (a row a policy and level), and `episodes.jsonl`.

    Episodes are kept as they end: killed and started again, those are not played again. Raises CheckpointError, DataError.
    """
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
        kept = current.folder / "episodes"
        rows: list[dict[str, Any]] = []
        episodes: list[dict[str, Any]] = []
        for number, (name, policy, reflector) in enumerate(entrants):
            for level in levels:
                problems = at_level(config.env, tasks, level, source)
                path = kept / f"{number}-{level}.jsonl"
                opening = partial(players.agent, name, policy, reflector, config.temperature, config.max_new_tokens)
                played = _played(config, problems, level, path, opening, name, progress)
                rows.append(row(name, config.env_name, level, played))
                episodes += played
        write_jsonl(current.folder / "episodes.jsonl", episodes)
        compared = differences(episodes)
        write_json(current.folder / "eval.json", {"rows": rows, "differences": compared})
        current.tables.append(table(f"Held-out problems of {source}", rows))
        current.tables += figures_tables(rows)
        if len(entrants) > 1:
            current.tables.append(differences_table(compared, "success"))
        write_text(current.folder / "eval.md", markdown(current.tables))
        write_text(current.folder / "eval.csv", csv_text(rows))
        shutil.rmtree(kept, ignore_errors=True)
        made = [current.folder / name for name in ("eval.json", "eval.md", "eval.csv", "episodes.jsonl")]
        return current.finish({"rows": rows}, made)


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
        from reflectkit.agents.two_player import TwoPlayerAgent
        from reflectkit.models.load import load_player

        commentator = self.reflector(reflector) if reflector else None
        player = load_player(policy, "policy", device=self.device)
        return TwoPlayerAgent(player, commentator, temperature=temperature, max_new_tokens=max_new_tokens, show=True)

    def reflector(self, checkpoint: Path) -> Any:
        """The `Reflector` of `checkpoint`."""
        from reflectkit.agents.two_player import Reflector
        from reflectkit.models.load import load_player

        if checkpoint not in self._reflectors:
            self._reflectors[checkpoint] = Reflector(load_player(checkpoint, "reflection", device=self.device))
        return self._reflectors[checkpoint]


def _played(
    config: Config, problems: list[Task], level: str, path: Path, make_agent: Callable[[], Agent], name: str, progress: Progress
) -> list[dict[str, Any]]:
    """An episode of each problem and repeat, as lines of episodes.jsonl; those in `path` are there already."""
    episodes = [
        Episode(task, derive(config.seed, "evaluate", task.id, repeat))
        for task in problems
        for repeat in range(config.eval_reps)
    ]
    done = _kept(path)
    left = [episode for episode in episodes if (episode.task.id, episode.seed) not in done]
    with progress.bar(f"{name} ({level})", len(episodes), len(episodes) - len(left)) as bar:
        if left:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:

                def on_end(trajectory: Trajectory) -> None:
                    line = episode_to_json(name, trajectory) | {"level": level}
                    done[trajectory.task.id, trajectory.seed] = line
                    if trajectory.status is not Status.ABORTED:  # which is played again by the same command
                        file.write(dumps(line) + "\n")
                        file.flush()
                    bar.advance()

                rollout(left, config.maker(level), make_agent(), width=config.width, on_end=on_end)
    played = [done[episode.task.id, episode.seed] for episode in episodes]
    if played and all(line["status"] == "aborted" for line in played):
        raise EnvironmentFailure(f"all {len(played)} episodes of {name} were aborted: {played[0].get('reason')}")
    return played


def _kept(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The whole lines that a killed run left, by task and seed; a half-written last one is cut off."""
    if not path.is_file():
        return {}
    text = path.read_text("utf-8", errors="replace")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, "utf-8")
    rows = [json.loads(line) for line in whole.splitlines()]
    return {(row["task"], row["seed"]): row for row in rows}
