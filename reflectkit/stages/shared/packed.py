"""The figures of packs: their effects as a forest plot, the success of all players, and learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from reflectkit.core.errors import DataError
from reflectkit.core.jsonl import write_text
from reflectkit.core.reports import Table
from reflectkit.data.packs import Pack, read_pack
from reflectkit.stages.shared.effects import (
    EQUIVALENT,
    LEGEND,
    curves,
    effects,
    effects_table,
    forest_groups,
    success_groups,
    success_rows,
)
from reflectkit.stages.shared.eval_tables import markdown, table
from reflectkit.stages.shared.figures import draw_curves, draw_intervals
from reflectkit.stages.shared.seeds import curve_figures, curve_table

PACK_FIGURES = ("effects", "success")
"""The figures of packs, besides those of their curves."""
MARKS = ("<!-- effects -->\n", "<!-- end of effects -->\n")
"""Around the table of effects in a page."""
Drawn = tuple[list[Table], dict[str, float]]


def draw_packs(folders: Sequence[Path], figure: str, out: Path, page: Path | None = None, reach: float = 0.0) -> Drawn:
    """Draw `figure` of the packs in `folders`; returns its tables and numbers.

    page: gets the table of the effects. reach: tell where the curves first reach this value; 0: do not.

    Raises
    ------
    DataError: a pack is damaged or does not have the figure, or the page has no place for the table.
    """
    packs = [read_pack(folder) for folder in folders]
    if figure == "effects":
        return _draw_effects(folders, packs, out, page)
    if figure == "success":
        if not any(seed.episodes for pack in packs for seed in pack.seeds.values()):
            raise DataError(folders[0], "has no episodes")
        draw_intervals(success_groups(packs), "success, %", out)
        rows = [row for pack in packs for row in success_rows(pack)]
        numbers = {f"{row['name']} {row['level']}": row["success"] for row in rows}
        return [table(pack.title, success_rows(pack)) for pack in packs], numbers
    panels = {}
    for folder, pack in zip(folders, packs, strict=True):
        panels[figure if len(packs) == 1 else pack.title] = curves(pack, figure)
        if not curves(pack, figure):
            raise DataError(folder, f"has no curves of {figure!r:.60}; `reflectkit pack --curve` adds some")
    draw_curves(panels, "episodes", 1, out)
    tables = [curve_table(curve_figures(one, reach), name, reach, "episodes") for name, one in panels.items() if reach]
    return tables, {
        name: fmean(one[1][-1] for one in seeds) for part in panels.values() for name, seeds in part.items()
    }


def _draw_effects(folders: Sequence[Path], packs: Sequence[Pack], out: Path, page: Path | None) -> Drawn:
    found = [one for pack in packs for one in effects(pack)]
    if not found:
        raise DataError(folders[0], "has no comparison to show; add some with `reflectkit pack --compare`")
    shown = effects_table(found)
    if page is not None:
        _fill(page, markdown([shown]).partition("\n\n")[2])
    draw_intervals(forest_groups(found), "difference, points", out, band=EQUIVALENT, legend=LEGEND)
    return [shown], {f"{one.first} − {one.second}, {one.measure} {one.level}": one.difference for one in found}


def _fill(page: Path, text: str) -> None:
    """Put `text` between the marks of `page`. Raises DataError if it has none."""
    try:
        old = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(page, f"cannot be read as a page ({type(error).__name__}); give another --page") from None
    before, start, rest = old.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (start and end):
        raise DataError(page, f"has no {MARKS[0].strip()} followed by {MARKS[1].strip()}; add both lines")
    write_text(page, f"{before}{start}\n{text}\n{end}{after}")
