"""Tables that break success down: by what the env says of each problem, and by the number of tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reflectkit.console import Table
from reflectkit.evals.tables import row

Json = Mapping[str, Any]


def aspect_tables(episodes: Sequence[Json]) -> list[Table]:
    """A table for each aspect in the lines of episodes.jsonl: success by its values, with 95 % intervals over clusters
    of tasks. Aspects with one value are left out.
    """
    tables = []
    for aspect in dict.fromkeys(name for episode in episodes for name in episode.get("aspects", {})):
        having = [episode for episode in episodes if aspect in episode.get("aspects", {})]
        values = sorted({str(episode["aspects"][aspect]) for episode in having})
        if len(values) < 2:
            continue
        rows = []
        for name, level in dict.fromkeys((episode["name"], episode["level"]) for episode in having):
            own = [episode for episode in having if (episode["name"], episode["level"]) == (name, level)]
            for value in values:
                part = [episode for episode in own if str(episode["aspects"][aspect]) == value]
                figures = row(name, str(own[0].get("env", "")), level, part)
                if figures["episodes"]:
                    low, high = (f"{100 * figures[end]:.0f}" for end in ("low", "high"))
                    share = f"{100 * figures['success']:.1f} %"
                    rows.append((name, level, value, share, f"{low} to {high} %", str(figures["tasks"])))
        columns = ("policy", "level", aspect, "success", "95 % interval", "tasks")
        tables.append(Table(f"Success by {aspect}", columns, tuple(rows)))
    return tables


def passes_table(rows: Sequence[Json]) -> list[Table]:
    """pass@k (one of k tries succeeds) and pass^k (all of them do) of rows of eval.json, with 95 % intervals; no table
    if the problems were played once.
    """
    ladder = list(dict.fromkeys(k for one in rows for k in one.get("pass_at", {})))
    if not ladder:
        return []
    columns = tuple(f"{sign}{k}" for k in ladder for sign in ("pass@", "pass^") if (k, sign) != ("1", "pass^"))
    cells = tuple(
        (
            one["name"],
            one["level"],
            *(
                _chance(one, kind, k)
                for k in ladder
                for kind in ("pass_at", "pass_all")
                if (k, kind) != ("1", "pass_all")
            ),
        )
        for one in rows
    )
    return [
        Table("Tries, %: pass@k is one success or more in k, pass^k is k of k", ("policy", "level", *columns), cells)
    ]


def _chance(one: Json, kind: str, k: str) -> str:
    if k not in one.get(kind, {}):
        return ""
    low, high = (round(100 * one[f"{kind}_{end}"][k]) for end in ("low", "high"))
    return f"{100 * one[kind][k]:.0f} ({low} to {high})"
