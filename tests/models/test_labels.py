"""Labels of several tokens are scored exactly, by the same function in sampling and in the loss, with any tokenizer."""

from __future__ import annotations

import random

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedTokenizerFast

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.env import Context
from reflectkit.eventloop import run_sync
from reflectkit.models.labels import (
    CACHED_NUMBERS,
    LabelPath,
    choice_ids,
    on_paths,
    prompt_ids,
    separate_labels,
    trie,
    with_ends,
)
from reflectkit.models.load import LoadedModel
from reflectkit.models.scoring import Scorer, choice_logprobs
from reflectkit.models.tiny import build_model
from reflectkit.prompts import policy_prompt
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train import training_rows
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.microbatch import score, units
from reflectkit.types import Decision, Message, Observation, Sample, Status, Task, Trajectory, Turn
from tests.families import BEGIN, END, FAMILIES
from tests.models.test_scoring import BUILDERS, gpt2, llama, prompts

WORDS = ("cat fees.py", "cat fees", "cat fees.py.bak", "cat test_fees.py", "cat test_rules.py", "cd ..", "id README.md")
CHOICES = {"label": tuple(f"open drawer {number}" for number in range(12)), "text": WORDS}
"""12 labels, among which 1 begins others; words that begin others twice."""
LABELS: tuple[LabelPath, ...] = ((5,), (6, 7), (6, 8, 9), (6, 8, 3), (6, 4, 2, 9), (6, 4, 2, 0), (9, 1))
"""Labels of a made-up tokenizer that part at the root and at three places below it; (9, 1) has one step that counts."""


@pytest.fixture(scope="module", params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    texts = [policy_prompt(seen(form), "Open the drawer.", form) for form in CHOICES] * 30
    return FAMILIES[request.param](texts)


def seen(form: str, text: str = "You are in a room.") -> Observation:
    return Observation((Message("user", text),), CHOICES[form])


def player_of(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> LoadedModel:
    return LoadedModel(build_model(tokenizer, 512, seed, init_range=0.1), tokenizer, "policy")


def brute(model: torch.nn.Module, prompt: list[int], labels: tuple[LabelPath, ...], temperature: float) -> torch.Tensor:
    """Log-probabilities of whole labels: a forward pass for every token of every label, nothing shared or cached."""
    logprobs = []
    for label in labels:
        total = torch.zeros(())
        for place in range(len(label)):
            legal = sorted({other[place] for other in labels if other[:place] == label[:place]})
            logits = model(torch.tensor([[*prompt, *label[:place]]])).logits[0, -1, legal].float() / temperature
            total = total + torch.log_softmax(logits, dim=-1)[legal.index(label[place])]
        logprobs.append(total)
    return torch.stack(logprobs)


# ------------------------------------------------------------------------------------------------------- the tokenizers


@pytest.mark.parametrize("form", CHOICES)
def test_probabilities_sum_to_1_and_are_those_of_whole_labels(tokenizer: PreTrainedTokenizerFast, form: str) -> None:
    player = player_of(tokenizer)
    rows = [
        prompt_ids(tokenizer, policy_prompt(seen(form, text), None, form)) for text in ("A room.", "A long corridor")
    ]
    labels = choice_ids(tokenizer, CHOICES[form], form)
    with torch.no_grad():
        cached, _ = choice_logprobs(player.model.eval(), rows, [labels] * 2, pad_id=player.pad_id, temperature=1.5)
    torch.testing.assert_close(cached.exp().sum(dim=-1), torch.ones(2), atol=1e-5, rtol=0)
    for row, prompt in enumerate(rows):
        torch.testing.assert_close(cached[row], brute(player.model, prompt, labels, 1.5), atol=1e-4, rtol=0)


def test_a_prompt_has_no_end_token_from_the_tokenizer() -> None:
    """Nothing would be written after it."""
    tokenizer = FAMILIES["llama3"](["A room."])
    (begin, *ids), end = tokenizer("A room.")["input_ids"], tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{BEGIN} $A {END}", special_tokens=[(BEGIN, begin), (END, end)]
    )
    assert tokenizer("A room.")["input_ids"] == [begin, *ids, end]
    assert prompt_ids(tokenizer, "A room.") == [begin, *ids]


@pytest.mark.parametrize("form", CHOICES)
def test_sampled_and_recomputed_log_probabilities_agree(tokenizer: PreTrainedTokenizerFast, form: str) -> None:
    player = player_of(tokenizer)
    agent = TwoPlayerAgent(LocalSampler(player), answer=form, temperature=2.0)
    decisions = [run_sync(agent.decide(seen(form), Context(seed, None))) for seed in range(12)]  # type: ignore[arg-type]
    assert len({decision.action for decision in decisions}) > 1
    samples = rows_of(agent, form, decisions)
    (unit,) = units(samples)  # one prompt, one forward pass
    scored = score(Scorer(player.model), samples, [unit], player.pad_id, 2.0)
    for row, new in zip(scored.row_N, scored.logprob_N.tolist(), strict=True):
        assert new == pytest.approx(decisions[row].logprobs[0], abs=1e-4)
    assert scored.entropy_N.tolist() == pytest.approx([decisions[0].entropy] * 12, abs=1e-3)
    learner = LocalLearner(player, LearnerSettings(learning_rate=0.0, temperature=2.0))
    figures = learner.update(samples, random.Random(0)).figures
    assert figures["ratio_deviation"] < 1e-4
    assert figures["entropy"] == pytest.approx(decisions[0].entropy, abs=1e-3)


def rows_of(agent: TwoPlayerAgent, form: str, decisions: list[Decision]) -> list[Sample]:
    """A row for each decision, with advantages 1, -1, 1, …"""
    turns = tuple(Turn(seen(form), decision, 1.0) for decision in decisions)
    played = [
        Trajectory(Task(str(n), "e", "l", "g", {}), n, (turn,), Status.COMPLETED, True) for n, turn in enumerate(turns)
    ]
    advantages = [[float((-1) ** number)] for number in range(len(turns))]
    return training_rows.rows(played, advantages, [[1.0]] * len(turns), {CHOICES[form]: agent.labels(CHOICES[form])})


def test_a_choice_is_one_thing_to_learn(tokenizer: PreTrainedTokenizerFast) -> None:
    agent = TwoPlayerAgent(LocalSampler(player_of(tokenizer)), answer="text")
    decisions = [run_sync(agent.decide(seen("text"), Context(seed, None))) for seed in range(3)]  # type: ignore[arg-type]
    for row, decision in zip(rows_of(agent, "text", decisions), decisions, strict=True):
        assert row.tokens == (*decision.prompt_ids, *decision.token_ids)
        assert len(decision.token_ids) > 1
        assert sum(row.loss_mask) == 1
        assert row.start == len(decision.prompt_ids)
        assert row.logprobs[row.start] == decision.logprobs[0]
        assert row.decisions[row.start :] == (0, *[-1] * (len(decision.token_ids) - 1))
        assert len({len(column) for column in (row.tokens, row.loss_mask, row.decisions, row.advantages)}) == 1


# --------------------------------------------------------------------------------------------------------- the scoring


def gemma2() -> Gemma2ForCausalLM:
    """Changes its logits behind the head, and has layers with a window."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=101, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, final_logit_softcapping=2.0, initializer_range=0.3,
    )  # fmt: skip
    return Gemma2ForCausalLM(config).eval()


@pytest.mark.parametrize("build", [*BUILDERS, gemma2])
@pytest.mark.parametrize("common", [0, 20])
def test_gradients_are_those_of_whole_labels(build, common: int) -> None:
    """Three rows of unlike labels, one of them of one token each; the loss is any function of the log-probabilities."""
    model = build()
    rows = [[*range(10, 10 + common), *row] for row in prompts(3)]
    labels = [LABELS, ((5,), (6,), (7,)), LABELS[1:4]]
    weights = torch.linspace(-1, 1, 7)

    def gradients(per_row: list[torch.Tensor]) -> list[torch.Tensor]:
        model.zero_grad()
        sum((row * weights[: len(row)]).sum() + (row.exp() * row).sum() for row in per_row).backward()  # type: ignore[union-attr]
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    whole = [brute(model, row, part, 0.7) for row, part in zip(rows, labels, strict=True)]
    expected = gradients(whole)
    for scorer in (model, Scorer(model)):
        ours, hidden = choice_logprobs(scorer, rows, labels, pad_id=0, temperature=0.7)
        with torch.no_grad():
            sampled, states = choice_logprobs(scorer, rows, labels, pad_id=0, temperature=0.7)
        torch.testing.assert_close(sampled, ours.detach(), atol=1e-4, rtol=0)
        torch.testing.assert_close(states, hidden.detach(), atol=1e-4, rtol=0)
        for index, row in enumerate(rows):  # what a critic reads is the state after the prompt
            alone = choice_logprobs(model, [row], [((5,), (6,))], pad_id=0)[1]
            torch.testing.assert_close(hidden[index], alone[0], atol=1e-4, rtol=0)
            assert ours[index, len(labels[index]) :].eq(float("-inf")).all()
        kept = [ours[index, : len(part)] for index, part in enumerate(labels)]
        for one, other in zip(kept, whole, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
        for one, other in zip(gradients(kept), expected, strict=True):
            torch.testing.assert_close(one, other, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("build", [gpt2, llama])
def test_chains_are_read_in_parts_behind_a_cached_prompt(build) -> None:
    """40 chains after 2 prompts, at most 16 in a pass: the longer prompt with a chain; where the other leaves it, with
    15 chains of the first, and 4 more; the other's 19. The prompts are read once.
    """
    model, rows = build(), [[*range(10, 30), 3], [*range(10, 30), 4, 5]]
    labels = tuple((first, second) for first in range(1, 21) for second in (2, 3))
    read: list[int] = []
    trunk = getattr(model, model.base_model_prefix)
    trunk.register_forward_hook(lambda *call: read.append(call[-1].last_hidden_state.shape[:2].numel()))
    with torch.no_grad():
        ours, _ = choice_logprobs(model, rows, [labels] * 2, pad_id=0)
    assert read == [22 + 1, 16 * 2, 4, 16, 3]
    for row, one in zip(rows, ours, strict=True):
        torch.testing.assert_close(one, brute(model, row, labels, 1.0), atol=1e-4, rtol=0)


@pytest.mark.parametrize("build", [gpt2, llama])
def test_needed_labels_have_the_log_probabilities_and_gradients_of_all(build) -> None:
    """Label 3 of the first row and 0 and 6 of the second, which part at the root, so that nothing is read for these."""
    model, rows, needed = build(), prompts(2), [[3], [0, 6]]
    gradients, scores, read = [], [], []
    trunk = getattr(model, model.base_model_prefix)
    trunk.register_forward_hook(lambda *call: read.append(call[-1].last_hidden_state.shape[:2].numel()))
    for chosen in (None, needed):
        model.zero_grad()
        ours, _ = choice_logprobs(Scorer(model), rows, [LABELS] * 2, pad_id=0, subset=chosen)
        scores.append(torch.cat([row[numbers] for row, numbers in zip(ours, needed, strict=True)]))
        scores[-1].sum().backward()
        gradients.append([weight.grad.clone() for weight in model.parameters()])
    torch.testing.assert_close(scores[1], scores[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-3)
    assert ours[0, [0, 1, 2, 4, 5, 6]].eq(float("-inf")).all()
    assert read[1] < read[0]


def test_a_trie_has_a_node_where_labels_part() -> None:
    one = trie(LABELS)
    assert [node.prefix for node in one.nodes] == [(), (6,), (6, 8), (6, 4, 2)]
    assert [node.children for node in one.nodes] == [(5, 6, 9), (7, 8, 4), (9, 3), (9, 0)]
    assert one.steps[0] == ((0, 0),)
    assert one.steps[5] == ((0, 1), (1, 2), (3, 1))
    assert one.steps[6] == ((0, 2),)  # what follows is certain
    assert set(one.chains) == {(6, 8), (6, 4, 2)}
    assert one.depth == 3
    assert all(
        one.chains[chain][: len(node.prefix)] == node.prefix
        for chain, node in zip(one.chain_of, one.nodes, strict=True)
    )
    part = on_paths(one, [3])
    assert [node.prefix for node in part.nodes] == [(), (6,), (6, 8)]
    assert (part.chains, part.chain_of) == (((6, 8),), (0, 0, 0))
    assert part.steps == ((), (), (), ((0, 1), (1, 1), (2, 1)), (), (), ())
    assert on_paths(one, [4]).steps[4] == ((0, 1), (1, 2), (2, 0))  # the last node is another one now
    assert on_paths(one, [6, 0]).chains == ()
    shallow = trie(((5,), (6,)))
    assert (shallow.chains, shallow.depth, len(shallow.nodes)) == ((), 0, 1)
    assert trie(((5, 6), (5, 7))).chains == ((5,),)  # the root is kept, though only one token may follow
    for wrong in ((), ((),), ((5,), (5,)), ((5,), (5, 6))):
        with pytest.raises(ValueError, match="none may begin another"):
            trie(wrong)


def test_an_end_token_is_added_where_it_decides() -> None:
    assert with_ends([(1,), (2, 3)], None) == ((1,), (2, 3))
    assert with_ends([(1,), (1, 4), (1, 4, 5), (2,)], 0) == ((1, 0), (1, 4, 0), (1, 4, 5), (2,))
    assert with_ends([(1,), (1, 4)], None) is None
    assert with_ends([(1,), (1,)], 0) is None
    assert with_ends([(1,), (1, 0)], 0) is None  # text that spells the end token


def test_the_caches_are_bounded_by_the_size_of_the_options() -> None:
    """A server that is asked about other long options each time would else keep half a megabyte of each."""
    separate_labels.cache.clear()
    options = 250
    length = CACHED_NUMBERS // options // 50
    for number in range(60):
        separate_labels(tuple((number, option, *range(length)) for option in range(options)))
    cache = separate_labels.cache
    assert 40 < len(cache) < 60
    assert cache.currsize <= CACHED_NUMBERS
    separate_labels(tuple((0, option, *range(CACHED_NUMBERS // options)) for option in range(options)))
    assert len(cache) > 40  # what is larger than the whole cache leaves the others there
    cache.clear()
