"""The figures of packs: their effects as a forest plot, the success of all players, and learning curves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from reflectkit.core.errors import DataError
from reflectkit.core.jsonl import file_text, write_text
from reflectkit.core.reports import Table
from reflectkit.data.packs import Pack, read_pack
from reflectkit.stages.shared.effects import (
    EQUIVALENT,
    LEGEND,
    curves,
    effects,
    effects_table,
    estimate,
    forest_groups,
    same_seeds,
    success_groups,
    success_rows,
)
from reflectkit.stages.shared.eval_tables import figures_tables, markdown, table
from reflectkit.stages.shared.figures import draw_curves, draw_intervals
from reflectkit.stages.shared.seeds import curve_figures, curve_table

PACK_FIGURES = ("effects", "success")
"""The figures of packs, besides those of their curves."""
MARKS = ("<!-- effects -->\n", "<!-- end of effects -->\n")
"""Around the table of effects in a page."""
PERCENT = (-1.0, 101.0)
"""The axis of shares in percent, so that figures can be compared, with room for a marker at its ends."""
Drawn = tuple[list[Table], dict[str, float]]


def draw_packs(
    folders: Sequence[Path], figure: str, out: Path, page: Path | None = None, reach: float = 0.0, first: int = 0
) -> Drawn:
    """Draw `figure` of the packs in `folders`; returns its tables and numbers.

    page: gets the table of the effects. reach: tell where the curves first reach this value; 0: do not. first: draw the
    effects of so many comparisons of each pack, the first ones; 0: all.

    Raises
    ------
    DataError: a pack is damaged or does not have the figure, two have the same title, or the page has no place for the
    table.
    """
    packs = [read_pack(folder) for folder in folders]
    titles = Counter(pack.title for pack in packs)
    for folder, pack in zip(folders, packs, strict=True):
        if titles[pack.title] > 1:
            raise DataError(folder, f"another pack has the title {pack.title!r:.60}, too; give it one with --title")
    if figure == "effects":
        return _draw_effects(folders, packs, out, page, first)
    if figure == "success":
        if not any(seed.episodes for pack in packs for seed in pack.seeds.values()):
            raise DataError(folders[0], "has no episodes")
        measures = {pack.measure for pack in packs}
        axis = "success, or what is named, %" if len(measures) > 1 else f"{measures.pop()}, %"
        draw_intervals(success_groups(packs), axis, out, limits=PERCENT)
        rows = {pack.title: (pack.measure, success_rows(pack)) for pack in packs}
        numbers = {
            f"{title}: {row['name']} {row['level']}": estimate(row, measure)[0]
            for title, (measure, some) in rows.items()
            for row in some
        }
        return [one for title, (measure, some) in rows.items() for one in _tables(title, some, measure)], numbers
    panels, numbers, tables = {}, {}, []
    for folder, pack in zip(folders, packs, strict=True):
        title, some = figure if len(packs) == 1 else pack.title, curves(pack, figure)
        if not some:
            raise DataError(folder, f"has no curves of {figure!r:.60}; `reflectkit pack --curve` adds some")
        panels[title] = some
        numbers |= {f"{pack.title}: {name}": fmean(one[1][-1] for one in seeds) for name, seeds in some.items()}
        if reach:
            summed = curve_figures(some, reach, same_seeds=same_seeds(pack, figure))
            tables.append(curve_table(summed, title, reach, "episodes"))
    draw_curves(panels, "episodes", 1, out)
    return tables, numbers


def _tables(title: str, rows: list[dict[str, Any]], measure: str) -> list[Table]:
    """The players' table, with one of their `measure` if it is not success."""
    of_measure = [
        row | {"figures": {measure: row["figures"].get(measure)}} for row in rows if measure in row.get("figures", {})
    ]
    return [table(title, rows), *figures_tables(of_measure)]


def _draw_effects(folders: Sequence[Path], packs: Sequence[Pack], out: Path, page: Path | None, first: int) -> Drawn:
    found = [one for pack in packs for one in effects(pack)]
    drawn = {(pack.title, *pair) for pack in packs for pair in pack.comparisons[: first or None]}
    if not found:
        pairs = [pair for pack in packs for pair in pack.comparisons]
        why = "its players have no finished problem in common" if pairs else "add some with `reflectkit pack --compare`"
        raise DataError(folders[0], f"has no comparison to show; {why}")
    shown = effects_table(found)
    if page is not None:
        _fill(page, markdown([shown]).partition("\n\n")[2])
    groups = forest_groups([one for one in found if (one.experiment, one.first, one.second) in drawn])
    draw_intervals(groups, "difference, points", out, band=EQUIVALENT, legend=LEGEND)
    return [shown], {
        f"{one.experiment}: {one.first} − {one.second}, {one.measure} {one.level}".rstrip(): one.difference
        for one in found
    }


def _fill(page: Path, text: str) -> None:
    """Put `text` between the marks of `page`. Raises DataError if it has none."""
    try:
        old = file_text(page)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(page, f"cannot be read as a page ({type(error).__name__}); give another --page") from None
    before, start, rest = old.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (start and end):
        raise DataError(page, f"has no {MARKS[0].strip()} followed by {MARKS[1].strip()}; add both lines")
    write_text(page, f"{before}{start}\n{text}\n{end}{after}")
