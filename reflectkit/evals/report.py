"""Report, the last of evaluate's four steps: write the files and tables of the played episodes.

With `--from` it is the only step, and the episodes are those of earlier evaluations.
"""

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
    results: Sequence[PlayedLevel],
    players: Players,
    current: Run,
    progress: Progress,
) -> Report:
    """Write the results of the episodes in `results`.

    Raises EnvironmentFailure if all episodes of a player at a level were aborted. The tables of the
    others are written before that.
    """
    # 1. Leave out the players whose episodes were all aborted
    episodes: list[EpisodeRow] = []
    failures = []
    for result in results:
        rows = result.rows
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

    # 2. Write the episodes, the figures and the tables
    episodes_file = current.folder / "episodes.jsonl"
    _write_episodes(results, episodes_file)
    usage = players.usage | run.config.setup.asked(progress)
    figures, outputs = write_tables(current, run.title, [episodes], {"asked": usage})
    if failures:
        others = f"the tables of the others are in {current.folder / 'eval.md'}"
        raise EnvironmentFailure(
            f"{'; '.join(failures)}; {others}; once that is mended, repeat the command"
        )

    # 3. Write the report
    if usage:
        figures["asked"] = usage
    if run.warnings:
        figures["warnings"] = list(run.warnings)
    return current.finish(figures, [*outputs, episodes_file])


def recompute(config: EvaluateConfig, progress: Progress) -> Report:
    """Compute the tables of saved episodes again (`--from`). Raises DataError."""
    # 1. Read the episodes of each evaluation
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

    # 2. Warn if the tables may mislead
    folders = [path if path.is_dir() else path.parent for path in config.episodes]
    for folder in folders:
        if _is_altered(folder):
            progress.news(f"warning: {folder} has other episodes than evaluate wrote there")
    differing = differing_settings(folders)
    if differing:
        names = ", ".join(map(flag, differing))
        progress.news(f"warning: the evaluations differ in {names}, not only in seed")
    for policy in _identical_policies(parts, folders):
        progress.news(
            f"warning: the episodes of {policy} went alike in all evaluations, which are no seeds"
            " of it"
        )

    # 3. Write the tables
    with open_run("evaluate", config, config.episodes, again=True) as current:
        title = f"Episodes of {' and '.join(map(str, config.episodes))}"
        figures, outputs = write_tables(current, title, parts, {})
        return current.finish(figures, outputs)


def write_tables(
    current: Run,
    title: str,
    parts: Sequence[Sequence[EpisodeRow]],
    extra: Mapping[str, Any],
) -> tuple[dict[str, Any], list[Path]]:
    """Write eval.json, eval.md and eval.csv, and add the tables to `current`.

    title: of the first table. parts: the episodes of each seed. extra: further entries of
    eval.json. Returns (the figures of the report, the paths of the files).
    """
    # 1. The figures, as JSON
    rows = player_rows(parts)
    differences = differences_over_seeds(parts)
    figures = {"rows": [row.to_json() for row in rows]}
    compared = {"differences": [gap.to_json() for gap in differences]}
    write_json(current.folder / "eval.json", {**figures, **compared, **extra})

    # 2. The tables
    episodes = [episode for part in parts for episode in part]
    current.tables += tables.tables_of(title, rows, episodes)
    measures = [SUCCESS, RETURN] if return_differs_from_success(episodes) else [SUCCESS]
    for measure in measures:
        if any(gap.difference for gap in differences if gap.figure == measure):
            current.tables.append(tables.differences_table(differences, measure))
    # 3. The tables as Markdown, and the rows as CSV
    write_text(current.folder / "eval.md", tables.markdown(current.tables))
    write_text(current.folder / "eval.csv", tables.csv_text(row.to_csv() for row in rows))
    return figures, [current.folder / name for name in ("eval.json", "eval.md", "eval.csv")]


def _write_episodes(results: Sequence[PlayedLevel], target: Path) -> None:
    """Write the lines of all episodes to `target`, in the order of players, levels and problems."""
    with replacing(target) as file:
        for result in results:
            with result.path.open("rb") as source:
                for episode in result.episodes:
                    source.seek(episode.offset)
                    file.write(source.readline())


def _success_notes(config: EvaluateConfig, episodes: Sequence[EpisodeRow]) -> Iterator[str]:
    """Notes on levels at which success does not distinguish players. episodes: of all players."""
    for level in dict.fromkeys(episode.level for episode in episodes):
        complete = [
            episode for episode in episodes if episode.level == level and not episode.is_aborted
        ]
        at_level = f" of level '{level}'" if len(config.env.kind.levels) > 1 else ""
        has_success = any(episode.success for episode in complete)
        if levels_without_success(complete):
            yield (
                f"env '{config.env.name}' does not say which episodes{at_level} succeed, so the"
                " return is shown"
            )
        elif return_differs_from_success(complete) and not has_success:
            yield f"no episode{at_level} is a success, whoever played: compare returns"


def _identical_policies(
    parts: Sequence[Sequence[EpisodeRow]], folders: Sequence[Path]
) -> Iterator[str]:
    """Each --policy NAME=MODEL whose episodes went the same way in all evaluations.

    parts: the episodes of each evaluation. folders: of their runs.
    """
    if len(parts) < 2:
        return
    # 1. The policies that are in all evaluations
    policies = []
    for folder in folders:
        settings = read_record(folder).get("settings", {})
        policies.append(set(map(str, settings.get("policy") or ())))
    common_policies = set.intersection(*policies)

    # 2. Those with the same outcomes in each
    for text in sorted(common_policies):
        name, equals, _ = text.partition("=")
        outcomes = [{episode.outcome for episode in part if episode.name == name} for part in parts]
        is_same = all(outcome == outcomes[0] for outcome in outcomes)
        if equals and outcomes[0] and is_same:
            yield text


def _is_altered(folder: Path) -> bool:
    """Whether the run of evaluate in `folder` has other episodes than it wrote."""
    try:
        outputs = read_json(folder / "report.json")["outputs"]
        checksums = {
            checksum for name, checksum in outputs.items() if Path(name).name == "episodes.jsonl"
        }
        return bool(checksums) and digest(folder / "episodes.jsonl") not in checksums
    except (AttributeError, DataError, KeyError, TypeError):  # no report, or a damaged one
        return False
