"""sft: the loss is on the completions, and a checkpoint answers as it was trained, in labels or in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit.cli.main import main
from reflectkit.commands import sft
from reflectkit.console import Quiet
from reflectkit.data.sft_rows import read_rows
from reflectkit.envs.taxi import Taxi
from reflectkit.errors import DataError
from reflectkit.integrations.agent import load_agent
from reflectkit.jsonl import write_jsonl
from reflectkit.models.checkpoint_metadata import model_facts
from reflectkit.models.labels import prompt_ids, text_ids
from reflectkit.models.load import load_player
from reflectkit.train.sft.tokens import encode
from tests.families import mistral


def test_sft_loss_is_on_the_completion_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels that reach the model through TRL's collator: the prompt and the padding are -100, the label is not."""
    from trl import SFTTrainer

    rows = [("a longer prompt of words", " 0"), ("short", " 1")]
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, [{"prompt": prompt, "completion": completion} for prompt, completion in rows])
    config = sft.SFTConfig.from_flat(
        env="taxi", role="policy", task_file=path, results_dir=tmp_path, max_steps=2, batch_size=2, max_length=32
    )
    seen: list[dict[str, list[list[int]]]] = []
    compute_loss = SFTTrainer.compute_loss

    def watching(trainer: SFTTrainer, model: object, inputs: dict[str, torch.Tensor], *more: Any, **named: Any) -> Any:
        seen.append({name: inputs[name].tolist() for name in ("input_ids", "labels")})
        return compute_loss(trainer, model, inputs, *more, **named)

    monkeypatch.setattr(SFTTrainer, "compute_loss", watching)
    player = load_player(sft.run(config, Quiet()).outputs[0], device="cpu")
    assert seen
    for batch in seen:
        for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
            trained = [token for token in labels if token != -100]
            assert len(trained) == 1
            assert player.tokenizer.decode(trained) in (" 0", " 1")
            assert (
                labels.index(trained[0]) == len([token for token in ids if token != player.tokenizer.pad_token_id]) - 1
            )


def test_rows_of_the_original_are_read(tmp_path: Path) -> None:
    """Its loss begins behind the last marker: the action's where there is one, else the comment's."""
    path = tmp_path / "rows.jsonl"
    action, comment = "Task: a\n # Analyze:\nI see.\n0 cd b # Action:\n0", "Task: a # Analyze:\nI see\nit all."
    write_jsonl(path, [{"text": action}, {"text": comment}, {"text": "old # Action:\n1 # Action:\n2"}])
    assert [row.parts for row in read_rows(path)] == [
        (("Task: a\n # Analyze:\nI see.\n0 cd b # Action:\n", "0"),),
        (("Task: a # Analyze:\n", "I see\nit all."),),
        (("old # Action:\n1 # Action:\n", "2"),),
    ]
    for role, text in (("policy", action), ("reflection", comment)):
        write_jsonl(path, [{"text": text}] * 2)
        config = sft.SFTConfig.from_flat(
            env="auto_explore", role=role, task_file=path, results_dir=tmp_path, max_steps=1, batch_size=2
        )
        assert load_player(sft.run(config, Quiet()).outputs[0], device="cpu").role == role
    for text in ("no marker", "ends # Action:\n", 3):
        write_jsonl(path, [{"text": text}])
        with pytest.raises(DataError, match=r"rows\.jsonl:1"):
            read_rows(path)


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


@pytest.mark.parametrize(
    ("form", "listed", "right", "wrong"),
    [("label", " 0 go\n 1 stay", " 1", "1"), ("text", " go\n stay", " stay", " leave")],
)
def test_an_answer_that_its_prompt_does_not_list_is_refused(
    form: str, listed: str, right: str, wrong: str, tmp_path: Path
) -> None:
    path = tmp_path / "sft.jsonl"
    row = {"prompt": f"a map\nActions:\n{listed}\nAction:", "answer": form}
    write_jsonl(path, [row | {"completion": right}])
    assert read_rows(path)[0].parts[0][1] == right
    write_jsonl(path, [row | {"completion": right}, row | {"completion": wrong}])
    with pytest.raises(DataError, match=re.escape(f"{wrong!r} is none of the listed actions")) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}:2: field 'completion'")


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
