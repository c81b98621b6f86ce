"""pack, and figures of packs: the same numbers as from the runs, packs that grow by a seed, and damaged ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from reflectkit.cli.main import main
from reflectkit.data.episodes import read_compared
from reflectkit.errors import DataError
from reflectkit.evals.figures import (
    LONGEST_NAME,
    MOST_COLUMNS,
    TALLEST,
    Interval,
    _shown,
    draw_intervals,
    in_columns,
)
from reflectkit.evals.seeds import curve_figures, seed_differences
from reflectkit.evals.tables import differences, pooled
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_jsonl
from reflectkit.runs.identity import digest
from reflectkit.seeding import generator
from research.effects import (
    Effect,
    curves,
    effects,
    effects_table,
    forest_groups,
    same_seeds,
    success_rows,
)
from research.figures import draw_packs
from research.packs import MOST_STEPS, Curve, Pack, Seed, merged, read_pack, write_pack
from tests.command_lines import error_of

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "research/experiments/episodes"
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
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [str(made(Path(f"seed{seed}"), seed)) for seed in (0, 1, 2)]


def pack(*arguments: str) -> Path:
    assert main(["research.pack", *arguments, "--out", "packed", *CURVES]) == 0
    return Path("packed")


def parts_of(runs: list[str]) -> dict[str, list[list[dict[str, object]]]]:
    return {step: [read_compared(Path(run) / step) for run in runs] for step in ("evaluation", "others")}


def test_a_pack_gives_the_tables_of_its_runs(runs: list[str], tmp_path: Path) -> None:
    packed = read_pack(pack(*runs, "--title", "Three seeds", *PAIRS))
    by_step = parts_of(runs)
    original = {(row["name"], row["level"]): row for row in pooled(by_step["evaluation"])}
    for row in success_rows(packed):
        if row["name"] == "ours":
            assert {name: row[name] for name in FACTS} == {name: original["ours", "full"][name] for name in FACTS}
    assert {row["name"] for row in success_rows(packed)} == {"ours", "plain (evaluation)", "plain (others)", "random"}
    expected = {(one["first"], one["second"]): one for one in seed_differences(by_step)}
    found = {(one.first, one.second, one.measure): one for one in effects(packed)}
    mine, its = found["ours", "random", "success"], expected["ours", "random"]
    assert mine.difference == pytest.approx(100 * its["difference"])
    assert (mine.low, mine.high, mine.p) == pytest.approx((100 * its["low"], 100 * its["high"], its["p"]))
    turned, its = found["plain (evaluation)", "ours", "success"], expected["ours", "plain (evaluation)"]
    assert turned.difference == pytest.approx(-100 * its["difference"])
    assert (turned.low, turned.high) == pytest.approx((-100 * its["high"], -100 * its["low"]))
    assert (turned.seeds, turned.problems) == (3, 60)
    summed = curve_figures(curves(packed, "validation_success_rate"), 0.9)["plain (evaluation)"]
    area = found["plain (evaluation)", "ours", "area"]
    assert (area.difference, area.low, area.high) == pytest.approx(
        (100 * summed["difference"], 100 * summed["low"], 100 * summed["high"])
    )


def test_one_seed_is_compared_by_problem(runs: list[str]) -> None:
    packed = read_pack(pack(runs[1], "--title", "One seed", "--compare", "ours - plain (evaluation)"))
    (its,) = (one for one in differences(read_compared(Path(runs[1]) / "evaluation")) if one["figure"] == "success")
    success, area = effects(packed)
    assert (success.low, success.high) == pytest.approx((100 * its["low"], 100 * its["high"]))
    assert (success.seeds, area.measure, area.low) == (1, "area", -float("inf"))


def test_the_curve_of_an_unfinished_run_is_not_packed(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (Path(runs[0]) / "plain-rl" / "report.json").unlink()
    arguments = ["research.pack", runs[0], "--out", "packed", "--title", "One seed", *CURVES]
    assert "seed0/plain-rl: is not finished" in error_of(arguments, capsys)
    assert not Path("packed/pack.json").exists()


def test_an_evaluation_can_be_left_out(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["research.pack", runs[0], "--out", "packed", "--title", "One seed"]
    assert main([*arguments, "--skip", "others"]) == 0
    assert {row["name"] for row in success_rows(read_pack(Path("packed")))} == {"ours", "plain"}
    assert "there are evaluation, others" in error_of([*arguments, "--skip", "visits"], capsys)
    assert "leaves nothing of seed0" in error_of([*arguments, "--skip", "others", "--skip", "evaluation"], capsys)


def test_a_player_of_one_seed_is_compared_by_problem(runs: list[str]) -> None:
    path = Path(runs[1]) / "others" / "episodes.jsonl"
    rows = read_compared(path)
    write_jsonl(path, [row | {"name": "late"} if row["name"] == "random" else row for row in rows])
    pairs = ["--compare", "ours - late", "--compare", "ours - random"]
    packed = read_pack(pack(*runs, "--title", "Three seeds", *pairs))
    found = {(one.first, one.second): one for one in effects(packed) if one.measure == "success"}
    assert (found["ours", "late"].seeds, found["ours", "random"].seeds) == (1, 2)
    assert found["ours", "late"].low > -100.0


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


@pytest.mark.parametrize("steps", range(12))
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


def test_an_arm_can_be_added_to_the_seeds(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Evaluation by evaluation, the pack is that of both at once; an arm that is there is replaced."""
    both = ["--title", "T", "--compare", "ours - random"]
    whole = read_pack(pack(*runs[:2], *both))
    for run in runs[:2]:
        for step, name in (("evaluation", "plain (evaluation)"), ("others", "plain (others)")):
            path = Path(run) / step / "episodes.jsonl"
            write_jsonl(path, [row | {"name": name} if row["name"] == "plain" else row for row in read_compared(path)])
    one = [str(Path(run) / "evaluation") for run in runs[:2]]
    other = [str(Path(run) / "others") for run in runs[:2]]
    add = ["--out", "parts", "--add"]
    assert "--add: there is no pack in parts yet" in error_of(["research.pack", *one, *add], capsys)
    assert (
        main(["research.pack", *one, "--out", "parts", "--title", "T", "--compare", "ours - plain (evaluation)"]) == 0
    )
    for _ in range(2):
        assert main(["research.pack", *other, *add, "--compare", "ours - random"]) == 0
    parts = read_pack(Path("parts"))
    assert parts.comparisons == (("ours", "plain (evaluation)"), ("ours", "random"))
    assert [seed.episodes for seed in parts.seeds.values()] == [seed.episodes for seed in whole.seeds.values()]
    assert main(["research.pack", runs[2], "--out", "packed", "--add", *CURVES]) == 0
    assert main(["research.pack", runs[0], "--out", "packed", "--add", "--curve", "late=ours-rl"]) == 0
    packed = read_pack(Path("packed"))
    assert [len(seed.curves) for seed in packed.seeds.values()] == [3, 2, 2]


def test_where_the_curves_reach_a_value(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = pack(*runs, "--title", "Three seeds", *PAIRS)
    capsys.readouterr()
    figure = ["--figure", "validation_success_rate", "--reach", "0.001", "--out", "a.png"]
    assert main(["research.figures", "--packs", str(folder), *figure]) == 0
    assert "episodes to 0.001, median" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("figure", ["effects", "success", "validation_success_rate"])
def test_figures_are_drawn_again_to_the_byte(figure: str, runs: list[str]) -> None:
    folder = pack(*runs, "--title", "Three seeds", *PAIRS)
    pictures = []
    for name in ("a.png", "b.png"):
        assert main(["research.figures", "--packs", str(folder), "--figure", figure, "--out", name]) == 0
        pictures.append(Path(name).read_bytes())
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.5, 9, "helps"),
        (-0.5, 9, "unclear"),
        (-9, -1, "harms"),
        (-9, 1, "unclear"),
        (0.1, 3, "helps, by less than 3 points"),
        (-2, -1, "harms, by less than 3 points"),
        (0.1, 3.1, "helps"),
        (-3.1, -1, "harms"),
        (-3, 3, "equivalent"),
        (-3.1, 3, "unclear"),
        (-1, 3.1, "unclear"),
    ],
)
def test_a_verdict_follows_the_interval_except_of_two_seeds(low: float, high: float, word: str) -> None:
    assert Effect("t", "a", "b", "success", "full", 0, low, high, 5, 9).word == word
    assert Effect("t", "a", "b", "success", "full", 0, low, high, 2, 9).word == "unclear"


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1, 9, "above 0, one seed"),
        (-9, -4, "below 0, one seed"),
        (-3, 3, "near 0, one seed"),
        (-3.1, 3, "unclear"),
        (0, 9, "unclear"),
    ],
)
def test_one_seed_neither_helps_nor_harms(low: float, high: float, word: str) -> None:
    """The search's seed of taxi-maps was 9 points below 0, and the next two were 4 and 18 above."""
    assert Effect("t", "a", "b", "success", "full", 0, low, high, 1, 9).word == word


def test_the_table_goes_into_a_page(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = pack(*runs, "--title", "Three seeds", *PAIRS)
    Path("page.md").write_text("before\n<!-- effects -->\nold\n<!-- end of effects -->\nafter\n")
    command = ["research.figures", "--packs", str(folder), "--out", "a.png", "--page", "page.md"]
    assert main(command) == main(command) == 0
    text = Path("page.md").read_text()
    assert text.startswith("before\n<!-- effects -->\n\n| experiment | first − second |")
    assert text.endswith("|\n\n<!-- end of effects -->\nafter\n")
    assert text.count("Three seeds | ours − random") == 1
    Path("page.md").write_text("nothing")
    capsys.readouterr()
    assert "has no <!-- effects -->" in error_of(command, capsys)


@pytest.mark.parametrize("name", ["evaluation/episodes.jsonl", "ours-rl/metrics.jsonl"])
def test_a_file_that_its_run_did_not_write_is_not_packed(
    name: str, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut at a line's end, it can be read; the run's report tells."""
    path = Path(runs[0]) / name
    write_json(path.parent / "report.json", {"outputs": {f"elsewhere/{path.name}": digest(path)}})
    pack(runs[0], "--title", "Whole")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert "is not what the run wrote" in error_of(["research.pack", runs[0], "--out", "packed", *CURVES], capsys)


def test_damage_is_one_line(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = pack(*runs[:2], "--title", "Two seeds", *PAIRS)
    command = ["research.figures", "--packs", str(folder), "--out", "a.png"]
    capsys.readouterr()
    file = folder / "seed-1.jsonl.gz"
    whole, index = file.read_bytes(), read_json(folder / "pack.json")
    for damaged, message in (
        (whole[:-20], "is damaged"),
        (b"not gzip", "is damaged"),
        (whole[:40] + b"\0\0\0\0" + whole[44:], "is damaged"),
        (gzip.compress(gzip.decompress(whole).replace(b"true", b"false", 1)), "its checksum is not the one"),
    ):
        file.write_bytes(damaged)
        assert message in error_of(command, capsys)
    file.unlink()
    assert "no such file, but pack.json names it" in error_of(command, capsys)
    file.write_bytes(whole)
    for change, field in (
        ({"format": 2}, "not the index of a pack"),
        ({"title": 3}, "title"),
        ({"comparisons": [["a"]]}, "comparisons"),
        ({"files": {"../seed-0.jsonl.gz": "x"}}, "files"),
    ):
        write_json(folder / "pack.json", index | change)
        assert field in error_of(command, capsys)
    (folder / "pack.json").write_text("{")
    assert "not JSON" in error_of(command, capsys)
    assert "no such file" in error_of(["research.figures", "--packs", "nowhere"], capsys)


def test_a_line_that_is_no_episode_is_named(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    folder = pack(runs[0], "--title", "One seed", *PAIRS)
    capsys.readouterr()
    episode = json.loads(gzip.decompress((folder / "seed-0.jsonl.gz").read_bytes()).splitlines()[0])
    curve = {"curve": "a", "figure": "f", "episodes": [1, 2], "values": [0, 0]}
    for line in (
        "[]",
        "{",
        json.dumps(curve | {"episodes": [2, 1]}),
        json.dumps(curve | {"values": [10**400, 0]}),
        json.dumps(curve | {"values": [1e308, 1e308]}),
        '{"steps": -1}',
        json.dumps(episode | {"return": 10**400}),
        json.dumps(episode | {"steps": 1.5}),
        json.dumps(episode | {"status": "winning"}),
        json.dumps(episode | {"figures": [1]}),
        json.dumps(episode | {"figures": {"tokens": "many"}}),
    ):
        content = f"{line}\n".encode()
        (folder / "seed-0.jsonl.gz").write_bytes(gzip.compress(content))
        index = read_json(folder / "pack.json")
        write_json(folder / "pack.json", index | {"files": {"seed-0.jsonl.gz": hashlib.sha256(content).hexdigest()}})
        assert "seed-0.jsonl.gz:1: is neither" in error_of(["research.figures", "--packs", str(folder)], capsys)


def test_two_curves_of_one_arm_are_an_error(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Areas are compared by the arm's name, so each seed has one curve of it, all of the same figure."""
    error = error_of(
        ["research.pack", *runs, "--out", "p", "--title", "T", "--curve", "a=ours-rl", "--curve", "a=plain-rl"], capsys
    )
    assert "there is a curve 'a' already" in error
    curve = Curve("a", "f", (1, 2), (0.0, 1.0))
    write_pack(tmp_path / "twice", Pack("T", (), {0: Seed((), (curve, replace(curve, figure="g")))}))
    with pytest.raises(DataError, match="has two curves of 'a'"):
        read_pack(tmp_path / "twice")
    write_pack(tmp_path / "apart", Pack("T", (), {0: Seed((), (curve,)), 1: Seed((), (replace(curve, figure="g"),))}))
    with pytest.raises(DataError, match="curves of f and of g"):
        read_pack(tmp_path / "apart")


def test_a_player_is_not_compared_with_itself(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of(["research.pack", *runs, "--out", "p", "--title", "T", "--compare", "ours - ours"], capsys)
    assert "compares a player with itself" in error
    write_pack(tmp_path, Pack("T", (("ours", "ours"),), {0: Seed()}))
    with pytest.raises(DataError, match="pairs of different names"):
        read_pack(tmp_path)


def test_episodes_without_a_seed_can_be_packed_again(tmp_path: Path) -> None:
    episode = {"name": "a", "level": "full", "task": "t", "cluster": "t", "status": "completed"}
    write_pack(tmp_path, Pack("T", (), {0: Seed((episode | {"success": True, "return": 1.0},))}))
    before = (tmp_path / "seed-0.jsonl.gz").read_bytes()
    write_pack(tmp_path, read_pack(tmp_path))
    assert (tmp_path / "seed-0.jsonl.gz").read_bytes() == before


def test_a_file_cannot_fill_the_memory(tmp_path: Path) -> None:
    episode = {"name": "a", "level": "full", "task": "t", "cluster": "t", "seed": 0, "status": "completed"}
    episode |= {"success": True, "return": 1, "steps": MOST_STEPS}
    content = f"{json.dumps(episode)}\n".encode()
    for count, message in ((1, ""), (2, "seed-0.jsonl.gz:2: has more than 10,000,000 steps")):
        (tmp_path / "seed-0.jsonl.gz").write_bytes(gzip.compress(count * content))
        files = {"seed-0.jsonl.gz": hashlib.sha256(count * content).hexdigest()}
        write_json(tmp_path / "pack.json", {"format": 1, "title": "T", "comparisons": [], "files": files})
        if message:
            with pytest.raises(DataError, match=message):
                read_pack(tmp_path)
        else:
            assert len(read_pack(tmp_path).seeds[0].episodes[0]["turns"]) == MOST_STEPS


def test_whole_numbers_stay_whole_when_a_seed_is_added(tmp_path: Path) -> None:
    episode = {"name": "a", "env": "taxi", "level": "full", "task": "t", "cluster": "t", "seed": 0, "turns": [{}]}
    episode |= {"status": "completed", "success": True, "return": 1, "figures": {"tokens": 3}, "unfit": True}
    write_pack(tmp_path, Pack("T", (), {0: Seed((episode,))}))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_pack(tmp_path, merged(read_pack(tmp_path), Pack("")))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_curves_are_paired_by_seed() -> None:
    """Seed 1 alone has both, without a difference; a seed without a partner does not count."""
    heights = {0: {"a": 0.0}, 1: {"a": 0.5, "b": 0.5}, 2: {"b": 1.0}}
    seeds = {
        number: Seed((), tuple(Curve(name, "f", (1, 2), (value, value)) for name, value in some.items()))
        for number, some in heights.items()
    }
    apart, alike = Pack("T", (), seeds), Pack("T", (), {1: seeds[1], 2: seeds[1]})
    assert (same_seeds(apart, "f"), same_seeds(alike, "f")) == (False, True)
    both = curve_figures(curves(apart, "f"), 0.9, same_seeds=False)["b"]
    assert "difference" not in both
    assert curve_figures(curves(alike, "f"), 0.9)["b"]["difference"] == 0


def test_one_figure_of_curves_in_a_pack_and_titles_apart(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pack(runs[0], "--title", "Mine")
    command = ["research.pack", runs[1], "--out", "packed", *CURVES, "--figure", "step"]
    assert "packed would have curves of step and of validation_success_rate" in error_of(command, capsys)
    assert "another pack has the title 'Mine'" in error_of(["research.figures", *2 * ["--packs", "packed"]], capsys)


def test_a_long_name_is_cut_in_figures() -> None:
    assert len(_shown("x" * 10_000)) == LONGEST_NAME
    assert _shown("$a\nb$") == "$a b$"


def test_levels_are_named_where_there_are_several() -> None:
    some = Effect("one", "a", "b", "success", "full", 1.0, 0.0, 2.0, 1, 9)
    several = [replace(some, experiment="two", level=level) for level in ("short", "long")]
    areas = [replace(some, measure="area", level="", seeds=seeds) for seeds in (1, 2, 3)]
    groups = forest_groups([some, *areas, *several])
    assert [row.label for row in groups["one"]] == ["a − b", "a − b, area"]
    assert [row.label for row in groups["two"]] == ["a − b, short", "a − b, long"]


def test_players_stand_by_stage_in_the_order_of_the_curves() -> None:
    """Evaluations are read by the names of their folders, which would put dagger first and plain third."""
    names = [row["name"] for row in success_rows(read_pack(PUBLISHED / "taxi-maps"))]
    arms = ["plain", "asymmetric", "symmetric", "shuffled", "warm", "wrong-10", "wrong-20", "wrong-40", "dagger"]
    assert names[:9] == arms
    assert names[9:18] == [f"{arm}, SFT" for arm in arms]
    assert names[18:] == [f"wrong-{share}, trained on right" for share in (10, 20, 40)]


def test_the_first_comparisons_are_drawn_and_all_are_in_the_table(tmp_path: Path) -> None:
    pages = []
    for first in (0, 1):
        page, drawn = tmp_path / f"{first}.md", tmp_path / f"{first}.svg"
        page.write_text("<!-- effects -->\n<!-- end of effects -->\n")
        draw_packs([PUBLISHED / "taxi-self"], "effects", drawn, page, first=first)
        pages.append(page.read_text())
        assert "<!-- round 1 − few -->" in drawn.read_text("utf-8")
        assert ("<!-- round 2 − few -->" in drawn.read_text("utf-8")) == (first == 0)
    assert pages[0] == pages[1]
    assert "| round 2 − few |" in pages[0]


def test_a_figure_called_area_is_none() -> None:
    """Of an env's figure, the level is told; only an area has none, and a mark of its own."""
    below = Effect("one", "a", "b", "area", "", 1.0, 0.0, 2.0, 5, 0)
    figure = replace(below, level="full", problems=9)
    assert [row[2] for row in effects_table([below, figure]).rows] == ["area", "area, full"]
    assert [one.is_area for one in (below, figure)] == [True, False]


@pytest.mark.parametrize(
    ("names", "axis"),
    [("memory", "accuracy, %"), ("tools", "success, %"), ("memory tools", "success, or what is named, %")],
)
def test_the_axis_names_what_the_packs_measure(names: str, axis: str, tmp_path: Path) -> None:
    drawn = tmp_path / "players.svg"
    draw_packs([PUBLISHED / name for name in names.split()], "success", drawn)
    assert f"<!-- {axis} -->" in drawn.read_text("utf-8")


def test_refused(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    new = ["research.pack", runs[0], "--out", "new"]
    titled = [*new, "--title", "T"]
    for arguments, message in (
        (["research.pack", "--out", "new"], "at least one run"),
        (new, "is a new pack; give it a --title"),
        ([*titled, "--compare", "ours"], "write 'FIRST - SECOND'"),
        ([*titled, "--compare", "ours - nobody"], "no player 'nobody'; there are ours"),
        ([*titled, "--curve", "ours"], "write NAME=RUN"),
        ([*titled, "--curve", "ours=nothing"], "no such file"),
        ([*titled, runs[0]], "has seed 0, as another of the folders"),
        (["research.pack", ".", "--out", "new", "--title", "T"], "no episodes.jsonl here"),
        (["research.figures"], "figures needs --packs"),
        (["research.figures", "--packs", "a", "--figure", "success", "--page", "x.md"], "--page does not change"),
        (["research.figures", "--packs", "a", "--figure", "success", "--first", "2"], "--first does not change"),
        (["research.figures", "--packs", "a", "--figure", "success", "--reach", "0.5"], "--reach does not change"),
    ):
        assert message in error_of(arguments, capsys)


def test_what_is_published_says_what_the_pages_say() -> None:
    """The tables of research/results.md, and the table of effects in research/what-we-found.md."""
    rows = {row["name"]: row for row in success_rows(read_pack(PUBLISHED / "auto-explore-smollm2"))}
    shown = {
        name: f"{100 * row['success']:.1f} % | {100 * row['low']:.0f} to {100 * row['high']:.0f} %"
        for name, row in rows.items()
    }
    results = (ROOT / "research/results.md").read_text("utf-8")
    for name, line in (
        ("SFT", "| SFT | {} | 5.1 |"),
        ("Base", "| base model, untrained | {} | 3.2 |"),
        ("SFT with reflection", "| SFT with reflection, its own reflector | {} | 3.9 |"),
        ("Reflect-RL", "| Reflect-RL | {} | 2.1 |"),
    ):
        assert line.format(shown[name]) in results
    assert shown["SFT with teacher"] == "85.0 % | 74 to 92 %"
    tools = {(row["name"], row["level"]): row for row in success_rows(read_pack(PUBLISHED / "tools"))}
    for name in ("SFT", "SFT with reflection", "SFT with teacher", "SFT with nothing", "SFT with shuffled"):
        cells = [tools[name, level] for level in ("one", "several", "refuse")]
        line = " | ".join(
            f"{100 * row['success']:.1f} % ({100 * row['low']:.0f} to {100 * row['high']:.0f})" for row in cells
        )
        assert f"| {line} |" in results, line
    page = (ROOT / "research/what-we-found.md").read_text("utf-8")
    for folder in sorted(path for path in PUBLISHED.iterdir() if path.is_dir()):
        for one in effects(read_pack(folder)):
            row = f"| {one.experiment} | {one.first} − {one.second} | "
            assert any(
                line.startswith(row) and f" {round(one.difference, 1) + 0.0:+.1f} " in line
                for line in page.splitlines()
            ), row
    assert sum(path.stat().st_size for path in PUBLISHED.rglob("*")) < 20_000_000


def test_figures_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom reflectkit.cli.main import main\n"
        f"pack = {str(PUBLISHED / 'auto-explore-smollm2')!r}\n"
        "assert main(['research.figures', '--packs', pack, '--out', 'a.png']) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert json.loads((tmp_path / "results/1_figures/report.json").read_text())["figures"]


def test_many_groups_stand_in_columns(tmp_path: Path) -> None:
    """In their order, none torn apart, and in no more columns than the rows need."""
    groups = {f"experiment {number}": [Interval("a − b", 1.0, -1.0, 2.0)] * (3 + number) for number in range(12)}
    rows = {title: 1 + len(some) for title, some in groups.items()}
    columns = in_columns(rows)
    assert [title for column in columns for title in column] == list(groups)
    assert [sum(rows[title] for title in column) for column in columns] == [39, 33, 42]
    assert in_columns({"one": 200}) == [["one"]]
    assert len(in_columns({str(number): 9 for number in range(500)})) == MOST_COLUMNS
    draw_intervals(groups, "points", tmp_path / "many.png", band=3.0, legend="a legend")
    width, height = Image.open(tmp_path / "many.png").size
    assert height <= TALLEST
    assert width > height, "wide enough to be read"


def with_figures(episodes: Sequence[Mapping[str, Any]], scale: float = 1.0) -> tuple[dict[str, Any], ...]:
    """Each episode's success once more as the figure "accuracy", times `scale`."""
    return tuple({**one, "figures": {"accuracy": scale * one["success"], "tokens": 9.0}} for one in episodes)


def test_a_figure_can_be_compared_instead_of_success(runs: list[str], tmp_path: Path) -> None:
    """Half of success: half of the differences; by seed, and with one seed."""
    folder = pack(*runs, "--title", "T", *PAIRS)
    plain = read_pack(folder)
    for chosen in (list(plain.seeds), list(plain.seeds)[:1]):
        seeds = {number: plain.seeds[number] for number in chosen}
        halves = {number: Seed(with_figures(seed.episodes, 0.5), seed.curves) for number, seed in seeds.items()}
        whole, half = effects(replace(plain, seeds=seeds)), effects(replace(plain, seeds=halves, measure="accuracy"))
        assert [one.measure for one in half] == [one.measure.replace("success", "accuracy") for one in whole]
        for one, other in zip(half, whole, strict=True):
            factor = 0.5 if one.measure == "accuracy" else 1.0
            assert one.difference == pytest.approx(factor * other.difference)
            assert one.low < one.difference < one.high
    write_pack(tmp_path / "half", replace(plain, seeds=halves, measure="accuracy"))
    assert read_pack(tmp_path / "half").measure == "accuracy"
    assert main(["research.figures", "--packs", str(tmp_path / "half"), "--out", "half.svg"]) == 0
    assert "ours − random, accuracy" in Path("half.svg").read_text("utf-8")
    assert (
        main(["research.figures", "--packs", str(tmp_path / "half"), "--figure", "success", "--out", "players.svg"])
        == 0
    )
    assert "T: accuracy" in Path("players.svg").read_text("utf-8")


def test_what_is_compared_is_a_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        folder = made(tmp_path / f"seed{seed}", seed)
        for path in folder.glob("*/episodes.jsonl"):
            write_jsonl(path, with_figures([row for _, row in read_jsonl(path)]))
    command = ["research.pack", "seed0", "--out", "p", "--title", "T", "--compare", "ours - random"]
    assert "seed 0 has no figure 'wit'; there are accuracy, tokens" in error_of([*command, "--measure", "wit"], capsys)
    assert "'tokens' is no share" in error_of([*command, "--measure", "tokens"], capsys)
    assert main([*command, "--measure", "accuracy"]) == 0
    assert main(["research.pack", "seed1", "--out", "p"]) == 0
    assert (read_pack(Path("p")).measure, len(read_pack(Path("p")).seeds)) == ("accuracy", 2)
    index = read_json(Path("p/pack.json"))
    for wrong, message in ((5, "name of a figure"), ("tokens", "'tokens' is no share"), ("wit", "no figure 'wit'")):
        write_json(Path("p/pack.json"), index | {"measure": wrong})
        assert message in error_of(["research.figures", "--packs", "p"], capsys)
