"""Tables of results, for people: rows of players and paired differences as cells, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import string
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from reflectkit.console import Table
from reflectkit.data.episodes import SUCCESS
from reflectkit.evals.aggregate import AspectRow, return_says_more, success_by_aspect
from reflectkit.evals.rows import (
    RETURN,
    AblationEffect,
    CalibrationRow,
    Difference,
    EpisodeRow,
    Estimate,
    PlayerRow,
)

MOST_SUMMED = 5  # players in the table that a recipe ends with
MANY = 6  # with more players than this, the table compares each with the first only
MANY_TESTS = (
    10  # with more comparisons than this, a table has p-values after Benjamini and Hochberg too
)
INTERVAL = "95 % interval"


def tables_of(
    title: str,
    rows: Sequence[PlayerRow],
    episodes: Sequence[EpisodeRow],
) -> list[Table]:
    """All tables of rows of players, and of the episodes that they come from."""
    tables = [players_table(title, rows)]
    if return_says_more(episodes) and _report_success(rows):
        tables.append(figure_table(RETURN, rows))
    tables += tries_table(rows)
    tables += aspect_tables(success_by_aspect(episodes))
    tables += figures_tables(rows)
    tables += calibration_table(rows)
    return tables


# ----------------------------------------------------------------------------------------------------- players


def players_table(title: str, rows: Sequence[PlayerRow]) -> Table:
    """Rows of players as a table; the last columns are omitted if they have nothing to show. Where no row has success,
    the return takes its place.
    """
    has_success = _report_success(rows)
    columns = {
        "policy": [row.name for row in rows],
        "level": [row.level for row in rows],
    }
    # 1. What players are compared by
    if has_success:
        columns["success"] = [_success_cell(row) for row in rows]
        columns[INTERVAL] = [_success_interval(row) for row in rows]
    else:
        columns[RETURN] = [f"{row.total_return.mean:.2f}" for row in rows]
        columns[INTERVAL] = [_interval(row.total_return, 1, ".3g") for row in rows]

    # 2. What there is of each
    columns["tasks"] = [str(row.tasks) for row in rows]
    columns["clusters"] = [str(row.clusters) for row in rows]
    columns["episodes"] = [_episodes_cell(row) for row in rows]
    if has_success:
        columns[RETURN] = [f"{row.total_return.mean:.2f}" for row in rows]
    columns["steps"] = [f"{row.steps:.1f}" for row in rows]

    # 3. What some have
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
    """What the players are compared by at the last level: `measure`, or the return where success is not reported."""
    last = [row for row in rows if row.level == rows[-1].level]
    return RETURN if measure == SUCCESS and not _report_success(last) else measure


def summary_table(
    title: str,
    rows: Sequence[PlayerRow],
    measure: str,
    where: str,
) -> Table:
    """The players at the last level, at most MOST_SUMMED: those that were trained come last in an evaluation. title: of
    the whole table, which says whether the problems are held out. where: the file with all figures.
    """
    last_level = rows[-1].level
    last = [row for row in rows if row.level == last_level][-MOST_SUMMED:]
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
    """`template` with the success of each {PLAYER} at the last level in percent, and which differences between one and
    the next may be chance. Without a template, or one of its players, or where `measure` is the return: the best
    player.
    """
    level = rows[-1].level
    figures = {}
    for row in rows:
        if row.level == level:
            estimate = row.estimate(measure)
            mean = 0.0 if estimate is None else estimate.mean
            figures[row.name] = (
                f"{mean:.3g}" if measure == RETURN else f"{mean:.0%}".removesuffix("%")
            )

    # 1. The best player
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    if measure == RETURN or not names or not figures.keys() >= set(names):
        most = max(figures.values(), key=float)
        best = " and ".join(name for name, figure in figures.items() if figure == most)
        score = f"a return of {most}" if measure == RETURN else f"{most} %"
        return f"The best of {len(figures)} players: {best}, with {score}."

    # 2. The recipe's own sentence
    alike = []
    for first, second in pairwise(names):
        for gap in compared:
            is_pair = {gap.first, gap.second} == {first, second}
            if is_pair and gap.level == level and gap.figure == measure and not gap.excludes_zero:
                alike.append(f"{first} and {second}")
    chance = f" The difference between {'; '.join(alike)} may be chance." if alike else ""
    return template.format_map(figures) + chance


def figures_tables(rows: Sequence[PlayerRow]) -> list[Table]:
    """One table for each of the figures: means and their intervals."""
    names = dict.fromkeys(name for row in rows for name in row.figures)
    return [figure_table(name, rows) for name in names]


def figure_table(name: str, rows: Sequence[PlayerRow]) -> Table:
    """The means of one figure, of the players that have it."""
    cells = []
    for row in rows:
        figure = row.estimate(name)
        if figure is not None:
            interval = _interval(figure, 1, ".3g")
            cells.append((row.name, row.level, f"{figure.mean:.3g}", interval, str(row.clusters)))
    return Table(_spaced(name), ("policy", "level", "mean", INTERVAL, "clusters"), tuple(cells))


def tries_table(rows: Sequence[PlayerRow]) -> list[Table]:
    """pass@k (one of k tries succeeds) and pass^k (all of them do), with 95 % intervals; no table if the problems were
    played once.
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
            cells.append(
                (row.name, row.level, row.value, rate, f"{low:.0f} to {high:.0f} %", str(row.tasks))
            )
        columns = ("policy", "level", aspect, "success", INTERVAL, "tasks")
        tables.append(Table(f"Success by {aspect}", columns, tuple(cells)))
    return tables


def calibration_table(rows: Sequence[PlayerRow]) -> list[Table]:
    """How far the players' probabilities can be trusted; no table if there are none."""
    cells = []
    for row in rows:
        for kind, scores in row.calibration.items():
            cells.append((row.name, row.level, kind, *_calibration_cells(scores)))
    if not cells:
        return []
    title = "Calibration: what was foretold, how likely, and how often it came true (95 % intervals by cluster)"
    names = ("probability", "came true", "brier", "log score", "calibration error")
    columns = ("policy", "level", "foretold", *names, "forecasts", "clusters")
    return [Table(title, columns, tuple(cells))]


def _calibration_cells(scores: CalibrationRow) -> list[str]:
    cells = [f"{scores.confidence:.2f}", f"{scores.hits:.2f}"]
    for score in (scores.brier, scores.log_score, scores.calibration_error):
        cells.append(f"{score.mean:.3f} ({_interval(score, 1, '.2f')})")
    return [*cells, str(scores.forecasts), str(scores.clusters)]


# ------------------------------------------------------------------------------------------------- differences


def differences_table(compared: Sequence[Difference], figure: str) -> Table:
    """Paired differences in one figure as a table, in percentage points unless it is the return. With many players,
    those from the first.
    """
    # 1. Those of all pairs, or of one player with the others
    players: dict[str, None] = {}
    for gap in compared:
        players |= {gap.first: None, gap.second: None}
    listed = list(compared)
    if len(players) > MANY:
        first = next(iter(players))
        listed = [gap for gap in compared if first in (gap.first, gap.second)]

    # 2. Those in the figure
    unit = "" if figure == RETURN else ", in points"
    rest = "; eval.json has those of other pairs" if len(listed) < len(compared) else ""
    title = f"Paired differences in {figure}{unit} (p from sign flips of clusters; of several seeds also by t){rest}"
    return paired_table(title, "first − second", [gap for gap in listed if gap.figure == figure])


def ablations_table(
    effects: Sequence[AblationEffect],
    step: str,
    measure: str = SUCCESS,
) -> Table:
    """Differences in `measure`, a share or the return, between arms and their ablations in evaluation `step`."""
    of_measure = f" in {_spaced(measure)}" if measure != SUCCESS else ""
    unit = "" if measure == RETURN else ", in points"
    title = f"Ablations, {step}: original arm minus ablation{of_measure}{unit}"
    return paired_table(
        title, "ablation", [effect for effect in effects if effect.figure == measure]
    )


def paired_table(
    title: str,
    heading: str,
    compared: Sequence[Difference],
) -> Table:
    """Paired differences as rows, in percentage points unless they are returns."""
    headings, p_cells = p_columns([gap.p for gap in compared])
    rows = []
    for gap, p_cell in zip(compared, p_cells, strict=True):
        unit, form = (1, "+.3g") if gap.figure == RETURN else (100, "+.1f")
        ends = _interval(Estimate(gap.difference, gap.low, gap.high), unit, form)
        counts = str(gap.tasks), str(gap.clusters)
        rows.append(
            (gap.label, gap.level, f"{unit * gap.difference:{form}}", ends, *p_cell, *counts)
        )
    columns = (heading, "level", "difference", INTERVAL, *headings, "tasks", "clusters")
    return Table(title, columns, tuple(rows))


def p_columns(p_values: Sequence[float | None]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(headings, cells of each row) of a table's p-values; with more than MANY_TESTS also adjusted ones, by Benjamini
    and Hochberg 1995, J. R. Stat. Soc. B 57:289. None: unknown, and not counted.
    """
    # 1. As they are
    tests = [p for p in p_values if p is not None]
    texts = ["" if p is None else f"{p:.3g}" for p in p_values]
    if len(tests) <= MANY_TESTS:
        return ("p",), [(text,) for text in texts]

    # 2. With those that are adjusted for their number
    from scipy.stats import false_discovery_control

    adjusted = iter(false_discovery_control(tests))
    cells: list[tuple[str, ...]] = []
    for text in texts:
        cells.append((text, f"{next(adjusted):.3g}" if text else ""))
    return ("p", f"p, adjusted for {len(tests)}"), cells


# ----------------------------------------------------------------------------------------------------- formats


def markdown(tables: Sequence[Table]) -> str:
    """The tables as Markdown."""
    parts = []
    for table in tables:
        lines = []
        for cells in (table.columns, tuple("---" for _ in table.columns), *table.rows):
            texts = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
            lines.append(f"| {' | '.join(texts)} |\n")
        parts.append(f"### {table.title}\n\n{''.join(lines)}")
    return "\n".join(parts)


def csv_text(records: Iterable[Mapping[str, Any]]) -> str:
    """Records as CSV, with the columns of all of them; empty cells where one has no such value."""
    rows = list(records)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


# ------------------------------------------------------------------------------------------------------- cells


def _table_of_columns(title: str, columns: Mapping[str, Sequence[str]]) -> Table:
    """A table whose cells are given column by column, under their headings."""
    rows = zip(*columns.values(), strict=True)
    return Table(title, tuple(columns), tuple(rows))


def _report_success(rows: Iterable[PlayerRow]) -> bool:
    return any(row.success is not None for row in rows)


def _percent(estimate: Estimate | None) -> tuple[float, float, float]:
    """(mean, low, high) in percent, 0 where there is none."""
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
    """The ends of an interval, `unit` times as large, in the format `form`."""
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
