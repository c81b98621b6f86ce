"""coverage: how often the intervals of `evaluate` contain the true value, and their widths, against other
methods.

Each cell draws data sets of clustered tasks with a known true rate or difference. At intraclass correlation 0.5, the
clusters' rates follow a beta distribution (Dirichlet for pairs); in a harder variant, the tasks in half of the clusters
are all alike and the others are independent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reflectkit.cli.main import main
from reflectkit.config import Config, option, with_values
from reflectkit.console import Bar, Progress, Report, Table
from reflectkit.evals.stats import Z95, agree_with_test, difference_ends, rate_ends, sign_flip_p, sign_patterns
from reflectkit.evals.tables import csv_text
from reflectkit.jsonl import write_text
from reflectkit.runs.run import RunConfig, open_run
from reflectkit.seeding import derive

EXAMPLES = ("python -m research.coverage --simulations 500",)
CLUSTERS = (10, 20, 50, 100)
SIZES = ("1", "3", "10", "1 to 10")  # tasks of a cluster
CORRELATIONS = ("0", "0.5", "0.5, half alike", "1")
RATES = (0.02, 0.05, 0.5, 0.95, 0.98)
PAIRS = ((0.05, 0.02), (0.05, 0.05), (0.5, 0.5), (0.95, 0.5), (0.95, 0.95), (0.98, 0.95), (1.0, 0.95))
REPEATS = (1, 2, 4, 8, 16, 64)
REPEATED_TASKS = 40
DRAWS = 400  # bootstrap resamples and sign patterns
WANTED = 0.93
OURS = "evaluate's"
RATE, DIFFERENCE = "rate", "paired difference"

Array = Any
Ends = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of data, and how the methods did on it."""

    kind: str
    """RATE or DIFFERENCE."""
    clusters: int
    """The number of clusters."""
    size: str
    """Tasks per cluster, one of SIZES."""
    correlation: str
    """Within clusters, one of CORRELATIONS."""
    truth: str
    """The true rate, or the two rates."""
    coverage: dict[str, float]
    """How often the interval contained the truth, by method."""
    width: dict[str, float]
    """The mean width of the interval, by method."""


class CoverageConfig(Config):
    """Settings of coverage."""

    simulations: int = option(2000, help="Simulated data sets per cell.", ge=1)
    run: RunConfig = RunConfig()


CONFIG = CoverageConfig


def run(config: CoverageConfig, progress: Progress) -> Report:
    """Simulate; every cell is a row of coverage.csv."""
    total = sum(len(cells(kind)) for kind in (RATE, DIFFERENCE))
    with open_run("coverage", with_values(config, force=True)) as current:
        with progress.bar("cells", total) as bar:
            measured = list(measure(config.simulations, config.run.seed, bar))
        current.tables += [*tables(measured), repeats(config.simulations, config.run.seed)]
        written = current.folder / "coverage.csv"
        write_text(written, csv_text(csv_rows(measured)))
        return current.finish({"cells": len(measured), "below": len(missed(measured))}, [written])


def cells(kind: str) -> list[tuple[int, str, str, tuple[float, ...]]]:
    """(clusters, size, correlation, rates) of every cell; single-task clusters have no correlation."""
    truths: Sequence[tuple[float, ...]] = [(rate,) for rate in RATES] if kind == RATE else PAIRS
    return [
        (clusters, size, correlation, truth)
        for clusters in CLUSTERS
        for size in SIZES
        for correlation in CORRELATIONS
        if size != "1" or correlation == "0"
        for truth in truths
    ]


def measure(simulations: int, seed: int, bar: Bar) -> Iterator[Cell]:
    """Every cell, each from `simulations` data sets."""
    for kind in (RATE, DIFFERENCE):
        for clusters, size, correlation, truth in cells(kind):
            chance = np.random.default_rng(
                derive(seed, "coverage", kind, clusters, size, correlation, *map(str, truth))
            )
            sizes_C = np.resize(np.arange(1, 11), clusters) if size == SIZES[-1] else np.full(clusters, int(size))
            if kind == RATE:
                counts_NC = draw_rates(chance, simulations, sizes_C, truth[0], correlation)
                methods, value = _of_a_rate(counts_NC, sizes_C), truth[0]
            else:
                won_NC, lost_NC = draw_pairs(chance, simulations, sizes_C, truth[0], truth[1], correlation)
                methods, value = _of_a_difference(won_NC, lost_NC, sizes_C), truth[0] - truth[1]
            named = " less ".join(f"{rate:g}" for rate in truth)
            yield Cell(kind, clusters, size, correlation, named, *_covered(methods, value))
            bar.advance()


def _covered(methods: Mapping[str, Ends], truth: float) -> tuple[dict[str, float], dict[str, float]]:
    coverage = {
        name: float(((low <= truth + 1e-9) & (high >= truth - 1e-9)).mean()) for name, (low, high) in methods.items()
    }
    return coverage, {name: float((high - low).mean()) for name, (low, high) in methods.items()}


# -------------------------------------------------------------------------------------------------------------- drawing


def draw_rates(chance: np.random.Generator, simulations: int, sizes_C: Array, rate: float, correlation: str) -> Array:
    """The number of tasks in each cluster that succeed."""
    shape = simulations, len(sizes_C)
    alike_NC = (chance.random(shape) < rate).astype(float)
    draw: Mapping[str, Callable[[], Array]] = {
        "0": lambda: np.full(shape, rate),
        "0.5": lambda: chance.beta(rate, 1 - rate, shape),  # its correlation is 1 / (1 + rate + 1 - rate)
        "0.5, half alike": lambda: np.where(chance.random(shape) < 0.5, alike_NC, rate),
        "1": lambda: alike_NC,
    }
    counts_NC: Array = chance.binomial(sizes_C, draw[correlation]())
    return counts_NC.astype(float)


def draw_pairs(
    chance: np.random.Generator, simulations: int, sizes_C: Array, first: float, second: float, correlation: str
) -> tuple[Array, Array]:
    """The number of tasks in each cluster that only the first player solves, and only the second. The players are
    independent.
    """
    shape = simulations, len(sizes_C)
    alone_K = np.array([first * (1 - second), second * (1 - first)])
    shares_K = np.append(alone_K, 1 - alone_K.sum())
    alike_NCK = chance.multinomial(1, shares_K, shape).astype(float)
    draw: Mapping[str, Callable[[], Array]] = {
        "0": lambda: np.broadcast_to(shares_K, (*shape, 3)),
        "0.5": lambda: _dirichlet(chance, shares_K, shape),
        "0.5, half alike": lambda: np.where(chance.random(shape)[..., None] < 0.5, alike_NCK, shares_K),
        "1": lambda: alike_NCK,
    }
    counts_NCK = chance.multinomial(np.broadcast_to(sizes_C, shape), draw[correlation]()).astype(float)
    return counts_NCK[..., 0], counts_NCK[..., 1]


def _dirichlet(chance: np.random.Generator, shares_K: Array, shape: tuple[int, int]) -> Array:
    """By stick breaking, since a share may be 0."""
    first, second, third = shares_K
    broken_NC = chance.beta(max(first, 1e-12), max(1 - first, 1e-12), shape)
    rest_NC = chance.beta(max(second, 1e-12), max(third, 1e-12), shape) * (1 - broken_NC)
    return np.stack([broken_NC, rest_NC, np.maximum(1 - broken_NC - rest_NC, 0.0)], axis=-1)


# -------------------------------------------------------------------------------------------------------------- methods


def _of_a_rate(counts_NC: Array, sizes_C: Array) -> dict[str, Ends]:
    tasks = float(sizes_C.sum())
    return {
        OURS: _ends(rate_ends(counts_C, counts_C.sum(), sizes_C.astype(float), tasks) for counts_C in counts_NC),
        "Korn-Graubard": _korn_graubard(counts_NC, sizes_C),
        "bootstrap of clusters": _bootstrap(counts_NC, sizes_C),
        "Wilson over tasks": wilson(counts_NC.sum(axis=1), tasks),
    }


def _of_a_difference(won_NC: Array, lost_NC: Array, sizes_C: Array) -> dict[str, Ends]:
    sizes = sizes_C.astype(float)
    return {
        OURS: _ends(_tested(won_C, lost_C, sizes) for won_C, lost_C in zip(won_NC, lost_NC, strict=True)),
        "t of clusters": _student(won_NC - lost_NC, sizes),
        "bootstrap of clusters": _bootstrap(won_NC - lost_NC, sizes),
    }


def _tested(won_C: Array, lost_C: Array, sizes_C: Array) -> tuple[float, float]:
    """As in `stats.paired`, with fewer sign patterns."""
    totals_C = won_C - lost_C
    squares = float((won_C + lost_C).sum())
    low, high = difference_ends(totals_C, float(won_C.sum()), squares, sizes_C, float(sizes_C.sum()))
    signs_DC, every = sign_patterns(totals_C, DRAWS)
    p = sign_flip_p(totals_C, signs_DC, every)
    return agree_with_test(low, high, p, totals_C, sizes_C, signs_DC, every)


def _ends(intervals: Iterable[tuple[float, float]]) -> Ends:
    low_N, high_N = np.array(list(intervals)).T
    return low_N, high_N


def wilson(successes_N: Array, trials: float) -> Ends:
    """Wilson's score interval of a proportion of independent trials (1927, JASA 22:209), as `scipy.stats.binomtest` has
    it for one data set.
    """
    rate_N, weight = successes_N / trials, Z95**2 / trials
    half_N = np.sqrt(weight * rate_N * (1 - rate_N) + weight**2 / 4)
    return (rate_N + weight / 2 - half_N) / (1 + weight), (rate_N + weight / 2 + half_N) / (1 + weight)


def _korn_graubard(counts_NC: Array, sizes_C: Array) -> Ends:
    """Clopper and Pearson's interval with the effective number of tasks, which for equal outcomes is the number of
    clusters.
    """
    from scipy.special import betaincinv, stdtrit

    tasks, count = sizes_C.sum(), len(sizes_C)
    mean_N = counts_NC.sum(axis=1) / tasks
    variance_N = ((counts_NC - sizes_C * mean_N[:, None]) ** 2).sum(axis=1) * count / (count - 1) / tasks**2
    some_N = variance_N > 0
    effective_N = np.where(
        some_N, mean_N * (1 - mean_N) / np.where(some_N, variance_N, 1), tasks**2 / (sizes_C**2).sum()
    )
    effective_N = np.minimum(effective_N, tasks) * (Z95 / stdtrit(count - 1, 0.975)) ** 2
    right_N, wrong_N = mean_N * effective_N, (1 - mean_N) * effective_N
    low_N = np.where(right_N > 0, betaincinv(np.maximum(right_N, 1e-9), wrong_N + 1, 0.025), 0.0)
    return low_N, np.where(wrong_N > 0, betaincinv(right_N + 1, np.maximum(wrong_N, 1e-9), 0.975), 1.0)


def _bootstrap(totals_NC: Array, sizes_C: Array) -> Ends:
    """Percentiles over resampled clusters, with the same resamples for each data set."""
    count = len(sizes_C)
    times_DC = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), DRAWS)
    means_ND = (totals_NC @ times_DC.T) / (times_DC @ sizes_C)
    ends_2N: Array = np.quantile(means_ND, (0.025, 0.975), axis=1)
    return ends_2N[0], ends_2N[1]


def _student(totals_NC: Array, sizes_C: Array) -> Ends:
    from scipy.special import stdtrit

    tasks, count = sizes_C.sum(), len(sizes_C)
    mean_N = totals_NC.sum(axis=1) / tasks
    second_N = ((totals_NC - sizes_C * mean_N[:, None]) ** 2).sum(axis=1)
    half_N = stdtrit(count - 1, 0.975) * np.sqrt(second_N * count / (count - 1)) / tasks
    return mean_N - half_N, mean_N + half_N


# -------------------------------------------------------------------------------------------------------------- repeats


def repeats(simulations: int, seed: int) -> Table:
    """The effect of repeating each task on the interval, in three worlds with a true rate of 0.5."""
    worlds: dict[str, Callable[[np.random.Generator], Array]] = {
        "tasks alike": lambda chance: np.full((simulations, REPEATED_TASKS), 0.5),
        "tasks differ": lambda chance: chance.beta(1, 1, (simulations, REPEATED_TASKS)),
        "play is not random": lambda chance: (chance.random((simulations, REPEATED_TASKS)) < 0.5).astype(float),
    }
    sizes_C = np.ones(REPEATED_TASKS)
    rows = []
    for times in REPEATS:
        shown = []
        for name, draw in worlds.items():
            chance = np.random.default_rng(derive(seed, "repeats", name, times))
            rates_NC: Array = draw(chance)
            means_NC: Array = np.asarray(chance.binomial(times, rates_NC)) / times
            trials = float(times * REPEATED_TASKS)
            ends = _ends(rate_ends(means_C, float((means_C**2).sum()), sizes_C, trials) for means_C in means_NC)
            coverage, width = _covered({OURS: ends}, 0.5)
            shown.append(f"{width[OURS]:.3f} ({100 * coverage[OURS]:.1f} %)")
        rows.append((str(times), *shown))
    title = f"Repeats of {REPEATED_TASKS} tasks at a rate of 0.5: mean width (coverage)"
    return Table(title, ("repeats", *worlds), tuple(rows))


# --------------------------------------------------------------------------------------------------------------- tables


def tables(measured: Sequence[Cell]) -> list[Table]:
    """A summary by method, the least coverage by rate and number of clusters, and the cells that miss."""
    summary, least = [], []
    counts = dict.fromkeys(cell.clusters for cell in measured)
    for kind in (RATE, DIFFERENCE):
        some = [cell for cell in measured if cell.kind == kind]
        for method in some[0].coverage:
            covered = [cell.coverage[method] for cell in some]
            ratios = [cell.width[method] / cell.width[OURS] for cell in some]
            summary.append(
                (
                    kind,
                    method,
                    f"{100 * sum(covered) / len(covered):.1f} %",
                    f"{100 * min(covered):.1f} %",
                    f"{sum(one < WANTED for one in covered)} of {len(covered)}",
                    f"{sum(cell.width[method] for cell in some) / len(some):.3f}",
                    f"{sum(ratios) / len(ratios):.2f}",
                )
            )
        for truth in dict.fromkeys(cell.truth for cell in some):
            lowest = []
            for clusters in counts:
                here = [cell for cell in some if (cell.truth, cell.clusters) == (truth, clusters)]
                width = sum(cell.width[OURS] for cell in here) / max(1, len(here))
                lowest.append(f"{100 * min(cell.coverage[OURS] for cell in here):.1f} % ({width:.2f})" if here else "")
            least.append((kind, truth, *lowest))
    low = tuple(
        (cell.kind, str(cell.clusters), cell.size, cell.correlation, cell.truth, f"{100 * cell.coverage[OURS]:.1f} %")
        for cell in missed(measured)
    )
    limit = f"{100 * WANTED:.0f} %"
    columns = ("of", "method", "mean coverage", "least", f"cells below {limit}", "mean width", "mean ratio of widths")
    where = ("of", "clusters", "tasks each", "correlation", "truth", "coverage")
    return [
        Table("95 % intervals for clustered tasks", columns, tuple(summary)),
        Table(
            "evaluate's: lowest coverage over sizes and correlations (mean width), by clusters",
            ("of", "truth", *map(str, counts)),
            tuple(least),
        ),
        Table(f"evaluate's: cells below {limit}", where, low or (("none", "", "", "", "", ""),)),
    ]


def missed(measured: Sequence[Cell]) -> list[Cell]:
    """The cells in which evaluate's interval contains the truth too rarely."""
    return [cell for cell in measured if cell.coverage[OURS] < WANTED]


def csv_rows(measured: Sequence[Cell]) -> list[dict[str, Any]]:
    """One flat row per cell and method."""
    return [
        {name: value for name, value in asdict(cell).items() if name not in ("coverage", "width")}
        | {"method": method, "coverage": cell.coverage[method], "width": cell.width[method]}
        for cell in measured
        for method in cell.coverage
    ]


if __name__ == "__main__":
    sys.exit(main(["research.coverage", *sys.argv[1:]]))
