"""Our envs behind skyrl_gym's real interface: the same rewards as in our own loop, and no answer that stops it.

Skipped without the package (`pip install skyrl-gym`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectkit.data.problems import Record, record_to_json
from reflectkit.envs.support.env import Support
from reflectkit.integrations import skyrl
from reflectkit.jsonl import write_json
from reflectkit.tools import HERMES, form_text
from reflectkit.types import Task, ToolUse

skyrl_gym = pytest.importorskip("skyrl_gym", reason="needs skyrl-gym: pip install skyrl-gym")


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    from skyrl_gym.envs.registration import registry

    before = dict(registry)
    yield
    registry.clear()
    registry.update(before)


@pytest.fixture(scope="module")
def support_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A problem of each level."""
    path = tmp_path_factory.mktemp("support") / "data.json"
    tasks = [Support.taskset.example(level, seed) for level in ("one", "several", "refuse") for seed in (1, 2)]
    tasks = [replace(task, id=str(number)) for number, task in enumerate(tasks)]
    write_json(path, [record_to_json(Record(task, ())) for task in tasks])
    return path


def made(row: dict[str, Any], **config: Any) -> Any:
    """What SkyRL makes of a row, with its limit on turns."""
    extras = {name: value for name, value in row.items() if name not in ("prompt", "env_class")}
    return skyrl_gym.make(row["env_class"], env_config=config, extras=extras | {"max_turns": 40})


def oracle_answers(env: Any) -> Iterator[dict[str, Any]]:
    """The steps of an episode that the oracle answers."""
    done = False
    while not done:
        action = env.inner.teacher().action()
        step = env.step(action.text if isinstance(action, ToolUse) else f"Answer: {action}")
        yield step
        done = step["done"]


@pytest.mark.parametrize("env", ["corridor", "taxi"])
def test_choices_are_played_as_in_our_own_loop(env: str) -> None:
    from reflectkit.agents.scripted import Oracle
    from reflectkit.envs import make
    from reflectkit.rollouts.episode import Episode, rollout

    skyrl.register(env)
    for row in skyrl.rows(env)[:20]:
        task = Task(**json.loads(row["task"]))
        (ours,) = rollout([Episode(task, 0, start=row["seed"])], lambda: make(env, 40), Oracle())
        one = made(row)
        prompt, _ = one.init(row["prompt"])
        assert prompt[1:] == row["prompt"][1:]
        assert "at most 40 steps" in prompt[0]["content"]  # SkyRL's limit, not the env's own
        assert [message["role"] for message in prompt] == ["system", "user"]
        assert "Actions:\n 0 " in prompt[1]["content"]
        steps = list(oracle_answers(one))
        assert [step["reward"] for step in steps] == [turn.reward for turn in ours.turns]
        assert steps[-1]["observations"] == []
        seen = [turn.observation.text for turn in ours.turns[1:]]
        shown = [step["observations"][0]["content"].partition("\nActions:")[0] for step in steps[:-1]]
        assert shown == seen
        assert one.get_metrics()["success"] == float(ours.success)
        assert one.get_metrics()["return"] == pytest.approx(ours.total_return)


@pytest.mark.parametrize("form", ["plain", "hermes"])
def test_conversations_in_both_forms_of_calls(support_file: Path, form: str) -> None:
    skyrl.register("support")
    for row in skyrl.rows("support", task_file=support_file):
        one = made(row)
        prompt, _ = one.init(row["prompt"])
        assert prompt == row["prompt"]
        assert "cancel_order(order: string" in prompt[0]["content"]
        assert prompt[0]["content"].endswith("or your reply to the user.")
        done, reward = False, 0.0
        while not done:
            action = one.inner.teacher().action()
            text = form_text(action.calls, HERMES) if form == "hermes" and action.calls else action.text
            step = one.step(text)
            reward, done = step["reward"], step["done"]
            assert done or {message["role"] for message in step["observations"]} == {"user"}
            if action.calls and not done:
                assert step["observations"][0]["content"].startswith(f"Result of {action.calls[0].name}: ")
        assert reward == 1.0
        assert one.get_metrics()["success"] == 1.0
        assert one.get_metrics()["missing_change"] == 0.0


def test_what_is_no_action_takes_a_turn_and_is_explained() -> None:
    skyrl.register("taxi")
    (row, *_) = skyrl.rows("taxi")
    one = made(row)
    one.init(row["prompt"])
    for answer in ("", "99", "\ud800", "fly", "0" * 5000, "-1", "²", "<think>" * 10_000):
        step = one.step(answer)
        assert step["reward"] == 0.0
        assert not step["done"]
        assert "answer with a number from 0 to 5" in step["observations"][0]["content"]
        step["observations"][0]["content"].encode()
    assert one.get_metrics()["illegal"] == 8


def test_rows_survive_skyrls_reader(support_file: Path, tmp_path: Path) -> None:
    """As SkyRL reads them: through datasets, which would mix the fields of nested objects."""
    datasets = pytest.importorskip("datasets")
    rows = skyrl.rows("support", task_file=support_file)
    path = skyrl.write_rows(tmp_path / "rows.parquet", rows)
    again = datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "cache"))["train"]
    assert list(again) == rows
