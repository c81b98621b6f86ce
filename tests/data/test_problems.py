"""Where problems come from without a file, what is held out, and splits by hand."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectkit.commands.split import SplitConfig, split_weighted
from reflectkit.data.problems import (
    Problems,
    Record,
    apportion,
    read_records,
    record_to_json,
    split_groups,
)
from reflectkit.env import ChoiceEnv
from reflectkit.envs import RECORDS, env_class
from reflectkit.envs.adapters.program import ProgramSettings
from reflectkit.envs.setup import EnvSetup
from reflectkit.errors import ConfigError, DataError
from reflectkit.jsonl import write_json
from reflectkit.types import Task


class Guess(ChoiceEnv):
    """Guess the side of a coin that the seed tosses; it is not shown before the end."""

    name = "guess"
    choices = ("heads", "tails")

    def _begin(self, task: Task, seed: int) -> None:
        self.side, self.text = random.Random(seed).randrange(2), "Guess."

    def _move(self, action: int) -> tuple[float, bool, dict[str, Any]]:
        return float(action == self.side), True, {}

    def _text(self) -> str:
        return self.text


class OneSided(Guess):
    """Always heads."""

    def _begin(self, task: Task, seed: int) -> None:
        super()._begin(task, 0)


class Safe:
    """A tool whose argument a random call does not hit; what the seed draws is not shown."""

    def reset(self, seed: int) -> str:
        self.word = random.Random(seed).choice(("red", "blue"))
        return "Open the safe."

    def open(self, word: str) -> str:
        """Open it.

        Args:
            word: The word.
        """
        return {"red": "hot", "blue": "cold"}[word]

    def get_reward(self) -> float:
        return 0.0


class Unseeded:
    """Each instance draws from a generator of its own."""

    choices = ("left", "right")

    def __init__(self) -> None:
        self.generator = random.Random(7)

    def reset(self) -> str:
        return f"The coin shows {self.generator.randrange(1000)}."

    def step(self, choice: str) -> tuple[str, float, bool]:
        return "Over.", 1.0, True


def problems(env: str, folder: Path) -> Problems:
    return Problems(EnvSetup(env, folder))


def test_an_own_list_is_divided_by_group_alike_at_each_level(tmp_path: Path) -> None:
    taxi = problems("taxi", tmp_path)
    split_of_group: dict[str, str] = {}
    for level in ("pickup", "full"):
        counts = {split: len(taxi.tasks(split, level)) for split in ("train", "validate", "test")}
        assert counts == {"train": 210, "validate": 60, "test": 30}
        assert taxi.holds_out(level)
        for split in counts:
            for task in taxi.tasks(split, level):
                assert split_of_group.setdefault(task.group, split) == split
    dropoff = [{task.id for task in taxi.tasks(split, "dropoff")} for split in ("train", "test")]
    assert dropoff[0] == dropoff[1]
    assert not taxi.holds_out("dropoff")


def test_an_env_without_a_list_has_a_problem_for_each_seed(tmp_path: Path) -> None:
    own = problems(f"{__name__}:Guess", tmp_path)
    tasks = [own.tasks(split, "all") for split in ("train", "validate", "test")]
    assert [len(part) for part in tasks] == [1000, 100, 100]
    assert len({task.id for part in tasks for task in part}) == 1200
    env: Any = own.setup.make(None)
    sides = []
    for task in tasks[2][:20]:
        env.reset(task, random.randrange(99))
        sides.append(env.side)
    assert sides == [random.Random(2_000_000 + place).randrange(2) for place in range(20)]


def test_training_has_a_problem_for_each_seed_without_an_end(tmp_path: Path) -> None:
    own = problems(f"{__name__}:Guess", tmp_path)
    assert [task.data["seed"] for task in own.dealt("all", 3)] == list(range(3000, 4000))
    held_out = {task.id for split in ("validate", "test") for task in own.tasks(split, "all", seeds=5000)}
    trained = {task.id for turn in (1, 998, 999, 1000) for task in own.dealt("all", turn)}
    assert len(trained) == 3000  # turn 1000 begins again
    assert not trained & held_out
    with pytest.raises(ConfigError, match="1,000,001"):
        own.tasks("test", "all", seeds=1_000_001)
    assert not problems("taxi", tmp_path).is_endless("full")


def test_after_a_split_training_goes_on_with_seeds_of_no_split(tmp_path: Path) -> None:
    name = f"{__name__}:Guess"
    tasks = problems(name, tmp_path).tasks("train", "all")
    for split, part in (("train", tasks[:300:2]), ("validate", tasks[1:40:2]), ("test", tasks[300:310])):
        write_json(tmp_path / "guess" / f"{split}.json", [record_to_json(Record(task, ())) for task in part])
    own = problems(name, tmp_path)
    assert own.tasks("train", "all") == tasks[:300:2]
    assert [task.data["seed"] for task in own.dealt("all", 2)] == list(range(460, 610))
    given = Problems(own.setup, {"train": tmp_path / "guess" / "train.json"})
    assert given.dealt("all", 2) == tasks[:300:2]  # a file that the user names has all there are


def test_an_ignored_seed_is_noticed_and_a_hidden_state_is_not_mistaken_for_it(tmp_path: Path) -> None:
    assert problems(f"{__name__}:Guess", tmp_path).holds_out("all")
    safe = f"{__name__}:Safe"
    assert Problems(EnvSetup(safe, tmp_path, env_class(safe).Settings())).holds_out("all")
    assert not problems(f"{__name__}:OneSided", tmp_path).holds_out("all")
    assert not problems(f"{__name__}:Unseeded", tmp_path).holds_out("all")
    assert Problems(EnvSetup("program:no-such-program {seed}", tmp_path, ProgramSettings())).holds_out("all")


def test_files_of_splits_come_first_and_problems_that_gen_task_makes_are_required(tmp_path: Path) -> None:
    write_json(tmp_path / "taxi" / "train.json", [])
    with pytest.raises(DataError, match="reflectkit split"):
        problems("taxi", tmp_path).tasks("test", "full")
    with pytest.raises(DataError, match="reflectkit gen-task --env memory"):
        problems("memory", tmp_path).tasks("train", "short")


def test_a_link_that_leads_nowhere_is_no_missing_file(tmp_path: Path) -> None:
    folder = tmp_path / "taxi"
    folder.mkdir()
    (folder / RECORDS).symlink_to("not-mounted.json")
    config = SplitConfig.from_flat(env="taxi", data_dir=tmp_path)
    with pytest.raises(DataError, match=rf"{RECORDS}: is a link to not-mounted.json, which cannot be read"):
        config.source  # noqa: B018
    (folder / "test.json").symlink_to("test.json")
    with pytest.raises(DataError, match=r"test.json: is a link to test.json, which cannot be read"):
        problems("taxi", tmp_path).tasks("test", "full")


@pytest.mark.parametrize(("env", "field"), [("support", "requests"), ("memory", "chunks")])
def test_damaged_data_are_told_by_record_when_the_file_is_read(env: str, field: str, tmp_path: Path) -> None:
    kind = env_class(env)
    tasks = [kind.taskset.example(kind.levels[0], seed) for seed in range(3)]
    records = [record_to_json(Record(task, ())) for task in tasks]
    write_json(tmp_path / "data.json", records)
    assert [record.task for record in read_records(tmp_path / "data.json", env)] == tasks
    del records[2]["data"][field]
    write_json(tmp_path / "data.json", records)
    with pytest.raises(DataError, match=rf"data.json, record 2: field 'data.{field}'"):
        read_records(tmp_path / "data.json", env)


@given(st.integers(0, 500))
def test_apportion_adds_up_and_is_near(total: int) -> None:
    counts = apportion(total, (7, 2, 1))
    assert sum(counts) == total
    assert all(abs(count - total * share / 10) < 1 for count, share in zip(counts, (7, 2, 1), strict=True))


def test_split_is_balanced_in_each_stratum_and_seeded() -> None:
    strata = {f"g{index}": index < 57 for index in range(300)}
    split = split_groups(strata, random.Random(0))
    assert split == split_groups(dict(reversed(strata.items())), random.Random(0))
    assert split != split_groups(strata, random.Random(1))
    # 57 → 40, 11, 6 by largest remainder (39.9, 11.4, 5.7); 243 → 170, 49, 24 (170.1, 48.6, 24.3)
    counts = {
        (name, flag): sum(split[g] == name and strata[g] == flag for g in strata)
        for name in ("train", "validate", "test")
        for flag in (True, False)
    }
    assert counts == {
        ("train", True): 40,
        ("validate", True): 11,
        ("test", True): 6,
        ("train", False): 170,
        ("validate", False): 49,
        ("test", False): 24,
    }
    # 57 → 43, 7, 7 and 243 → 182, 30, 30 + 1: by largest remainder of 42.75, 7.1, 7.1 and 182.25, 30.4, 30.4
    other = split_groups(strata, random.Random(0), (6, 1, 1))
    assert Counter(other.values()) == {"train": 43 + 182, "validate": 7 + 31, "test": 7 + 30}


def test_problems_are_split_by_weight_in_other_shares() -> None:
    names = split_weighted({f"r{index}": 10 for index in range(12)}, random.Random(0), (8, 1, 3))
    assert Counter(names.values()) == {"train": 8, "validate": 1, "test": 3}
