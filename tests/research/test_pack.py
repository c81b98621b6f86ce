"""pack, and figures of packs: the same numbers as from the runs, packs that grow by a seed, and damaged ones."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectkit.cli.main import main
from reflectkit.data.episodes import read_compared
from reflectkit.evals.aggregate import player_rows
from reflectkit.evals.rows import EpisodeRow
from reflectkit.jsonl import write_json, write_jsonl
from reflectkit.seeding import generator
from research.effects import curve_figures, curves, effects, success_rows
from research.packs import Seed, read_pack, write_pack
from research.seeds import seed_differences

FACTS = ("name", "level", "success", "low", "high", "tasks", "clusters", "episodes", "aborted", "return", "steps")


def made(folder: Path, seed: int) -> Path:
    """A recipe's folder: two evaluations, of which one has a player of the other's name, and two runs of RL."""
    chance = generator(seed, "made")
    players = {"evaluation": ("ours", "plain"), "others": ("plain", "random")}
    for step, names in players.items():
        rows = [
            {
                "name": name,
                "env": "taxi",
                "level": "full",
                "task": f"t{seed}-{task}",
                "cluster": f"c{task // 2}",
                "seed": task,
                "status": "aborted" if (name, task) == ("random", 3) else "completed",
                "success": chance.random() < (0.8 if name == "ours" else 0.4),
                "return": chance.random(),
                "data": {"long": "x" * 1000},
                "turns": [{"seen": "y" * 1000, "said": "north"}] * chance.randrange(1, 9),
            }
            for name in names
            for task in range(20)
        ]
        (folder / step).mkdir(parents=True)
        write_jsonl(folder / step / "episodes.jsonl", rows)
        write_json(folder / step / "config.json", {"stage": "evaluate", "seed": seed, "settings": {}})
    for name in ("ours", "plain"):
        (folder / f"{name}-rl").mkdir()
        values = [
            {"step": step, "episodes": 8 * step, "validation_success_rate": chance.random()} for step in (1, 2, 3)
        ]
        write_jsonl(folder / f"{name}-rl" / "metrics.jsonl", values)
        write_json(folder / f"{name}-rl" / "report.json", {})
    return folder


CURVES = ["--curve", "ours=ours-rl", "--curve", "plain (evaluation)=plain-rl"]
PAIRS = ["--compare", "plain (evaluation) - ours", "--compare", "ours - random"]


@pytest.fixture
def runs() -> list[str]:
    return [str(made(Path(f"seed{seed}"), seed)) for seed in (0, 1, 2)]


def pack(*arguments: str) -> Path:
    assert main(["research.pack", *arguments, "--out", "packed", *CURVES]) == 0
    return Path("packed")


def parts_of(runs: list[str]) -> dict[str, list[list[EpisodeRow]]]:
    steps = ("evaluation", "others")
    return {
        step: [[EpisodeRow.read(line) for line in read_compared(Path(run) / step)] for run in runs] for step in steps
    }


def test_a_pack_gives_the_tables_of_its_runs(runs: list[str], tmp_path: Path) -> None:
    packed = read_pack(pack(*runs, "--title", "Three seeds", *PAIRS))
    by_step = parts_of(runs)
    original = {(row.name, row.level): row.to_json() for row in player_rows(by_step["evaluation"])}
    for row in success_rows(packed):
        if row.name == "ours":
            facts = row.to_json()
            assert {name: facts[name] for name in FACTS} == {name: original["ours", "full"][name] for name in FACTS}
    assert {row.name for row in success_rows(packed)} == {"ours", "plain (evaluation)", "plain (others)", "random"}
    expected = {(gap.first, gap.second): gap for gap in seed_differences(by_step)}
    found = {(one.first, one.second, one.measure): one for one in effects(packed)}
    mine, its = found["ours", "random", "success"], expected["ours", "random"]
    assert mine.difference == pytest.approx(100 * its.difference)
    assert (mine.low, mine.high, mine.p) == pytest.approx((100 * its.low, 100 * its.high, its.p))
    turned, its = found["plain (evaluation)", "ours", "success"], expected["ours", "plain (evaluation)"]
    assert turned.difference == pytest.approx(-100 * its.difference)
    assert (turned.low, turned.high) == pytest.approx((-100 * its.high, -100 * its.low))
    assert (turned.seeds, turned.problems) == (3, 60)
    summed = curve_figures(curves(packed, "validation_success_rate"), 0.9)["plain (evaluation)"]
    area = found["plain (evaluation)", "ours", "area"]
    assert (area.difference, area.low, area.high) == pytest.approx(
        (100 * summed["difference"], 100 * summed["low"], 100 * summed["high"])
    )


def test_a_seed_is_added_and_packing_again_changes_nothing(runs: list[str]) -> None:
    folder = pack(*runs[:2], "--title", "Two seeds", *PAIRS)
    first = (folder / "seed-0.jsonl.gz").read_bytes()
    pack(runs[2])
    packed = read_pack(folder)
    assert (packed.title, list(packed.seeds), len(packed.comparisons)) == ("Two seeds", [0, 1, 2], 2)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    pack(runs[0])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert before["seed-0.jsonl.gz"] == first
    assert sum(map(len, before.values())) < 12_000  # nothing that was seen or said is kept


@pytest.mark.parametrize("steps", [0, 4])
def test_a_pack_whose_writing_stops_is_the_old_or_the_new_one(
    steps: int, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before any of its renamings, it can be read, and the same command makes it whole."""
    folder = pack(*runs[:2], "--title", "Old", *PAIRS)
    old = read_pack(folder)
    new = replace(old, title="New", seeds={**old.seeds, 0: Seed(old.seeds[0].episodes[:30]), 2: old.seeds[1]})
    left, rename = [steps], os.replace

    def killed(*paths: Any, **options: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        rename(*paths, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        patched.setattr(Path, "replace", lambda path, target: killed(path, target))
        try:
            write_pack(folder, new)
        except KeyboardInterrupt:
            assert steps < 8
        else:
            assert steps >= 8
    assert read_pack(folder) == (old if steps < 4 else new)
    whole = {path.name: path.read_bytes() for path in write_pack(Path("whole"), new)}
    write_pack(folder, new)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole
