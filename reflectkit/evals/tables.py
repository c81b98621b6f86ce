"""Tables of results for people: players and paired differences, as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import string
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from reflectkit.console import Table
from reflectkit.data.episodes import SUCCESS
from reflectkit.evals.aggregate import AspectRow, return_differs_from_success, success_by_aspect
from reflectkit.evals.rows import (
    RETURN,
    AblationEffect,
    CalibrationRow,
    Difference,
    EpisodeRow,
    Estimate,
    PlayerRow,
)

SUMMARY_PLAYERS = 5
"""Players at most in the table with which a recipe ends."""
MOST_COMPARED = 6
"""With more players than this, a table has only the differences from the first one."""
MOST_TESTS = 10
"""With more comparisons than this, a table has adjusted p-values, too."""
INTERVAL = "95 % interval"
"""Heading of the column with intervals."""


def tables_of(
    title: str,
    rows: Sequence[PlayerRow],
    episodes: Sequence[EpisodeRow],
) -> list[Table]:
    """All tables of an evaluation. title: of the first table. episodes: the rows are of these."""
    tables = [players_table(title, rows)]
    if return_differs_from_success(episodes) and _report_success(rows):
        tables.append(figure_table(RETURN, rows))
    tables += tries_table(rows)
    tables += aspect_tables(success_by_aspect(episodes))
    tables += figures_tables(rows)
    tables += calibration_table(rows)
    return tables


# ------------------------------------------------------------------------------------------ players


def players_table(title: str, rows: Sequence[PlayerRow]) -> Table:
    """Rows of players as a table.

    If no row has success, the return takes its place. Clusters are left out where each task is one
    of its own, and the last columns if all their cells are empty or zero.
    """
    has_success = _report_success(rows)
    columns = {
        "policy": [row.name for row in rows],
        "level": [row.level for row in rows],
    }
    # 1. Success or the return, with its interval
    if has_success:
        columns["success"] = [_success_cell(row) for row in rows]
        columns[INTERVAL] = [_success_interval(row) for row in rows]
    else:
        columns[RETURN] = [f"{row.total_return.mean:.2f}" for row in rows]
        columns[INTERVAL] = [_interval(row.total_return, 1, ".3g") for row in rows]

    # 2. Counts and means that every row has
    columns["tasks"] = [str(row.tasks) for row in rows]
    if any(row.clusters != row.tasks for row in rows):
        columns["clusters"] = [str(row.clusters) for row in rows]
    columns["episodes"] = [_episodes_cell(row) for row in rows]
    if has_success:
        columns[RETURN] = [f"{row.total_return.mean:.2f}" for row in rows]
    columns["steps"] = [f"{row.steps:.1f}" for row in rows]

    # 3. Figures that only some rows have
    if any(row.by_seed is not None for row in rows):
        columns["by seed"] = [_seeds_cell(row) for row in rows]
    if any(row.named_episodes for row in rows):
        columns["right, of those named"] = [_named_cell(row) for row in rows]
    if any(row.unreadable_share for row in rows):
        columns["no readable answer"] = [f"{100 * row.unreadable_share:.1f} %" for row in rows]
    if any(row.illegal_share for row in rows):
        columns["illegal"] = [f"{100 * row.illegal_share:.1f} %" for row in rows]
    if any(row.thoughts for row in rows):
        columns["thoughts"] = [f"{row.thoughts:.0f}" for row in rows]
    if any(row.price_usd != 0 for row in rows):
        columns["US dollars"] = [_dollars(row.price_usd) for row in rows]
    return _table_of_columns(title, columns)


def measure_of(rows: Sequence[PlayerRow], measure: str = SUCCESS) -> str:
    """The figure by which players are compared at the last level.

    It is `measure`, or the return if that is success and success is not reported there.
    """
    last = [row for row in rows if row.level == rows[-1].level]
    if measure == SUCCESS and not _report_success(last):
        return RETURN
    return measure


def summary_table(
    title: str,
    rows: Sequence[PlayerRow],
    measure: str,
    where: str,
) -> Table:
    """The last players at the last level, at most SUMMARY_PLAYERS. The trained ones usually come
    last.

    title: of the whole table, which says whether the problems are held out. measure: success, the
    return, or a share. where: the file with all figures, for the title.
    """
    last_level = rows[-1].level
    last = [row for row in rows if row.level == last_level][-SUMMARY_PLAYERS:]
    cells = []
    for row in last:
        if measure == RETURN:
            returns = row.total_return
            cells.append((row.name, f"{returns.mean:.3g}", _interval(returns, 1, ".3g")))
        else:
            mean, low, high = _percent(row.estimate(measure))
            cells.append((row.name, f"{mean:.0f} %", f"{low:.0f} to {high:.0f} %"))
    counts = f"{title} ({last_level}): {last[0].tasks}, {last[0].episodes} episodes a player"
    rest = f"; all {len(rows)} rows are in {where}" if len(last) < len(rows) else ""
    return Table(counts + rest, ("policy", _spaced(measure), INTERVAL), tuple(cells))


def result_sentence(
    template: str,
    rows: Sequence[PlayerRow],
    compared: Sequence[Difference],
    measure: str,
) -> str:
    """One sentence about the result at the last level.

    It is `template` with each {PLAYER} replaced by its figure in percent. A second sentence names
    the players, one after another in the template, whose difference may be chance. If there is no
    template, a player of it is missing, or `measure` is the return, the sentence names the best
    player.

    compared: the differences between the players. measure: success, the return, or a share.
    """
    # 1. The figure of each player
    level = rows[-1].level
    figures = {}
    for row in rows:
        if row.level == level:
            estimate = row.estimate(measure)
            mean = 0.0 if estimate is None else estimate.mean
            percent = f"{mean:.0%}".removesuffix("%")
            figures[row.name] = f"{mean:.3g}" if measure == RETURN else percent

    # 2. A sentence about the best player
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    if measure == RETURN or not names or not figures.keys() >= set(names):
        highest = max(figures.values(), key=float)
        best = " and ".join(name for name, figure in figures.items() if figure == highest)
        score = f"a return of {highest}" if measure == RETURN else f"{highest} %"
        return f"The best of {len(figures)} players: {best}, with {score}."

    # 3. Or the recipe's own sentence, and which differences may be chance
    uncertain = [
        {gap.first, gap.second}
        for gap in compared
        if gap.level == level and gap.figure == measure and not gap.excludes_zero
    ]
    pairs = []
    for first, second in pairwise(names):
        if {first, second} in uncertain:
            pairs.append(f"{first} and {second}")
    chance = f" The difference between {'; '.join(pairs)} may be chance." if pairs else ""
    return template.format_map(figures) + chance


def figures_tables(rows: Sequence[PlayerRow]) -> list[Table]:
    """One table for each figure of the rows: means and their intervals."""
    names = dict.fromkeys(name for row in rows for name in row.figures)
    return [figure_table(name, rows) for name in names]


def figure_table(name: str, rows: Sequence[PlayerRow]) -> Table:
    """The means of one figure with their intervals, of the players that have it."""
    cells = []
    for row in rows:
        figure = row.estimate(name)
        if figure is not None:
            interval = _interval(figure, 1, ".3g")
            cells.append((row.name, row.level, f"{figure.mean:.3g}", interval, str(row.clusters)))
    return Table(_spaced(name), ("policy", "level", "mean", INTERVAL, "clusters"), tuple(cells))


def tries_table(rows: Sequence[PlayerRow]) -> list[Table]:
    """A table of pass@k (one of k tries succeeds) and pass^k (all of them succeed), with 95 %
    intervals.

    There is no table if the problems were played once.
    """
    columns: dict[str, list[str]] = {}
    for k in dict.fromkeys(k for row in rows for k in row.pass_at):
        columns[f"pass@{k}"] = [_chance(row.pass_at.get(k)) for row in rows]
        if k > 1:
            columns[f"pass^{k}"] = [_chance(row.pass_all.get(k)) for row in rows]
    if not columns:
        return []
    columns = {
        "policy": [row.name for row in rows],
        "level": [row.level for row in rows],
        **columns,
    }
    title = "Tries, %: pass@k is one success or more in k, pass^k is k of k"
    return [_table_of_columns(title, columns)]


def aspect_tables(by_aspect: Mapping[str, Sequence[AspectRow]]) -> list[Table]:
    """A table for each aspect: success by its values."""
    tables = []
    for aspect, rows in by_aspect.items():
        cells = []
        for row in rows:
            mean, low, high = _percent(row.success)
            rate = f"{mean:.1f} %"
            interval = f"{low:.0f} to {high:.0f} %"
            cells.append((row.name, row.level, row.value, rate, interval, str(row.tasks)))
        columns = ("policy", "level", aspect, "success", INTERVAL, "tasks")
        tables.append(Table(f"Success by {aspect}", columns, tuple(cells)))
    return tables


def calibration_table(rows: Sequence[PlayerRow]) -> list[Table]:
    """A table of the calibration of the players' forecasts; no table if there are none."""
    cells = []
    for row in rows:
        for kind, scores in row.calibration.items():
            cells.append((row.name, row.level, kind, *_calibration_cells(scores)))
    if not cells:
        return []
    title = (
        "Calibration: what was foretold, how likely, and how often it came true (95 % intervals by"
        " cluster)"
    )
    names = ("probability", "came true", "brier", "log score", "calibration error")
    columns = ("policy", "level", "foretold", *names, "forecasts", "clusters")
    return [Table(title, columns, tuple(cells))]


def _calibration_cells(scores: CalibrationRow) -> list[str]:
    cells = [f"{scores.confidence:.2f}", f"{scores.hits:.2f}"]
    for score in (scores.brier, scores.log_score, scores.calibration_error):
        cells.append(f"{score.mean:.3f} ({_interval(score, 1, '.2f')})")
    return [*cells, str(scores.forecasts), str(scores.clusters)]


# -------------------------------------------------------------------------------------- differences


def differences_table(compared: Sequence[Difference], figure: str) -> Table:
    """The paired differences in one figure, in percentage points unless it is the return.

    With more than MOST_COMPARED players, the table has only the differences from the first one.
    """
    # 1. The pairs of players to show
    players: dict[str, None] = {}
    for gap in compared:
        players |= {gap.first: None, gap.second: None}
    gaps = list(compared)
    if len(players) > MOST_COMPARED:
        first = next(iter(players))
        gaps = [gap for gap in compared if first in (gap.first, gap.second)]

    # 2. Their differences in the figure
    unit = "" if figure == RETURN else ", in points"
    rest = "; eval.json has those of other pairs" if len(gaps) < len(compared) else ""
    method = "p from sign flips of clusters; of several seeds also by t"
    title = f"Paired differences in {figure}{unit} ({method}){rest}"
    return paired_table(title, "first − second", [gap for gap in gaps if gap.figure == figure])


def ablations_table(
    effects: Sequence[AblationEffect],
    step: str,
    measure: str = SUCCESS,
) -> Table:
    """Differences in `measure` between arms and their ablations.

    step: the name of the evaluation. measure: success, the return, or another share.
    """
    of_measure = f" in {_spaced(measure)}" if measure != SUCCESS else ""
    unit = "" if measure == RETURN else ", in points"
    title = f"Ablations, {step}: original arm minus ablation{of_measure}{unit}"
    in_measure = [effect for effect in effects if effect.figure == measure]
    return paired_table(title, "ablation", in_measure)


def paired_table(
    title: str,
    heading: str,
    compared: Sequence[Difference],
) -> Table:
    """A table with a row for each paired difference, in percentage points unless it is a return.

    Clusters are left out where each task is one of its own. heading: of the first column, which
    names the pair.
    """
    p_headings, p_rows = p_columns([gap.p for gap in compared])
    is_clustered = any(gap.clusters != gap.tasks for gap in compared)
    rows = []
    for gap, p_cells in zip(compared, p_rows, strict=True):
        unit, form = (1, "+.3g") if gap.figure == RETURN else (100, "+.1f")
        difference = f"{unit * gap.difference:{form}}"
        interval = _interval(Estimate(gap.difference, gap.low, gap.high), unit, form)
        counts = (str(gap.tasks), str(gap.clusters)) if is_clustered else (str(gap.tasks),)
        rows.append((gap.label, gap.level, difference, interval, *p_cells, *counts))
    count_names = ("tasks", "clusters") if is_clustered else ("tasks",)
    columns = (heading, "level", "difference", INTERVAL, *p_headings, *count_names)
    return Table(title, columns, tuple(rows))


def p_columns(p_values: Sequence[float | None]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns of a table with p-values: (headings, the cells of each row).

    p_values: None for an unknown one, which is not counted. With more than MOST_TESTS, there is a
    second column with adjusted p-values (Benjamini and Hochberg 1995, J. R. Stat. Soc. B 57:289).
    """
    # 1. One column
    tests = [p for p in p_values if p is not None]
    texts = ["" if p is None else f"{p:.3g}" for p in p_values]
    if len(tests) <= MOST_TESTS:
        return ("p",), [(text,) for text in texts]

    # 2. Two columns
    from scipy.stats import false_discovery_control

    adjusted = iter(false_discovery_control(tests))
    cells: list[tuple[str, ...]] = []
    for text in texts:
        adjusted_text = f"{next(adjusted):.3g}" if text else ""
        cells.append((text, adjusted_text))
    return ("p", f"p, adjusted for {len(tests)}"), cells


# ------------------------------------------------------------------------------------------ formats


def markdown(tables: Sequence[Table]) -> str:
    """The tables as Markdown, each below its title."""
    parts = []
    for table in tables:
        rule = tuple("---" for _ in table.columns)
        lines = []
        for cells in (table.columns, rule, *table.rows):
            texts = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
            lines.append(f"| {' | '.join(texts)} |\n")
        parts.append(f"### {table.title}\n\n{''.join(lines)}")
    return "\n".join(parts)


def csv_text(records: Iterable[Mapping[str, Any]]) -> str:
    """The records as CSV, with the columns of all of them. A value that a record lacks is empty."""
    rows = list(records)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


# -------------------------------------------------------------------------------------------- cells


def _table_of_columns(title: str, columns: Mapping[str, Sequence[str]]) -> Table:
    """A table whose cells are given column by column, under their headings."""
    rows = zip(*columns.values(), strict=True)
    return Table(title, tuple(columns), tuple(rows))


def _report_success(rows: Iterable[PlayerRow]) -> bool:
    """Whether one of the rows has success."""
    return any(row.success is not None for row in rows)


def _percent(estimate: Estimate | None) -> tuple[float, float, float]:
    """(mean, low, high) in percent, 0 for an unknown one."""
    if estimate is None:
        return 0.0, 0.0, 0.0
    low = estimate.low or 0.0
    high = estimate.high or 0.0
    return 100 * estimate.mean, 100 * low, 100 * high


def _interval(
    estimate: Estimate,
    unit: float,
    form: str,
) -> str:
    """The ends of the interval in the format `form`, each multiplied by `unit`."""
    if estimate.low is None or estimate.high is None:
        return "unknown"
    return f"{unit * estimate.low:{form}} to {unit * estimate.high:{form}}"


def _success_cell(row: PlayerRow) -> str:
    if not row.episodes:
        return "all aborted"
    return "not reported" if row.success is None else f"{100 * row.success.mean:.1f} %"


def _success_interval(row: PlayerRow) -> str:
    if not row.episodes or row.success is None:
        return ""
    _, low, high = _percent(row.success)
    return f"{low:.0f} to {high:.0f} %"


def _episodes_cell(row: PlayerRow) -> str:
    return str(row.episodes) + (f" + {row.aborted} aborted" if row.aborted else "")


def _seeds_cell(row: PlayerRow) -> str:
    return " · ".join(f"{100 * rate:.0f}" for rate in row.by_seed or ())


def _named_cell(row: PlayerRow) -> str:
    if not row.named_episodes:
        return "none named"
    mean, low, high = _percent(row.right_of_named)
    return f"{mean:.1f} % ({low:.0f} to {high:.0f})"


def _chance(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    mean, low, high = _percent(estimate)
    return f"{mean:.0f} ({low:.0f} to {high:.0f})"


def _dollars(price: float | None) -> str:
    if price is None:
        return "unknown"
    return f"{price:.4f}" if price else "0"


def _spaced(name: str) -> str:
    return name.replace("_", " ")
