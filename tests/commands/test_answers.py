"""Answers in the words of the choices, from rows to RL: a checkpoint knows what it was trained to answer with."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.commands import sft
from reflectkit.console import Quiet
from reflectkit.data.sft_rows import read_rows
from reflectkit.envs.taxi import Taxi
from reflectkit.integrations.agent import load_agent
from reflectkit.jsonl import write_jsonl
from reflectkit.models.checkpoint_metadata import model_facts
from reflectkit.models.labels import prompt_ids, text_ids
from reflectkit.models.load import load_player
from reflectkit.train.sft import encode
from tests.families import mistral

CHOICES = (*Taxi.choices, "pickup now")
"""The words of one begin those of another."""


@pytest.fixture(scope="module")
def text_rows(taxi_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    flags = ["--data-dir", str(taxi_data.parent), "--results-dir", str(folder / "results")]
    assert main(["gen-sft", "--env", "taxi", "--answer", "text", "--out-dir", str(folder / "rows"), *flags]) == 0
    return folder / "rows"


@pytest.fixture(scope="module")
def checkpoint(text_rows: Path) -> Path:
    """A policy that was trained for one step to answer in words."""
    config = sft.SFTConfig.from_flat(
        env="taxi", role="plain", task_file=text_rows / "sft.jsonl", max_steps=1, device="cpu", results_dir=text_rows
    )
    return sft.run(config, Quiet()).outputs[0]


def test_a_checkpoint_answers_as_it_was_trained(checkpoint: Path, taxi_data: Path) -> None:
    """Through evaluate, rlft, export and load_agent, without being told."""
    assert model_facts(checkpoint)["answer"] == "text"
    common = ["--env", "taxi", "--device", "cpu", "--horizon", "2"]
    problems = ["--task-file", str(taxi_data / "test.json")]
    assert main(["evaluate", *common, *problems, "--problems", "2", "--policy", f"ours={checkpoint}"]) == 0
    train = ["rlft", *common, "--task-file", str(taxi_data / "train.json"), "--policy", str(checkpoint), "--max-steps"]
    assert main([*train, "1", "--episodes", "8", "--name", "trained", "--answer", "text"]) == 0
    trained = Path("results/trained/checkpoint-1")
    assert model_facts(trained)["answer"] == "text"
    assert main(["export", "--policy", str(trained), "--out-dir", "out"]) == 0
    tokenizer = load_player("out").tokenizer
    with load_agent("out", device="cpu") as agent:
        act = agent.act("a map", CHOICES)
        assert act.action == CHOICES[act.index]
        assert sum(act.probabilities) == pytest.approx(1, abs=1e-5)
        decision = agent._running().result(agent._agent.decide(*agent._request("a map", CHOICES)))
    assert decision.token_ids == text_ids(tokenizer, CHOICES)[decision.action]
    assert decision.prompt_ids == tuple(prompt_ids(tokenizer, "a map\nActions:\n " + "\n ".join(CHOICES) + "\nAction:"))


def test_what_is_trained_is_the_path_that_is_scored(tmp_path: Path) -> None:
    """A completion's tokens are its path among the answers that its own prompt lists, the end token included."""
    listed = "\nActions:\n " + "\n ".join(CHOICES) + "\nAction:"
    rows = [{"prompt": f"a map{listed}", "completion": f" {word}", "answer": "text"} for word in CHOICES]
    numbers = "".join(f"\n {number} go" for number in range(14))
    rows_of_labels = [{"prompt": f"a map\nActions:{numbers}\nAction:", "completion": f" {n}"} for n in (1, 9, 13)]
    tokenizer = mistral([row["prompt"] for row in (*rows, *rows_of_labels)] * 20)
    for name, part in (("words", rows), ("labels", rows_of_labels)):
        write_jsonl(tmp_path / f"{name}.jsonl", part)
    for name, paths in (("words", text_ids(tokenizer, CHOICES)), ("labels", None)):
        path = tmp_path / f"{name}.jsonl"
        encoded = encode(path, read_rows(path), tokenizer, role="plain")
        trained = [tuple(token for token in row["labels"] if token != -100) for row in encoded]
        if paths is not None:
            assert tuple(trained) == paths
            assert trained[4][-1] == tokenizer.eos_token_id  # "pickup", from which "pickup now" goes on
        else:
            ends = [tokenizer.convert_ids_to_tokens(list(one)) for one in trained]
            assert ends == [["▁", "1", "</s>"], ["▁", "9"], ["▁", "1", "3"]]
