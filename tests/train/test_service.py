"""rlft on a training service: the same losses as here, resuming, refusals, and answers that no model gives."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import random
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reflectkit.agents.player_refs import Player
from reflectkit.agents.players import Players, PlayersSetup
from reflectkit.chat.config import BudgetSpentError
from reflectkit.commands import evaluate, export, rlft, serve
from reflectkit.console import Quiet
from reflectkit.envs.adapters.endpoint import RequestError
from reflectkit.errors import CheckpointError, ConfigError, MismatchError
from reflectkit.integrations.agent import load_agent
from reflectkit.models.labels import label_ids, trie
from reflectkit.models.load import LoadedModel, load_player, save_player, starting_player, with_adapter
from reflectkit.models.scoring import choice_logprobs
from reflectkit.runs.run import checkpoints
from reflectkit.sampling import checks
from reflectkit.sampling import service as services
from reflectkit.sampling.service import label_logprobs, label_rows, record_of
from reflectkit.sampling.service_interface import LostWeightsError
from reflectkit.sampling.wire import GoneError
from reflectkit.train import build
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.service_learner import ServiceLearner
from reflectkit.types import Message, Observation, Sample
from tests.train.fake_service import ALPHA, FakeAdapter, FakeService
from tests.train.training import play, rows_of


@pytest.fixture
def service(corridor_folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """A service with the corridor's policy as its base, at any address."""
    fake = FakeService(corridor_folder / "policy")
    monkeypatch.setattr(build, "open_service", lambda name, settings, notify=None: fake)
    return fake


def moved_rows(policy: LoadedModel) -> list[Sample]:
    """Rows with advantages of both signs, a few of them replayed, whose policy has moved a little since."""
    rows = rows_of(policy, play(policy, count=6))
    changed = []
    for number, row in enumerate(rows):
        shift = 0.05 * (number % 5 - 2)
        logprobs = tuple(
            value + shift if trained else value for value, trained in zip(row.logprobs, row.loss_mask, strict=True)
        )
        advantages = tuple((number % 3 - 1.2) * trained for trained in row.loss_mask)
        changed.append(dataclasses.replace(row, logprobs=logprobs, advantages=advantages, replayed=number % 4 == 3))
    return changed


LONG_LABELS = ((5, 6, 7), (5, 6, 8), (5, 9), (10,))
"""Labels that part at three places."""


def longer_labels(rows: list[Sample]) -> list[Sample]:
    """`rows` with these labels instead of their own, each with the tokens of one of them."""
    changed = []
    for number, row in enumerate(rows):
        label = LONG_LABELS[number % 4]
        tokens = (*row.tokens[: row.start], *label)
        columns = {}
        for name in ("loss_mask", "decisions", "logprobs", "advantages", "returns"):
            values = getattr(row, name)
            rest = (-1 if name == "decisions" else 0,) * (len(label) - 1)
            columns[name] = (*values[: row.start + 1], *rest)
        changed.append(dataclasses.replace(row, tokens=tokens, choices=LONG_LABELS, values=(), **columns))
    return changed


def texts(rows: list[Sample]) -> list[Sample]:
    """`rows` as texts of two trained tokens."""
    return [
        dataclasses.replace(
            row,
            tokens=(*row.tokens[: row.start], 5, 6),
            loss_mask=(0,) * row.start + (1, 1),
            decisions=(-1,) * row.start + (0, 0),
            logprobs=(0.0,) * row.start + (-4.1, -3.9),
            advantages=(0.0,) * row.start + (number % 3 - 1.2,) * 2,
            returns=(0.0,) * (row.start + 2),
            values=(),
            choices=(),
        )
        for number, row in enumerate(rows)
    ]


CASES: dict[str, dict[str, Any]] = {
    "choices": {"entropy": 0.05, "clip": 0.02, "clip_high": 0.3, "kl": 0.1, "temperature": 0.7},
    "long labels": {"entropy": 0.05, "kl": 0.1, "mask": "token", "mask_ratio": 1.05, "epochs": 2, "minibatch": 10},
    "texts by its own loss": {"entropy": 0.0, "clip": 0.1, "clip_high": 0.3, "epochs": 2, "minibatch": 10},
    "texts": {"entropy": 0.0, "kl": 0.2, "mask": "sequence", "mask_ratio": 1.2, "mean": "row"},
}


@pytest.mark.parametrize("case", CASES)
def test_an_update_there_equals_one_here(policy: LoadedModel, tmp_path: Path, case: str) -> None:
    save_player(tmp_path / "base", policy)
    rows = moved_rows(policy)
    if case == "long labels":
        rows = longer_labels(rows)
    elif case != "choices":
        rows = texts(rows)
    own_loss = case == "texts by its own loss"
    if own_loss:
        rows = [dataclasses.replace(row, replayed=False) for row in rows]
    settings = LearnerSettings(learning_rate=1e-3, **CASES[case])

    here = with_adapter(load_player(tmp_path / "base", device="cpu"), 4, ALPHA, seed=0)
    reference = starting_player(here, tmp_path / "base", True, "cpu") if settings.kl else None
    local = LocalLearner(here, settings, reference=reference)

    service = FakeService(tmp_path / "base")
    adapter, start = (
        FakeAdapter(service, with_adapter(load_player(tmp_path / "base", device="cpu"), 4, ALPHA, seed=0))
        for _ in range(2)
    )
    base, frozen = str(tmp_path / "base"), start if settings.kl else None
    remote = ServiceLearner(adapter, policy.tokenizer, base, settings, {}, start=frozen, clips=True)

    for number in range(2):
        figures = [learner.update(rows, random.Random(number)).figures for learner in (local, remote)]
        if case.startswith("texts"):  # which have no entropy there
            del figures[0]["entropy"]
        assert figures[0].keys() == figures[1].keys()
        for name, value in figures[0].items():
            assert figures[1][name] == pytest.approx(value, abs=1e-5), name
    assert (dict(service.calls).keys() == {"clipped", "step"}) == own_loss
    trained = [(name, weight) for name, weight in here.model.named_parameters() if weight.requires_grad]
    assert len(trained) == len(adapter.weights) > 0
    for (name, mine), theirs in zip(trained, adapter.weights, strict=True):
        torch.testing.assert_close(theirs, mine, atol=1e-5, rtol=0, msg=name)


def test_labels_are_scored_as_here(policy: LoadedModel, tmp_path: Path) -> None:
    save_player(tmp_path / "base", policy)
    adapter = FakeAdapter(FakeService(tmp_path / "base"), policy)
    prompt = (3, 4, 11, 12)
    for labels in (label_ids(policy.tokenizer, 4), LONG_LABELS):
        expected, _ = choice_logprobs(policy.model, [prompt], [labels], pad_id=policy.pad_id, temperature=0.5)
        read = [adapter._logprobs(row).tolist() for row in label_rows(prompt, labels)]
        assert label_logprobs(prompt, labels, read, 0.5) == pytest.approx(expected[0].tolist(), abs=1e-5)
    assert [len(row) for row in label_rows(prompt, LONG_LABELS)] == [7, 7, 6, 5]
    assert len(trie(LONG_LABELS).nodes) == 3


def arguments(folder: Path, **settings: Any) -> dict[str, Any]:
    return {
        "env": "corridor",
        "task_file": folder / "train.json",
        "policy": folder / "policy",
        "engine": "tinker:http://fake",
        "lora_r": 4,
        "algo": "reinforce",
        "max_steps": 3,
        "episodes": 8,
        "save_steps": 1,
        "learning_rate": 1e-3,
        "validate_problems": 0,
        **settings,
    }


def train(folder: Path, results: Path, **settings: Any) -> Path:
    return rlft.run(rlft.RLConfig.from_flat(**arguments(folder, results_dir=results, **settings)), Quiet()).folder


def figures_of(folder: Path) -> list[dict[str, Any]]:
    timed = ("tokens_per_second", "episodes_per_second", "rollout_seconds", "update_seconds")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in timed} for row in rows]


def test_a_run_that_was_killed_goes_on_from_the_saved_state(
    corridor_folder: Path, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a reflector here. What is played and learned is what an unbroken run plays and learns."""
    settings = {"reflector": corridor_folder / "reflection", "entropy_coef": 0.01}
    whole = figures_of(train(corridor_folder, tmp_path / "whole", **settings))
    asked = len(service.calls)

    class Killed(BaseException):
        pass

    step = FakeAdapter.step
    made = []

    async def killed(self: FakeAdapter, *more: Any) -> Any:
        made.append(1)
        if len(made) == 3:
            raise Killed
        return await step(self, *more)

    monkeypatch.setattr(FakeAdapter, "step", killed)
    with pytest.raises(Killed):
        train(corridor_folder, tmp_path / "broken", **settings)
    resumed = train(corridor_folder, tmp_path / "broken", **settings)
    assert figures_of(resumed) == whole
    assert asked > 0
    newest = checkpoints(resumed)[-1]
    record = json.loads((newest / "reflectkit.json").read_text())["service"]
    assert record["rank"] == 4
    assert record["base"] == str(corridor_folder / "policy")
    assert record["state"] in service.states
    assert not list(newest.glob("*model*.safetensors"))


def test_one_bad_answer_does_not_throw_paid_training_away(
    corridor_folder: Path, service: FakeService, tmp_path: Path
) -> None:
    """Training began anew, and wrote over the path of weights that the service still had."""
    settings: dict[str, Any] = {"max_steps": 2, "learning_rate": 0.05}
    folder = train(corridor_folder, tmp_path, **settings)
    newest = checkpoints(folder)[-1]
    path = json.loads((newest / "reflectkit.json").read_text())["service"]["state"]
    saved = service.states.pop(path)
    with pytest.raises(LostWeightsError, match="does not give out"):
        train(corridor_folder, tmp_path, **settings | {"max_steps": 3})
    assert checkpoints(folder)[-1] == newest

    service.states[path] = saved
    asked = [name for name, _ in service.calls].count("step")
    train(corridor_folder, tmp_path, **settings | {"max_steps": 3})
    assert [name for name, _ in service.calls].count("step") == asked + 1


def test_weights_that_are_not_the_saved_ones_are_refused(
    corridor_folder: Path, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By training, which goes on from the checkpoint before where the newest is deleted; and by every player."""
    monkeypatch.setattr(services, "open_service", lambda name, settings, notify=None: service)
    settings: dict[str, Any] = {"max_steps": 2, "learning_rate": 0.05}
    newest = checkpoints(train(corridor_folder, tmp_path, **settings))[-1]
    path = json.loads((newest / "reflectkit.json").read_text())["service"]["state"]
    for weight in service.states[path][0]:
        weight.add_(0.3)
    evaluation = evaluate.EvaluateConfig.from_flat(env="corridor", policy=(str(newest),), results_dir=tmp_path)
    exported = export.ExportConfig.from_flat(policy=newest, out_dir=tmp_path / "home", results_dir=tmp_path)
    for command in (
        lambda: train(corridor_folder, tmp_path, **settings | {"max_steps": 3}),
        lambda: evaluate.run(evaluation, Quiet()),
        lambda: export.run(exported, Quiet()),
    ):
        with pytest.raises(LostWeightsError, match="holds other weights than were saved"):
            command()
    shutil.rmtree(newest)
    folder = train(corridor_folder, tmp_path, **settings | {"max_steps": 3})
    assert checkpoints(folder)[-1].name == "checkpoint-3"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"algo": "ppo"}, "critic"),
        ({"table_coef": 1.0}, "--table-coef"),
        ({"lora_r": 0}, "--lora-r"),
        ({"quantize": "8bit"}, "--quantize"),
        ({"processes": 2}, "--processes"),
        ({"lora_alpha": 8}, "--lora-alpha"),
        ({"distill_comments": 1.0, "reflector": "oracle"}, "distillation"),
        ({"engine": "tinker:ftp://x"}, "http://localhost:8000"),
        ({"engine": "tinkle:http://x"}, "tinker:http://localhost:8000"),
        ({"service_model": "other"}, "name one of these"),
    ],
)
def test_what_a_service_cannot_do_is_refused_before_anything_is_asked(
    corridor_folder: Path, service: FakeService, tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        train(corridor_folder, tmp_path, **settings)
    assert service.calls == []


def test_without_sft_it_learns_by_groups_instead_of_a_critic() -> None:
    given = {"env": "corridor", "model": "tiny", "lora_r": 8}
    assert rlft.RLConfig.from_flat(**given).algo.name == "ppo"
    there = rlft.RLConfig.from_flat(**given, engine="tinker:http://localhost:1")
    assert there.algo.name == "grpo"
    assert there.algo.novelty == 3.0
    assert there.algo.table_coef == 0.0
    assert "--algo grpo" in there.notes[0]


@pytest.mark.parametrize("value", [0.5, math.nan, "x"])
def test_an_answer_that_is_no_log_probability_stops_the_run(
    corridor_folder: Path, service: FakeService, tmp_path: Path, value: Any
) -> None:
    service.lie = lambda logprobs: [*logprobs[:-1], value]
    with pytest.raises(ConfigError, match="http://fake answered with the log-probability"):
        train(corridor_folder, tmp_path)
    assert "step" not in dict(service.calls)


def test_log_probabilities_of_other_weights_are_not_learned_from(policy: LoadedModel, tmp_path: Path) -> None:
    save_player(tmp_path / "base", policy)
    service = FakeService(tmp_path / "base")
    adapter = FakeAdapter(service, with_adapter(load_player(tmp_path / "base", device="cpu"), 4, ALPHA, seed=0))
    settings = LearnerSettings(learning_rate=1e-3, mismatch=True, agrees_with="tinker:http://fake")
    learner = ServiceLearner(adapter, policy.tokenizer, str(tmp_path / "base"), settings, {})
    rows = [
        dataclasses.replace(row, logprobs=tuple(value - 2.0 * bool(trained) for value, trained in
                                                zip(row.logprobs, row.loss_mask, strict=True)))
        for row in rows_of(policy, play(policy, count=6))
    ]  # fmt: skip
    with pytest.raises(MismatchError, match="tinker"):
        learner.update(rows, random.Random(0))
    assert "step" not in dict(service.calls)


def test_all_episodes_are_scored_in_one_request(corridor_folder: Path, service: FakeService, tmp_path: Path) -> None:
    """64 episodes of the corridor begin in at most as many states as there are problems, with two labels each."""
    train(corridor_folder, tmp_path, episodes=64, max_steps=1)
    problems = len(json.loads((corridor_folder / "train.json").read_text()))
    rows = [count for name, count in service.calls if name == "forward"]
    assert 2 <= rows[0] <= 2 * problems
    assert rows[0] % 2 == 0


@pytest.mark.parametrize("kind", ["choices", "texts"])
def test_no_episode_waits_for_another(corridor_folder: Path, service: FakeService, tmp_path: Path, kind: str) -> None:
    """64 episodes have 64 requests in flight."""
    settings: dict[str, Any] = {"episodes": 64, "max_steps": 1, "algo": "grpo"}
    if kind == "texts":
        (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "Go {number}"}}\n' for number in range(8)))
        (tmp_path / "rewards.py").write_text(
            "def length(completions, **_):\n    return [len(t) for t in completions]\n"
        )
        reward = (f"{tmp_path / 'rewards.py'}:length",)
        settings |= {"env": "prompts", "dataset": str(tmp_path / "rows.jsonl"), "reward": reward, "task_file": None}
        settings |= {"max_new_tokens": 2, "data_dir": tmp_path / "data"}
    (row,) = figures_of(train(corridor_folder, tmp_path, **settings))
    assert row["requests_in_flight"] == 64
    if kind == "texts":
        assert service.most_waiting == 64


def test_what_was_read_to_play_is_not_read_again_to_learn(
    corridor_folder: Path, service: FakeService, tmp_path: Path
) -> None:
    """In the first gradient step; the second one has other weights."""
    train(corridor_folder, tmp_path, max_steps=1, epochs=2)
    asked = [name for name, _ in service.calls]
    first = asked.index("backward")
    assert asked[first : first + 4] == ["backward", "step", "forward", "backward"]
    rows = [count for name, count in service.calls if name == "backward"]
    assert sum(count for _, count in service.calls[:first]) == rows[0]  # each row that learns was read once


def test_weights_that_learn_must_be_those_that_played(
    corridor_folder: Path, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that scores with old weights: nothing is learned."""
    forward = FakeAdapter.forward

    async def old(self: FakeAdapter, rows: Any) -> Any:
        return [[min(0.0, -3.0 - value) for value in row] for row in await forward(self, rows)]

    monkeypatch.setattr(FakeAdapter, "forward", old)
    with pytest.raises(MismatchError, match="tinker"):
        train(corridor_folder, tmp_path)
    assert "step" not in dict(service.calls)


PRICES = {"price_read": 10.0, "price_sampled": 20.0, "price_trained": 40.0}


def test_what_is_asked_is_counted_and_paid(corridor_folder: Path, service: FakeService, tmp_path: Path) -> None:
    """A row of the corridor's two labels has its prompt and one token. Each is read to play, and once more to learn."""
    settings = {**PRICES, "max_cost_usd": 1.0, "max_steps": 1, "epochs": 2}
    folder = train(corridor_folder, tmp_path, **settings)
    (row,) = figures_of(folder)
    state = json.loads((checkpoints(folder)[-1] / "training_state.json").read_text())["metered"]
    read, trained = state["tokens"]["read"], state["tokens"]["trained"]
    probe = 16
    assert read > trained > 0
    assert state["tokens"]["sampled"] == 0
    assert state["spent_usd"] == pytest.approx((10 * read + 40 * trained) / 1e6)
    assert row["service_usd"] == pytest.approx(state["spent_usd"] - 10 * probe / 1e6)  # which is read as it is saved


def test_the_budget_is_not_exceeded_and_a_higher_one_goes_on(
    corridor_folder: Path, service: FakeService, tmp_path: Path
) -> None:
    def spent(folder: Path) -> float:
        return float(json.loads((checkpoints(folder)[-1] / "training_state.json").read_text())["metered"]["spent_usd"])

    whole = train(corridor_folder, tmp_path / "whole", **PRICES, max_cost_usd=9.0)
    total = spent(whole)
    limit = 0.6 * total
    with pytest.raises(BudgetSpentError, match="raise it and run the same again"):
        train(corridor_folder, tmp_path / "poor", **PRICES, max_cost_usd=limit, name="poor")
    assert spent(tmp_path / "poor" / "poor") <= limit
    steps = [count for name, count in service.calls if name == "step"]
    resumed = train(corridor_folder, tmp_path / "poor", **PRICES, max_cost_usd=9.0, name="poor")
    assert len([count for name, count in service.calls if name == "step"]) > len(steps)
    learned = [{name: value for name, value in row.items() if name != "service_usd"} for row in figures_of(resumed)]
    assert learned == [
        {name: value for name, value in row.items() if name != "service_usd"} for row in figures_of(whole)
    ]
    with pytest.raises(ConfigError, match="--price-read"):
        train(corridor_folder, tmp_path / "free", max_cost_usd=1.0)


def test_the_plan_counts_tokens_and_asks_nothing(corridor_folder: Path, service: FakeService, tmp_path: Path) -> None:
    config = rlft.RLConfig.from_flat(
        **arguments(corridor_folder, results_dir=tmp_path, **PRICES, plan=True, epochs=2, kl_coef=0.1)
    )
    figures = rlft.run(config, Quiet()).figures
    row = figures["tokens_trained"] / 2
    assert figures["tokens_read"] == pytest.approx(
        row + (2 * 2 - 1) * row, abs=2
    )  # the first step needs no reading of its own
    assert figures["tokens_sampled"] == 0
    assert figures["usd"] == pytest.approx((10 * figures["tokens_read"] + 40 * figures["tokens_trained"]) / 1e6)
    assert service.calls == []


def test_export_brings_the_adapter_home(
    corridor_folder: Path, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says here is what the service said when it was saved."""
    folder = train(corridor_folder, tmp_path, learning_rate=0.05, max_steps=1)
    place = checkpoints(folder)[-1]
    with pytest.raises(CheckpointError, match="on a training service"):
        load_player(place, device="cpu")
    monkeypatch.setattr(services, "open_service", lambda name, settings, notify=None: service)
    config = export.ExportConfig.from_flat(policy=place, out_dir=tmp_path / "home", results_dir=tmp_path)
    export.run(config, Quiet())
    home = load_player(tmp_path / "home", "policy", device="cpu")
    saved = json.loads((place / "training_state.json").read_text())["service"]
    ids = checks.spread(len(home.tokenizer), 16)
    with torch.no_grad():
        logprobs = torch.log_softmax(home.model(torch.tensor([ids[:-1]])).logits[0], dim=-1)
        assert logprobs.gather(1, torch.tensor([ids[1:]]).T)[:, 0].tolist() == pytest.approx(saved["probe"], abs=1e-5)
        with home.model.disable_adapter():
            base = torch.log_softmax(home.model(torch.tensor([ids[:-1]])).logits[0], dim=-1)
    assert float((base - logprobs).abs().max()) > 1e-3


def test_a_checkpoint_plays_on_its_service(
    corridor_folder: Path, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """evaluate needs no flag: its checkpoint knows where its weights are. There it does as the adapter at home."""
    monkeypatch.setattr(services, "open_service", lambda name, settings, notify=None: service)
    place = checkpoints(train(corridor_folder, tmp_path, learning_rate=0.05, max_steps=1))[-1]
    asked = len(service.calls)
    home = tmp_path / "home"
    export.run(export.ExportConfig.from_flat(policy=place, out_dir=home, results_dir=tmp_path), Quiet())
    returns = []
    for policy in (place, home):
        config = evaluate.EvaluateConfig.from_flat(
            env="corridor",
            policy=(str(policy),),
            task_file=corridor_folder / "train.json",
            results_dir=tmp_path / f"played-{policy.name}",
            device="cpu",
        )
        report = evaluate.run(config, Quiet())
        returns.append([json.loads(line)["return"] for line in (report.folder / "episodes.jsonl").open()])
    assert len(service.calls) > asked
    assert returns[0] == returns[1]


def test_a_damaged_record_is_not_asked_for(
    corridor_folder: Path, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By no command: it might name other weights."""
    place = checkpoints(train(corridor_folder, tmp_path, learning_rate=0.05, max_steps=1))[-1]
    monkeypatch.setattr(services, "open_service", lambda name, settings, notify=None: service)
    assert record_of(place)["rank"] > 0
    facts = place / "reflectkit.json"
    facts.write_text(facts.read_text().replace('"rank": ', '"rank": 1'))
    asked = len(service.calls)
    configs = {
        evaluate.run: evaluate.EvaluateConfig.from_flat(env="corridor", policy=(str(place),), results_dir=tmp_path),
        export.run: export.ExportConfig.from_flat(policy=place, out_dir=tmp_path / "home", results_dir=tmp_path),
    }
    for run, config in configs.items():
        with pytest.raises(CheckpointError, match=r"reflectkit\.json is damaged"):
            run(config, Quiet())
    with pytest.raises(CheckpointError, match=r"reflectkit\.json is damaged"):
        train(corridor_folder, tmp_path / "again", policy=place, max_steps=1)
    assert len(service.calls) == asked


@pytest.fixture
def moved(corridor_folder: Path, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose service has another address now."""

    def opened(name: str, settings: Any, notify: Any = None) -> FakeService:
        if name != "tinker:http://new":
            raise GoneError("http://fake does not answer (refused); start the service, then run the same again")
        return service

    monkeypatch.setattr(services, "open_service", opened)
    return checkpoints(train(corridor_folder, tmp_path, learning_rate=0.05, max_steps=1))[-1]


def test_a_service_that_moved_is_named_by_engine(corridor_folder: Path, moved: Path, tmp_path: Path) -> None:
    """Each command that plays a checkpoint or fetches it takes the new address, and says so without it."""
    problems = {"env": "corridor", "task_file": corridor_folder / "train.json", "device": "cpu"}
    players = {"policy": (f"ours={moved}+{corridor_folder / 'reflection'}",)}

    def evaluated(**more: Any) -> Any:
        return evaluate.run(evaluate.EvaluateConfig.from_flat(**problems, **players, **more), Quiet())

    def served(**more: Any) -> Any:
        config = serve.ServeConfig.from_flat(policy=moved, **more)
        with TemporaryDirectory() as folder:
            player = Player("policy", config.policy, None)
            return Players(PlayersSetup(config, (player,), serve.Programs, Path(folder))).agent(player)

    def exported(**more: Any) -> Any:
        config = export.ExportConfig.from_flat(policy=moved, out_dir=tmp_path / "home", results_dir=tmp_path, **more)
        return export.run(config, Quiet())

    def loaded(**more: Any) -> Any:
        with load_agent(moved, device="cpu", **more) as agent:
            return agent

    for command in (evaluated, served, exported, loaded):
        with pytest.raises(GoneError, match="--engine tinker:URL") as caught:
            command()
        assert "\n" not in str(caught.value)
        command(engine="tinker:http://new")
    assert (tmp_path / "home" / "adapter_config.json").is_file()


def test_a_base_plays_on_the_service(corridor_folder: Path, service: FakeService, moved: Path, tmp_path: Path) -> None:
    """As it does here. A model that the service does not have, and that was not trained here, is refused."""
    returns = []
    for engine in ("tinker:http://new", ""):
        asked = len(service.calls)
        config = evaluate.EvaluateConfig.from_flat(
            env="corridor",
            policy=(f"base={corridor_folder / 'policy'}",),
            task_file=corridor_folder / "train.json",
            results_dir=tmp_path / f"at-{engine[-3:]}",
            engine=engine,
            device="cpu",
        )
        report = evaluate.run(config, Quiet())
        returns.append([json.loads(line)["return"] for line in (report.folder / "episodes.jsonl").open()])
        assert (len(service.calls) > asked) == bool(engine)
    assert returns[0] == returns[1]
    with (
        pytest.raises(ConfigError, match="name it as --service-model"),
        load_agent(corridor_folder / "base", device="cpu", engine="tinker:http://new"),
    ):
        pass


def test_programs_are_told_to_ask_again_while_the_service_is_away(
    service: FakeService, moved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By status 503, after which clients of OpenAI's protocol ask again."""
    config = serve.ServeConfig.from_flat(policy=moved, engine="tinker:http://new")
    with TemporaryDirectory() as folder:
        player = Player("policy", config.policy, None)
        agent = Players(PlayersSetup(config, (player,), serve.Programs, Path(folder))).agent(player)

    async def away(self: FakeAdapter, *more: Any) -> Any:
        raise GoneError("http://fake does not answer")

    monkeypatch.setattr(FakeAdapter, "write", away)
    request = SimpleNamespace(
        max_tokens=4, temperature=1.0, turns=(), observation=Observation((Message("user", "Go"),), replies=True)
    )
    server = serve.PolicyServer(agent, config)
    try:
        with pytest.raises(RequestError, match="does not answer") as caught:
            asyncio.run(server.reply("", request))
    finally:
        server.thread.close()
    assert caught.value.status == 503
