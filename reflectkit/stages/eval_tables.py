"""What evaluated episodes come to: rows of figures with intervals, paired differences between players, and files of
them.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from reflectkit.core.runs import Table
from reflectkit.core.stats import by_cluster, by_task, mean_interval, paired, pass_all, pass_at, rate_interval
from reflectkit.core.types import Task
from reflectkit.envs import ENVS, cluster_of

COLUMNS = ("policy", "level", "success", "95 % interval", "tasks", "clusters", "episodes", "return", "steps")
MANY = 6  # players beyond which the table compares each with the first alone
MORE = (
    ("by seed", "by_seed"),
    ("no readable answer", "unreadable_share"),
    ("illegal", "illegal_share"),
    ("US dollars", "price_usd"),
)
"""Columns of the table that are there where there is something to show, and the figures in them."""
LADDER = (1, 2, 4, 8, 16, 32)  # the k of pass@k

Json = Mapping[str, Any]


def row(name: str, env: str, level: str, played: Sequence[Json]) -> dict[str, Any]:
    """One row of eval.json, from lines of episodes.jsonl. Shares are of 1; ABORTED episodes are counted and left out.

    success, with low and high: the mean over distinct tasks and its 95 % interval, by clusters of tasks. pass_at,
    pass_all: by k, where problems were played several times, each with _low and _high. illegal_share: of turns in which
    an answer named no legal action, or the env refused it or some of its calls (in taxi a wall, or a pickup or drop-off
    that cannot be: fatal).
    unreadable_share: of turns in which an answer was not in the form asked for, so that no action could be read in it.
    price_usd: what the player's requests cost, or would without the journal; 0 for local players, None for an unknown
    price.
    reflection_words: of a comment. tokens: written by the policy in an episode.
    """
    counted = [episode for episode in played if episode["status"] != "aborted"]
    rates = by_task((episode["task"], float(episode["success"])) for episode in counted)
    cluster = clusters_of(counted)
    clusters = by_cluster(rates, cluster)
    low, high = rate_interval(clusters, len(counted))
    turns = [turn for episode in counted for turn in episode.get("turns", ())]
    comments = [len(turn["reflection"].split()) for turn in turns if turn.get("reflection") is not None]
    tried = [*turns, *(episode for episode in counted if episode.get("unfit"))]
    prices = [episode.get("price_usd", 0.0) for episode in played]
    count = max(1, len(counted))
    found = {
        "name": name,
        "env": env,
        "level": level,
        "success": sum(rates.values()) / max(1, len(rates)),
        "low": low,
        "high": high,
        "tasks": len(rates),
        "clusters": len(clusters),
        "episodes": len(counted),
        "aborted": len(played) - len(counted),
        "return": sum(episode["return"] for episode in counted) / count,
        "steps": sum(len(episode.get("turns", ())) for episode in counted) / count,
        "illegal_share": sum(map(_illegal, tried)) / max(1, len(tried)),
        "unreadable_share": sum(bool(turn.get("unreadable")) for turn in tried) / max(1, len(tried)),
        "price_usd": None if None in prices else sum(prices),
        "reflection_words": sum(comments) / len(comments) if comments else None,
        "tokens": sum(turn.get("tokens", 0) for turn in turns) / count,
        "figures": figures_of(((episode["task"], episode.get("figures", {})) for episode in counted), cluster),
    }
    return found | _passes(counted, cluster)


def clusters_of(episodes: Iterable[Json]) -> dict[str, str]:
    """The cluster of each task, from lines of episodes.jsonl.

    Lines of earlier versions name none: it is then asked of our envs, and a task of another env is a cluster of its
    own.
    """
    found = {}
    for episode in episodes:
        if (cluster := episode.get("cluster")) is None and episode.get("env") in ENVS:
            task = Task(
                episode["task"], episode["env"], episode["level"], episode.get("group", ""), episode.get("data", {})
            )
            cluster = cluster_of(task.env, task)
        found[episode["task"]] = episode["task"] if cluster is None else str(cluster)
    return found


def _illegal(turn: Json) -> bool:
    refused = turn.get("info", {}).get("refused") and not turn.get("unreadable")
    return bool(turn.get("illegal") or refused)


def _passes(counted: Sequence[Json], cluster: Mapping[str, str]) -> dict[str, dict[str, float]]:
    outcomes: dict[str, list[bool]] = {}
    for episode in counted:
        outcomes.setdefault(episode["task"], []).append(bool(episode["success"]))
    tries = min(map(len, outcomes.values()), default=0)
    if tries < 2:
        return {}
    found: dict[str, dict[str, float]] = {}
    for kind, chance in (("pass_at", pass_at), ("pass_all", pass_all)):
        for k in LADDER:
            if k <= tries:
                rates = {task: chance(k, sum(right), len(right)) for task, right in outcomes.items()}
                low, high = rate_interval(by_cluster(rates, cluster), len(counted))
                for name, value in (
                    (kind, sum(rates.values()) / len(rates)),
                    (f"{kind}_low", low),
                    (f"{kind}_high", high),
                ):
                    found.setdefault(name, {})[str(k)] = value
    return found


def figures_of(
    played: Iterable[tuple[str, Mapping[str, float]]], cluster: Mapping[str, str] | None = None
) -> dict[str, dict[str, float | None]]:
    """What the env reports of its episodes, (task id, figures) each, with the 95 % interval by `cluster` of the tasks.

    A figure of which all values lie in [0, 1] is taken for a share, and has a rate's interval; another one a t
    interval, which is None where there are fewer than two clusters. An episode that was cut off before it reported a
    figure counts 0.
    """
    found = {}
    for name, values in _rates(played).items():
        clusters = by_cluster(values, cluster or {})
        low, high = rate_interval(clusters) if _shares(values.values()) else mean_interval(clusters)
        found[name] = {"mean": sum(values.values()) / len(values), "low": _finite(low), "high": _finite(high)}
    return found


def _shares(values: Iterable[float]) -> bool:
    return all(0 <= value <= 1 for value in values)


def _finite(value: float) -> float | None:
    """`value`, or None for an end that is nowhere: JSON has no infinity."""
    return value if math.isfinite(value) else None


def _rates(played: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, Mapping[str, float]]:
    """Of each figure its mean by task; 0 counts where an episode has none."""
    episodes = list(played)
    names = dict.fromkeys(name for _, figures in episodes for name in figures)
    return {name: by_task((task, figures.get(name, 0.0)) for task, figures in episodes) for name in names}


def differences(episodes: Sequence[Json]) -> list[dict[str, Any]]:
    """Paired differences in success, and in the env's figures, between any two players on one level, task by task.

    `{figure, level, first, second, difference, low, high, p, tasks, clusters}`: first less second. p is of the single
    comparison. Players of whom no task ended for both are not compared.
    """
    counted = [episode for episode in episodes if episode["status"] != "aborted"]
    told: dict[str, dict[str, list[tuple[str, dict[str, float]]]]] = {}
    for episode in counted:
        values = dict(episode.get("figures", {})) | {"success": float(episode["success"])}
        told.setdefault(episode["level"], {}).setdefault(episode["name"], []).append((episode["task"], values))
    cluster = clusters_of(counted)
    found = []
    for level, players in told.items():
        means = {name: _rates(played) for name, played in players.items()}
        for figure in dict.fromkeys(["success", *(name for one in means.values() for name in one)]):
            having = [name for name in means if figure in means[name]]
            shares = all(_shares(means[name][figure].values()) for name in having)
            for first, second in combinations(having, 2):
                trials = min(len(players[name]) for name in (first, second)) if figure == "success" else None
                result = paired(means[first][figure], means[second][figure], cluster, shares=shares, trials=trials)
                if result.tasks:
                    ends = {"low": _finite(result.low), "high": _finite(result.high)}
                    found.append(
                        {"figure": figure, "level": level, "first": first, "second": second} | asdict(result) | ends
                    )
    return found


def pooled(parts: Sequence[Sequence[Json]]) -> list[dict[str, Any]]:
    """Rows over several evaluations (seeds), from the lines of each one's episodes.jsonl.

    Success is the mean over distinct tasks of each task's mean over seeds; the interval is by clusters of tasks; a task
    belongs to the same one in every seed. pass@k is left out: the same task played by models of several seeds is not
    one model's several tries.
    """
    played: dict[tuple[str, str], list[list[Json]]] = {}
    for part in parts:
        mine: dict[tuple[str, str], list[Json]] = {}
        for episode in part:
            mine.setdefault((episode["name"], episode["level"]), []).append(episode)
        for key, episodes in mine.items():
            played.setdefault(key, []).append(episodes)
    rows = []
    for (name, level), by_part in played.items():
        env = by_part[0][0].get("env", "")
        all_of_it = row(name, env, level, [episode for episodes in by_part for episode in episodes])
        if len(parts) == 1:
            rows.append(all_of_it)
            continue
        told = {key: value for key, value in all_of_it.items() if not key.startswith(("pass_at", "pass_all"))}
        rows.append(told | {"by_seed": [row(name, env, level, episodes)["success"] for episodes in by_part]})
    return rows


def table(title: str, rows: Sequence[Json]) -> Table:
    """Rows of eval.json for a person; the last columns are left out where there is nothing to tell."""
    more = [column for column, name in MORE if any(row.get(name, 0) != 0 for row in rows)]
    return Table(title, (*COLUMNS, *more), tuple(_cells(row, more) for row in rows))


def _cells(row: Json, more: Sequence[str]) -> tuple[str, ...]:
    price = row["price_usd"]
    last = {
        "by seed": " · ".join(f"{100 * rate:.0f}" for rate in row.get("by_seed", ())),
        "no readable answer": f"{100 * row.get('unreadable_share', 0):.1f} %",
        "illegal": f"{100 * row['illegal_share']:.1f} %",
        "US dollars": "unknown" if price is None else f"{price:.4f}" if price else "0",
    }
    return (
        row["name"],
        row["level"],
        f"{100 * row['success']:.1f} %" if row["episodes"] else "all aborted",
        f"{100 * row['low']:.0f} to {100 * row['high']:.0f} %" if row["episodes"] else "",
        str(row["tasks"]),
        str(row["clusters"]),
        str(row["episodes"]) + (f" + {row['aborted']} aborted" if row["aborted"] else ""),
        f"{row['return']:.2f}",
        f"{row['steps']:.1f}",
        *(last[column] for column in more),
    )


def figures_tables(rows: Sequence[Json]) -> list[Table]:
    """The env's own figures for a person, a table each: what they are on average, and their intervals."""
    tables = []
    for name in dict.fromkeys(name for row in rows for name in row.get("figures", {})):
        told = [(row, row["figures"][name]) for row in rows if name in row.get("figures", {})]
        cells = tuple(
            (row["name"], row["level"], f"{one['mean']:.3g}", _ends(one, 1, ".3g"), str(row["clusters"]))
            for row, one in told
        )
        tables.append(Table(name.replace("_", " "), ("policy", "level", "mean", "95 % interval", "clusters"), cells))
    return tables


def differences_table(found: Sequence[Json], figure: str) -> Table:
    """Paired differences in one figure for a person, in points of a hundred."""
    players = list(dict.fromkeys(name for one in found for name in (one["first"], one["second"])))
    told = [one for one in found if len(players) <= MANY or players[0] in (one["first"], one["second"])]
    title = f"Paired differences in {figure}, in points (p by sign flips of clusters)"
    return _paired_table(title, "first − second", told, figure)


def ablations_table(found: Sequence[Json], step: str) -> Table:
    """Differences in success between arms and their ablations in evaluation `step`, for a person; each names its
    `ablation`.
    """
    title = f"Ablations, {step}: the arm departed from, less the ablation, in points (p by sign flips of clusters)"
    return _paired_table(title, "ablation", found, "success")


def _paired_table(title: str, heading: str, found: Sequence[Json], figure: str) -> Table:
    cells = tuple(
        (
            one.get("ablation", f"{one['first']} − {one['second']}"),
            one["level"],
            f"{100 * one['difference']:+.1f}",
            _ends(one, 100, "+.1f"),
            f"{one['p']:.3g}",
            str(one["tasks"]),
            str(one["clusters"]),
        )
        for one in found
        if one["figure"] == figure
    )
    return Table(title, (heading, "level", "difference", "95 % interval", "p", "tasks", "clusters"), cells)


def _ends(one: Json, unit: float, form: str) -> str:
    return "unknown" if one["low"] is None else f"{unit * one['low']:{form}} to {unit * one['high']:{form}}"


def markdown(tables: Sequence[Table]) -> str:
    """The tables as a Markdown text."""
    parts = []
    for one in tables:
        rows = [one.columns, tuple("---" for _ in one.columns), *one.rows]
        lines = [
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |" for cells in rows
        ]
        parts.append(f"### {one.title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def csv_text(rows: Sequence[Json]) -> str:
    """Rows of eval.json as CSV, the env's figures as columns (env_NAME beside one of ours). What a spreadsheet would
    run is quoted.
    """
    flat = []
    for row in rows:
        plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        for figure, one in row.get("figures", {}).items():
            name = f"env_{figure}" if figure in row else figure
            plain |= {name: one["mean"], f"{name}_low": one["low"], f"{name}_high": one["high"]}
        for kind in ("pass_at", "pass_all"):
            for end in ("", "_low", "_high"):
                plain |= {f"{kind}_{k}{end}": value for k, value in row.get(kind + end, {}).items()}
        flat.append({name: _harmless(value) for name, value in plain.items()})
    columns = list(dict.fromkeys(name for row in flat for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _harmless(value: Any) -> Any:
    """Spreadsheets run what begins so."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
