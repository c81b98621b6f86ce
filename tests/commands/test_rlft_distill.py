"""rlft with --distill-comments: weight 0, resumed runs, processes, teachers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.mismatches import comments_mismatch
from reflectkit.agents.player_refs import Player
from reflectkit.console import Quiet
from reflectkit.errors import EnvironmentFailure
from reflectkit.jsonl import read_jsonl
from reflectkit.models.refs import ModelRef
from tests.rlft_runs import same, train

ALONE = {"algo": "none", "distill_comments": 1.0}


def rows(results: Path) -> list[dict[str, Any]]:
    return [row for _, row in read_jsonl(next(results.glob("*_rlft")) / "metrics.jsonl")]


def test_weight_0_gives_the_plain_runs_bytes(corridor_folder: Path, tmp_path: Path) -> None:
    plain = train(corridor_folder, tmp_path / "plain", max_steps=1)
    off = train(corridor_folder, tmp_path / "off", max_steps=1, distill_comments=0.0)
    assert (plain / "model.safetensors").read_bytes() == (off / "model.safetensors").read_bytes()
    assert not {"divergence", "commented_decisions"} & {name for row in rows(tmp_path / "off") for name in row}
    on = {"distill_comments": 1.0, "reflector": Path("oracle"), "max_steps": 1}
    assert not same(plain, train(corridor_folder, tmp_path / "on", **on))


@pytest.mark.parametrize(
    "settings",
    [
        {"reflector": "reflection", "distill_ema": 0.5, "reflect_temperature": 1.0, "horizon": 4},
        pytest.param(
            {
                "reflector": "reflection",
                "algo": "grpo",
                "group_size": 2,
                "comments_on": "failed",
                "distill_joint": 0.3,
                "horizon": 4,
            },
            marks=pytest.mark.slow,
        ),
        {"reflector": Path("oracle"), "distill_ema": 0.5, "policy": "policy-adapter"},
    ],
)
def test_a_run_that_goes_on_from_another_is_as_if_never_stopped(
    corridor_folder: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    places = {
        name: corridor_folder / value
        for name, value in settings.items()
        if name in ("policy", "reflector") and isinstance(value, str)
    }
    shared = {**ALONE, "save_steps": 1, "schedule": "constant", "episodes": 4, **settings, **places}
    straight = train(corridor_folder, tmp_path / "straight", max_steps=2, **shared)
    half = train(corridor_folder, tmp_path / "half", max_steps=1, **shared)
    resumed = train(corridor_folder, tmp_path / "rest", max_steps=2, resume_from=half, **shared)
    assert same(straight, resumed)
    state = "training_state.safetensors"
    assert (straight / state).read_bytes() == (resumed / state).read_bytes()
    assert not same(straight, half)
    seen = rows(tmp_path / "straight")
    assert seen[0]["commented_decisions"] > 0
    assert seen[0]["divergence"] > 0


def test_the_starting_policy_is_the_same_teacher_as_a_copy_and_as_the_base_of_an_adapter(
    corridor_folder: Path, tmp_path: Path
) -> None:
    """At the first update both teachers are the base; the divergence is that of the policy, which is the base too."""
    alike = [
        train(corridor_folder, tmp_path / name, max_steps=1, policy=corridor_folder / "base",
            reflector=Path("oracle"), **ALONE, **more)
        for name, more in (("copy", {}), ("adapter", {"lora_r": 4}))
    ]  # fmt: skip
    copied, adapted = (rows(place.parents[1])[0]["divergence"] for place in alike)
    assert copied == pytest.approx(adapted, rel=1e-5)
    assert copied > 0


def test_empty_comments_are_counted_told_of_and_skipped(
    corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(Quiet, "news", lambda self, text: told.append(text))
    monkeypatch.setattr("reflectkit.envs.corridor.CorridorTeacher.comment", lambda self, chance: " ")
    train(corridor_folder, tmp_path, max_steps=1, reflector=Path("oracle"), distill_comments=1.0)
    assert any("comments cannot be distilled, the first for: it is empty" in text for text in told)
    for row in rows(tmp_path):
        assert row["commented_decisions"] == 0
        assert row["comments_skipped"] == row["rows"]
        assert row["divergence"] == 0


@pytest.mark.parametrize(
    ("comment", "why"), [(None, "the server wrote HTML"), ("a b c " * 500, "tokens, but the model reads")]
)
def test_an_update_in_which_no_comment_can_be_distilled_ends_the_run(
    corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comment: str | None, why: str
) -> None:
    def written(self: object, chance: object) -> str:
        if comment is None:
            raise EnvironmentFailure("the server wrote HTML")
        return comment

    monkeypatch.setattr("reflectkit.envs.corridor.CorridorTeacher.comment", written)
    with pytest.raises(EnvironmentFailure, match=f"no comment of update 1 can be distilled .*{why}"):
        train(corridor_folder, tmp_path, max_steps=1, reflector=Path("oracle"), distill_comments=1.0)


@pytest.mark.parametrize(
    ("settings", "both"),
    [({"reflect_prob": 0.5}, True), ({"distill_comments": 1.0, "distill_joint": 0.5}, True), ({}, False)],
)
def test_a_policy_that_read_some_of_the_comments_can_act_without(
    corridor_folder: Path, tmp_path: Path, settings: dict[str, Any], both: bool
) -> None:
    reflector = corridor_folder / "reflection"
    policy = train(corridor_folder, tmp_path, max_steps=1, reflector=reflector, **settings)
    assert bool(comments_mismatch(Player("it", ModelRef(str(policy))))) is not both
    assert not comments_mismatch(Player("it", ModelRef(str(policy)), ModelRef(str(reflector))))


def test_a_reflector_that_says_nothing_is_told_of(
    corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(Quiet, "news", lambda self, text: told.append(text))
    monkeypatch.setattr("reflectkit.envs.corridor.CorridorTeacher.comment", lambda self, chance: "")
    train(corridor_folder, tmp_path, max_steps=2, reflector=Path("oracle"))
    assert "\n".join(told).count("comments are empty, the first for: nothing was written") == 1
