"""claim: a whole seed of the smallest world, killed on the way; the gate, the test and the rule by hand."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reflectkit.envs import env_class
from reflectkit.envs.auto_explore.env import AutoExplore
from reflectkit.envs.taxi import Taxi
from reflectkit.jsonl import read_json, read_jsonl
from research.claim.__main__ import PILOT_ARMS, complete, passed, run, seed_of, size_of, sized, table
from research.claim.arms import ARMS, Seed
from research.claim.figure import draw
from research.claim.verdict import SOUGHT, Gate, area, compare, power, seeds_needed, verdict
from research.claim.worlds import WORLDS, World, obey_explore, obey_taxi
from tests.explore import explore_task, write_repository
from tests.kill import fork_killed_at

ROOT = Path(__file__).parents[2]

RUN = ["--world", "corridor", "--seeds", "1"]
EQUAL = ("plain", "pair", "think", "others", "typed")
CORRIDOR = WORLDS["corridor"]


def called(arguments: list[str]) -> int:
    """The exit code of the runner."""
    run(arguments)
    return 0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one seed has run, and was killed three times."""
    folder = tmp_path_factory.mktemp("claim")
    fork_killed_at(["sft-policy/report.json:1", "rl-others/checkpoint-1:1", "longer.json:1"], RUN, folder, called)
    return folder


@pytest.fixture(scope="module")
def records(place: Path) -> Mapping[str, Any]:
    """What it kept."""
    return {path.stem: read_json(path) for path in place.glob("research/experiments/claim/corridor/1/*.json")}


def rows(place: Path, file: str) -> list[Mapping[str, Any]]:
    """The lines of a file."""
    return [row for _, row in read_jsonl(place / file)]


def settings(place: Path, name: str) -> Mapping[str, Any]:
    """Those of a command."""
    return dict(read_json(place / "results/claim/corridor-1" / name / "config.json")["settings"])


def test_a_killed_seed_goes_on_and_repeats_nothing(place: Path, records: Mapping[str, Any]) -> None:
    assert set(records) == {*ARMS, "sft", "untrained"}
    begun = re.findall(r"corridor-1: (\S+)\n", (place / "output.txt").read_text())
    again = {name for name in begun if begun.count(name) > 1}
    assert again == {"sft-policy", "rl-others", "rl-plain"}, "of these, two were killed, and the last is continued"
    assert begun.count("evaluation-plain") == 1


def test_the_arms_have_equal_data_and_updates(place: Path, records: Mapping[str, Any]) -> None:
    for name in ("demonstrations", "sft_updates", "updates", "episodes", "code", "settings", "processor"):
        assert len({records[arm][name] for arm in EQUAL}) == 1, name
    assert (records["pair"]["demonstrations"], records["pair"]["updates"], records["pair"]["episodes"]) == (3, 2, 8)
    data = "data/claim/corridor-1"
    states = {
        file: {re.split("\nReflection:|\nActions:", row["prompt"])[0] for row in rows(place, f"{data}/{file}")}
        for file in ("rows/sft.jsonl", "rows-both/sft_policy.jsonl", "rows/sft_think.jsonl")
    }
    assert len({frozenset(seen) for seen in states.values()}) == 1, "all policies learn from the same states"
    trained = {arm: settings(place, f"rl-{arm}") for arm in ("taught", "pair", "think", "others", "typed")}
    for name in ("learning_rate", "algo", "epochs", "minibatch", "episodes", "schedule"):
        assert len({str(each[name]) for each in trained.values()}) == 1, name
    assert [trained[arm]["max_steps"] for arm in trained] == [1, 1, 2, 1, 2], "the teacher's update counts"


def test_the_longer_arm_takes_the_pairs_tokens(records: Mapping[str, Any]) -> None:
    plain, pair, longer = (records[arm]["tokens"] for arm in ("plain", "pair", "longer"))
    assert set(pair) == {"sft-policy", "sft-reflector", "rl-taught", "rl-pair"}
    updates = round(2 * (sum(pair.values()) - plain["sft-plain"]) / plain["rl-plain"])
    assert records["longer"]["updates"] == updates > 2
    assert longer["rl-plain"] > plain["rl-plain"]


def test_a_typed_reflector_is_read_and_counted(place: Path, records: Mapping[str, Any]) -> None:
    typed = records["typed"]
    assert set(typed["tokens"]) == {"sft-policy-typed", "sft-reflector-typed", "rl-typed"}
    assert all(tokens > 0 for tokens in typed["tokens"].values())
    assert set(typed["success"]) == {"typed", "typed, on other states"}
    assert "typed, SFT" in records["sft"]["success"]
    states = {row["prompt"] for row in rows(place, "data/claim/corridor-1/rows-typed/sft_typed.jsonl")}
    trained = settings(place, "sft-reflector-typed")
    assert (trained["typed"], trained["max_steps"], len(states) > 1) == (True, 3, True)
    comments = rows(place, "data/claim/corridor-1/rows-own-typed/comments.jsonl")
    assert all(row["completion"].lstrip().startswith("likely: ") for row in comments)
    for turn in (
        turn for row in rows(place, "results/claim/corridor-1/evaluation-typed/episodes.jsonl") for turn in row["turns"]
    ):
        assert turn["reflection"].startswith("likely: ")


def test_mismatched_comments_are_those_of_other_states(place: Path) -> None:
    played = rows(place, "results/claim/corridor-1/evaluation-elsewhere/episodes.jsonl")
    for episode in played:
        cell = int(episode["task"].rpartition("-")[2])
        for turn in episode["turns"]:
            told = re.search(r"(\d) cell", turn["reflection"])
            assert told
            assert int(told[1]) != 6 - cell
            cell = max(0, cell + (1 if turn["action"] == 1 else -1))
    own = "data/claim/corridor-1/rows-own/comments.jsonl"
    reflector = rows(place, "data/claim/corridor-1/rows/sft_reflection.jsonl")
    assert {row["prompt"] for row in rows(place, own)} <= {row["prompt"] for row in reflector}
    for name in ("rl-others", "evaluation-others"):
        used = settings(place, name)
        assert (used["swap_comments"], used["swap_from"]) == (1.0, own)
    assert settings(place, "rl-pair")["swap_comments"] == 0


def test_nothing_is_compared_before_all_seeds_are_in(
    place: Path, records: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    run([*RUN, "--table"])
    shown = capsys.readouterr().out
    assert "Complete seeds: 1 of 2\n\nNothing is compared before all are complete." in shown
    assert "pair − plain" not in shown
    more = replace(CORRIDOR, fewest_seeds=10)
    assert "Complete seeds: 1 of 10" in table({1: records}, more), "more than the pilot says"
    unequal = {1: {**records, "think": records["think"] | {"updates": 3}}}
    with pytest.raises(SystemExit, match="differ in updates"):
        complete(unequal, CORRIDOR)
    assert "No seed is complete." in table({1: {"plain": records["plain"]}}, CORRIDOR)


def test_the_figure_is_the_same_bytes_again(
    place: Path, records: Mapping[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [tmp_path / name for name in ("a.png", "b.png")]
    for picture in pictures:
        draw({1: records}, CORRIDOR, picture)
    assert pictures[0].read_bytes() == pictures[1].read_bytes() != b""
    monkeypatch.chdir(place)
    for arguments, error in ((RUN, "before all seeds are complete"), (["--world", "taxi-typed"], "before all")):
        with pytest.raises(SystemExit, match=error):
            run([*arguments, "--figure", "c.png"])


def test_an_arm_needs_the_code_of_the_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("research.claim.arms.code_digest", lambda: "other")
    (place / "research/experiments/claim/corridor/1/typed.json").rename(place / "typed.json")
    with pytest.raises(SystemExit, match="and this is other; finish it there"):
        run([*RUN, "--arms", "typed"])
    (place / "typed.json").rename(place / "research/experiments/claim/corridor/1/typed.json")
    with pytest.raises(SystemExit):
        run(["--world", "taxi", "--arms", "typed"])


def piloted(*curves: tuple[float, ...]) -> dict[str, Any]:
    """The records of a seed: a curve for each arm of the pilot, with a point every 128 episodes."""
    return {
        arm: {"curve": [(128 * x, y) for x, y in enumerate(curve)]}
        for arm, curve in zip(PILOT_ARMS, curves, strict=True)
    }


def test_the_kept_results_are_of_the_settings_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the claim could not go on."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(Seed, "play", None)  # nothing may be trained here
    world = sized("taxi", passed("taxi", WORLDS["taxi"]))
    for seed in range(1, 8):
        assert seed_of("taxi", world, seed).kept("pair")


def test_the_pilot_fixes_the_size() -> None:
    """Plain rises by 20 points: by 16 at the third update. There, the difference deviates by 10 points."""
    world = replace(WORLDS["taxi"], episodes=128, most_seeds=20)
    plain = (0.5, 0.55, 0.61, 0.66, 0.7)
    gains = (-0.1, 0.0, 0.1)
    records = {seed: piloted(plain, tuple(y + gain for y in plain)) for seed, gain in enumerate(gains)}
    found = size_of(world, records)
    assert found
    assert (found.updates, found.seeds) == (3, seeds_needed(0.1)) == (3, 15)
    flat = {seed: piloted((0.9, 0.92, 0.95), (0.9, 0.92, 0.95)) for seed in range(3)}
    assert size_of(world, flat) is None, "a rise of 5 points is too little"
    wide = {seed: piloted(plain, tuple(y + 4 * gain for y in plain)) for seed, gain in enumerate(gains)}
    assert size_of(world, wide) == replace(world, updates=3, seeds=20), "no more than the most"


def test_the_first_try_that_passes_the_gate_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def seed_of(name: str, world: World, number: int) -> Any:
        tried.append((world.demonstrations, number))
        follows = 0.95 if world.demonstrations == 40 else 0.5 + number / 1000
        return SimpleNamespace(kept=lambda record: False, gate=lambda: Gate(1.0, follows, 0.1))

    monkeypatch.setattr("research.claim.__main__.seed_of", seed_of)
    tries = ({"demonstrations": 20}, {"demonstrations": 40, "taught": 5}, {"demonstrations": 80})
    world = replace(WORLDS["taxi"], tries=tries)
    assert passed("taxi", world) == replace(world, demonstrations=40, taught=5)
    assert tried == [(count, seed) for count in (20, 40) for seed in (90, 91, 92)]
    with pytest.raises(SystemExit, match="not passed by any try"):
        passed("taxi", replace(world, tries=tries[:1]))


def outcomes(*gains: float) -> list[dict[str, float]]:
    """Seeds with 100 problems each, of which an arm solves half and so many points more."""
    return [{str(problem): float(problem < 50 + gain) for problem in range(100)} for gain in gains]


@pytest.mark.parametrize(
    ("gains", "word"),
    [
        ((9, 11, 10), "helps"),
        ((1, 2, 3), "does not help"),  # 2, -0.5 to 4.5
        ((-5, -6, -7), "does not help"),
        ((1, 4, 7), "undecided"),  # 4, -3.5 to 11.5
    ],
)
def test_the_rule(gains: tuple[float, ...], word: str) -> None:
    assert verdict(compare(outcomes(*gains), outcomes(*[0] * len(gains)))) == word


def test_the_test_is_paired_by_problem_and_clustered_by_seed() -> None:
    """Student's t with 2 degrees of freedom: 4.303 times 3 / sqrt(3) is 7.45."""
    found = compare(outcomes(1, 4, 7), outcomes(0, 0, 0))
    assert (found.seeds, found.problems) == (3, 300)
    ends = found.low, found.difference, found.high
    assert ends == pytest.approx((-0.0345, 0.04, 0.1145), abs=1e-4)
    with pytest.raises(ValueError, match="different problems"):
        compare(outcomes(0), [{"0": 1.0}])


@pytest.mark.parametrize(
    ("gate", "holds"),
    [((1.0, 0.9, 0.6), True), ((1.0, 0.89, 0.0), False), ((1.0, 0.95, 0.66), False), ((0.5, 0.45, 0.15), True)],
)
def test_the_gate(gate: tuple[float, float, float], holds: bool) -> None:
    assert Gate(*gate).holds is holds


def test_power_and_area() -> None:
    assert power(0.11, 10, 0.0) == pytest.approx(0.05)
    assert power(0.11, 16) < 0.8 <= power(0.11, 17)
    assert (seeds_needed(0.11), seeds_needed(10.0), SOUGHT) == (17, None, 0.08)
    assert area([(0, 0.2), (10, 0.4), (30, 0.4)]) == pytest.approx((0.3 * 10 + 0.4 * 20) / 30)
    assert area([(0, 0.2), (10, 0.4), (30, 0.6)], 10) == pytest.approx(0.5)


def test_a_comment_on_the_taxi_can_be_obeyed() -> None:
    chance = random.Random(0)
    env = Taxi()
    for task in env_class("taxi").taskset.tasks("full")[::7]:
        seen, over = env.reset(task, 0), False
        while not over:
            action = obey_taxi(seen, env.teacher().comment(chance))
            assert action in env.map.best(env.state)
            wandering = chance.random() < 0.3 and env.teacher().mistakes()
            result = env.step(chance.choice(env.teacher().mistakes()) if wandering else action)
            seen, over = result.observation, result.terminated


def test_a_searchers_comment_can_be_obeyed(tmp_path: Path) -> None:
    env = AutoExplore(repos_dir=write_repository(tmp_path), searching_teacher=True)
    seen, over = env.reset(explore_task("app/rules/fees.py"), 0), False
    while not over:
        action = env.teacher().action()
        assert obey_explore(seen, env.teacher().comment(random.Random(0))) == action
        result = env.step(action)
        seen, over = result.observation, result.terminated
