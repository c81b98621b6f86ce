"""The results of evaluated episodes: figures with intervals, paired differences between players, and their tables."""

from __future__ import annotations

import csv
import io
import math
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations, pairwise
from typing import Any

from reflectkit.console import Table
from reflectkit.data.episodes import SUCCESS
from reflectkit.evals.calibration import SCORES, calibration_of
from reflectkit.evals.stats import (
    amount_interval,
    by_cluster,
    by_task,
    mean_interval,
    mean_p,
    paired,
    pass_all,
    pass_at,
    rate_interval,
)
from reflectkit.rollouts.wrappers import TAKEN
from reflectkit.types import reports_success

Json = Mapping[str, Any]

COLUMNS = ("policy", "level", "success", "95 % interval", "tasks", "clusters", "episodes", "return", "steps")
MOST_SUMMED = 5  # players in the table that a recipe ends with
MANY = 6  # with more players than this, the table compares each with the first only
MANY_TESTS = 10  # with more comparisons than this, a table has p-values after Benjamini and Hochberg too
MORE: Mapping[str, tuple[str, Callable[[Json], str]]] = {
    "by seed": ("by_seed", lambda row: " · ".join(f"{100 * rate:.0f}" for rate in row.get("by_seed", ()))),
    "right, of those named": ("named_episodes", lambda row: _of_named(row)),
    "no readable answer": ("unreadable_share", lambda row: f"{100 * row.get('unreadable_share', 0):.1f} %"),
    "illegal": ("illegal_share", lambda row: f"{100 * row['illegal_share']:.1f} %"),
    "thoughts": ("thoughts", lambda row: f"{row.get('thoughts', 0):.0f}"),
    "US dollars": ("price_usd", lambda row: _dollars(row["price_usd"])),
}
"""Columns of the table that are left out if they are all 0: their figures, and their cells."""
NAMED = "named"
"""The figure of an env whose episodes may end without an answer: 1 in those that give one."""
OWN_FIGURES = TAKEN - {SUCCESS}
"""Figures that are ours, and not every player has; every episode has those of its env."""
RETURN = "return"
LADDER = (1, 2, 4, 8, 16, 32)  # the k of pass@k


def completed(episodes: Sequence[Json]) -> list[Json]:
    """`episodes`, each with every figure that the env reported for any player on its level: 0 where an episode was cut
    off before that. ABORTED ones stay as they are.
    """
    reported = reported_figures(episodes)
    return [
        {**episode, "figures": {**reported[episode["level"]], **episode.get("figures", {})}}
        if reported[episode["level"]] and episode["status"] != "aborted"
        else episode
        for episode in episodes
    ]


def reported_figures(episodes: Iterable[Json]) -> dict[str, dict[str, float]]:
    """By level, the figures that the env reported, in the order of their first episode, with 0.0."""
    reported: dict[str, dict[str, float]] = {}
    for episode in episodes:
        names = [name for name in episode.get("figures", {}) if name not in OWN_FIGURES]
        reported.setdefault(episode["level"], {}).update(dict.fromkeys(names, 0.0))
    return reported


def ranges_of(episodes: Iterable[Json]) -> dict[str, tuple[float, float]]:
    """The least and the greatest value of each figure, whoever played. From 0 to 1 it is a share, and from 0 up what
    cannot be negative.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for episode in episodes:
        for name, value in episode.get("figures", {}).items():
            least, greatest = ranges.get(name, (value, value))
            ranges[name] = min(least, value), max(greatest, value)
    return ranges


def is_share(values: tuple[float, float]) -> bool:
    """Whether a figure with these least and greatest values is a share."""
    return values[0] >= 0 and values[1] <= 1


def lean(episode: Json) -> dict[str, Any]:
    """A line of episodes.jsonl for the tables: with `turn_counts` for its turns, and without what they do not need."""
    needed = {name: value for name, value in episode.items() if name not in ("turns", "ending", "data")}
    return needed | {"turns": turn_counts(episode)}


def turn_counts(episode: Json) -> Counter[str]:
    """What the tables need of a line's turns: how many there are, how many have comments, probabilities, and answers
    that were illegal or unreadable; words of the comments; tokens that the policy wrote, and how many it thought.
    """
    turns = episode.get("turns", ())
    if isinstance(turns, Counter):
        return turns
    counts = Counter(turns=len(turns))
    for turn in turns:
        if turn.get("reflection") is not None:
            counts.update(comments=1, words=len(turn["reflection"].split()))
        counts.update(
            illegal=_illegal(turn),
            unreadable=bool(turn.get("unreadable")),
            tokens=turn.get("tokens", 0),
            thoughts=turn.get("thoughts", 0),
            cut=bool(turn.get("cut")),
            probabilities="probabilities" in turn,
        )
    return counts


def outcome(episode: Json) -> tuple[Any, ...]:
    """How a line's episode went, as far as its end shows."""
    return episode["level"], episode["task"], episode.get("success"), episode[RETURN], turn_counts(episode)["turns"]


def silent_levels(episodes: Iterable[Json]) -> set[str]:
    """The levels at which the env does not report success: the return is what players are compared by."""
    by_level: dict[str, list[tuple[str, bool | None]]] = {}
    for episode in episodes:
        by_level.setdefault(episode["level"], []).append((episode["status"], episode.get("success")))
    return {level for level, outcomes in by_level.items() if not reports_success(outcomes)}


def _illegal(turn: Json) -> bool:
    refused = turn.get("info", {}).get("refused") and not turn.get("unreadable")
    return bool(turn.get("illegal") or refused)


def row(
    name: str,
    env: str,
    level: str,
    played: Sequence[Json],
    ranges: Mapping[str, tuple[float, float]] | None = None,
    *,
    silent: bool = False,
) -> dict[str, Any]:
    """One row of eval.json, from `completed` lines of episodes.jsonl, which may be `lean`. Shares are from 0 to 1.
    ABORTED episodes are only counted. ranges: see `ranges_of`; by default judged by these episodes alone. silent:
    whether the env does not report success, which is then None.

    success, low, high: the mean over distinct tasks and its 95 % interval by clusters of tasks. return, return_low,
    return_high: the same, with a t interval, which is None for fewer than two clusters or equal returns. pass_at,
    pass_all: by k, if problems were played several times, each with _low and _high. illegal_share: turns whose answer
    named no legal action, or whose action or calls the env refused (in taxi: a wall, or an impossible pickup or drop-
    off, which is fatal). unreadable_share: turns whose answer was not in the required form, so that no action could be
    read. named_episodes: how many gave an answer, if the env reports NAMED; right_of_named, with _low and _high: their
    success. calibration: the scores of forecasts, by what is foretold. price_usd: the cost of the player's requests,
    including those answered from the journal; 0 for local players, None if a price is unknown. reflection_words: per
    comment. tokens, thoughts: written by the policy per
    episode, and how many of them are reasoning.
    """
    counted = [episode for episode in played if episode["status"] != "aborted"]
    cluster, count = clusters_of(counted), max(1, len(counted))
    rates, returns = _successes(counted), _returns(counted)
    success, low, high = (None, None, None) if silent else _rate(rates, cluster, len(counted))
    ends = mean_interval(by_cluster(returns, cluster))
    return_low, return_high = map(_finite, ends) if ends[0] < ends[1] else (None, None)
    turns: Counter[str] = sum(map(turn_counts, counted), Counter())
    unfit = [episode for episode in counted if episode.get("unfit")]
    tried = max(1, turns["turns"] + len(unfit))
    unreadable = turns["unreadable"] + sum(bool(episode.get("unreadable")) for episode in unfit)
    prices = [episode.get("price_usd", 0.0) for episode in played]
    figures = {
        "name": name,
        "env": env,
        "level": level,
        "success": success,
        "low": low,
        "high": high,
        "tasks": len(rates),
        "clusters": len(by_cluster(rates, cluster)),
        "episodes": len(counted),
        "aborted": len(played) - len(counted),
        "return": sum(returns.values()) / max(1, len(returns)),
        "return_low": return_low,
        "return_high": return_high,
        "steps": turns["turns"] / count,
        "illegal_share": (turns["illegal"] + sum(map(_illegal, unfit))) / tried,
        "unreadable_share": unreadable / tried,
        "price_usd": None if None in prices else sum(prices),
        "reflection_words": turns["words"] / turns["comments"] if turns["comments"] else None,
        "tokens": turns["tokens"] / count,
        "thoughts": turns["thoughts"] / count,
        "figures": figures_of(counted, cluster, ranges_of(counted) if ranges is None else ranges),
    }
    if not silent and any(NAMED in episode.get("figures", {}) for episode in counted):
        named = [episode for episode in counted if episode["figures"][NAMED]]
        names = ("right_of_named", "right_of_named_low", "right_of_named_high")
        right = _rate(_successes(named), cluster, len(named))
        figures |= {"named_episodes": len(named)} | dict(zip(names, right, strict=True))
    if calibration := calibration_of(counted, cluster):
        figures["calibration"] = calibration
    return figures | ({} if silent else _passes([played], cluster))


def _successes(episodes: Iterable[Json]) -> Mapping[str, float]:
    return by_task((episode["task"], float(bool(episode.get("success")))) for episode in episodes)


def _returns(episodes: Iterable[Json]) -> Mapping[str, float]:
    return by_task((episode["task"], float(episode["return"])) for episode in episodes)


def _rate(rates: Mapping[str, float], cluster: Mapping[str, str], trials: int) -> tuple[float, float, float]:
    """(mean, low, high) of rates by task."""
    return sum(rates.values()) / max(1, len(rates)), *rate_interval(by_cluster(rates, cluster), trials)


def clusters_of(episodes: Iterable[Json]) -> dict[str, str]:
    """The cluster of each task, from lines of episodes.jsonl; by default the task is its own cluster."""
    return {episode["task"]: str(episode.get("cluster") or episode["task"]) for episode in episodes}


def _passes(parts: Sequence[Sequence[Json]], cluster: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """pass_at and pass_all by k, if every problem was tried several times by one model. parts: the episodes of each
    model (seed); a problem's chance is its mean over them. One counts at k if k of its tries were not aborted.
    """
    tries = Counter((number, episode["task"]) for number, part in enumerate(parts) for episode in part)
    outcomes: dict[tuple[int, str], list[bool]] = {}
    for number, part in enumerate(parts):
        for episode in part:
            if episode["status"] != "aborted":
                outcomes.setdefault((number, episode["task"]), []).append(bool(episode.get("success")))
    fewest = min(tries.values(), default=0)
    passes: dict[str, dict[str, float]] = {}
    for kind, chance in (("pass_at", pass_at), ("pass_all", pass_all)):
        for k in LADDER:
            enough = {key: right for key, right in outcomes.items() if len(right) >= k}
            if fewest > 1 and k <= fewest and enough:
                rates = by_task((task, chance(k, sum(right), len(right))) for (_, task), right in enough.items())
                values = _rate(rates, cluster, sum(map(len, enough.values())))
                for name, value in zip(("", "_low", "_high"), values, strict=True):
                    passes.setdefault(kind + name, {})[str(k)] = value
    return passes


def figures_of(
    episodes: Sequence[Json], cluster: Mapping[str, str], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, dict[str, float | None]]:
    """The mean of each figure with its 95 % interval by `cluster` of the tasks.

    A figure that is a share has a rate's interval; one that is never negative that of an amount; any other has a t
    interval. Ends that are infinite, with fewer than two clusters, are None.
    """
    means = {}
    for name, values in _rates(episodes).items():
        method = amount_interval if ranges[name][0] >= 0 else mean_interval
        low, high = (rate_interval if is_share(ranges[name]) else method)(by_cluster(values, cluster))
        means[name] = {"mean": sum(values.values()) / len(values), "low": _finite(low), "high": _finite(high)}
    return means


def _finite(value: float) -> float | None:
    """`value`, or None if it is infinite: JSON has no infinity."""
    return value if math.isfinite(value) else None


def _rates(episodes: Sequence[Json]) -> dict[str, Mapping[str, float]]:
    """The mean by task of each figure; an episode without it counts 0."""
    names = dict.fromkeys(name for episode in episodes for name in episode.get("figures", {}))
    return {
        name: by_task((episode["task"], episode.get("figures", {}).get(name, 0.0)) for episode in episodes)
        for name in names
    }


def differences(episodes: Sequence[Json]) -> list[dict[str, Any]]:
    """Paired differences, task by task, in success, the return and the env's figures between any two players on the
    same level. There are none in success where the env does not report it.

    Each is `{figure, level, first, second, difference, low, high, p, tasks, clusters}`: first minus second. p is for
    the single comparison. Players without a common finished task are not compared.
    """
    counted = [episode for episode in completed(episodes) if episode["status"] != "aborted"]
    by_level: dict[str, dict[str, list[Json]]] = {}
    for episode in counted:
        by_level.setdefault(episode["level"], {}).setdefault(episode["name"], []).append(episode)
    cluster, ranges = clusters_of(counted), {RETURN: (-math.inf, math.inf)} | ranges_of(counted) | {SUCCESS: (0.0, 1.0)}
    compared = []
    silent = silent_levels(counted)
    for level, players in by_level.items():
        means = {name: {RETURN: _returns(played)} | _rates(played) for name, played in players.items()}
        if level not in silent:
            means = {name: {SUCCESS: _successes(players[name])} | figures for name, figures in means.items()}
        for figure in dict.fromkeys(name for rates in means.values() for name in rates):
            for first, second in combinations([name for name in means if figure in means[name]], 2):
                result = paired(
                    means[first][figure],
                    means[second][figure],
                    cluster,
                    shares=is_share(ranges[figure]),
                    trials=min(len(players[first]), len(players[second])) if figure == SUCCESS else None,
                )
                if result.tasks:
                    ends = {"low": _finite(result.low), "high": _finite(result.high)}
                    names = {"figure": figure, "level": level, "first": first, "second": second}
                    compared.append(names | asdict(result) | ends)
    return compared


def differences_over_seeds(parts: Sequence[Sequence[Json]]) -> list[dict[str, Any]]:
    """`differences` of several evaluations (seeds), task by task over all of them. Where two or more have both players,
    the interval is extended to the t interval over the seeds' own differences, and p is the larger one.
    """
    episodes = [episode for part in parts for episode in part]
    compared = differences(episodes)
    if len(parts) < 2:
        return compared
    gaps: dict[tuple[str, ...], list[float]] = {}
    shares = {SUCCESS, *(name for name, values in ranges_of(episodes).items() if is_share(values))}
    for gap in (gap for part in parts for gap in differences(part)):
        for first, second, sign in (("first", "second", 1), ("second", "first", -1)):
            key = gap["figure"], gap["level"], gap[first], gap[second]
            gaps.setdefault(key, []).append(sign * gap["difference"])
    for gap in compared:
        of_seeds = gaps.get((gap["figure"], gap["level"], gap["first"], gap["second"]), [])
        if len(of_seeds) > 1:
            limit = 1.0 if gap["figure"] in shares else math.inf
            gap["low"], gap["high"] = _over_seeds(gap["low"], gap["high"], of_seeds, -limit, limit)
            gap["p"] = max(gap["p"], mean_p([[value] for value in of_seeds]))
    return compared


def _over_seeds(
    low: float | None, high: float | None, values: Sequence[float], least: float, greatest: float
) -> tuple[float | None, float | None]:
    """An interval over tasks, extended to the t interval of the seeds' own `values`, which are from `least` to
    `greatest`.
    """
    if low is None or high is None or len(values) < 2:
        return low, high
    ends = mean_interval([[value] for value in values])
    return max(least, min(low, ends[0])), min(greatest, max(high, ends[1]))


def pooled(parts: Sequence[Sequence[Json]]) -> list[dict[str, Any]]:
    """Rows over several evaluations (seeds), from the lines of their episodes.jsonl.

    Success, where it is reported, is the mean over distinct tasks of each task's mean over seeds. The interval is by
    clusters of tasks; a task is in the same cluster in every seed. It is extended to the t interval over the seeds' own
    means, as are those of the return, of figures and of pass@k. A task's pass@k and pass^k are the means of its models;
    plays of different models are not several tries of one.
    """
    every = completed([episode for part in parts for episode in part])
    ranges, silent, rest = ranges_of(every), silent_levels(every), iter(every)
    played: dict[tuple[str, str], dict[int, list[Json]]] = {}
    for number, part in enumerate(parts):
        for episode in (next(rest) for _ in part):
            played.setdefault((episode["name"], episode["level"]), {}).setdefault(number, []).append(episode)
    rows = []
    for (name, level), by_part in played.items():
        seeds = list(by_part.values())
        together = [episode for episodes in seeds for episode in episodes]
        pool = row(name, together[0].get("env", ""), level, together, ranges, silent=level in silent)
        if len(parts) > 1:
            pool = {key: value for key, value in pool.items() if not key.startswith(("pass_at", "pass_all"))}
            each = [row(name, "", level, episodes, ranges, silent=level in silent) for episodes in seeds]
            if level not in silent:
                pool |= _passes(seeds, clusters_of(together))
                pool["by_seed"] = [one["success"] for one in each]
            if len(seeds) > 1:
                _extend(pool, each, ranges)
        rows.append(pool)
    return rows


def _extend(pool: dict[str, Any], each: Sequence[Json], ranges: Mapping[str, tuple[float, float]]) -> None:
    """Extend the intervals of row `pool` to those over the seeds' own rows, `each`."""

    def extend(found: dict[str, Any], prefix: str, values: list[float], least: float, greatest: float) -> None:
        low, high = f"{prefix}low", f"{prefix}high"
        found[low], found[high] = _over_seeds(found[low], found[high], values, least, greatest)

    extend(pool, "", [one["success"] for one in each], 0.0, 1.0)
    extend(pool, "return_", [one[RETURN] for one in each], -math.inf, math.inf)
    for name, figure in pool["figures"].items():
        least, greatest = (0.0, 1.0) if is_share(ranges[name]) else (-math.inf, math.inf)
        extend(figure, "", [one["figures"][name]["mean"] for one in each if name in one["figures"]], least, greatest)
    for kind, row in pool.get("calibration", {}).items():
        for name in SCORES:
            of_seeds = [one["calibration"][kind][name] for one in each if kind in one.get("calibration", {})]
            extend(row, f"{name}_", of_seeds, 0.0, math.inf)
    for kind in ("pass_at", "pass_all"):
        for k in pool.get(kind, {}):
            values = [one[kind][k] for one in each if k in one.get(kind, {})]
            low, high = _over_seeds(pool[f"{kind}_low"][k], pool[f"{kind}_high"][k], values, 0.0, 1.0)
            pool[f"{kind}_low"][k], pool[f"{kind}_high"][k] = low, high


def tables_of(title: str, rows: Sequence[Json], episodes: Sequence[Json]) -> list[Table]:
    """The tables of rows of eval.json, and of the lines of episodes.jsonl that they come from."""
    returns = [_figure_table(RETURN, rows)] if scores(episodes) and _report_success(rows) else []
    others = [*passes_table(rows), *aspect_tables(episodes), *figures_tables(rows), *calibration_table(rows)]
    return [table(title, rows), *returns, *others]


def scores(episodes: Iterable[Json]) -> bool:
    """Whether the return says more than success."""
    return any(episode[RETURN] != episode.get("success") for episode in episodes if episode["status"] != "aborted")


def _report_success(rows: Iterable[Json]) -> bool:
    return any(row[SUCCESS] is not None for row in rows)


def measure_of(rows: Sequence[Json], measure: str = SUCCESS) -> str:
    """What the players of rows of eval.json are compared by at the last level: `measure`, or the return where success
    is not reported.
    """
    last = [row for row in rows if row["level"] == rows[-1]["level"]]
    return RETURN if measure == SUCCESS and not _report_success(last) else measure


def table(title: str, rows: Sequence[Json]) -> Table:
    """Rows of eval.json as a table; the last columns are omitted if they have nothing to show. Where no row has
    success, the return takes its place.
    """
    more = {name: cell for name, (figure, cell) in MORE.items() if any(row.get(figure, 0) != 0 for row in rows)}
    cells = [_cells(row) | {name: cell(row) for name, cell in more.items()} for row in rows]
    columns = (*COLUMNS, *more)
    if not _report_success(rows):
        columns = ("policy", "level", RETURN, *(name for name in columns[3:] if name != RETURN))
        for row, cell in zip(rows, cells, strict=True):
            cell["95 % interval"] = _ends(_figure(row, RETURN), 1, ".3g")
    return Table(title, columns, tuple(tuple(cell[name] for name in columns) for cell in cells))


def _cells(row: Json) -> dict[str, str]:
    success = ("not reported", "") if row["success"] is None else _percentages(row)
    return {
        "policy": row["name"],
        "level": row["level"],
        "success": success[0] if row["episodes"] else "all aborted",
        "95 % interval": success[1] if row["episodes"] else "",
        "tasks": str(row["tasks"]),
        "clusters": str(row["clusters"]),
        "episodes": str(row["episodes"]) + (f" + {row['aborted']} aborted" if row["aborted"] else ""),
        "return": f"{row['return']:.2f}",
        "steps": f"{row['steps']:.1f}",
    }


def _percentages(row: Json) -> tuple[str, str]:
    return f"{100 * row['success']:.1f} %", f"{100 * row['low']:.0f} to {100 * row['high']:.0f} %"


def _of_named(row: Json) -> str:
    if not row.get("named_episodes"):
        return "none named"
    mean, low, high = (100 * row[f"right_of_named{end}"] for end in ("", "_low", "_high"))
    return f"{mean:.1f} % ({low:.0f} to {high:.0f})"


def _dollars(price: float | None) -> str:
    return "unknown" if price is None else f"{price:.4f}" if price else "0"


def summary_table(title: str, rows: Sequence[Json], measure: str, where: str) -> Table:
    """The players of rows of eval.json at the last level, at most MOST_SUMMED: those that were trained come last in an
    evaluation, and are kept. title: of the whole table, which says whether the problems are held out. where: the file
    with all figures.
    """
    shown = [row for row in rows if row["level"] == rows[-1]["level"]][-MOST_SUMMED:]
    rest = f"; all {len(rows)} rows are in {where}" if len(shown) < len(rows) else ""
    counts = f"{title} ({rows[-1]['level']}): {shown[0]['tasks']}, {shown[0]['episodes']} episodes a player"
    cells = []
    for row in shown:
        figure = _figure(row, measure)
        if measure == RETURN:
            cells.append((row["name"], f"{figure['mean']:.3g}", _ends(figure, 1, ".3g")))
        else:
            mean, low, high = (100 * (figure[part] or 0.0) for part in ("mean", "low", "high"))
            cells.append((row["name"], f"{mean:.0f} %", f"{low:.0f} to {high:.0f} %"))
    return Table(counts + rest, ("policy", measure.replace("_", " "), "95 % interval"), tuple(cells))


def result_sentence(template: str, rows: Sequence[Json], compared: Sequence[Json], measure: str) -> str:
    """`template` with the success of each {PLAYER} at the last level in percent, and which differences between one and
    the next may be chance. Without a template, or one of its players, or where `measure` is the return: the best
    player. compared: as in eval.json.
    """
    level = rows[-1]["level"]
    means = {row["name"]: _figure(row, measure)["mean"] for row in rows if row["level"] == level}
    form = "{:.3g}" if measure == RETURN else "{:.0%}"
    shares = {name: form.format(mean).removesuffix("%") for name, mean in means.items()}
    named = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    if measure == RETURN or not named or not shares.keys() >= set(named):
        most = max(shares.values(), key=float)
        best = " and ".join(name for name, share in shares.items() if share == most)
        score = f"a return of {most}" if measure == RETURN else f"{most} %"
        return f"The best of {len(shares)} players: {best}, with {score}."
    alike = [
        f"{first} and {second}"
        for first, second in pairwise(named)
        for gap in compared
        if (gap["level"], gap["figure"]) == (level, measure)
        and {gap["first"], gap["second"]} == {first, second}
        and (gap["low"] is None or gap["low"] <= 0 <= gap["high"])
    ]
    chance = f" The difference between {'; '.join(alike)} may be chance." if alike else ""
    return template.format_map(shares) + chance


def _figure(row: Json, name: str) -> Json:
    """{mean, low, high} of success, of the return, or of a figure of the env; empty if the row does not have it."""
    if name in (SUCCESS, RETURN):
        prefix = "" if name == SUCCESS else "return_"
        return {"mean": row[name], "low": row[f"{prefix}low"], "high": row[f"{prefix}high"]}
    return row.get("figures", {}).get(name) or {}


def figures_tables(rows: Sequence[Json]) -> list[Table]:
    """One table for each of the env's own figures: means and their intervals."""
    return [
        _figure_table(name, rows) for name in dict.fromkeys(name for row in rows for name in row.get("figures", {}))
    ]


def _figure_table(name: str, rows: Sequence[Json]) -> Table:
    cells = []
    for row in rows:
        if figure := _figure(row, name):
            ends = _ends(figure, 1, ".3g")
            cells.append((row["name"], row["level"], f"{figure['mean']:.3g}", ends, str(row["clusters"])))
    return Table(name.replace("_", " "), ("policy", "level", "mean", "95 % interval", "clusters"), tuple(cells))


def aspect_tables(episodes: Sequence[Json]) -> list[Table]:
    """A table for each aspect in the lines of episodes.jsonl: success by its values, with 95 % intervals over clusters
    of tasks. Aspects with one value are left out, and levels at which success is not reported.
    """
    tables = []
    silent = silent_levels(episodes)
    episodes = [episode for episode in episodes if episode["level"] not in silent]
    for aspect in dict.fromkeys(name for episode in episodes for name in episode.get("aspects", {})):
        parts: dict[tuple[str, str], dict[str, list[Json]]] = {}
        for episode in episodes:
            if aspect in episode.get("aspects", {}):
                of_player = parts.setdefault((episode["name"], episode["level"]), {})
                of_player.setdefault(str(episode["aspects"][aspect]), []).append(episode)
        if len({value for of_player in parts.values() for value in of_player}) > 1:
            rows = [
                (name, level, value, *_percentages(part), str(part["tasks"]))
                for (name, level), of_player in parts.items()
                for value, part in ((value, row(name, "", level, of_player[value])) for value in sorted(of_player))
                if part["episodes"]
            ]
            columns = ("policy", "level", aspect, "success", "95 % interval", "tasks")
            tables.append(Table(f"Success by {aspect}", columns, tuple(rows)))
    return tables


def calibration_table(rows: Sequence[Json]) -> list[Table]:
    """How far the probabilities in rows of eval.json can be trusted; no table if there are none."""
    cells = []
    for row in rows:
        for kind, scores in row.get("calibration", {}).items():
            figures = [f"{scores[name]:.3f} ({_ends(_named(scores, name), 1, '.2f')})" for name in SCORES]
            shares = f"{scores['confidence']:.2f}", f"{scores['hits']:.2f}"
            counts = str(scores["forecasts"]), str(scores["clusters"])
            cells.append((row["name"], row["level"], kind, *shares, *figures, *counts))
    title = "Calibration: what was foretold, how likely, and how often it came true (95 % intervals by cluster)"
    columns = (
        "policy",
        "level",
        "foretold",
        "probability",
        "came true",
        *map(_spaced, SCORES),
        "forecasts",
        "clusters",
    )
    return [Table(title, columns, tuple(cells))] if cells else []


def _named(scores: Json, name: str) -> Json:
    return {"low": scores[f"{name}_low"], "high": scores[f"{name}_high"]}


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def passes_table(rows: Sequence[Json]) -> list[Table]:
    """pass@k (one of k tries succeeds) and pass^k (all of them do) of rows of eval.json, with 95 % intervals; no table
    if the problems were played once.
    """
    ladder = dict.fromkeys(k for row in rows for k in row.get("pass_at", {}))
    shown = [(kind, k) for k in ladder for kind in ("pass_at", "pass_all") if (kind, k) != ("pass_all", "1")]
    columns = tuple(f"{'pass@' if kind == 'pass_at' else 'pass^'}{k}" for kind, k in shown)
    cells = tuple((row["name"], row["level"], *(_chance(row, kind, k) for kind, k in shown)) for row in rows)
    title = "Tries, %: pass@k is one success or more in k, pass^k is k of k"
    return [Table(title, ("policy", "level", *columns), cells)] if shown else []


def _chance(row: Json, kind: str, k: str) -> str:
    if k not in row.get(kind, {}):
        return ""
    mean, low, high = (100 * row[f"{kind}{end}"][k] for end in ("", "_low", "_high"))
    return f"{mean:.0f} ({low:.0f} to {high:.0f})"


def differences_table(compared: Sequence[Json], figure: str) -> Table:
    """Paired differences in one figure as a table, in percentage points unless it is the return. With many players,
    those from the first.
    """
    players = list(dict.fromkeys(name for gap in compared for name in (gap["first"], gap["second"])))
    shown = [gap for gap in compared if len(players) <= MANY or players[0] in (gap["first"], gap["second"])]
    unit = "" if figure == RETURN else ", in points"
    rest = "; eval.json has those of other pairs" if len(shown) < len(compared) else ""
    title = f"Paired differences in {figure}{unit} (p from sign flips of clusters; of several seeds also by t){rest}"
    return paired_table(title, "first − second", [gap for gap in shown if gap["figure"] == figure])


def ablations_table(effects: Sequence[Json], step: str, measure: str = SUCCESS) -> Table:
    """Differences in `measure`, a share or the return, between arms and their ablations in evaluation `step`; each
    names its `ablation`.
    """
    of_measure = f" in {measure.replace('_', ' ')}" if measure != SUCCESS else ""
    unit = "" if measure == RETURN else ", in points"
    title = f"Ablations, {step}: original arm minus ablation{of_measure}{unit}"
    return paired_table(title, "ablation", [gap for gap in effects if gap["figure"] == measure])


def paired_table(
    title: str, heading: str, compared: Sequence[Json], counts: tuple[str, str] = ("tasks", "clusters")
) -> Table:
    """Paired differences as rows, in percentage points unless they are returns. counts: the names of two numbers that
    each row ends with.
    """
    headings, p_cells = p_columns([gap["p"] for gap in compared])
    forms = [(1, "+.3g") if gap.get("figure") == RETURN else (100, "+.1f") for gap in compared]
    cells = tuple(
        (
            gap.get("ablation", f"{gap['first']} − {gap['second']}"),
            gap["level"],
            f"{unit * gap['difference']:{form}}",
            _ends(gap, unit, form),
            *shown,
            *(str(gap[count]) for count in counts),
        )
        for gap, shown, (unit, form) in zip(compared, p_cells, forms, strict=True)
    )
    return Table(title, (heading, "level", "difference", "95 % interval", *headings, *counts), cells)


def p_columns(p_values: Sequence[float | None]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(headings, cells of each row) of a table's p-values; with more than MANY_TESTS also adjusted ones, by Benjamini
    and Hochberg 1995, J. R. Stat. Soc. B 57:289. None: not known, and not counted.
    """
    known = [p for p in p_values if p is not None]
    if len(known) <= MANY_TESTS:
        return ("p",), [("" if p is None else f"{p:.3g}",) for p in p_values]
    from scipy.stats import false_discovery_control

    among = iter(false_discovery_control(known))
    shown: list[tuple[str, ...]] = [("", "") if p is None else (f"{p:.3g}", f"{next(among):.3g}") for p in p_values]
    return ("p", f"p, adjusted for {len(known)}"), shown


def _ends(estimate: Json, unit: float, form: str) -> str:
    if estimate["low"] is None:
        return "unknown"
    return f"{unit * estimate['low']:{form}} to {unit * estimate['high']:{form}}"


def markdown(tables: Sequence[Table]) -> str:
    """The tables as Markdown."""
    parts = []
    for shown in tables:
        rows = [shown.columns, tuple("---" for _ in shown.columns), *shown.rows]
        texts = [[cell.replace("|", "\\|").replace("\n", " ") for cell in cells] for cells in rows]
        parts.append(f"### {shown.title}\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in texts))
    return "\n".join(parts)


def csv_text(rows: Sequence[Json]) -> str:
    """Rows of eval.json as CSV, with the env's figures as columns (env_NAME if the name is taken)."""
    flat = []
    for row in rows:
        plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        for figure, estimate in row.get("figures", {}).items():
            name = f"env_{figure}" if figure in row else figure
            plain |= {f"{name}{end}": estimate[end[1:] or "mean"] for end in ("", "_low", "_high")}
        for kind in ("pass_at", "pass_all"):
            for end in ("", "_low", "_high"):
                plain |= {f"{kind}_{k}{end}": value for k, value in row.get(kind + end, {}).items()}
        flat.append(plain)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()
