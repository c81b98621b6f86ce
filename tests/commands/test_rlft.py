"""rlft: what it refuses and warns of, every algorithm, adapters, resumed runs, and problems that are held out."""

from __future__ import annotations

import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reflectkit.cli.main import main
from reflectkit.commands import rlft
from reflectkit.envs.corridor import Corridor
from reflectkit.errors import CheckpointError
from reflectkit.jsonl import read_json, read_jsonl, write_json
from reflectkit.models.load import load_player
from reflectkit.prompts import PROMPT_VERSION
from reflectkit.runs.run import checkpoints, seal
from reflectkit.train import build, held_out
from reflectkit.train.learner import PolicyLearner
from reflectkit.train.loop import ProgressBar
from reflectkit.train.trainer import Trainer
from reflectkit.types import Observation, Task
from tests import sft_runs as sft
from tests.data import test_problems
from tests.kill import hashes
from tests.rlft_runs import arguments, same, train

JUDGED = "--reflector r --train-reflector 1"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--algo grpo --group-size 4 --replay-size 5", "in no current group"),
        ("--algo grpo --group-size 5", "--episodes 8 is not a multiple of the group size 5; use 10"),
        ("--gae-lambda 0.9", "--gae-lambda is a setting of algo 'ppo'; leave it out"),
        (f"{JUDGED} --processes 2", "runs in one process; leave out --processes"),
        ("--reflector nothing", "'nothing' is no model"),
        ("--reflector oracle --train-reflector 1", "needs a reflector: give --reflector CHECKPOINT"),
    ],
)
def test_contradictions_are_refused_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, message: str
) -> None:
    env = [] if "--env" in more else ["--env", "corridor"]
    assert main(["rlft", *env, "--policy", "nowhere", "--episodes", "8", *more.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        ({}, [("pickup",), ("dropoff",), ("full",)]),
        ({"merge_first_two": True}, [("pickup", "dropoff"), ("full",)]),
        ({"merge_after": 1}, [("pickup",), ("dropoff", "full")]),
    ],
)
def test_levels_of_the_curriculum_are_merged(settings: dict[str, Any], stages: list[tuple[str, ...]]) -> None:
    config = rlft.RLConfig.from_flat(env="taxi", policy=Path("x"), curriculum=("pickup", "dropoff", "full"), **settings)
    assert config.curriculum.stages("full") == stages


def test_a_policy_or_an_env_other_than_in_training_is_warned_of_before_anything_runs(
    corridor_folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(corridor_folder / "policy", tmp_path / "model")

    def warnings(**settings: Any) -> list[str]:
        progress = sft.Interrupting()
        config = rlft.RLConfig.from_flat(
            **arguments(corridor_folder, policy=model, plan=True, results_dir=tmp_path, **settings)
        )
        rlft.run(config, progress)
        return [line for line in progress.lines if line.startswith("warning: ")]

    (said,) = warnings()
    assert "was trained with comments but plays without; add --reflector" in said
    assert not warnings(reflector=corridor_folder / "reflection")
    facts = {"role": "policy", "env": "corridor"}
    write_json(model / "reflectkit.json", facts)
    (older,) = warnings(reflector=corridor_folder / "reflection")
    assert "version 0 of the prompts" in older
    write_json(model / "reflectkit.json", facts | {"prompts": PROMPT_VERSION})
    assert not warnings(reflector=corridor_folder / "reflection")


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
        "env": "tests.commands.test_rlft:Torn",
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


def test_a_policy_learns_with_its_teachers_comments(corridor_folder: Path, tmp_path: Path) -> None:
    made = train(corridor_folder, tmp_path, reflector=Path("oracle"), replay_size=4, episodes=16, max_steps=1)
    assert not same(made, corridor_folder / "policy")
    turns = [turn for _, row in read_jsonl(made / "replay.jsonl") for turn in row["turns"]]
    assert turns
    for turn in turns:
        cells = turn["observation"]["messages"][0]["content"].rpartition("T")[2].count(" ")
        assert f"{cells} cell" in turn["decision"]["reflection"]


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


@pytest.mark.parametrize("fresh", [True, False])
def test_an_adapter_trains_alone_and_its_reference_is_where_it_started(
    corridor_folder: Path, tmp_path: Path, fresh: bool
) -> None:
    """That of a trained one is a copy of it, which is not saved: its base alone would be another policy."""
    start: dict[str, Any] = {"policy": corridor_folder / "policy-adapter"}
    if fresh:
        start = {"policy": None, "model": str(corridor_folder / "base"), "lora_r": 4}
    made = train(corridor_folder, tmp_path, **start, kl_coef=0.1)
    assert (made / "adapter_model.safetensors").is_file()
    assert not (made / "model.safetensors").exists()
    assert [path for path in made.iterdir() if path.is_dir()] == []
    rows = [row for _, row in read_jsonl(made.parent / "metrics.jsonl")]
    assert abs(rows[0]["kl_to_start"]) < 1e-6
    assert rows[-1]["kl_to_start"] > 0


def test_two_adapters_on_one_base_hold_it_once(corridor_folder: Path) -> None:
    from reflectkit.models.load import load_pair

    policy, reflector = load_pair(
        corridor_folder / "policy-adapter", corridor_folder / "reflection-adapter", device="cpu"
    )
    assert policy.model is reflector.model
    base = sum(weight.numel() for weight in load_player(corridor_folder / "base", device="cpu").model.parameters())
    both = sum(weight.numel() for weight in policy.model.parameters())
    assert both < 1.1 * base
    policy.activate()
    trained = [name for name, weight in policy.model.named_parameters() if weight.requires_grad]
    assert trained
    assert all(".default." in name for name in trained)


def test_a_damaged_adapter_does_not_share_a_base(corridor_folder: Path, tmp_path: Path) -> None:
    from reflectkit.models.load import load_pair

    adapters = {}
    for role in ("policy", "reflection"):
        adapters[role] = shutil.copytree(corridor_folder / f"{role}-adapter", tmp_path / role)
        seal(adapters[role])
    for folder in adapters.values():
        weights = folder / "adapter_model.safetensors"
        content = weights.read_bytes()
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors is damaged"):
            load_pair(adapters["policy"], adapters["reflection"], device="cpu")
        weights.write_bytes(content)
    load_pair(adapters["policy"], adapters["reflection"], device="cpu")


def test_memory_compares_chunks_as_mem_alpha_does_unless_told_otherwise() -> None:
    def compared(**settings: Any) -> str:
        config = rlft.RLConfig.from_flat(policy="x", **settings)
        return str(config.algo.settings.advantages)

    assert compared(env="memory") == compared(env="corridor", advantages="own") == "own"
    assert compared(env="corridor") == compared(env="memory", advantages="episode") == "episode"


def test_pickles_are_not_opened(corridor_folder: Path, tmp_path: Path) -> None:
    for source, name in (("policy-adapter", "adapter_model"), ("policy", "model")):
        shutil.copytree(corridor_folder / source, tmp_path / source)
        torch.save({}, tmp_path / source / ("adapter_model.bin" if "adapter" in name else "pytorch_model.bin"))
        (tmp_path / source / f"{name}.safetensors").unlink()
        with pytest.raises(CheckpointError):
            train(corridor_folder, tmp_path / "results", policy=tmp_path / source)


def test_going_on_from_another_run_is_as_if_never_stopped(corridor_folder: Path, tmp_path: Path) -> None:
    settings = {"schedule": "constant", "save_steps": 1, "algo": "ppo"}
    whole = train(corridor_folder, tmp_path / "whole", **settings, max_steps=4)
    half = train(corridor_folder, tmp_path / "half", **settings, max_steps=2)
    gone_on = train(corridor_folder, tmp_path / "half", **settings, max_steps=4, resume_from=half)
    assert same(whole, gone_on)
    assert gone_on.parent != half.parent
    assert [row["step"] for _, row in read_jsonl(gone_on.parent / "metrics.jsonl")] == [3, 4]


def test_a_run_continued_at_a_constant_rate_is_one_that_was_longer(corridor_folder: Path, tmp_path: Path) -> None:
    settings = {"schedule": "constant", "algo": "ppo", "replay_size": 4}
    whole = train(corridor_folder, tmp_path / "whole", **settings, max_steps=4)
    half = train(corridor_folder, tmp_path / "half", **settings, max_steps=2)
    continued = train(corridor_folder, tmp_path / "half", **settings, max_steps=4)
    assert continued.parent == half.parent
    assert same(whole, continued)
    assert same_state(whole, continued)
    assert [row["step"] for _, row in read_jsonl(continued.parent / "metrics.jsonl")] == [1, 2, 3, 4]
    assert train(corridor_folder, tmp_path / "half", **settings, max_steps=3) == continued


def test_a_continued_run_does_not_depend_on_where_it_was_stopped(corridor_folder: Path, tmp_path: Path) -> None:
    """Updates 1 and 2 have the rates of a run of two, the others those of a run of four."""
    settings = {"curriculum": ("short", "long"), "save_steps": 1, "keep_checkpoints": 9, "max_steps": 4}
    train(corridor_folder, tmp_path / "run", **settings | {"max_steps": 2})
    continued = train(corridor_folder, tmp_path / "run", **settings)
    levels = [row["level"] for _, row in read_jsonl(continued.parent / "metrics.jsonl")]
    assert levels == ["short", "long", "long", "long"]
    shutil.copytree(tmp_path / "run", tmp_path / "earlier")
    earlier = tmp_path / "earlier" / continued.parent.name
    for name in ("checkpoint-2", "checkpoint-3", "checkpoint-4"):
        shutil.rmtree(earlier / name)
    (earlier / "report.json").unlink()
    resumed = train(corridor_folder, tmp_path / "earlier", **settings)
    assert resumed == earlier / "checkpoint-4"
    assert same(continued, resumed)
    assert same_state(continued, resumed)
    straight = train(corridor_folder, tmp_path / "straight", **settings)
    assert not same(continued, straight)


def test_a_run_that_is_resumed_remembers_which_states_it_saw(corridor_folder: Path, tmp_path: Path) -> None:
    settings = {"novelty": 1.0, "table_coef": 1.0, "save_steps": 2, "keep_checkpoints": 9, "max_steps": 6}
    whole = train(corridor_folder, tmp_path / "whole", **settings)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    killed = tmp_path / "killed" / whole.parent.name
    for name in ("checkpoint-4", "checkpoint-6"):
        shutil.rmtree(killed / name)
    (killed / "report.json").unlink()
    resumed = train(corridor_folder, tmp_path / "killed", **settings)
    assert same(whole, resumed)
    assert same_state(whole, resumed)
    assert visits(whole) > visits(killed / "checkpoint-2")
    for name in ("novelty", "table_coef"):
        assert not same(whole, train(corridor_folder, tmp_path / name, **settings | {name: 0.0}))


def visits(checkpoint: Path) -> int:
    """How often all states together were visited."""
    return sum(read_json(checkpoint / "novelty.json")["visits"].values())


def same_state(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold the same optimizer, critic, replayed episodes, visits and table."""
    names = ("training_state.safetensors", "replay.jsonl", "novelty.json", "state_table.json")
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def validated(corridor_folder: Path, folder: Path, every: int) -> dict[str, Any]:
    """Settings of a run that validates, on problems in `folder`."""
    for split in ("train", "validate"):
        shutil.copy(corridor_folder / "train.json", folder / f"{split}.json")
    return {"task_file": folder / "train.json", "validate_steps": every, "validate_problems": 0}


def scripted(returns: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Validations have these returns, by update."""
    monkeypatch.setattr(Trainer, "validate", lambda self, level: {"validation_return": returns[self.step - 1]})


def test_the_best_checkpoint_is_kept_and_patience_ends_training(
    corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted([0.1, 0.5, 0.5, 0.4, 0.6, 0.2, 0.3, 0.3, 0.3], monkeypatch)
    settings = validated(corridor_folder, tmp_path, 1) | {"keep_checkpoints": 1, "schedule": "constant"}
    best = train(corridor_folder, tmp_path, **settings, max_steps=6, patience=2)
    run = best.parent
    assert best.name == "checkpoint-3"
    assert [path.name for path in checkpoints(run)] == ["checkpoint-3", "checkpoint-4"]
    assert read_json(run / "report.json")["figures"]["steps"] == 4
    assert train(corridor_folder, tmp_path, **settings, max_steps=9, patience=2) == best
    assert read_json(run / "report.json")["figures"]["steps"] == 4

    # What ended it is not known any more: nothing goes on, and no checkpoint is deleted
    metrics = run / "metrics.jsonl"
    figures = metrics.read_bytes()
    for rest in (b"", figures[:-20], figures.partition(b"\n")[2]):
        metrics.write_bytes(rest)
        with pytest.raises(CheckpointError, match="--patience needs"):
            train(corridor_folder, tmp_path, **settings, max_steps=9, patience=2)
        assert [path.name for path in checkpoints(run)] == ["checkpoint-3", "checkpoint-4"]
    metrics.write_bytes(figures)

    further = train(corridor_folder, tmp_path, **settings, max_steps=9)
    assert [path.name for path in checkpoints(run)] == ["checkpoint-5", "checkpoint-9"]
    whole = train(corridor_folder, tmp_path / "whole", **settings, max_steps=9)
    assert same(further, whole)
    assert same(run / "checkpoint-9", whole.parent / "checkpoint-9")
    assert main(["export", "--policy", str(run), "--out-dir", str(tmp_path / "out")]) == 0
    assert f"{run}: checkpoint-5, its best checkpoint (validation return 0.6)" in capsys.readouterr().out


@pytest.mark.parametrize("method", [(PolicyLearner, "update"), (ProgressBar, "after_update")])
def test_ctrl_c_loses_no_update(
    corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: tuple[type, str]
) -> None:
    """While an update learned, it lost all since the last checkpoint."""

    def interrupted(*values: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return original(*values)

    straight = train(corridor_folder, tmp_path / "straight", max_steps=3)
    original, calls = getattr(*method), list[int]()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    with monkeypatch.context() as patch:
        patch.setattr(*method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(corridor_folder, tmp_path / "cut", max_steps=3)
    signal.signal(signal.SIGINT, before)
    assert [path.name for path in tmp_path.glob("cut/*/checkpoint-*")] == ["checkpoint-2"]
    assert same(train(corridor_folder, tmp_path / "cut", max_steps=3), straight)


def test_a_validation_that_is_interrupted_is_made_up_for(
    corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Trainer, level: Any) -> dict[str, Any]:
        self.playing = True
        raise KeyboardInterrupt

    settings = validated(corridor_folder, tmp_path, 2) | {"max_steps": 3}
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "validate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(corridor_folder, tmp_path, **settings)
    scripted([0.1, 0.5, 0.3], monkeypatch)
    best = train(corridor_folder, tmp_path, **settings)
    assert best.name == "checkpoint-2"
    returns = [row.get("validation_return") for _, row in read_jsonl(best.parent / "metrics.jsonl")]
    assert returns == [None, 0.5, 0.3]


def test_a_checkpoint_of_other_settings_is_refused_with_the_difference(corridor_folder: Path, tmp_path: Path) -> None:
    made = train(corridor_folder, tmp_path, algo="ppo")
    with pytest.raises(CheckpointError, match=r"clip is 0.2 there and 0.3 here; gamma is 1.0 there and 0.9 here"):
        train(corridor_folder, tmp_path, algo="ppo", resume_from=made, gamma=0.9, clip=0.3)
    other = tmp_path / "other.json"
    write_json(other, read_json(corridor_folder / "train.json")[4:])
    with pytest.raises(CheckpointError, match="problems is"):
        train(corridor_folder, tmp_path, algo="ppo", resume_from=made, task_file=other)


def test_a_run_on_other_prompts_is_not_resumed(
    corridor_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = train(corridor_folder, tmp_path)
    (made.parent / "report.json").unlink()  # as if killed
    refused = f"version {PROMPT_VERSION} of the prompts and cannot go on with version {PROMPT_VERSION + 1}"
    monkeypatch.setattr(build, "PROMPT_VERSION", PROMPT_VERSION + 1)
    with pytest.raises(CheckpointError, match=refused):
        train(corridor_folder, tmp_path)
    with pytest.raises(CheckpointError, match=refused):
        train(corridor_folder, tmp_path, resume_from=made)


ENV = f"{test_problems.__name__}:Guess"


def test_a_resumed_run_has_the_same_outcomes_on_held_out_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["rlft", "--env", ENV, "--model", "tiny", "--max-steps", "2", "--episodes", "16", "--save-steps", "1",
               "--validate-problems", "12", "--device", "cpu", "--name", "run"]  # fmt: skip
    assert main(command) == 0
    run = tmp_path / "results" / "run"
    outcomes = read_json(run / "held_out.json")
    assert {name: len(rows) for name, rows in outcomes.items()} == {"before": 12, "random": 12, "after": 12}
    figures = read_json(run / "report.json")["figures"]["held_out"]
    wins = [row["return"] for row in outcomes["after"]]
    assert figures["after"]["return"] == pytest.approx(sum(wins) / 12)  # as the env reports no success
    before = (run / "held_out.json").read_bytes()
    shutil.rmtree(run / "checkpoint-2")
    (run / "report.json").unlink()
    assert main(command) == 0
    assert (run / "held_out.json").read_bytes() == before
    assert "is lost" not in capsys.readouterr().out
    assert main(["evaluate", "--env", ENV, "--policy", "results/run", "--problems", "5", "--name", "test"]) == 0
    assert "Held-out" in (tmp_path / "results" / "test" / "eval.md").read_text()


def test_damaged_outcomes_are_told_of_and_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rlft", "--env", ENV, "--model", "tiny", "--episodes", "8", "--save-steps", "1", "--device", "cpu",
               "--validate-problems", "4", "--name", "run", "--max-steps"]  # fmt: skip
    assert main([*command, "1"]) == 0
    file = tmp_path / "results/run/held_out.json"
    whole = read_json(file)
    assert "is lost" not in capsys.readouterr().out

    # 1. What is damaged
    tasks = [SimpleNamespace(id=row["task"]) for row in whole["before"]]
    level: Any = SimpleNamespace(tasks=tasks)
    first, *others = whole["before"]
    for part in (None, [], others, [first, *whole["before"]], {"task": "a"}, [None, *others]):
        write_json(file, whole | {"before": part})
        assert not held_out.earlier(file.parent, level), part
    wrong = {"status": "odd", "return": "abc", "success": 1, "task": "another"}
    for name, value in [*wrong.items(), ("return", True), ("status", [])]:
        write_json(file, {"before": [first | {name: value}, *others]})
        assert not held_out.earlier(file.parent, level), (name, value)
    for content in (None, [], {}, whole | {"other": whole["after"]}):
        write_json(file, content)
        assert not held_out.earlier(file.parent, level), content
    write_json(file, whole)
    assert held_out.earlier(file.parent, level) == whole

    # 2. A run from another one's checkpoint has none yet, and one with a damaged file goes on
    resumed = ["rlft", "--env", ENV, "--model", "tiny", "--resume-from", "results/run/checkpoint-1", "--max-steps", "2",
               "--episodes", "8", "--validate-problems", "4", "--device", "cpu", "--name", "other"]  # fmt: skip
    assert main(resumed) == 0
    assert "is lost" not in capsys.readouterr().out
    file.write_text("null")
    assert main([*command, "2"]) == 0
    assert "what the policy did before training is lost" in capsys.readouterr().out
    assert read_json(file).keys() == {"after"}


@pytest.mark.parametrize("value", ["NaN", "1e999", "-Infinity"])
def test_a_line_of_metrics_that_is_no_json_is_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    command = ["rlft", "--env", "corridor", "--model", "tiny", "--episodes", "8", "--validate-problems", "0",
               "--save-steps", "1", "--device", "cpu", "--name", "run", "--max-steps"]  # fmt: skip
    assert main([*command, "2"]) == 0
    metrics = tmp_path / "results/run/metrics.jsonl"
    first, rest = metrics.read_text().split("\n", 1)
    metrics.write_text(re.sub(r'"entropy": [^,]*', f'"entropy": {value}', first) + "\n" + rest)
    assert main([*command, "3"]) == 0
    assert "damaged" in capsys.readouterr().out
    assert [row["step"] for _, row in read_jsonl(metrics)] == [2, 3]
