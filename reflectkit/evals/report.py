"""Report, the last of evaluate's four steps: the files and tables of played episodes, or of saved ones (`--from`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectkit.agents.players import Players
from reflectkit.config import flag
from reflectkit.console import Progress, Report
from reflectkit.data.episodes import SUCCESS, read_compared
from reflectkit.errors import DataError, EnvironmentFailure
from reflectkit.evals import tables
from reflectkit.evals.aggregate import (
    differences_over_seeds,
    levels_without_success,
    player_rows,
    return_differs_from_success,
)
from reflectkit.evals.config import EvaluateConfig
from reflectkit.evals.play import PlayedLevel
from reflectkit.evals.resolve import EvaluationRun
from reflectkit.evals.rows import RETURN, EpisodeRow
from reflectkit.jsonl import read_json, replacing, write_json, write_text
from reflectkit.runs.run import Run, differing_settings, digest, open_run, read_record


def report(
    run: EvaluationRun,
    parts: Sequence[PlayedLevel],
    players: Players,
    current: Run,
    progress: Progress,
) -> Report:
    """Write the results of the episodes in `parts`.

    Raises EnvironmentFailure if all episodes of a player were aborted, after the tables of the others are written.
    """
    # 1. The episodes that count
    episodes: list[EpisodeRow] = []
    failures = []
    for part in parts:
        rows = part.rows
        if all(row.is_aborted for row in rows):
            failures.append(
                f"every episode of {rows[0].name} was aborted ({len(rows)}): {rows[0].reason}"
            )
        else:
            episodes += rows
    players.report(progress)
    if not episodes:
        raise EnvironmentFailure(failures[0])
    for note in _success_notes(run.config, episodes):
        progress.news(note)

    # 2. Their files
    episodes_file = current.folder / "episodes.jsonl"
    _join(parts, episodes_file)
    usage = players.usage | run.config.setup.asked(progress)
    figures, outputs = write_tables(current, run.title, [episodes], {"asked": usage})
    if failures:
        others = f"the tables of the others are in {current.folder / 'eval.md'}"
        raise EnvironmentFailure(
            f"{'; '.join(failures)}; {others}; once that is mended, repeat the command"
        )

    # 3. The report
    if usage:
        figures["asked"] = usage
    if run.warnings:
        figures["warnings"] = list(run.warnings)
    return current.finish(figures, [*outputs, episodes_file])


def recompute(config: EvaluateConfig, progress: Progress) -> Report:
    """The tables of saved episodes, computed by this version. Raises DataError."""
    # 1. The episodes of each evaluation
    env = config.setup.env_name
    parts = []
    for path in config.episodes:
        episodes = [EpisodeRow.read(line) for line in read_compared(path)]
        other_envs = {episode.env for episode in episodes} - {env, ""}
        if other_envs:
            raise DataError(
                path,
                f"has episodes of env '{min(other_envs)}', not of '{env}'; choose it with --env",
            )
        parts.append(episodes)

    # 2. What makes the tables mislead
    folders = [path if path.is_dir() else path.parent for path in config.episodes]
    for folder in folders:
        if _is_altered(folder):
            progress.news(f"warning: {folder} has other episodes than evaluate wrote there")
    differing = differing_settings(folders)
    if differing:
        progress.news(
            f"warning: the evaluations differ in {', '.join(map(flag, differing))}, not only in seed"
        )
    for text in _same_everywhere(parts, folders):
        progress.news(
            f"warning: the episodes of {text} went alike in all evaluations, which are no seeds of it"
        )

    # 3. The tables
    with open_run("evaluate", config, config.episodes, again=True) as current:
        title = f"Episodes of {' and '.join(map(str, config.episodes))}"
        return current.finish(*write_tables(current, title, parts, {}))


def write_tables(
    current: Run,
    title: str,
    parts: Sequence[Sequence[EpisodeRow]],
    extra: Mapping[str, Any],
) -> tuple[dict[str, Any], list[Path]]:
    """The figures of the report, and the files that are written. parts: the episodes of each seed. extra: more of
    eval.json.
    """
    # 1. The figures
    rows = player_rows(parts)
    differences = differences_over_seeds(parts)
    figures = {"rows": [row.to_json() for row in rows]}
    compared = {"differences": [gap.to_json() for gap in differences]}
    write_json(current.folder / "eval.json", {**figures, **compared, **extra})

    # 2. Their tables
    episodes = [episode for part in parts for episode in part]
    current.tables += tables.tables_of(title, rows, episodes)
    measures = [SUCCESS, RETURN] if return_differs_from_success(episodes) else [SUCCESS]
    for measure in measures:
        if any(gap.difference for gap in differences if gap.figure == measure):
            current.tables.append(tables.differences_table(differences, measure))
    write_text(current.folder / "eval.md", tables.markdown(current.tables))
    write_text(current.folder / "eval.csv", tables.csv_text(row.to_csv() for row in rows))
    return figures, [current.folder / name for name in ("eval.json", "eval.md", "eval.csv")]


def _join(parts: Sequence[PlayedLevel], target: Path) -> None:
    """Write the lines of all episodes to `target`, in the order of players, levels and problems."""
    with replacing(target) as file:
        for part in parts:
            with part.path.open("rb") as source:
                for episode in part.episodes:
                    source.seek(episode.offset)
                    file.write(source.readline())


def _success_notes(config: EvaluateConfig, episodes: Sequence[EpisodeRow]) -> Iterator[str]:
    """What to report of levels at which success says nothing about the players. episodes: of all players."""
    for level in dict.fromkeys(episode.level for episode in episodes):
        complete = [each for each in episodes if each.level == level and not each.is_aborted]
        at_level = f" of level '{level}'" if len(config.env.kind.levels) > 1 else ""
        if levels_without_success(complete):
            yield f"env '{config.env.name}' does not say which episodes{at_level} succeed, so the return is shown"
        elif return_differs_from_success(complete) and not any(
            episode.success for episode in complete
        ):
            yield f"no episode{at_level} is a success, whoever played: compare returns"


def _same_everywhere(
    parts: Sequence[Sequence[EpisodeRow]], folders: Sequence[Path]
) -> Iterator[str]:
    """The --policy of each model whose episodes went alike in all evaluations. parts: the episodes of each."""
    if len(parts) < 2:
        return
    policies = [
        set(map(str, read_record(folder).get("settings", {}).get("policy") or ()))
        for folder in folders
    ]
    for text in sorted(set.intersection(*policies)):
        name, equals, _ = text.partition("=")
        outcomes = [{episode.outcome for episode in part if episode.name == name} for part in parts]
        if equals and outcomes[0] and all(outcome == outcomes[0] for outcome in outcomes):
            yield text


def _is_altered(folder: Path) -> bool:
    """Whether the run of evaluate in `folder` has other episodes than it wrote."""
    try:
        outputs = read_json(folder / "report.json")["outputs"]
        recorded = {
            checksum for name, checksum in outputs.items() if Path(name).name == "episodes.jsonl"
        }
        return bool(recorded) and digest(folder / "episodes.jsonl") not in recorded
    except (AttributeError, DataError, KeyError, TypeError):  # no report, or a damaged one
        return False
