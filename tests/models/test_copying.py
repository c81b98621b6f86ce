"""The written heads: what a model says before any training, and that training of the rest leaves them."""

from __future__ import annotations

import random
from itertools import islice, product
from statistics import fmean
from typing import Any

import pytest
import torch

from reflectkit.models.copying import ALIKE, build_copying
from reflectkit.models.labels import prompt_ids
from reflectkit.models.tiny import build_relative, build_tokenizer, spread_apart
from reflectkit.prompts import policy_prompt
from reflectkit.types import Message, Observation

WORDS = list(islice(map("".join, product("bdfgk", "aeiou", "lmnpr", "aeo")), 200))


def asked(word: str, choices: list[str]) -> Observation:
    """A state that says a word, and choices of others."""
    text = f"You may take {word} now."
    return Observation((Message("user", text),), tuple(f"use {choice}" for choice in choices))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """It knows each word, with a space before it."""
    torch.set_num_threads(1)
    texts = [policy_prompt(asked(word, [word]), None, "text") for word in WORDS]
    return build_tokenizer(texts, [f" {word}" for word in WORDS], 1200)


@torch.no_grad()
def preference(model: Any, row: list[int], token: int, tokens: list[int]) -> float:
    """By how many nats the model finds `token` likelier after `row` than the mean of `tokens`."""
    logits_V = model(torch.tensor([row])).logits[0, -1]
    return float(logits_V[token] - logits_V[tokens].mean())


def continuation(model: Any, tokens: list[int], length: int) -> float:
    """The mean preference for the right word in passages of `length` words that begin again."""
    chance = random.Random(0)
    values = []
    for _ in range(40):
        passage = chance.sample(tokens, length)
        place = chance.randrange(1, length)
        values.append(preference(model, passage + passage[:place], passage[place], tokens))
    return fmean(values)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_model_continues_passages_that_it_never_saw(tokenizer: Any, seed: int) -> None:
    tokens = [tokenizer(f" {word}")["input_ids"][0] for word in WORDS]
    assert len(set(tokens)) == len(WORDS)
    model, _ = build_copying(tokenizer, 1000, seed)
    assert continuation(model, tokens, 20) > 0.3
    assert continuation(model, tokens, 120) > 0.3  # at a distance of 120 tokens
    plain = build_relative(tokenizer, 1000, seed)
    assert continuation(plain, tokens, 20) == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize("verb", ["use", "Use"])
def test_the_word_of_the_state_is_preferred_and_the_list_is_not_copied(verb: str) -> None:
    chance = random.Random(0)
    questions = []
    for _ in range(60):
        choices = chance.sample(WORDS, 6)
        answer = chance.choice(choices)
        state = Message("user", f"{verb} {answer} now.")
        questions.append((Observation((state,), tuple(f"use {word}" for word in choices)), answer))
    texts = [policy_prompt(observation, None, "text") for observation, _ in questions]
    tokenizer = build_tokenizer(texts, [f" {word}" for word in WORDS], 1200)
    every = [tokenizer(f" {word}")["input_ids"][0] for word in WORDS]
    model, _ = build_copying(tokenizer, 1000, 0)

    of_state, of_list = [], []
    for (observation, answer), text in zip(questions, texts, strict=True):
        row = [*tokenizer(text)["input_ids"], *tokenizer(" use")["input_ids"]]
        for choice in observation.choices:
            word = choice.removeprefix("use ")
            value = preference(model, row, tokenizer(f" {word}")["input_ids"][0], every)
            (of_state if word == answer else of_list).append(value)
    assert fmean(of_state) > 0.2
    assert fmean(of_list) < 0.1


def test_capitals_and_spaces_hardly_matter_but_single_letters_do() -> None:
    tokenizer = build_tokenizer(["Door door R r"] * 9, ["Door", " door", "R", " R", "r"], 400)
    model, _ = build_copying(tokenizer, 1000, 0)
    cosine = torch.nn.functional.cosine_similarity

    @torch.no_grad()
    def alike(one: str, other: str) -> float:
        (first,), (second,) = (tokenizer(text)["input_ids"] for text in (one, other))
        weight_VD = model.model.embed_tokens.weight
        return float(cosine(weight_VD[first], weight_VD[second], dim=0))

    assert alike("Door", " door") > ALIKE - 0.15
    assert alike("R", " R") > ALIKE - 0.15
    assert alike("R", "r") < 0.6  # the shared part alone


def test_setting_states_apart_leaves_the_heads(tokenizer: Any) -> None:
    tokens = [tokenizer(f" {word}")["input_ids"][0] for word in WORDS]
    states = [asked(word, WORDS[:4]) for word in WORDS[:64]]
    rows = [prompt_ids(tokenizer, policy_prompt(state, None, "text")) for state in states]
    model, heads = build_copying(tokenizer, 1000, 0)
    before = continuation(model, tokens, 20)
    steps: list[float] = []
    spread_apart(model, rows, 0, steps.append, heads.restore)
    assert len(steps) > 2
    assert continuation(model, tokens, 20) > 0.8 * before

    again, more = build_copying(tokenizer, 1000, 0)
    spread_apart(again, rows, 0, lambda square: None, more.restore)
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_restoring_an_untrained_model_changes_nothing(tokenizer: Any) -> None:
    model, heads = build_copying(tokenizer, 1000, 0)
    before = [weight.clone() for weight in model.parameters()]
    heads.restore()
    for weight, value in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(weight, value, atol=1e-6, rtol=0)


def test_without_a_list_nothing_is_taken_for_its_marker() -> None:
    """ "A" is the first token of "Actions:" where that is no word of the texts."""
    words = [f" {word}" for word in WORDS]
    tokenizer = build_tokenizer(["A door."] * 9, words, 1200)
    assert len(tokenizer("Actions")["input_ids"]) > 1
    tokens = [tokenizer(word)["input_ids"][0] for word in words]
    model, _ = build_copying(tokenizer, 1000, 0)
    (letter,) = tokenizer("A")["input_ids"]
    row = [*tokens[50:110], letter, tokens[3], tokens[8], tokens[5], tokens[3]]
    assert preference(model, row, tokens[8], tokens) > 0.3
