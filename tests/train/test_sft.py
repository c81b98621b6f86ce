"""sft that is interrupted, whose state is damaged, that diverges, or that runs out of memory or disk."""

from __future__ import annotations

import errno
import json
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from reflectkit.data.sft_rows import read_rows
from reflectkit.errors import CheckpointError, ConfigError, DivergedError
from reflectkit.jsonl import read_json, write_json, write_jsonl
from reflectkit.models.checkpoint_metadata import model_facts
from reflectkit.models.load import all_finite, load_player, save_player
from reflectkit.prompts import PROMPT_VERSION
from reflectkit.runs.run import checkpoints, seal, verify
from reflectkit.train.sft import build as sft_build
from reflectkit.train.sft import fit as sft_fit
from reflectkit.train.sft.build import gradient_steps
from reflectkit.train.sft.measure import ACCURACY, LOSS, PROBABILITY, measure, since_gain
from reflectkit.train.sft.resolve import resolve_rows, split_rows
from reflectkit.train.sft.tokens import NOT_TRAINED
from tests.kill import hashes
from tests.rlft_runs import cut_in_half
from tests.sft_runs import Interrupting, config, fresh_model, train, write_rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def straight(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of an uninterrupted run's checkpoint."""
    return hashes(train(rows, tmp_path_factory.mktemp("straight")))


@pytest.fixture(scope="module")
def interrupted(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a run that was interrupted in step 5, behind the trainer checkpoints 2 and 4."""
    results = tmp_path_factory.mktemp("interrupted")
    with pytest.raises(KeyboardInterrupt):
        train(rows, results, Interrupting(at=5))
    assert sorted(path.name for path in results.glob("1_sft/trainer/checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    return results


@pytest.fixture
def results(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of `interrupted`."""
    return Path(shutil.copytree(interrupted, tmp_path / "results"))


def flip_a_bit(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[-len(held) // 3] ^= 1
    path.write_bytes(held)


def test_the_last_checkpoint_is_sealed(rows: Path, tmp_path: Path) -> None:
    checkpoint = train(rows, tmp_path)
    assert model_facts(checkpoint)["prompts"] == PROMPT_VERSION
    verify(checkpoint)
    flip_a_bit(checkpoint / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        load_player(checkpoint, device="cpu")


def test_a_checkpoint_has_the_prompt_version_of_its_rows(rows: Path, tmp_path: Path) -> None:
    older = shutil.copy(rows, tmp_path)
    write_json(tmp_path / "sft_settings.json", {"prompt_version": 0, "corridor_length": 5})
    facts = model_facts(train(Path(older), tmp_path))
    assert facts["prompts"] == 0
    assert facts["env_settings"] == {"corridor_length": 5}


@pytest.mark.parametrize(("name", "damage"), [("model.safetensors", flip_a_bit), ("optimizer.pt", cut_in_half)])
def test_a_damaged_trainer_checkpoint_gives_way_to_the_one_before(
    rows: Path, straight: dict[str, str], results: Path, name: str, damage: Callable[[Path], None]
) -> None:
    damage(results / "1_sft/trainer/checkpoint-4" / name)
    progress = Interrupting()
    assert hashes(train(rows, results, progress)) == straight
    assert any(name in line and "resuming from an earlier state" in line for line in progress.lines)


def test_the_figures_of_a_resumed_run_are_those_of_an_uninterrupted_one(rows: Path, tmp_path: Path) -> None:
    """Resumed at step 15, before the first row of the log, which is still of the steps 1 to 20."""
    settings: dict[str, Any] = {"save_steps": 15, "max_steps": 20}
    with pytest.raises(KeyboardInterrupt):
        train(rows, tmp_path / "cut", Interrupting(at=18), **settings)
    here, there = (
        read_json(train(rows, tmp_path / name, **settings).parent / "report.json")["figures"]
        for name in ("cut", "straight")
    )
    assert here == there
    texts = [(tmp_path / name / "1_sft" / "metrics.jsonl").read_text() for name in ("cut", "straight")]
    assert texts[0] == texts[1]
    assert [json.loads(line)["step"] for line in texts[0].splitlines()] == [20]


def test_the_loss_on_held_out_rows_is_the_mean_over_their_answers(rows: Path) -> None:
    player = fresh_model(config(rows, Path()))
    ids = [[5, 6, 7], [8, 9, 10, 11, 12]]
    encoded = [
        {"input_ids": ids[0], "labels": [NOT_TRAINED, NOT_TRAINED, 7]},
        {"input_ids": ids[1], "labels": [NOT_TRAINED, 9, NOT_TRAINED, NOT_TRAINED, 12]},
    ]
    with torch.no_grad():
        first, second = (player.model.eval()(torch.tensor([row])).logits[0].log_softmax(-1) for row in ids)
    logprobs = torch.stack([first[1, 7], second[0, 9], second[3, 12]])
    player.model.train()
    for batch_size in (1, 2):
        measured = measure(player.model, encoded, batch_size)
        assert measured[LOSS] == pytest.approx(-float(logprobs.mean()), rel=1e-5)
        assert measured[PROBABILITY] == pytest.approx(float(logprobs.exp().mean()), rel=1e-5)
    assert player.model.training


def test_an_answer_is_right_if_each_of_its_tokens_is_the_most_likely_one(rows: Path) -> None:
    player = fresh_model(config(rows, Path()))

    def likely(*ids: int) -> int:
        return int(player.model.eval()(torch.tensor([ids])).logits[0, -1].argmax())

    first = likely(5, 6)
    second = likely(5, 6, first)
    other = likely(5, 6, first, second, 9) + 1
    both = {"input_ids": [5, 6, first, second], "labels": [NOT_TRAINED, NOT_TRAINED, first, second]}
    wrong_end = {"input_ids": [5, 6, first, second + 1], "labels": [NOT_TRAINED, NOT_TRAINED, first, second + 1]}
    two_answers = {
        "input_ids": [5, 6, first, second, 9, other],
        "labels": [NOT_TRAINED, NOT_TRAINED, first, second, NOT_TRAINED, other],
    }
    for batch_size in (1, 3):
        assert measure(player.model, [both, wrong_end, two_answers], batch_size)[ACCURACY] == 2 / 4


def held_out_probabilities(run: Path) -> dict[int, float]:
    written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row[PROBABILITY] for row in written if PROBABILITY in row}


def test_the_best_checkpoint_on_held_out_rows_is_kept_and_resumed_to(rows: Path, tmp_path: Path) -> None:
    held_out = tmp_path / "held_out.jsonl"
    write_jsonl(held_out, [{"prompt": f"cell {n} of 10", "completion": " 0"} for n in range(3)])
    validated: dict[str, Any] = {"validate_file": held_out, "validate_steps": 2, "learning_rate": 0.05}
    best = train(rows, tmp_path / "straight", **validated)
    probabilities = held_out_probabilities(best.parent)
    assert list(probabilities) == [2, 4, 6, 7]
    highest = max(probabilities, key=lambda step: probabilities[step])
    assert best.name == f"checkpoint-{highest}"
    assert model_facts(best)[PROBABILITY] == probabilities[highest]
    assert {path.name for path in checkpoints(best.parent)} == {best.name, "checkpoint-7"}

    with pytest.raises(KeyboardInterrupt):
        train(rows, tmp_path / "cut", Interrupting(at=5), **validated)
    resumed = train(rows, tmp_path / "cut", **validated)
    assert hashes(resumed) == hashes(best)
    assert held_out_probabilities(resumed.parent) == probabilities


def test_patience_ends_sft(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities = iter([0.1, 0.5, 0.4, 0.3, 0.9])
    figures = {LOSS: 1.0, ACCURACY: 0.5}
    monkeypatch.setattr(sft_fit, "measure", lambda *_: {PROBABILITY: next(probabilities), **figures})
    validated: dict[str, Any] = {"validate_file": rows, "validate_steps": 1, "patience": 2}
    best = train(rows, tmp_path, **validated)
    assert [path.name for path in checkpoints(best.parent)] == ["checkpoint-2", "checkpoint-4"]
    assert best.name == "checkpoint-2"
    assert read_json(best.parent / "report.json")["figures"]["steps"] == 4


def test_a_higher_accuracy_is_a_gain_and_a_hardly_higher_probability_is_none() -> None:
    def since(*measured: tuple[float, float]) -> int:
        return since_gain([{PROBABILITY: probability, ACCURACY: accuracy} for probability, accuracy in measured])

    assert since((0.5, 0.5)) == 0
    assert since((0.5, 0.5), (0.4, 0.5), (0.3, 0.6)) == 0
    assert since((0.5, 0.5), (0.5004, 0.5), (0.5008, 0.5)) == 2
    assert since((0.5, 0.5), (0.5004, 0.5), (0.5008, 0.5), (0.5012, 0.5)) == 0


def write_many(folder: Path, count: int) -> Path:
    path = folder / "rows.jsonl"
    write_jsonl(path, [{"prompt": f"cell {number} of 99", "completion": f" {number % 2}"} for number in range(count)])
    return path


def test_without_a_number_of_steps_rows_are_held_out_and_the_best_checkpoint_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = iter([0.5, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.9])
    read: list[int] = []

    def measured(model: Any, held_out: Any, batch_size: int) -> dict[str, float]:
        read.append(len(held_out))
        accuracy = next(accuracies)
        return {PROBABILITY: accuracy / 2, LOSS: 1.0, ACCURACY: accuracy}

    monkeypatch.setattr(sft_fit, "measure", measured)
    monkeypatch.setattr(sft_build, "SCRATCH_STEPS", (1, 20, 20))
    progress = Interrupting()
    best = train(write_many(tmp_path, 40), tmp_path, progress, max_steps=0)
    assert best.name == "checkpoint-2"
    figures = read_json(best.parent / "report.json")["figures"]
    assert (figures["rows"], figures["held_out_rows"], figures["steps"]) == (40, 4, 7)
    assert figures["best_validation_accuracy"] == model_facts(best)["validation_accuracy"] == 0.7
    assert read == [4] * 7
    assert any("at most 20 steps on 36 rows" in line for line in progress.lines)


def test_held_out_rows_are_neighbours_and_not_trained_on(tmp_path: Path) -> None:
    rows = read_rows(write_many(tmp_path, 200))
    settings = config(tmp_path / "rows.jsonl", tmp_path, max_steps=0)
    trained, held_out = split_rows(settings, rows)
    numbers = [row.line - 1 for row in held_out]
    assert len(numbers) == 20
    assert [numbers[place] + 1 for place in range(0, 20, 2)] == numbers[1::2]
    assert sorted([*(row.line for row in trained), *(row.line for row in held_out)]) == list(range(1, 201))
    assert split_rows(settings, rows) == (trained, held_out)
    assert split_rows(settings, rows[:19]) == (rows[:19], [])  # too few
    assert split_rows(config(tmp_path / "rows.jsonl", tmp_path, max_steps=9), rows) == (rows, [])
    asked = config(tmp_path / "rows.jsonl", tmp_path, max_steps=9, hold_out=0.3)
    assert len(split_rows(asked, rows)[1]) == 60
    with pytest.raises(ConfigError, match=r"--hold-out 0\.3 of 1 row is none; leave it out"):
        split_rows(asked, rows[:1])
    with pytest.raises(ConfigError, match="--patience needs held-out rows"):
        config(tmp_path / "rows.jsonl", tmp_path, max_steps=0, hold_out=0.0, patience=3)


def test_a_file_of_held_out_rows_next_to_the_others_is_measured_on(tmp_path: Path) -> None:
    path = write_many(tmp_path, 40)
    (tmp_path / "held-out").mkdir()
    beside = tmp_path / "held-out" / path.name
    shutil.copy(path, beside)
    rows = resolve_rows(config(path, tmp_path, max_steps=0))
    assert rows.held_out_source == beside
    assert list(rows.training) == list(rows.held_out) == read_rows(path)
    shared = resolve_rows(config(path, tmp_path, max_steps=0, hold_out=0.1))
    assert (shared.held_out_source, len(shared.held_out)) == (path, 4)
    assert resolve_rows(config(path, tmp_path, epochs=2)).held_out == ()


def test_the_number_of_steps_follows_from_the_rows(tmp_path: Path) -> None:
    def steps(rows: int, **settings: Any) -> int:
        return gradient_steps(config(tmp_path / "rows.jsonl", tmp_path, batch_size=16, **settings), rows)

    assert steps(700, max_steps=0) == 20 * 44
    assert steps(70, max_steps=0) == 600
    assert steps(700_000, max_steps=0) == 3000
    assert steps(700, max_steps=0, model="some/model") == 5 * 44
    assert steps(700, max_steps=7) == 7
    assert steps(700, max_steps=0, epochs=3) == 3 * 44


def test_tiny_reads_states_much_longer_than_its_rows(rows: Path, tmp_path: Path) -> None:
    player = load_player(train(rows, tmp_path, max_length=0), device="cpu")
    assert player.context >= 8192
    with torch.no_grad():
        logits_BTV = player.model(torch.full((1, 1000), 5)).logits
    assert logits_BTV.isfinite().all()


def test_positions_of_tiny_are_relative(rows: Path, tmp_path: Path) -> None:
    """The same distance before the last token makes the same difference, wherever the text begins."""
    model = fresh_model(config(rows, tmp_path)).model.eval()
    tokens = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        here, there = (model(tokens, position_ids=torch.arange(5)[None] + start).logits for start in (0, 3000))
    torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-4)


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["optimizer.pt", "training_args.bin", "pytorch_model.bin"])
def test_nothing_in_a_trainer_checkpoint_runs_code(rows: Path, results: Path, tmp_path: Path, name: str) -> None:
    """Even where the checksums are right."""
    sign = tmp_path / "exploded"
    checkpoint = results / "1_sft/trainer/checkpoint-4"
    assert not (checkpoint / "training_args.bin").exists()
    torch.save(Bomb(sign), checkpoint / name)
    if name == "pytorch_model.bin":
        (checkpoint / "model.safetensors").unlink()
    seal(checkpoint)
    if name == "training_args.bin":  # which is not read
        train(rows, results)
    else:
        with pytest.raises(CheckpointError, match="checkpoint-4 holds more than tensors, and is not read"):
            train(rows, results)
    assert not sign.exists()


def test_training_that_diverges_stops_and_keeps_the_last_good_checkpoint(rows: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DivergedError, match=r"diverged at step \d.* lower --learning-rate, .*its last checkpoint is"
    ) as caught:
        train(rows, tmp_path, save_steps=1, learning_rate=1000.0, max_steps=4)
    assert "\n" not in str(caught.value)
    kept = list(tmp_path.glob("1_sft/trainer/checkpoint-*"))
    assert str(max(kept)) in str(caught.value)
    for checkpoint in kept:
        verify(checkpoint)
        assert all_finite(load_file(checkpoint / "model.safetensors").values())
    assert not list(tmp_path.glob("1_sft/checkpoint-*"))


@pytest.mark.parametrize("free", [0, 2**40])
def test_a_checkpoint_that_could_not_be_written_does_not_stay(
    rows: Path, tmp_path: Path, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's error for a full disk does not name it."""
    whole = torch.save

    def fails(value: object, path: str, **settings: Any) -> None:
        whole(value, path, **settings)
        if "checkpoint-4" in path and "scheduler" in path:
            raise RuntimeError("[enforce fail at inline_container.cc:863] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", fails)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**40 - free, free))
    with pytest.raises(RuntimeError if free else OSError) as caught:
        train(rows, tmp_path)
    assert getattr(caught.value, "errno", None) == (None if free else errno.ENOSPC)
    assert [path.name for path in tmp_path.glob("1_sft/trainer/checkpoint-*")] == ["checkpoint-2"]


def test_a_text_needs_an_end_token(tmp_path: Path) -> None:
    rows = write_rows(tmp_path)
    player = fresh_model(config(rows, tmp_path))
    player.tokenizer.eos_token = None
    save_player(tmp_path / "base", player)
    write_jsonl(rows, [{"prompt": "cell 1\nAction:", "completion": " of 9"}])
    with pytest.raises(CheckpointError, match="no end token"):
        train(rows, tmp_path, model=str(tmp_path / "base"))


def test_a_token_that_the_model_cannot_read_is_refused(rows: Path, tmp_path: Path) -> None:
    player = fresh_model(config(rows, tmp_path))
    player.tokenizer.add_tokens(["cell 5"])
    save_player(tmp_path / "base", player)
    with pytest.raises(CheckpointError, match="'cell 5'"):
        train(rows, tmp_path, model=str(tmp_path / "base"))
