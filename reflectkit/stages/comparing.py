"""What evaluated episodes come to: rows of figures with intervals, paired differences between players, and files of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from reflectkit.core.runs import Table
from reflectkit.core.stats import bootstrap, by_task, paired, pass_all, pass_at, wilson

COLUMNS = ("policy", "level", "success", "95 % interval", "tasks", "episodes", "return", "steps")
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

    success with low and high: Wilson's interval over distinct tasks; bootstrap_low and bootstrap_high: over tasks as clusters.
    pass_at, pass_all: by k, where problems were played several times. illegal_share: of turns in which an answer named no legal
    action, or the env refused it or some of its calls (in taxi a wall, or a pickup or drop-off that cannot be: fatal).
    unreadable_share: of turns in which an answer was not in the form asked for, so that no action could be read in it.
    price_usd: what the player's requests cost, or would without the journal; 0 for local players, None for an unknown price.
    reflection_words: of a comment. tokens: written by the policy in an episode.
    """
    counted = [episode for episode in played if episode["status"] != "aborted"]
    rates = by_task((episode["task"], float(episode["success"])) for episode in counted)
    low, high = wilson(sum(rates.values()), len(rates))
    cluster_low, cluster_high = bootstrap(list(rates.values()))
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
        "bootstrap_low": cluster_low if counted else None,
        "bootstrap_high": cluster_high if counted else None,
        "tasks": len(rates),
        "episodes": len(counted),
        "aborted": len(played) - len(counted),
        "return": sum(episode["return"] for episode in counted) / count,
        "steps": sum(len(episode.get("turns", ())) for episode in counted) / count,
        "illegal_share": sum(map(_illegal, tried)) / max(1, len(tried)),
        "unreadable_share": sum(bool(turn.get("unreadable")) for turn in tried) / max(1, len(tried)),
        "price_usd": None if None in prices else sum(prices),
        "reflection_words": sum(comments) / len(comments) if comments else None,
        "tokens": sum(turn.get("tokens", 0) for turn in turns) / count,
        "figures": figures_of((episode["task"], episode.get("figures", {})) for episode in counted),
    }
    return found | _passes(counted)


def _illegal(turn: Json) -> bool:
    refused = turn.get("info", {}).get("refused") and not turn.get("unreadable")
    return bool(turn.get("illegal") or refused)


def _passes(counted: Sequence[Json]) -> dict[str, dict[str, float]]:
    outcomes: dict[str, list[bool]] = {}
    for episode in counted:
        outcomes.setdefault(episode["task"], []).append(bool(episode["success"]))
    tries = min(map(len, outcomes.values()), default=0)
    if tries < 2:
        return {}
    ladder = [k for k in LADDER if k <= tries]
    cases = [(sum(right), len(right)) for right in outcomes.values()]
    return {
        "pass_at": {str(k): sum(pass_at(k, right, n) for right, n in cases) / len(cases) for k in ladder},
        "pass_all": {str(k): sum(pass_all(k, right, n) for right, n in cases) / len(cases) for k in ladder},
    }


def figures_of(played: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """What the env reports of its episodes, (task id, figures) each, with the bootstrap's 95 % interval over distinct tasks.

    An episode that was cut off before it reported a figure counts 0.
    """
    found = {}
    for name, told in _rates(played).items():
        low, high = bootstrap(list(told.values()))
        found[name] = {"mean": sum(told.values()) / len(told), "low": low, "high": high}
    return found


def _rates(played: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, Mapping[str, float]]:
    """Of each figure its mean by task; 0 counts where an episode has none."""
    episodes = list(played)
    names = dict.fromkeys(name for _, figures in episodes for name in figures)
    return {name: by_task((task, figures.get(name, 0.0)) for task, figures in episodes) for name in names}


def differences(episodes: Sequence[Json]) -> list[dict[str, Any]]:
    """Paired differences in success, and in the env's figures, between any two players on one level, task by task.

    `{figure, level, first, second, difference, low, high, p, tasks}`: first less second. p is of the single comparison. Players
    of whom no task ended for both are not compared.
    """
    told: dict[str, dict[str, list[tuple[str, dict[str, float]]]]] = {}
    for episode in episodes:
        if episode["status"] != "aborted":
            values = dict(episode.get("figures", {})) | {"success": float(episode["success"])}
            told.setdefault(episode["level"], {}).setdefault(episode["name"], []).append((episode["task"], values))
    found = []
    for level, players in told.items():
        means = {name: _rates(played) for name, played in players.items()}
        for figure in dict.fromkeys(["success", *(name for one in means.values() for name in one)]):
            for first, second in combinations([name for name in means if figure in means[name]], 2):
                result = paired(means[first][figure], means[second][figure])
                if result.tasks:
                    found.append({"figure": figure, "level": level, "first": first, "second": second} | asdict(result))
    return found


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
            (row["name"], row["level"], f"{one['mean']:.3g}", f"{one['low']:.3g} to {one['high']:.3g}") for row, one in told
        )
        tables.append(Table(name.replace("_", " "), ("policy", "level", "mean", "95 % interval"), cells))
    return tables


def differences_table(found: Sequence[Json], figure: str) -> Table:
    """Paired differences in one figure for a person, in points of a hundred."""
    players = list(dict.fromkeys(name for one in found for name in (one["first"], one["second"])))
    told = [one for one in found if len(players) <= MANY or players[0] in (one["first"], one["second"])]
    title = f"Paired differences in {figure}, in points (bootstrap over tasks; p by sign flips)"
    return _paired_table(title, "first − second", told, figure)


def ablations_table(found: Sequence[Json], step: str) -> Table:
    """Differences in success between arms and their ablations in evaluation `step`, for a person; each names its `ablation`."""
    title = f"Ablations, {step}: the arm departed from, less the ablation, in points (bootstrap over tasks; p by sign flips)"
    return _paired_table(title, "ablation", found, "success")


def _paired_table(title: str, heading: str, found: Sequence[Json], figure: str) -> Table:
    cells = tuple(
        (
            one.get("ablation", f"{one['first']} − {one['second']}"),
            one["level"],
            f"{100 * one['difference']:+.1f}",
            f"{100 * one['low']:+.1f} to {100 * one['high']:+.1f}",
            f"{one['p']:.3g}",
            str(one["tasks"]),
        )
        for one in found
        if one["figure"] == figure
    )
    return Table(title, (heading, "level", "difference", "95 % interval", "p", "tasks"), cells)


def markdown(tables: Sequence[Table]) -> str:
    """The tables as a Markdown text."""
    parts = []
    for one in tables:
        rows = [one.columns, tuple("---" for _ in one.columns), *one.rows]
        lines = ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |" for cells in rows]
        parts.append(f"### {one.title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def csv_text(rows: Sequence[Json]) -> str:
    """Rows of eval.json as CSV, the env's figures as columns (env_NAME beside one of ours). What a spreadsheet would run is
    quoted.
    """
    flat = []
    for row in rows:
        plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        for figure, one in row.get("figures", {}).items():
            name = f"env_{figure}" if figure in row else figure
            plain |= {name: one["mean"], f"{name}_low": one["low"], f"{name}_high": one["high"]}
        for kind in ("pass_at", "pass_all"):
            plain |= {f"{kind}_{k}": value for k, value in row.get(kind, {}).items()}
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
