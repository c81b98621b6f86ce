"""rlft as a person runs it: killed, resumed, on two processes, with adapters on one base, and with settings that
contradict.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from reflectkit.cli.main import main
from reflectkit.core.console import Quiet
from reflectkit.core.errors import CheckpointError, ConfigError, ReflectkitError
from reflectkit.core.jsonl import read_json, read_jsonl, write_json
from reflectkit.core.prompts import label, policy_prompt, reflection_prompt
from reflectkit.core.types import Observation, Task
from reflectkit.data.trajectories import Record, record_to_json
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.models.load import Player, load_player, save_player, with_adapter
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.rl.algorithms import CriticSettings, GrpoSettings
from reflectkit.rl.loop import Trainer
from reflectkit.stages import rlft
from reflectkit.stages.algorithm import ALGORITHM_LIMITS
from tests.kill import fork_killed_at, forked, hashes

LIMITS = rlft.LIMITS | ALGORITHM_LIMITS | CriticSettings.LIMITS | GrpoSettings.LIMITS


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with untrained players of the corridor, adapters on one base, and problems of both levels."""
    folder = tmp_path_factory.mktemp("rlft")
    seen = [make("corridor").reset(task, 0) for level in Corridor.levels for task in Corridor.tasks(level)]
    texts = [policy_prompt(one, "Go right, 3 to go.") for one in seen] + [reflection_prompt(one) for one in seen]
    tokenizer = build_tokenizer(texts, [label(index) for index in range(2)])
    for number, role in enumerate(("policy", "reflection", "base")):
        save_player(
            folder / role, Player(build_model(tokenizer, 256, number), tokenizer, None if role == "base" else role)
        )
    for number, role in enumerate(("policy", "reflection")):
        base = load_player(folder / "base", device="cpu")
        adapted = with_adapter(Player(base.model, base.tokenizer, role), 4, 8, seed=number)
        with torch.no_grad():
            for name, weight in adapted.model.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.02, generator=torch.Generator().manual_seed(number))
        save_player(folder / f"{role}-adapter", adapted)
    records = [Record(task, ()) for level in Corridor.levels for task in Corridor.tasks(level)]
    write_json(folder / "train.json", [record_to_json(record) for record in records])
    return folder


def arguments(ground: Path, **settings: Any) -> dict[str, Any]:
    return {
        "env": "corridor",
        "task_file": ground / "train.json",
        "load_dir": ground / "policy",
        "max_steps": 3,
        "episodes": 8,
        "learning_rate": 1e-3,
        "device": "cpu",
        **settings,
    }


def train(ground: Path, results: Path, **settings: Any) -> Path:
    """The last checkpoint of an rlft run in `results`."""
    report = rlft.run(rlft.Config(**arguments(ground, results_dir=results, **settings)), Quiet())
    return report.outputs[0]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    name = "adapter_model.safetensors" if (checkpoint / "adapter_config.json").is_file() else "model.safetensors"
    return load_file(checkpoint / name)


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


HARD = ["--algo", "ppo", "--epochs", "2", "--minibatch", "16", "--replay-size", "6", "--curriculum", "short",
    "--curriculum", "long", "--advance-at", "0.4", "--max-steps", "8", "--episodes", "8", "--save-steps", "1",
    "--learning-rate", "1e-3"]  # fmt: skip
"""Everything that a checkpoint has to hold: critic, replay, adaptive curriculum, memo."""


def command(ground: Path, *more: str) -> list[str]:
    return ["rlft", "--env", "corridor", "--task-file", str(ground / "train.json"), "--load-dir",
        str(ground / "policy"), "--reflect-load-dir", str(ground / "reflection"), "--device", "cpu", *more]  # fmt: skip


@pytest.fixture(scope="module")
def straight(ground: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of HARD."""
    folder = tmp_path_factory.mktemp("straight")
    assert forked(command(ground, *HARD), folder) == 0, (folder / "output.txt").read_text()
    return folder


def final(folder: Path) -> dict[str, str]:
    """Digests of the last checkpoint's files."""
    found = hashes(next((folder / "results").glob("*_rlft")) / "checkpoint-8")
    return {name: digest for name, digest in found.items() if name != "README.md"}


KILLED_AT = (
    ("config.json:1", "checkpoint-1$:1", "metrics.jsonl:1", "checkpoint-4$:1", "report.json:1"),
    ("metrics.jsonl:2", "checkpoint-[0-9]$:3", "metrics.jsonl:2", "checkpoint-8$:1"),
)


@pytest.mark.parametrize("points", KILLED_AT)
def test_killed_at_any_point_it_ends_with_the_same_bytes(
    ground: Path, straight: Path, tmp_path: Path, points: tuple[str, ...]
) -> None:
    """Weights, optimizer, critic, replay buffer, curriculum, memo, all bit for bit; and the same metrics but for the
    clock.
    """
    fork_killed_at(points, command(ground, *HARD), tmp_path)
    assert final(tmp_path) == final(straight)
    (there,), (here,) = ((folder / "results").glob("*_rlft/metrics.jsonl") for folder in (straight, tmp_path))
    timed = ("tokens_per_second", "episodes_per_second", "rollout_seconds", "update_seconds")
    rows = [
        [{key: row[key] for key in row if key not in timed} for _, row in read_jsonl(path)] for path in (there, here)
    ]
    assert rows[0] == rows[1]
    assert [row["step"] for row in rows[0]] == list(range(1, 9))
    assert {row["level"] for row in rows[0]} == {"short", "long"}
    assert any(row["replayed_episodes"] for row in rows[0])


def test_only_the_last_two_checkpoints_are_kept(straight: Path) -> None:
    names = sorted(path.name for path in (straight / "results").glob("*_rlft/checkpoint-*"))
    assert names == ["checkpoint-7", "checkpoint-8"]


def change_a_digit(path: Path) -> None:
    """A single changed byte that leaves valid JSON, or a readable tensor file."""
    held = bytearray(path.read_bytes())
    place = max(held.rfind(digit) for digit in b"2468")
    held[place] += 1
    path.write_bytes(held)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [change_a_digit, cut_in_half, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "training_state.json", "checksums.json"])
def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(
    ground: Path, straight: Path, tmp_path: Path, name: str, damage: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    shutil.copytree(straight, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    (run,) = (tmp_path / "copy" / "results").glob("*_rlft")
    (run / "report.json").unlink()
    damage(run / "checkpoint-8" / name)
    assert main(command(ground, *HARD)) == 0
    assert "resuming from an earlier state" in capsys.readouterr().out
    assert final(tmp_path / "copy") == final(straight)


def test_flipped_bytes_in_the_weights_are_noticed_and_new_checkpoints_stay(
    ground: Path, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With both checkpoints damaged it begins again, and what it then saves is not swept away for being earlier."""
    shutil.copytree(straight, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    (run,) = (tmp_path / "copy" / "results").glob("*_rlft")
    (run / "report.json").unlink()
    for name in ("checkpoint-7", "checkpoint-8"):
        weights = run / name / "model.safetensors"
        held = bytearray(weights.read_bytes())
        held[-400:] = bytes(byte ^ 1 for byte in held[-400:])
        weights.write_bytes(held)
    kept: list[set[str]] = []
    advance = Trainer.advance

    def looking(trainer: Trainer) -> object:
        kept.append({path.name for path in run.glob("checkpoint-*")})
        return advance(trainer)

    monkeypatch.setattr(Trainer, "advance", looking)
    assert main(command(ground, *HARD)) == 0
    assert capsys.readouterr().out.count("model.safetensors is damaged") == 2
    assert len(kept) == 8
    assert kept[4] >= {"checkpoint-3", "checkpoint-4"}
    assert final(tmp_path / "copy") == final(straight)


TWO = ["--algo", "ppo", "--replay-size", "5", "--max-steps", "4", "--episodes", "24", "--learning-rate", "1e-3",
       "--minibatch", "40"]  # fmt: skip


def test_two_processes_play_and_learn_what_one_does(ground: Path, tmp_path: Path) -> None:
    found = []
    for count in (1, 2):
        results = tmp_path / f"results{count}"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
        done = subprocess.run(
            [*torchrun, "-m", "reflectkit", *command(ground, *TWO), "--results-dir", str(results)],
            cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("checkpoint-4\n→") <= 1  # one process speaks
        (run,) = results.glob("*_rlft")
        found.append(run)
    one, two = ([row for _, row in read_jsonl(run / "metrics.jsonl")] for run in found)
    for first, second in zip(one, two, strict=True):
        exact = ("success_rate", "return", "episode_steps", "rows", "replayed_episodes", "level", "episodes")
        assert [first[name] for name in exact] == [second[name] for name in exact]
        assert first["loss"] == pytest.approx(second["loss"], abs=1e-4)
    states = [read_json(run / "checkpoint-4/training_state.json") | {"files": None} for run in found]
    assert states[0] == states[1]
    memos = [read_json(run / "checkpoint-4/reflector_memo.json") for run in found]
    assert memos[0] == memos[1]
    assert len(memos[0]) > 4
    assert episodes_in(found[0]) == episodes_in(found[1])
    first, second, begun = (
        weights(folder) for folder in (found[0] / "checkpoint-4", found[1] / "checkpoint-4", ground / "policy")
    )
    moved = max(float((first[name] - begun[name]).abs().max()) for name in first)
    apart = max(float((first[name] - second[name]).abs().max()) for name in first)
    assert moved > 1e-3
    assert apart < 1e-4


def episodes_in(run: Path) -> list[Any]:
    """The replayed episodes' problems, seeds and actions."""
    rows = [row for _, row in read_jsonl(run / "checkpoint-4/replay.jsonl")]
    return [(row["task"]["id"], row["seed"], [turn["decision"]["action"] for turn in row["turns"]]) for row in rows]


def test_going_on_from_another_run_is_as_if_never_stopped(ground: Path, tmp_path: Path) -> None:
    settings = {"schedule": "constant", "save_steps": 1, "algo": "ppo"}
    whole = train(ground, tmp_path / "whole", **settings, max_steps=6)
    half = train(ground, tmp_path / "half", **settings, max_steps=3)
    gone_on = train(ground, tmp_path / "half", **settings, max_steps=6, resume_from=half)
    assert same(whole, gone_on)
    assert gone_on.parent != half.parent
    assert [row["step"] for _, row in read_jsonl(gone_on.parent / "metrics.jsonl")] == [4, 5, 6]


def as_earlier_versions_wrote(checkpoint: Path) -> None:
    """Checksums in the training state, whose settings lack those that came later."""
    state = read_json(checkpoint / "training_state.json") | {"files": read_json(checkpoint / "checksums.json")}
    del state["files"]["training_state.json"], state["settings"]["threads"]
    write_json(checkpoint / "training_state.json", state)
    (checkpoint / "checksums.json").unlink()


def test_checkpoints_of_earlier_versions_are_resumed_and_gone_on_from(ground: Path, tmp_path: Path) -> None:
    settings = {"schedule": "constant", "save_steps": 1, "algo": "ppo"}
    whole = train(ground, tmp_path / "whole", **settings, max_steps=4)
    half = train(ground, tmp_path / "half", **settings, max_steps=3)
    for checkpoint in half.parent.glob("checkpoint-*"):
        as_earlier_versions_wrote(checkpoint)
    assert same(whole, train(ground, tmp_path / "half", **settings, max_steps=4, resume_from=half))

    (half.parent / "report.json").unlink()
    shutil.rmtree(half)
    news = News()
    resumed = rlft.run(rlft.Config(**arguments(ground, results_dir=tmp_path / "half", **settings)), news)
    assert not any("earlier state" in line for line in news.lines)
    assert [row["step"] for _, row in read_jsonl(resumed.folder / "metrics.jsonl")] == [1, 2, 3]

    cut_in_half(whole / "model.safetensors")
    as_earlier_versions_wrote(whole)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        train(ground, tmp_path / "cut", **settings, max_steps=5, resume_from=whole)


class News(Quiet):
    """Keeps the news."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def news(self, text: str) -> None:
        self.lines.append(text)


def test_a_checkpoint_of_other_settings_is_refused_with_the_difference(ground: Path, tmp_path: Path) -> None:
    made = train(ground, tmp_path, algo="ppo")
    with pytest.raises(CheckpointError, match=r"clip is 0.2 there and 0.3 here; gamma is 1.0 there and 0.9 here"):
        train(ground, tmp_path, algo="ppo", resume_from=made, gamma=0.9, clip=0.3)
    with pytest.raises(CheckpointError, match="max_steps is 3 there and 6 here"):  # the linear schedule depends on it
        train(ground, tmp_path, algo="ppo", resume_from=made, max_steps=6)
    other = tmp_path / "other.json"
    write_json(other, read_json(ground / "train.json")[4:])
    with pytest.raises(CheckpointError, match="problems is"):
        train(ground, tmp_path, algo="ppo", resume_from=made, task_file=other)
    with pytest.raises(CheckpointError, match="no checkpoint of rlft"):
        train(ground, tmp_path, algo="ppo", resume_from=ground / "policy")
    with pytest.raises(ConfigError, match="raise --max-steps"):
        train(ground, tmp_path, algo="ppo", resume_from=made)


DIVERGING = """
from dataclasses import replace
from pathlib import Path
from reflectkit.rl.algorithms import ALGORITHMS

def estimate(rollouts, settings):
    found = ALGORITHMS["reinforce"].estimate(rollouts, settings)
    if rollouts.groups[0].startswith("2/") and Path("diverge").exists():  # the third update
        found.advantages[0][0] = float("nan")
    return found

ALGORITHM = replace(ALGORITHMS["reinforce"], estimate=estimate)
"""


def test_a_diverged_update_leaves_its_rows_and_a_good_checkpoint(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "diverging.py").write_text(DIVERGING, encoding="utf-8")
    (tmp_path / "diverge").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = ("--algo", "diverging:ALGORITHM", "--max-steps", "4", "--episodes", "8", "--save-steps", "1")
    assert main(command(ground, *settings)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "diverged-3.jsonl" in said
    (run,) = (tmp_path / "results").glob("*_rlft")
    rows = [row for _, row in read_jsonl(run / "diverged-3.jsonl")]
    assert any("nan" in row["advantages"] for row in rows)
    assert "Actions:" in rows[0]["text"]
    (tmp_path / "diverge").unlink()
    assert main(command(ground, *settings)) == 0  # goes on from update 2
    assert [row["step"] for _, row in read_jsonl(run / "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_last_update_that_diverges_is_noticed(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ("--episodes", "8", "--schedule", "constant", "--save-steps", "1")
    assert main(command(ground, *settings, "--max-steps", "1")) == 0
    (good,) = (tmp_path / "results").glob("*/checkpoint-1")
    before = hashes(good)
    capsys.readouterr()
    learn = torch.optim.AdamW.step

    def overflow(optimizer: torch.optim.AdamW) -> None:
        learn(optimizer)
        optimizer.param_groups[0]["params"][0].data[0, 0] = float("inf")

    monkeypatch.setattr(torch.optim.AdamW, "step", overflow)
    resume = ("--max-steps", "2", "--resume-from", str(good), "--learning-rate", "1000")
    assert main(command(ground, *settings, *resume)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the update diverged" in error
    assert "lower --learning-rate" in error
    assert sorted((tmp_path / "results").glob("*/checkpoint-*")) == [good]
    assert hashes(good) == before


@pytest.mark.parametrize(
    "content", [b"", b'{"step": 1, "succ', b"\xff\xfe\n[1]\n", b'{"step": "two"}\n', b"[" * 100_000]
)
def test_damaged_metrics_and_kept_episodes_do_not_stop_a_resumed_run(
    ground: Path, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = command(ground, "--max-steps", "2", "--episodes", "8", "--save-steps", "1", "--keep-episodes", "2")
    assert main(arguments) == 0
    (run,) = (tmp_path / "results").glob("*_rlft")
    whole = hashes(run / "checkpoint-2")
    (run / "report.json").unlink()
    shutil.rmtree(run / "checkpoint-2")
    first = {}
    for name in ("metrics.jsonl", "episodes.jsonl"):
        first[name] = [line for line in (run / name).read_bytes().splitlines(keepends=True) if b'"step": 1' in line]
        (run / name).write_bytes(b"".join(first[name]) + content)
    capsys.readouterr()
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("damaged lines") == (2 if content else 0)
    assert hashes(run / "checkpoint-2") == whole
    for name, lines in first.items():
        rows = [row for _, row in read_jsonl(run / name)]
        assert [row["step"] for row in rows] == sorted([1] * len(lines) + [2] * len(lines))
        assert (run / name).read_bytes().startswith(b"".join(lines))


class Torn(Corridor):
    """Shows half a surrogate pair, as a file name that is not UTF-8 may hold."""

    def reset(self, task: Task, seed: int) -> Observation:
        observation = super().reset(task, seed)
        first, *rest = observation.messages
        return replace(observation, messages=(replace(first, content=f"\ud800 {first.content}"), *rest))


def test_text_that_is_not_unicode_is_played_learnt_from_saved_and_restored(ground: Path, tmp_path: Path) -> None:
    settings = {"env": "tests.stages.test_rlft:Torn", "reflect_load_dir": ground / "reflection", "replay_size": 4,
                "keep_episodes": 2, "episodes": 16}  # fmt: skip
    made = train(ground, tmp_path, **settings)
    saved = hashes(made)
    held = [row for _, row in read_jsonl(made / "replay.jsonl")]
    assert any("\ud800" in turn["observation"]["messages"][0]["content"] for row in held for turn in row["turns"])
    (made.parent / "report.json").unlink()
    assert hashes(train(ground, tmp_path, **settings)) == saved


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--algo ppo --critic none", "--algo ppo needs a critic"),
        ("--algo grpo --group-size 1", "--group-size must be at least 2"),
        ("--algo grpo --group-size 4 --replay-size 5", "no group of today's"),
        ("--baseline leave-one-out", "--group-size must be at least 2"),
        ("--baseline leave-one-out --group-size 4 --replay-size 3", "no group of today's"),
        ("--algo grpo --group-size 5", "--episodes 8 is no multiple of the group size 5; take 10"),
        ("--gae-lambda 0.9", "--gae-lambda is ppo's, and --algo is reinforce"),
        ("--algo ppo --baseline none --step-groups 1", "--step-groups is grpo's"),
        ("--algo pro", "did you mean 'ppo'"),
        ("--merge-first-two", "needs a --curriculum of at least two levels"),
        ("--advance-at 0.5 --curriculum long", "needs a --curriculum of at least two levels"),
        (
            "--advance-at 0.5 --merge-first-two --curriculum short --curriculum long",
            "at least two levels to go through",
        ),
        ("--share-base", "--share-base needs"),
        ("--algo ppo --critic-trunk separate --lora-r 4", "take detached"),
        ("--model gpt2", "and not both"),
        ("--kl -1", "--kl must lie between 0 and 1,000,000, got -1.0"),
        ("--clip 0", "--clip must be greater than 0"),
        ("--report-to tensorbord", "did you mean 'tensorboard'"),
        ("--max-tokens-per-batch 0", "--max-tokens-per-batch must lie between 1 and"),
    ],
)
def test_contradictions_are_refused_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["rlft", "--env", "corridor", "--load-dir", "nowhere", "--episodes", "8", *more.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_cannot_read_or_answer_is_refused_before_its_weights(ground: Path, tmp_path: Path) -> None:
    for name, change in (("short", {"n_positions": 20}), ("whole", {})):
        shutil.copytree(ground / "policy", tmp_path / name)
        write_json(tmp_path / name / "config.json", read_json(tmp_path / name / "config.json") | change)
        (tmp_path / name / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"is \d+ tokens, and .*short reads 20"):
        train(ground, tmp_path / "results", load_dir=tmp_path / "short")
    tokenizer = build_tokenizer(["Actions"], [], vocabulary=260)  # bytes alone: " 0" is two tokens, and "0" one
    tokenizer.add_tokens(["unused"])
    tokenizer.save_pretrained(tmp_path / "whole")
    with pytest.raises(ReflectkitError):  # its labels do; its weights are what is missing
        train(ground, tmp_path / "results", load_dir=tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, (_, high) in LIMITS.items() for value in (high * 1.01, 1e308, 2**63)],
)
def test_absurd_numbers_are_refused(ground: Path, name: str, value: float) -> None:
    whole = isinstance(rlft.Config.__dataclass_fields__[name].default, int)
    with pytest.raises(ConfigError, match=rf"^--{name.replace('_', '-')} must lie between .* and .*, got "):
        rlft.Config(**arguments(ground, **{name: int(value) if whole else float(value)}))


@pytest.mark.parametrize("level_args", [{}, {"merge_first_two": True, "curriculum": ("short", "long")}])
@pytest.mark.parametrize(
    "settings",
    [
        {"algo": "grpo", "group_size": 4, "kl": 0.1, "step_groups": 0.5},
        {"algo": "ppo", "critic": "mlp", "critic_trunk": "separate", "value_clip": 0.2, "target_kl": 0.1, "epochs": 2},
        {"baseline": "leave-one-out", "group_size": 2, "loss_mean": "row"},
        {"replay_size": 10, "gradient_checkpointing": True, "max_tokens_per_batch": 200},
    ],
)
def test_every_algorithm_runs_and_moves_the_policy(
    ground: Path, tmp_path: Path, settings: dict[str, Any], level_args: dict[str, Any]
) -> None:
    made = train(ground, tmp_path, **settings, **level_args)
    assert not same(made, ground / "policy")
    rows = [row for _, row in read_jsonl(made.parent / "metrics.jsonl")]
    assert rows[0]["ratio_deviation"] < 1e-5 or settings.get("epochs")  # the mean over all passes
    assert {row["level"] for row in rows} == ({"short+long"} if level_args else {"long"})
    assert load_player(made, "policy", device="cpu").role == "policy"


def test_a_fresh_adapter_trains_alone_and_its_base_is_the_reference(ground: Path, tmp_path: Path) -> None:
    made = train(
        ground, tmp_path, load_dir=None, model=str(ground / "base"), lora_r=4, kl=0.1, algo="grpo", group_size=4
    )
    assert (made / "adapter_model.safetensors").is_file()
    assert not (made / "model.safetensors").exists()
    rows = [row for _, row in read_jsonl(made.parent / "metrics.jsonl")]
    assert abs(rows[0]["kl_to_start"]) < 1e-6  # a fresh adapter changes nothing
    assert rows[-1]["kl_to_start"] > 0


def test_a_trained_adapters_reference_is_where_it_started(ground: Path, tmp_path: Path) -> None:
    """Its base alone would be another policy: the reference is a copy of the adapter as it was."""
    made = train(ground, tmp_path, load_dir=ground / "policy-adapter", kl=0.1)
    rows = [row for _, row in read_jsonl(made.parent / "metrics.jsonl")]
    assert abs(rows[0]["kl_to_start"]) < 1e-6
    assert rows[-1]["kl_to_start"] > 0
    assert sorted(path.name for path in made.iterdir() if path.is_dir()) == []  # the reference is not saved with it


def test_two_adapters_on_one_base_do_as_two_models(ground: Path, tmp_path: Path) -> None:
    adapters = {"load_dir": ground / "policy-adapter", "reflect_load_dir": ground / "reflection-adapter"}
    apart = train(ground, tmp_path, **adapters)
    shared = train(ground, tmp_path, **adapters, share_base=True)
    assert same(apart, shared)
    from reflectkit.models.load import load_pair

    policy, reflector = load_pair(ground / "policy-adapter", ground / "reflection-adapter", device="cpu")
    assert policy.model is reflector.model
    base = sum(weight.numel() for weight in load_player(ground / "base", device="cpu").model.parameters())
    both = sum(weight.numel() for weight in policy.model.parameters())
    assert both < 1.1 * base
    policy.activate()
    trained = [name for name, weight in policy.model.named_parameters() if weight.requires_grad]
    assert trained
    assert all(".default." in name for name in trained)


def test_a_base_cannot_be_shared_by_whole_models_or_other_bases(ground: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no LoRA adapter"):
        train(ground, tmp_path, reflect_load_dir=ground / "reflection", share_base=True)
    shutil.copytree(ground / "reflection-adapter", tmp_path / "other")
    facts = read_json(tmp_path / "other/adapter_config.json") | {"base_model_name_or_path": str(ground / "policy")}
    write_json(tmp_path / "other/adapter_config.json", facts)
    with pytest.raises(CheckpointError, match="do not share a base"):
        train(
            ground, tmp_path, load_dir=ground / "policy-adapter", reflect_load_dir=tmp_path / "other", share_base=True
        )


def test_pickles_are_not_opened(ground: Path, tmp_path: Path) -> None:
    for source, name in (("policy-adapter", "adapter_model"), ("policy", "model")):
        shutil.copytree(ground / source, tmp_path / source)
        torch.save({}, tmp_path / source / ("adapter_model.bin" if "adapter" in name else "pytorch_model.bin"))
        (tmp_path / source / f"{name}.safetensors").unlink()
        with pytest.raises(CheckpointError):
            train(ground, tmp_path / "results", load_dir=tmp_path / source)


def test_tensorboard_gets_the_figures(ground: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    made = train(ground, tmp_path, report_to=("tensorboard",))
    assert list(made.parent.rglob("events.out.tfevents.*"))


def test_a_tracker_that_is_not_installed_is_named(ground: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pip install"):
        train(ground, tmp_path, report_to=("trackio", "wandb"))


@pytest.mark.parametrize("how", ["sharded", "zero2", "zero3"])
def test_a_sharded_policy_learns_what_a_whole_one_does(ground: Path, tmp_path: Path, how: str) -> None:
    """FSDP2 and ZeRO over two gloo processes, saved and taken up again half way (`tests/rl/sharded.py`)."""
    if how != "sharded":
        pytest.importorskip("deepspeed", reason="ZeRO needs pip install 'reflectkit[zero]'")
    shutil.copytree(ground / "policy", tmp_path / "policy")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for kind, launcher in (("whole", []), (how, torchrun)):
        done = subprocess.run(
            [sys.executable, *launcher, "-m", "tests.rl.sharded", kind, str(tmp_path)],
            cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    whole, sharded = tmp_path / "whole", tmp_path / how
    compared = ("model.safetensors", "training_state.safetensors")[
        : 1 if how != "sharded" else 2
    ]  # ZeRO's lies in parts
    for name in compared:
        first, second = (load_file(folder / "checkpoint-4" / name) for folder in (whole, sharded))
        assert first.keys() == second.keys()
        assert max(float((first[key].float() - second[key].float()).abs().max()) for key in first) < 5e-4
    begun, ended = weights(ground / "policy"), weights(whole / "checkpoint-4")
    assert max(float((begun[key] - ended[key]).abs().max()) for key in begun) > 5e-3
