"""figures: draw the figures of packs (see `research.pack`): their effects as a forest plot, the success of all players,
or learning curves.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Self

from pydantic import model_validator

from reflectkit.cli.main import main
from reflectkit.config import Config, flag, non_default, option
from reflectkit.console import Progress, Report, Table
from reflectkit.errors import ConfigError, DataError
from reflectkit.evals.plot import draw_curves
from reflectkit.evals.rows import PlayerRow
from reflectkit.evals.tables import figures_tables, markdown, players_table
from reflectkit.jsonl import text_of, write_text
from reflectkit.runs.run import RunConfig, open_run
from research.effects import (
    EQUIVALENT,
    LEGEND,
    curve_figures,
    curve_table,
    curves,
    effects,
    effects_table,
    estimate,
    forest_groups,
    same_seeds,
    success_groups,
    success_rows,
)
from research.forest import draw_intervals
from research.packs import Pack, read_pack

EXAMPLES = (
    "python -m research.figures --packs packs/taxi --packs packs/seeds --out effects.png",
    "python -m research.figures --packs packs/seeds --figure success_rate --reach 0.9",
)
PACK_FIGURES = ("effects", "success")
"""The figures of packs, besides those of their curves."""
MARKS = ("<!-- effects -->\n", "<!-- end of effects -->\n")
"""Around the table of effects in a page."""
PERCENT = (-1.0, 101.0)
"""The axis of shares in percent, so that figures can be compared, with room for a marker at its ends."""
Drawn = tuple[list[Table], dict[str, float]]


class FiguresConfig(Config):
    """Settings of figures."""

    packs: tuple[Path, ...] = option((), help="Packs of published runs (repeat the flag).")
    figure: str = option("effects", help="What to draw: effects, success, or a figure of their curves.")
    reach: float = option(
        0.0,
        help="Curves: also report the area below each and where it first reaches this value; 0: neither.",
        ge=0,
    )
    first: int = option(0, help="Effects: draw only the first N comparisons of each; the table has all. 0: all.", ge=0)
    only: tuple[str, ...] = option(
        (), help="Effects: draw only this comparison, 'FIRST - SECOND' (repeat the flag); the table has all."
    )
    out: Path | None = option(None, help="File to write, .png or .svg; default: packs.png in the run's folder.")
    page: Path | None = option(
        None, help="A Markdown page with `<!-- effects -->` and `<!-- end of effects -->`: the table goes between them."
    )

    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.packs:
            raise ConfigError("figures needs --packs FOLDER")
        of_effects = ("page", "first", "only")
        unused = {"effects": ("reach",), "success": ("reach", *of_effects)}.get(self.figure, of_effects)
        if given := non_default(self, *unused):
            raise ConfigError(f"{flag(given[0])} does not change --figure {self.figure}; leave it out")
        if self.out is not None and self.out.suffix not in (".png", ".svg"):
            raise ConfigError(f"--out {self.out}: must end in .png or .svg")
        return self


CONFIG = FiguresConfig


def run(config: FiguresConfig, progress: Progress) -> Report:
    """Draw. Raises DataError if a pack is damaged or does not have the figure."""
    with open_run("figures", config, list(config.packs), again=True) as current:
        out = config.out or current.folder / "packs.png"
        tables, numbers = draw_packs(
            config.packs, config.figure, out, config.page, config.reach, config.first, config.only
        )
        current.tables += tables
        return current.finish(numbers, [out, *([config.page] if config.page else [])])


def draw_packs(
    folders: Sequence[Path],
    figure: str,
    out: Path,
    page: Path | None = None,
    reach: float = 0.0,
    first: int = 0,
    only: Sequence[str] = (),
) -> Drawn:
    """Draw `figure` of the packs in `folders`; returns its tables and numbers.

    page: gets the table of the effects. reach: tell where the curves first reach this value; 0: do not. first: draw the
    effects of so many comparisons of each pack, the first ones; 0: all. only: of these, "FIRST - SECOND"; (): all.

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
        return _draw_effects(folders, packs, out, page, first, only)
    if figure == "success":
        if not any(seed.episodes for pack in packs for seed in pack.seeds.values()):
            raise DataError(folders[0], "has no episodes")
        measures = {pack.measure for pack in packs}
        axis = "success, or what is named, %" if len(measures) > 1 else f"{measures.pop()}, %"
        draw_intervals(success_groups(packs), axis, out, limits=PERCENT)
        rows = {pack.title: (pack.measure, success_rows(pack)) for pack in packs}
        numbers = {
            f"{title}: {row.name} {row.level}": estimate(row, measure)[0]
            for title, (measure, some) in rows.items()
            for row in some
        }
        return [one for title, (measure, some) in rows.items() for one in _tables(title, some, measure)], numbers
    panels, numbers, tables = {}, {}, []
    for folder, pack in zip(folders, packs, strict=True):
        title, some = figure if len(packs) == 1 else pack.title, curves(pack, figure)
        if not some:
            raise DataError(folder, f"has no curves of {figure!r:.60}; `python -m research.pack --curve` adds some")
        panels[title] = some
        numbers |= {f"{pack.title}: {name}": fmean(one[1][-1] for one in seeds) for name, seeds in some.items()}
        if reach:
            summed = curve_figures(some, reach, same_seeds=same_seeds(pack, figure))
            tables.append(curve_table(summed, title, reach, "episodes"))
    draw_curves(panels, "episodes", 1, out)
    return tables, numbers


def _tables(title: str, rows: list[PlayerRow], measure: str) -> list[Table]:
    """The players' table, with one of their `measure` if it is not success."""
    of_measure = [replace(row, figures={measure: row.figures[measure]}) for row in rows if measure in row.figures]
    return [players_table(title, rows), *figures_tables(of_measure)]


def _draw_effects(
    folders: Sequence[Path], packs: Sequence[Pack], out: Path, page: Path | None, first: int, only: Sequence[str]
) -> Drawn:
    found = [one for pack in packs for one in effects(pack)]
    drawn = {
        (pack.title, *pair)
        for pack in packs
        for pair in pack.comparisons[: first or None]
        if not only or " - ".join(pair) in only
    }
    if not found:
        pairs = [pair for pack in packs for pair in pack.comparisons]
        why = (
            "its players have no finished problem in common"
            if pairs
            else "add some with `python -m research.pack --compare`"
        )
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
    old = text_of(page)
    before, start, rest = old.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (start and end):
        raise DataError(page, f"has no {MARKS[0].strip()} followed by {MARKS[1].strip()}; add both lines")
    write_text(page, f"{before}{start}\n{text}\n{end}{after}")


if __name__ == "__main__":
    sys.exit(main(["research.figures", *sys.argv[1:]]))
