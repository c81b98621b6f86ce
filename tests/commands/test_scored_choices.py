"""`--answer score`: each choice is read alone, from the rows to training, evaluation and the server."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.cli.main import main
from reflectkit.data.sft_rows import read_rows
from reflectkit.env import Context
from reflectkit.envs import listed, make
from reflectkit.errors import DataError
from reflectkit.eventloop import run_sync
from reflectkit.integrations.agent import load_agent
from reflectkit.jsonl import read_jsonl, write_jsonl
from reflectkit.models.checkpoint_metadata import model_facts
from reflectkit.models.load import load_player
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train.sft.tokens import encode_options
from reflectkit.types import Message, Observation


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of the corridor that scores its two choices, after a few steps of SFT."""
    folder = tmp_path_factory.mktemp("corridor")
    flags = ["--env", "corridor", "--data-dir", str(folder / "data"), "--results-dir", str(folder / "results")]
    assert main(["gen-trajectory", *flags, "--level", "long"]) == 0
    assert main(["split", *flags]) == 0
    assert main(["gen-sft", *flags, "--answer", "score"]) == 0
    rows = [row for _, row in read_jsonl(folder / "data/corridor/sft.jsonl")]
    assert rows[0]["prompt"] == "Reach G. You are T.\n" + rows[0]["prompt"].split("\n")[1] + "\nAction:"
    assert (rows[0]["options"], rows[0]["completion"], rows[0]["answer"]) == (["left", "right"], " right", "score")
    train = ["sft", *flags, "--role", "plain", "--vocabulary", "300", "--max-steps", "8", "--name", "sft"]
    assert main([*train, "--token-pattern", r"[\w.]+|\W"]) == 0
    return folder / "results/sft/checkpoint-8"


def test_a_policy_that_scores_choices_learns_and_plays(checkpoint: Path) -> None:
    assert model_facts(checkpoint)["answer"] == "score"
    common = ["--env", "corridor", "--device", "cpu"]
    train = ["rlft", *common, "--policy", str(checkpoint), "--max-steps", "1", "--episodes", "8", "--name", "rl"]
    assert main(train) == 0
    trained = Path("results/rl/checkpoint-1")
    assert model_facts(trained)["answer"] == "score"
    assert main(["evaluate", *common, "--policy", f"ours={trained}", "--problems", "2"]) == 0
    with load_agent(checkpoint, device="cpu") as agent:
        act = agent.act("Reach G. You are T.\n. T . . . . G", ("left", "right"))
    assert act.action == "right"
    assert sum(act.probabilities) == pytest.approx(1, abs=1e-5)


def test_random_weights_learn_from_the_reward_alone() -> None:
    """By GRPO, since the critic of PPO would not see the choices."""
    train = ["rlft", "--env", "corridor", "--model", "tiny", "--answer", "score", "--device", "cpu"]
    assert main([*train, "--max-steps", "1", "--episodes", "8", "--validate-problems", "2", "--name", "rl"]) == 0
    assert model_facts(Path("results/rl/checkpoint-1"))["answer"] == "score"


def test_the_order_of_choices_changes_nothing(checkpoint: Path) -> None:
    """And a choice's odds against another do not depend on a third."""
    agent = TwoPlayerAgent(LocalSampler(load_player(checkpoint, device="cpu")), answer="score", show=True)
    env = make("corridor")
    env.reset(listed("corridor", "long")[0], 0)

    def shares(*choices: str) -> dict[str, float]:
        seen = Observation((Message("user", "Reach G."),), choices)
        return dict(zip(choices, run_sync(agent.decide(seen, Context(0, env))).probabilities, strict=True))

    three = shares("left", "right", "stay")
    for order in itertools.permutations(three):
        assert shares(*order) == pytest.approx(three, abs=1e-6)
    two = shares("right", "left")
    assert two["right"] / two["left"] == pytest.approx(three["right"] / three["left"], rel=1e-4)


def test_neighbouring_rows_with_one_prompt_are_read_together(checkpoint: Path, tmp_path: Path) -> None:
    """Their options once each, and the answer of each at its place among its own."""
    tokenizer, path = load_player(checkpoint, device="cpu").tokenizer, tmp_path / "rows.jsonl"
    row = {"prompt": "Go.\nAction:", "answer": "score"}
    rows = [
        row | {"completion": " b", "options": ["a", "b"]},
        row | {"completion": " c", "options": ["c", "b", "d"]},
        row | {"prompt": "Stop.\nAction:", "completion": " a", "options": ["b", "a"], "probabilities": [0.25, 0.75]},
    ]
    write_jsonl(path, rows)
    first, second = encode_options(path, read_rows(path), tokenizer)
    words = [tokenizer.decode(option[:-1]).strip() for option in first["options"]]
    assert (words, first["offered"], first["shares"]) == (
        ["a", "b", "c", "d"],
        [[0, 1], [2, 1, 3]],
        [[0, 1], [1, 0, 0]],
    )
    assert {option[-1] for option in first["options"]} == {tokenizer.eos_token_id}
    assert (second["offered"], second["shares"]) == ([[0, 1]], [[0.25, 0.75]])
    with pytest.raises(DataError, match=r"a prompt with an option has \d+ tokens and 4 fit"):
        encode_options(path, read_rows(path), tokenizer, max_length=4)
    for wrong in ({"options": None}, {"options": ["a", "a"]}, {"completion": " e"}, {"probabilities": [1.0]}):
        write_jsonl(path, [rows[0] | wrong])
        with pytest.raises(DataError, match=r"rows\.jsonl:1"):
            read_rows(path)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["rlft", "--algo", "ppo", "--max-steps", "1"], "the critic reads a state without its choices"),
        (["evaluate", "--sampler", "vllm:http://127.0.0.1:9"], "scores each choice alone"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    checkpoint: Path, flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = flags
    assert main([command, "--env", "corridor", "--device", "cpu", "--policy", str(checkpoint), *rest]) == 2
    assert reason in capsys.readouterr().err
