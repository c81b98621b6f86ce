"""rlft with every algorithm, on text that is not Unicode, and its trackers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectkit.envs.corridor import Corridor
from reflectkit.jsonl import read_jsonl
from reflectkit.models.load import load_player
from reflectkit.types import Observation, Task
from tests.kill import hashes
from tests.rlft_runs import same, train


class Torn(Corridor):
    """Shows half a surrogate pair, as a file name that is not UTF-8 may hold."""

    def reset(self, task: Task, seed: int) -> Observation:
        observation = super().reset(task, seed)
        first, *rest = observation.messages
        return replace(observation, messages=(replace(first, content=f"\ud800 {first.content}"), *rest))


def test_text_that_is_not_unicode_is_played_learnt_from_saved_and_restored(
    corridor_folder: Path, tmp_path: Path
) -> None:
    settings = {
        "env": "tests.commands.test_rlft_algorithms:Torn",
        "reflector": corridor_folder / "reflection",
        "replay_size": 4,
        "keep_episodes": 2,
        "episodes": 16,
    }
    made = train(corridor_folder, tmp_path, **settings)
    saved = hashes(made)
    held = [row for _, row in read_jsonl(made / "replay.jsonl")]
    assert any("\ud800" in turn["observation"]["messages"][0]["content"] for row in held for turn in row["turns"])
    (made.parent / "report.json").unlink()
    assert hashes(train(corridor_folder, tmp_path, **settings)) == saved


@pytest.mark.parametrize(
    "settings",
    [
        {"algo": "grpo", "group_size": 4, "kl_coef": 0.1, "step_groups": 0.5},
        {"algo": "ppo", "critic": "mlp", "critic_trunk": "separate", "value_clip": 0.2, "target_kl": 0.1, "epochs": 2},
        {"baseline": "leave-one-out", "group_size": 2, "loss_mean": "row"},
        {
            "replay_size": 10,
            "gradient_checkpointing": True,
            "max_tokens_per_batch": 200,
            "merge_first_two": True,
            "curriculum": ("short", "long"),
        },
    ],
)
def test_every_algorithm_runs_and_moves_the_policy(
    corridor_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    made = train(corridor_folder, tmp_path, **settings)
    assert not same(made, corridor_folder / "policy")
    rows = [row for _, row in read_jsonl(made.parent / "metrics.jsonl")]
    assert rows[0]["ratio_deviation"] < 1e-5 or settings.get("epochs")  # the mean over all passes
    assert {row["level"] for row in rows} == ({"short+long"} if "curriculum" in settings else {"long"})
    assert load_player(made, "policy", device="cpu").role == "policy"
