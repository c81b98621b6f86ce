"""The whole chain on CPU with the toy env and the real one, killed and resumed, and everything that bad
input can be.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from reflectkit.agents.scripted import Demonstrator
from reflectkit.agents.two_player import Reflector, TwoPlayerAgent
from reflectkit.cli.command import stage_flags
from reflectkit.cli.main import main
from reflectkit.core.console import Quiet
from reflectkit.core.jsonl import read_json, read_jsonl, write_jsonl
from reflectkit.core.protocols import Context
from reflectkit.core.rollout import Episode, rollout
from reflectkit.core.types import Observation
from reflectkit.data.trajectories import read_records
from reflectkit.envs import make
from reflectkit.models.load import Player
from reflectkit.stages import gen_sft, gen_trajectory, split
from tests.kill import hashes, run_killed_at
from tests.made import made_by_run

DATA_FILES = ("data_reflection_negative.json", "train.json", "validate.json", "test.json", "sft.jsonl",
    "sft_reflection.jsonl", "sft_policy.jsonl", "sft_reflection_positive.jsonl",
    "sft_policy_positive.jsonl")  # fmt: skip

RECIPE = """
description: the toy env, for tests
defaults: {env: corridor}
steps:
  - {name: demonstrations, stage: gen-trajectory, demonstrations: 6, noise: 0.3}
  - {name: split, stage: split}
  - {name: rows, stage: gen-sft}
  - {name: reflector, stage: sft, role: reflection, max_steps: 24, save_steps: 8, max_length: 64}
  - {name: plain, stage: sft, role: plain, max_steps: 24, save_steps: 8, max_length: 64}
  - {name: policy-rows, stage: gen-sft, comments: both, mismatch: 0.2, reflect_load_dir: "{reflector}",
     out_dir: "{data}/both"}
  - {name: policy, stage: sft, role: policy, max_steps: 24, save_steps: 8, max_length: 96,
     task_file: "{data}/both/sft_policy.jsonl"}
  - {name: reflect-rl, stage: rlft, load_dir: "{policy}", reflect_load_dir: "{reflector}",
     max_steps: 6, episodes: 6, save_steps: 2}
  - {name: sft-rl, stage: rlft, load_dir: "{plain}", max_steps: 6, episodes: 6, save_steps: 2}
  - {name: evaluation, stage: evaluate, task_file: "{data}/corridor/train.json",
     policy: ["SFT={plain}", "Reflect-RL={reflect-rl}+{reflector}", oracle]}
  - {name: curves, stage: plot, runs: ["Reflect-RL={reflect-rl}", "SFT + RL={sft-rl}"]}
"""


def prepare(folder: Path, env: str = "taxi", seed: int = 0, **settings: object) -> Path:
    """The data stages run in `folder`; returns the env's data folder."""
    shared = {"env": env, "data_dir": folder / "data", "results_dir": folder / "results", "seed": seed}
    gen_trajectory.run(gen_trajectory.Config(**shared, **settings), Quiet())
    split.run(split.Config(**shared), Quiet())
    gen_sft.run(gen_sft.Config(**shared), Quiet())
    return folder / "data" / env


@pytest.fixture(scope="module")
def taxi_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("taxi"))


def test_two_runs_give_identical_bytes_and_another_seed_does_not(taxi_data: Path, tmp_path: Path) -> None:
    again, other = prepare(tmp_path / "again"), prepare(tmp_path / "other", seed=1)
    assert hashes(again) == hashes(taxi_data)
    assert set(hashes(again)) == set(DATA_FILES)
    assert all(hashes(other)[name] != digest for name, digest in hashes(taxi_data).items())


def test_no_start_is_in_two_splits_and_every_start_in_one(taxi_data: Path) -> None:
    parts = [
        {record.task.group for record in read_records(taxi_data / f"{name}.json", "taxi")}
        for name in ("train", "validate", "test")
    ]
    assert [len(part) for part in parts] == [210, 60, 30]
    assert len(set.union(*parts)) == 300


def test_demonstrations_replay_and_mark_their_mistakes(taxi_data: Path) -> None:
    records = [
        record for record in read_records(taxi_data / "data_reflection_negative.json", "taxi") if record.trajectories
    ]
    assert len(records) == 57
    notes = [[step.note for step in record.trajectories[0].trajectory] for record in records]
    flat = [note for row in notes for note in row]
    assert set(flat) == {"positive", "mistake", "correction"}
    assert 0.1 < flat.count("mistake") / len(flat) < 0.25  # noise 0.2, where a harmless mistake exists
    for row in notes:
        for before, after in itertools.pairwise(row):
            assert (after == "correction") == (before == "mistake" and after != "mistake")


def test_sft_rows_are_the_prompts_that_the_agent_sees(
    taxi_data: Path, policy: Player, reflector_player: Player
) -> None:
    """Character for character, through the files, the env and the agent."""
    rows = {name: [(row["prompt"], row["completion"]) for _, row in read_jsonl(taxi_data / f"{name}.jsonl")] for name in
            ("sft", "sft_reflection", "sft_policy")}  # fmt: skip
    seen: list[Observation] = []
    read: list[str] = []
    asked: list[str] = []

    class Watching(Demonstrator):
        """Acts as the demonstrator did, while the two players look at the same observations."""

        async def decide(self, observation, context):
            decision = await super().decide(observation, context)
            reflector = Reflector(reflector_player, max_new_tokens=1)
            reflector._decode = lambda prompts, seeds: (asked.extend(prompts), [decision.reflection])[1]  # type: ignore[method-assign]
            for agent in (TwoPlayerAgent(policy), TwoPlayerAgent(policy, reflector)):
                for made in agent.act([observation], [context]):
                    read.append(policy.tokenizer.decode(made.prompt_ids))
            seen.append(observation)
            return decision

    records = [record for record in read_records(taxi_data / "train.json", "taxi") if record.trajectories][:3]
    played = [
        rollout([Episode(r.task, r.trajectories[0].seed)], lambda: make("taxi", 30), Watching(0.2), width=1)[0]
        for r in records
    ]
    taken = [decision for trajectory in played for decision in [turn.decision for turn in trajectory.turns]]
    kept = [index for index, decision in enumerate(taken) if decision.note != "mistake"]
    assert len(kept) > 20
    for number, index in enumerate(kept):
        assert rows["sft"][number] == (read[2 * index], f" {taken[index].action}")
        assert rows["sft_policy"][number] == (read[2 * index + 1], f" {taken[index].action}")
    for index, decision in enumerate(taken):
        assert rows["sft_reflection"][index] == (asked[index], f" {decision.reflection}")


def test_wrong_moves_are_no_rows_for_those_who_act_and_positive_files_hold_no_corrections(taxi_data: Path) -> None:
    records = read_records(taxi_data / "train.json", "taxi")
    notes = [step.note for record in records for shown in record.trajectories for step in shown.trajectory]
    lines = {name: len((taxi_data / name).read_text().splitlines()) for name in DATA_FILES if name.endswith(".jsonl")}
    assert lines["sft.jsonl"] == lines["sft_policy.jsonl"] == len(notes) - notes.count("mistake")
    assert lines["sft_reflection.jsonl"] == len(notes)
    assert lines["sft_policy_positive.jsonl"] == lines["sft_reflection_positive.jsonl"] == notes.count("positive")


def test_a_memoised_comment_is_decoded_once(reflector_player: Player, observations: list[Observation]) -> None:
    reflector = Reflector(reflector_player, max_new_tokens=4)
    first = reflector.comment([*observations, observations[0]], ())
    tokens = reflector.tokens
    assert (reflector.asked, reflector.hits) == (len(observations) + 1, 1)
    assert reflector.comment(observations, ()) == first[:-1]
    assert (reflector.tokens, reflector.hits) == (tokens, 1 + len(observations))
    sampled = Reflector(reflector_player, temperature=1.0, max_new_tokens=4)
    assert sampled.comment(observations[:1], [1]) != sampled.comment(observations[:1], [2])
    assert sampled.memo == {}


def test_reflect_prob_drops_its_share_of_comments(
    policy: Player, reflector_player: Player, observations: list[Observation]
) -> None:
    agent = TwoPlayerAgent(policy, Reflector(reflector_player, max_new_tokens=2), reflect_prob=0.25)
    env = make("taxi")
    decisions = agent.act([observations[0]] * 400, [Context(seed, env) for seed in range(400)])
    share = sum(decision.reflection is not None for decision in decisions) / 400
    assert 0.18 < share < 0.32  # seeded; 0.25 within three standard errors


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy recipe, run once without interruption, by the command line."""
    folder = tmp_path_factory.mktemp("straight")
    (folder / "toy.yaml").write_text(RECIPE)
    done = subprocess.run(
        [sys.executable, "-m", "reflectkit", "run", "toy.yaml"], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "Reflect-RL" in done.stdout
    return folder


def test_run_makes_everything_and_leaves_nothing_half_done(straight: Path) -> None:
    assert set(DATA_FILES) <= {path.name for path in (straight / "data" / "corridor").iterdir()}
    steps = [step["name"] for step in yaml.safe_load(RECIPE)["steps"]]
    assert sorted(path.name for path in (straight / "results").iterdir()) == ["toy"]
    assert sorted(path.name for path in (straight / "results" / "toy").iterdir()) == sorted([*steps, "run"])
    for folder in (straight / "results" / "toy").iterdir():
        assert (folder / "config.json").is_file()
        assert (folder / "report.json").is_file()
    for paths in made_by_run(str(straight / "toy.yaml")).values():
        assert [path for path in paths if not (straight / path).exists()] == []
    assert not [
        path for path in straight.rglob("*") if path.name.startswith(".reflectkit-tmp") or path.name == "trainer"
    ]
    rows = read_json(straight / "results" / "toy" / "evaluation" / "eval.json")["rows"]
    wanted = {"name", "env", "level", "success", "low", "high", "tasks", "episodes", "return", "steps"}
    assert all(wanted <= set(row) for row in rows)
    assert rows[-1]["name"] == "oracle"
    assert rows[-1]["success"] == 1.0
    picture = straight / "results" / "toy" / "curves" / "curves.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_metrics_hold_what_is_promised(straight: Path) -> None:
    files = [straight / "results" / "toy" / step / "metrics.jsonl" for step in ("reflect-rl", "sft-rl")]
    for path in files:
        rows = [row for _, row in read_jsonl(path)]
        assert [row["step"] for row in rows] == list(range(1, 7))
        wanted = {
            "success_rate",
            "return",
            "loss",
            "entropy",
            "gradient_norm",
            "reflector_cache_hits",
            "tokens_per_second",
            "episodes_per_second",
        }
        assert wanted <= set(rows[0])
        assert rows[0]["ratio_deviation"] < 1e-5


def test_checkpoints_open_with_transformers_alone(straight: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for folder in (straight / "results" / "toy" / step / "checkpoint-6" for step in ("reflect-rl", "sft-rl")):
        tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
        assert model.config.vocab_size == len(tokenizer)
        assert not list(folder.glob("*.bin"))


def test_running_again_skips_everything(straight: Path) -> None:
    before = hashes(straight)
    done = subprocess.run(
        [sys.executable, "-m", "reflectkit", "run", "toy.yaml"],
        cwd=straight,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("already finished") == 11
    after = hashes(straight)
    assert {name: digest for name, digest in after.items() if name in before and before[name] != digest} == {}


def test_killed_at_any_point_and_started_again_it_ends_the_same(straight: Path, tmp_path: Path) -> None:
    """kill -9 of the command and its steps while data, weights and figures are written: same data files, same
    weights.
    """
    shutil.copy(straight / "toy.yaml", tmp_path)
    points = ("train.json:1", "trainer/checkpoint-16/:1", "checkpoint-6$:1", "eval.json:1")
    run_killed_at(points, ["run", "toy.yaml"], tmp_path)
    assert hashes(tmp_path / "data") == hashes(straight / "data")

    def weights(folder: Path) -> dict[str, str]:
        return {
            name: digest for name, digest in hashes(folder / "results").items() if name.endswith("model.safetensors")
        }

    assert weights(tmp_path) == weights(straight), "in the same folders, whichever steps began first"
    assert not [
        path for path in tmp_path.rglob("*") if path.name.startswith(".reflectkit-tmp") or path.name == "trainer"
    ]


def test_a_workers_end_follows_its_parents(tmp_path: Path) -> None:
    """After kill -9 of `run`, no worker goes on writing."""
    (tmp_path / "toy.yaml").write_text(RECIPE)
    process = subprocess.Popen(
        [sys.executable, "-m", "reflectkit", "run", "toy.yaml"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("results/toy/reflector/config.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    def working() -> list[int]:
        here = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if (entry / "cwd").resolve() == tmp_path and b"spawn_main" in (entry / "cmdline").read_bytes():
                        here.append(int(entry.name))
                except OSError:
                    continue
        return here

    if not Path("/proc").is_dir():
        pytest.skip("needs /proc to see processes")
    while working() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert working() == []


def shown(data: dict[str, int], command: str) -> bytes:
    """A file of one record with a demonstration of one step."""
    steps = [{"reflection": "r", "cmd": command}]
    demonstration = {"model_name": "m", "info": "positive0", "seed": 0, "trajectory": steps}
    record = {"id": "a", "env": "taxi", "level": "full", "group": "g", "data": data, "trajectories": [demonstration]}
    return json.dumps([record]).encode()


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The one line that `arguments` print to standard error."""
    assert main(arguments) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["split", "--env", "taxii"], "did you mean 'taxi'"),
        (["spilt"], "split"),
        (["gen-trajectory", "--env", "taxi", "--noise", "2"], "--noise must lie between 0 and 1"),
        (["gen-trajectory", "--env", "taxi", "--noise", "lots"], "--noise"),
        (["gen-trajectory", "--env", "taxi", "--noise", "nan"], "--noise"),
        (["gen-trajectory", "--env", "taxi", "--demonstrations", "301"], "has 300 problems"),
        (["gen-trajectory", "--env", "taxi", "--level", "pikcup"], "did you mean 'pickup'"),
        (["gen-trajectory", "--env", "os:path"], "lacks"),
        (["gen-trajectory"], "--env"),
        (["split", "--env", "taxi"], "no such file"),
        (["sft", "--env", "taxi", "--role", "reflexion"], "did you mean 'reflection'"),
        (["sft", "--env", "taxi", "--role", "policy"], "no such file"),
        (["sft", "--env", "taxi", "--role", "policy", "--max-steps", "0"], "--max-steps must lie between 1 and"),
        (["sft", "--env", "taxi", "--role", "policy", "--lora-r", "8"], "--lora-r needs a model"),
        (["gen-sft", "--env", "taxi", "--comments", "both"], "needs --reflect-load-dir"),
        (["gen-sft", "--env", "taxi", "--comments", "boths"], "did you mean 'both'"),
        (["rlft", "--env", "taxi", "--load-dir", "nowhere"], "no such file"),
        (["rlft", "--env", "taxi", "--load-dir", "x", "--baseline", "batchs"], "did you mean 'batch'"),
        (["evaluate", "--env", "taxi", "--policy", "SFT"], "NAME=CHECKPOINT"),
        (["evaluate", "--env", "taxi", "--policy", "a=x", "--policy", "a=y"], "given twice"),
        (["plot", "--runs", "a=nowhere"], "no such file"),
        (["plot", "--runs", "nowhere"], "NAME=FOLDER"),
        (["run", "taxi-tinny"], "did you mean 'taxi-tiny'"),
        (["run", "nowhere.yaml"], "no such recipe file"),
        (["run", "taxi-tiny", "--set", "reflectorr.max_steps=3"], "did you mean 'reflector'"),
        (["run", "taxi-tiny", "--set", "reflector.max_stepz=3"], "did you mean 'max_steps'"),
        (["run", "taxi-tiny", "--set", "reflector"], "STEP.SETTING=VALUE"),
        (["run", "taxi-tiny", "--set", "defaults.horizn=3"], "did you mean 'horizon'"),
        (["run", "taxi-tiny", "--set", "reflector.model=" + "[" * 5000], "--set reflector.model: not settings: nested"),
        (["run", "taxi-tiny", "--set", "reflector.model=["], "--set reflector.model:1: not YAML"),
        (["run", "taxi-tiny", "--set", "reflector.model='{data!r}'"], "without ':' or '!'"),
        (["run", "taxi-tiny", "--set", "reflector.keep=true"], "set it with --keep"),
        (["run", "taxi-tiny", "--name", "../elsewhere"], "--name '../elsewhere'"),
        (["split", "--env", "taxi", "--name", "8_rlft"], "for runs without a name"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_line_and_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(arguments, capsys)


@pytest.mark.parametrize(
    ("content", "message"), [ (b"", "empty"), (b"[]", "empty"), (b"{}", "expected a JSON list"), (b"\xff\xfe\x00",
    "not UTF-8"), (b'[{"id": "a", "env": "taxi"', "not JSON"),
    (b'[{"id": "a", "env": "taxi", "level": "full", "group": "g"}]', "record 0: field 'data'"),
    (b'[{"id": "a", "env": "corridor", "level": "long", "group": "g", "data": {}}]', "is of env 'corridor'"),
    ((b'[{"id": "a", "env": "taxi", "level": "full", "group": "g", "data": {}, ' b'"trajectories": 3}]'),
    "field 'trajectories'"), (shown({"state": 1}, "fly"), "does not offer 'fly'"), (shown({"state": 900}, "north"),
    "data.state"), (b'[{"id": "a", "env": "taxi", "level": "full", "group": "g", "data": {"state": 1}}]',
    "no record has a demonstration"), ],
)  # fmt: skip
def test_bad_records_are_one_line_and_nothing_is_overwritten(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "taxi").mkdir(parents=True)
    (tmp_path / "data" / "taxi" / "sft.jsonl").write_text("mine")
    (tmp_path / "bad.json").write_bytes(content)
    assert message in error_of(["gen-sft", "--env", "taxi", "--task-file", "bad.json"], capsys)
    assert (tmp_path / "data" / "taxi" / "sft.jsonl").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b'{"prompt": "p"}\n', ":1: field 'completion'"),
        (b'{"prompt": "p", "completion": " 0"}\n{"prompt": 3, "completion": " 0"}\n', ":2: field 'prompt'"),
        (b'{"prompt": "p", "completion": " 0"}\n{"prompt": "p"', ":2: not JSON"),
        (b'{"prompt": "p", "completion": " 0 1"}\n', ":1: field 'completion': the label"),
        (b'{"prompt": "' + b"word " * 400 + b'", "completion": " 0"}\n', ":1: the row has"),
    ],
)
def test_bad_rows_are_named(
    content: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_bytes(content)
    assert message in error_of(["sft", "--env", "taxi", "--role", "policy", "--task-file", "rows.jsonl"], capsys)


def test_unusable_models_are_one_line(
    checkpoints: dict[str, Path],
    taxi_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    task_file = str(taxi_data / "test.json")

    def evaluate(policy: str) -> str:
        return error_of(["evaluate", "--env", "taxi", "--task-file", task_file, "--policy", f"x={policy}"], capsys)

    assert "is a reflector, not a policy" in evaluate(str(checkpoints["reflection"]))
    assert "is a policy model, not a reflector" in evaluate(f"{checkpoints['policy']}+{checkpoints['policy']}")
    broken = tmp_path / "broken"
    shutil.copytree(checkpoints["policy"], broken)
    (broken / "model.safetensors").write_bytes((broken / "model.safetensors").read_bytes()[:1000])
    assert "cannot load the model" in evaluate(str(broken))
    (broken / "model.safetensors").unlink()
    assert "cannot load the model" in evaluate(str(broken))
    (broken / "tokenizer.json").unlink()
    assert "has no tokenizer" in evaluate(str(broken))
    (broken / "config.json").unlink()
    assert "is not a model folder" in evaluate(str(broken))
    assert "no such" in evaluate("nowhere/at/all")


def test_a_checkpoint_of_another_shape_is_refused(
    checkpoints: dict[str, Path],
    taxi_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    shutil.copytree(checkpoints["policy"], other)
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(settings | {"n_layer": 6}))
    assert "the weights lack" in error_of(
        ["evaluate", "--env", "taxi", "--task-file", str(taxi_data / "test.json"), "--policy", f"x={other}"], capsys
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b", "expected a mapping"),
        ("steps: [", "not YAML"),
        ("description: d\nsteps: 3", "field 'steps'"),
        ("description: d\nstops: []", "did you mean 'steps'"),
        ("description: d\nsteps: [{name: a, stage: spilt}]", "did you mean 'split'"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi}, {name: a, stage: split}]", "given twice"),
        ("description: d\nsteps: [{name: a, stage: sft, env: taxi, role: plain, task_file: '{b}'}]", "earlier step"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, size: 3}]", "no setting of step 'a'"),
        ("description: d\nsteps: [{name: a, stage: split, env: [1]}]", "step 'a': --env"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, task_file: '{'}]", "braces"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, task_file: '{data:>9}'}]", "without ':' or '!'"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, task_file: '{data!z}'}]", "without ':' or '!'"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, task_file: '{data.parent}'}]", "earlier step"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, task_file: '{}'}]", "earlier step"),
        ("steps: " + "[" * 5000 + "]" * 5000, "nested more than 50 deep"),
        ("steps: " + "[" * 100 + "]" * 100, "nested more than 50 deep"),
        ("\n".join(" " * depth + "a:" for depth in range(2000)), "nested more than 50 deep"),
        ("steps: &a [*a]", "nested more than 50 deep"),
        (
            "a: &b0 [x, x]\n" + "".join(f"a{n}: &b{n + 1} [*b{n}, *b{n}]\n" for n in range(40)),
            "of more than 100,000 parts",
        ),
        ("description: 2024-13-45", "month must be in 1..12"),
        (f"description: {'9' * 5000}", "not YAML"),
    ],
)
def test_bad_recipes_are_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(text)
    assert message in error_of(["run", "r.yaml"], capsys)


def test_every_command_has_help_with_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, flags in stage_flags().items():
        assert main([name, "--help"]) == 0
        told = capsys.readouterr().out
        assert f"$ reflectkit {name}" in told
        whole = {line.split()[1] for line in told.splitlines() if line.startswith("│ --")}
        assert flags <= whole  # none is cut off
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    places = [text.index(f"│ {name} ") for name in stage_flags()]
    assert places == sorted(places)


def test_our_own_failures_exit_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(split, "read_records", divmod)
    (tmp_path / "x.json").write_text("[]")
    assert "internal error" in error_of(["split", "--env", "taxi", "--task-file", "x.json"], capsys, code=1)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_an_env_of_ones_own_that_fails_is_told_by_its_line(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(
        "from reflectkit.envs.corridor import Corridor\n\n\nclass Mine(Corridor):\n"
        f"    def {method}(self, *given):\n        return {{}}['wall']\n"
    )
    told = error_of(["play", "--env", "mine:Mine", "--policy", "oracle", "--auto"], capsys)
    assert "mine.py, line 6: KeyError: 'wall'" in told


def test_reading_gymnasium_without_other_side_effects(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reflectkit", "list"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "levels: pickup, dropoff, full" in done.stdout
    assert "taxi-tiny" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_sft_loss_is_on_the_completion_alone(tmp_path: Path) -> None:
    """The labels that reach the model through TRL's collator: the prompt and the padding are -100, the label is not."""
    from reflectkit.stages import sft

    rows = [(1, "a longer prompt of words", " 0"), (2, "short", " 1")]
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"prompt": prompt, "completion": completion} for _, prompt, completion in rows])
    config = sft.Config(
        env="taxi", role="policy", task_file=path, results_dir=tmp_path, max_steps=2, batch_size=2, max_length=32
    )
    seen: list[dict[str, list[list[int]]]] = []
    player = sft._player(config, path, rows)

    def watch(module: object, args: tuple[object, ...], inputs: dict[str, torch.Tensor]) -> None:
        seen.append({name: inputs[name].tolist() for name in ("input_ids", "labels")})

    player.model.register_forward_pre_hook(watch, with_kwargs=True)
    encoded = sft._encode(config, path, rows, player)
    sft._train(config, tmp_path, None, player, encoded, Quiet())
    assert seen
    for batch in seen:
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            trained = [token for token in labels if token != -100]
            assert len(trained) == 1
            assert player.tokenizer.decode(trained) in (" 0", " 1")
            assert (
                labels.index(trained[0]) == len([token for token in ids if token != player.tokenizer.pad_token_id]) - 1
            )


def test_an_env_by_its_dotted_path_goes_through_the_data_stages(tmp_path: Path) -> None:
    folders = {"data_dir": tmp_path / "data", "results_dir": tmp_path / "results"}
    shared = {"env": "reflectkit.envs.corridor:Corridor", **folders}
    for stage in (gen_trajectory, split, gen_sft):
        stage.run(stage.Config(**shared), Quiet())
    assert len((tmp_path / "data" / "corridor" / "sft.jsonl").read_text().splitlines()) > 5


def test_sft_by_name_is_the_one_made_of_these_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluating = ["evaluate", "--env", "corridor", "--policy", "random", "--policy", "sft"]
    training = ["sft", "--env", "corridor", "--role", "plain", "--save-steps", "9", "--max-steps"]
    for stage in ("gen-trajectory", "split", "gen-sft"):
        assert main([stage, "--env", "corridor"]) == 0
    assert "no finished SFT on data/corridor/sft.jsonl" in error_of(evaluating, capsys)
    assert main([*training, "2"]) == 0
    assert main(evaluating) == 0
    (made,) = tmp_path.glob("results/*_evaluate/eval.json")
    assert [row["name"] for row in read_json(made)["rows"]] == ["random", "sft"]
    assert main([*training, "3"]) == 0
    assert "may be any of results/6_sft/checkpoint-3, results/4_sft/checkpoint-2; write" in error_of(evaluating, capsys)
    (tmp_path / "data" / "corridor" / "sft.jsonl").open("a").write("\n")
    assert "no finished SFT on data/corridor/sft.jsonl" in error_of(evaluating, capsys)


@pytest.mark.parametrize(
    ("steps", "extra", "message"),
    [
        (
            "[{name: a, stage: split, env: taxi}]",
            "fast: {a: {task_file: '{nowhere}'}}",
            "no step before 'a' named 'nowhere'",
        ),
        ("[{name: a, stage: split, env: taxi, seed: 3}]", "", "set it with --seed"),
        ("[{name: a, stage: split, env: taxi}]", "defaults: {nosie: 3}", "in the defaults of recipe"),
        ("[{name: data, stage: split, env: taxi}]", "", "can't name a step"),
        ("[{name: a.b, stage: split, env: taxi}]", "", "can't name a step"),
    ],
)
def test_recipes_that_would_be_misread_are_refused(
    steps: str,
    extra: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(f"description: d\nsteps: {steps}\n{extra}\n")
    assert message in error_of(["run", "r.yaml", "--fast"], capsys)


def test_a_lone_surrogate_is_a_data_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    record = {"id": "a\ud800", "env": "taxi", "level": "full", "group": "g", "data": {"state": 1}}
    (tmp_path / "x.json").write_text(json.dumps([record]))
    for command in (["split"], ["gen-sft"], ["evaluate", "--policy", "oracle"], ["rlft", "--load-dir", "nowhere"]):
        told = error_of([*command, "--env", "taxi", "--task-file", "x.json"], capsys)
        assert "x.json, record 0: some text holds half a surrogate pair" in told
