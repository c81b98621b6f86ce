"""Labelled decisions through gen-sft, sft and evaluate; and recorded ones with outcomes in one update of rlft."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectkit import load_agent
from reflectkit.cli.main import main
from reflectkit.data.recorded import read_recorded
from reflectkit.errors import DataError
from reflectkit.jsonl import json_line, read_json, read_jsonl, write_jsonl
from reflectkit.models.labels import choice_ids, prompt_ids
from reflectkit.models.load import LoadedModel, save_player
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import label, policy_prompt
from reflectkit.train.sft.measure import LOSS, PROBABILITY, measure_decisions
from reflectkit.train.sft.trainers import decision_losses
from reflectkit.types import Decision, Message, Observation, to_json
from tests.command_lines import error_of

OPTIONS = ("Billing", "Bugs")


def row(state: str, share: float) -> dict[str, Any]:
    return {"state": state, "question": "Which?", "options": list(OPTIONS), "probabilities": [share, 1 - share]}


def seen(state: str) -> Observation:
    return Observation((Message("user", f"{state}\nWhich?"),), OPTIONS)


@pytest.fixture(scope="module")
def player() -> LoadedModel:
    tokenizer = build_tokenizer([policy_prompt(seen("I was charged twice."))], [label(index) for index in range(4)])
    return LoadedModel(build_model(tokenizer, 128, 0, init_range=0.2), tokenizer, "plain")


def test_the_loss_is_the_cross_entropy_over_the_labels(player: LoadedModel) -> None:
    """-Σ p ln q, with q from a softmax over the two labels alone; beside a row of three options."""
    prompts = [prompt_ids(player.tokenizer, policy_prompt(seen(state))) for state in ("I was charged twice.", "Hi")]
    labels = choice_ids(player.tokenizer, ("a", "b", "c"), "label")
    rows = [
        {"input_ids": prompts[0], "options": list(labels[:2]), "shares": [0.75, 0.25]},
        {"input_ids": prompts[1], "options": list(labels), "shares": [0.0, 0.0, 1.0]},
    ]
    losses, _ = decision_losses(player.model, rows, player.pad_id)
    expected = []
    for prompt, shares in zip(prompts, ([0.75, 0.25], [0.0, 0.0, 1.0]), strict=True):
        logits = player.model(input_ids=torch.tensor([prompt])).logits[0, -1].detach()
        logits_K = logits[[path[0] for path in labels[: len(shares)]]]
        expected.append(-float((torch.tensor(shares) * torch.log_softmax(logits_K, dim=-1)).sum()))
    assert losses.tolist() == pytest.approx(expected, abs=1e-5)
    measured = measure_decisions(player.model, rows, 1, player.pad_id)
    assert measured[LOSS] == pytest.approx(sum(expected) / 2, abs=1e-5)
    assert measured[PROBABILITY] == pytest.approx(math.exp(-measured[LOSS]))


def test_a_policy_learns_the_probabilities_and_is_measured_against_them() -> None:
    states = {"I was charged twice.": 0.8, "The app crashes.": 0.3}
    once = [row(state, share) for state, share in states.items()]
    write_jsonl(Path("tickets.jsonl"), [*once * 4, once[0]])  # so that a batch has one row
    env = ["--env", "decisions", "--dataset", "tickets.jsonl"]
    assert main(["gen-sft", *env, "--decisions", "tickets.jsonl", "--out-dir", "rows"]) == 0
    rows = [line for _, line in read_jsonl(Path("rows/sft.jsonl"))]
    assert len(rows) == 9
    assert (rows[0]["completion"], rows[0]["probabilities"]) == (" 0", pytest.approx([0.8, 0.2]))
    sft = ["sft", *env, "--role", "plain", "--task-file", "rows/sft.jsonl", "--max-steps", "60", "--batch-size", "8"]
    assert main([*sft, "--device", "cpu", "--name", "router"]) == 0
    with load_agent("results/router") as agent:
        for state, share in states.items():
            assert agent.act(seen(state)).probabilities[0] == pytest.approx(share, abs=0.05)
    policy = ["--policy", "ours=results/router", "--device", "cpu", "--score-oracle", "--name", "measured"]
    assert main(["evaluate", *env, *policy]) == 0
    (result,) = read_json(Path("results/measured/eval.json"))["rows"]
    assert result["success"] == 1
    assert result["return"] == pytest.approx((5 * 0.8 + 4 * 0.7) / 9)  # the probability of the likelier option
    assert result["calibration"]["action"]["hits"] == 1


def test_soft_labels_of_answers_in_words_reach_their_optimum(player: LoadedModel) -> None:
    """The least of -Σ p ln q is at q = p: the entropy of p. The two answers share their first token."""
    learner = copy.deepcopy(player)
    ids = prompt_ids(learner.tokenizer, policy_prompt(seen("I was charged twice."), None, "text"))
    options = choice_ids(learner.tokenizer, ("Billing Bugs", "Billing twice"), "text")
    assert options[0][0] == options[1][0]
    rows = [{"input_ids": ids, "options": options, "shares": [0.7, 0.3]}]
    optimizer = torch.optim.Adam(learner.model.parameters(), 1e-3)
    for _ in range(40):
        optimizer.zero_grad()
        loss = decision_losses(learner.model, rows, learner.pad_id)[0].sum()
        loss.backward()
        optimizer.step()
    assert loss.item() == pytest.approx(-0.7 * math.log(0.7) - 0.3 * math.log(0.3), abs=1e-3)


@pytest.mark.parametrize(("asked", "form"), [
    ([("Which?", OPTIONS), ("Which?", OPTIONS), ("Now?", ("yes", "no")), ("Now?", ("yes", "no"))], "label"),
    ([("Which?", OPTIONS), ("Which?", OPTIONS[::-1])], "text"),
    ([("Is it red?", ("yes", "no")), ("Is it blue?", ("yes", "no"))], "label"),
    ([("Who is it?", ("Ada", "Bob")), ("Where is it?", ("Rome", "Oslo"))], "text"),
])  # fmt: skip
def test_changing_options_are_answered_in_words(asked: list[tuple[str, tuple[str, ...]]], form: str) -> None:
    rows = [{"state": "It is.", "question": text, "options": options, "answer": options[0]} for text, options in asked]
    write_jsonl(Path("decisions.jsonl"), rows)
    gen_sft = ["gen-sft", "--env", "corridor", "--decisions", "decisions.jsonl", "--out-dir"]
    assert main([*gen_sft, "rows"]) == 0
    written = [line for _, line in read_jsonl(Path("rows/sft.jsonl"))]
    assert {line.get("answer", "label") for line in written} == {form}
    assert main([*gen_sft, "scored", "--answer", "score"]) == 0
    assert next(read_jsonl(Path("scored/sft.jsonl")))[1]["options"] == list(asked[0][1])


def recorded(player: LoadedModel, shares: tuple[float, ...], number: str = "decision-1", **more: Any) -> dict[str, Any]:
    observation = seen("I was charged twice.")
    prompt = tuple(prompt_ids(player.tokenizer, policy_prompt(observation)))
    decision = Decision(1, None, prompt, (9,), (-0.1,), probabilities=shares)
    line = {"session": "", "id": number, "question": "team", "options": list(observation.choices)}
    return line | {"observation": to_json(observation), "decision": to_json(decision)} | more


@pytest.mark.parametrize(
    ("changes", "repeats", "outcome", "place"),
    [
        ({"action": 2}, 1, {}, "answers.jsonl:1: field 'decision.action'"),
        ({"action": -1}, 1, {}, "answers.jsonl:1: field 'decision.action'"),
        ({"probabilities": [0.25, 3]}, 1, {}, "answers.jsonl:1: field 'decision.probabilities'"),
        ({"probabilities": [0.25, 0.5]}, 1, {}, "answers.jsonl:1: field 'decision.probabilities'"),
        ({}, 2, {}, "answers.jsonl:2: field 'id'"),
        ({}, 1, {"choice": "Sales"}, "outcomes.jsonl:1: field 'choice'"),
        ({}, 1, {"choice": True}, "outcomes.jsonl:1: field 'choice'"),
        ({}, 1, {"quest": "team"}, "outcomes.jsonl:1: field 'quest'"),
        ({}, 1, {"reward": True}, "outcomes.jsonl:1: field 'reward'"),
        ({"prompt_ids": "none"}, 1, {}, "answers.jsonl:1: field 'decision.prompt_ids'"),
    ],
)
def test_a_damaged_record_is_named_with_its_place(
    player: LoadedModel, changes: dict[str, Any], repeats: int, outcome: dict[str, Any], place: str
) -> None:
    line = recorded(player, (0.25, 0.75))
    line["decision"] |= changes
    write_jsonl(Path("answers.jsonl"), [line] * repeats)
    write_jsonl(Path("outcomes.jsonl"), [{"id": "decision-1", "reward": 1.0} | outcome])
    with pytest.raises(DataError) as caught:
        read_recorded(Path("answers.jsonl"), Path("outcomes.jsonl"), "decisions")
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [
        ([{"id": "decision-9"}], "has no decision 'decision-9'"),
        ([{"id": "decision-1", "question": "desk"}], "has no decision 'decision-1' on the question 'desk'"),
        ([{"id": "decision-1"}, {"id": "decision-1", "question": "team"}], "all questions of 'decision-1' have"),
    ],
)
def test_an_outcome_of_no_decision_is_named(player: LoadedModel, outcomes: list[dict[str, Any]], reason: str) -> None:
    write_jsonl(Path("answers.jsonl"), [recorded(player, (0.25, 0.75))])
    write_jsonl(Path("outcomes.jsonl"), [outcome | {"reward": 1.0} for outcome in outcomes])
    with pytest.raises(DataError, match=reason):
        read_recorded(Path("answers.jsonl"), Path("outcomes.jsonl"), "decisions")


def test_outcomes_are_joined_by_id_with_the_recorded_probability(player: LoadedModel) -> None:
    lines = [
        recorded(player, (0.25, 0.75)),
        recorded(player, (0.25, 0.75), "decision-2"),
        recorded(player, (0.5, 0.5), "decision-3"),
        {"session": "", "reward": 1.0},
    ]
    write_jsonl(Path("answers.jsonl"), lines)
    outcomes = [{"id": "decision-1", "reward": 1.0}, {"id": "decision-2", "reward": -1, "choice": "Billing"}]
    write_jsonl(Path("outcomes.jsonl"), outcomes)
    episodes, without = read_recorded(Path("answers.jsonl"), Path("outcomes.jsonl"), "decisions")
    turns = [episode.turns[0] for episode in episodes]
    assert without == 1
    assert [(turn.decision.action, turn.reward) for turn in turns] == [(1, 1.0), (0, -1.0)]
    assert [turn.decision.logprobs[0] for turn in turns] == pytest.approx([math.log(0.75), math.log(0.25)])


@pytest.mark.parametrize(
    ("names", "texts", "choice", "action"),
    [
        (["a: b", "a"], ["a: b", "a: c"], "a", 1),
        (["Bug: UI", "Bug: API"], ["Bug: UI: buttons", "Bug: API: calls"], "Bug: API", 1),
        ([True, False], ["true", "false"], False, 1),
        ([True, False], ["yes", "no"], "no", 1),
        (["low", "low"], ["low: 1", "low: 2"], "low: 2", 1),
        (["low", "low"], ["low: 1", "low: 2"], "low", None),
        ([], ["calm", "urgent"], "urgent", 1),
    ],
)
def test_an_outcome_names_an_option_as_the_request_did(
    player: LoadedModel, names: list[Any], texts: list[str], choice: Any, action: int | None
) -> None:
    line = recorded(player, (0.25, 0.75), options=names)
    line["observation"]["choices"] = texts
    write_jsonl(Path("answers.jsonl"), [line])
    write_jsonl(Path("outcomes.jsonl"), [{"id": "decision-1", "reward": 1.0, "choice": choice}])
    if action is None:
        with pytest.raises(DataError, match="has 2 options 'low'"):
            read_recorded(Path("answers.jsonl"), Path("outcomes.jsonl"), "decisions")
        return
    ((episode,), _) = read_recorded(Path("answers.jsonl"), Path("outcomes.jsonl"), "decisions")
    assert episode.turns[0].decision.action == action


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_line_that_is_still_being_written_is_left_out(player: LoadedModel, cut: int) -> None:
    """Also one that ends within a character, as a server's lines are not ASCII."""
    last = json_line({"session": "é", "id": "decision-2"}) + "é".encode()
    Path("answers.jsonl").write_bytes(json_line(recorded(player, (0.25, 0.75))) + last[:-cut])
    Path("outcomes.jsonl").write_text('{"id": "decision-1", "reward": 1.0}\n{"id": "deci', encoding="utf-8")
    episodes, without = read_recorded(Path("answers.jsonl"), Path("outcomes.jsonl"), "decisions")
    assert (len(episodes), without) == (1, 0)


def test_rlft_makes_one_update_from_the_record(player: LoadedModel, capsys: pytest.CaptureFixture[str]) -> None:
    save_player(Path("policy"), player)
    write_jsonl(Path("tickets.jsonl"), [row("I was charged twice.", 1.0)] * 3)
    numbers = [f"decision-{number}" for number in range(8)]
    write_jsonl(Path("answers.jsonl"), [recorded(player, (0.5, 0.5), number) for number in numbers])
    taken = [{"choice": "Billing", "reward": 1.0}, {"choice": "Bugs", "reward": 0.0}]
    write_jsonl(Path("outcomes.jsonl"), [{"id": number, **taken[place % 2]} for place, number in enumerate(numbers)])
    rlft = ["rlft", "--env", "decisions", "--dataset", "tickets.jsonl", "--policy", "policy", "--device", "cpu"]
    update = ["--recorded", "answers.jsonl", "--outcomes", "outcomes.jsonl", "--learning-rate", "0.01"]
    assert main([*rlft, *update, "--name", "update"]) == 0
    shares = []
    for place in ("policy", "results/update"):
        with load_agent(place) as agent:
            shares.append(agent.act(seen("I was charged twice.")).probabilities[0])
    assert shares[1] > shares[0] + 0.01  # Billing was rewarded
    (figures,) = [line for _, line in read_jsonl(Path("results/update/metrics.jsonl"))]
    assert (figures["episodes"], figures["return"]) == (8, 0.5)
    assert figures["ratio_deviation"] == pytest.approx(
        max(abs(math.log(shares[0] / 0.5)), abs(math.log((1 - shares[0]) / 0.5))), abs=1e-4
    )  # the weight's logarithm is to the recorded probability

    # What cannot be used is one line
    capsys.readouterr()
    without = recorded(player, (), numbers[0])
    write_jsonl(Path("answers.jsonl"), [without, *(recorded(player, (0.5, 0.5), number) for number in numbers[1:])])
    told = error_of([*rlft, *update, "--name", "other"], capsys)
    assert "answers.jsonl:1: field 'decision.probabilities'" in told
    assert "leave out --max-steps 2" in error_of([*rlft, *update, "--max-steps", "2"], capsys)
    assert "need each other" in error_of([*rlft, "--recorded", "answers.jsonl"], capsys)
    write_jsonl(Path("outcomes.jsonl"), [{"id": "decision-99", "reward": 1.0}])
    assert "no decision 'decision-99'" in error_of([*rlft, *update, "--name", "other"], capsys)


def test_outcomes_that_are_all_alike_change_nothing_and_this_is_said(
    player: LoadedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    save_player(Path("policy"), player)
    write_jsonl(Path("tickets.jsonl"), [row("I was charged twice.", 1.0)] * 3)
    numbers = [f"decision-{number}" for number in range(4)]
    write_jsonl(Path("answers.jsonl"), [recorded(player, (0.5, 0.5), number) for number in numbers])
    write_jsonl(Path("outcomes.jsonl"), [{"id": number, "reward": 0.7} for number in numbers])
    rlft = ["rlft", "--env", "decisions", "--dataset", "tickets.jsonl", "--policy", "policy", "--device", "cpu"]
    assert main([*rlft, "--recorded", "answers.jsonl", "--outcomes", "outcomes.jsonl", "--name", "update"]) == 0
    assert "has the reward 0.7; a baseline leaves nothing to learn" in capsys.readouterr().out
    shares = []
    for place in ("policy", "results/update"):
        with load_agent(place) as agent:
            shares.append(agent.act(seen("I was charged twice.")).probabilities)
    assert shares[1] == shares[0]
