"""Choices are scored exactly: over legal labels alone, whatever the batch and the padding, as the sampler recorded
them.
"""

from __future__ import annotations

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from reflectkit.models import scoring
from reflectkit.models.scoring import Scorer, choice_logprobs, label_scores, token_logprobs
from reflectkit.sampling.decoding import decode

VOCABULARY = 101


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.3,
    )
    return GPT2LMHeadModel(config).eval()


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def lfm2() -> Lfm2ForCausalLM:
    """The tiny hybrid's kind: convolutions, which padding on the left must not reach, and attention by turns."""
    torch.manual_seed(0)
    config = Lfm2Config(
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        hidden_size=32,
        intermediate_size=64,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=4,
        layer_types=["conv", "full_attention"] * 2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Lfm2ForCausalLM(config).eval()


BUILDERS = [gpt2, llama, lfm2]


def single(*tokens: int) -> tuple[tuple[int, ...], ...]:
    """Labels of one token each."""
    return tuple((token,) for token in tokens)


def prompts(count: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(1)
    return [torch.randint(1, VOCABULARY, (3 + 5 * (row % 7),), generator=random).tolist() for row in range(count)]


def test_a_lora_head_is_scored_with_its_adapter() -> None:
    from peft import LoraConfig, get_peft_model

    base = llama()
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["lm_head", "q_proj"], task_type="CAUSAL_LM")).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    (row,) = prompts(1)
    ours, _ = choice_logprobs(model, [row], [single(9, 4, 77)], pad_id=0)
    theirs = torch.log_softmax(model(torch.tensor([row])).logits[0, -1, [9, 4, 77]], dim=-1)
    torch.testing.assert_close(ours[0], theirs, atol=1e-5, rtol=0)


def test_a_head_with_a_bias_is_scored_with_it() -> None:
    torch.manual_seed(0)
    config = PhiConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=128, initializer_range=0.3,
    )  # fmt: skip
    model = PhiForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.bias.normal_()
    (row,) = prompts(1)
    ours, _ = choice_logprobs(model, [row], [single(9, 4, 77)], pad_id=0)
    theirs = torch.log_softmax(model(torch.tensor([row])).logits[0, -1, [9, 4, 77]], dim=-1)
    torch.testing.assert_close(ours[0], theirs, atol=1e-5, rtol=0)


def test_labels_of_a_model_in_bfloat16_are_scored_in_float32() -> None:
    """As by the same hidden states and weights in float32: bfloat16 would round a logit of 18 to 1/16."""
    model = llama()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    model.bfloat16()
    prompt, labels = [5, 6, 7, 8], ((11,), (12,), (13,))
    with torch.no_grad():
        (row_K,), (hidden_D,) = choice_logprobs(model, [prompt], [labels], pad_id=0)
        rows_KD = model.lm_head.weight[[label for (label,) in labels]].float()
    expected_K = torch.log_softmax(rows_KD @ hidden_D.float(), dim=-1)
    assert torch.allclose(row_K, expected_K, atol=1e-5)
    assert float((rows_KD @ hidden_D.float()).abs().max()) > 5


@pytest.mark.parametrize("build", BUILDERS)
def test_a_common_beginning_read_once_changes_nothing(build) -> None:
    model = build()
    rows = [[*range(10, 30), *row] for row in prompts(6)]
    read: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, given, __: read.append(given[0].numel()))
    with torch.no_grad():
        together, hidden = choice_logprobs(model, rows, [single(5, 6, 7)] * 6, pad_id=0)
    hook.remove()
    width = max(map(len, rows))
    assert read == ([6 * width] if build is lfm2 else [20, 6 * (width - 20)])  # convolutions keep no keys and values
    for index, row in enumerate(rows):
        alone, state = choice_logprobs(model, [row], [single(5, 6, 7)], pad_id=0)
        torch.testing.assert_close(together[index], alone[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(hidden[index], state[0], atol=1e-4, rtol=0)
    written = decode(model, rows, pad_id=0, stop_ids=frozenset({3}), max_new_tokens=6)
    for row, line in zip(rows, written, strict=True):
        assert decode(model, [row], pad_id=0, stop_ids=frozenset({3}), max_new_tokens=6)[0].token_ids == line.token_ids


@pytest.mark.parametrize("build", BUILDERS)
def test_labels_that_are_read_alone_have_the_scores_of_rows_of_their_own(
    build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In value and gradient, however labels and prompts are spread over rows and passes."""
    monkeypatch.setattr(scoring, "LABEL_TOKENS", 12)
    monkeypatch.setattr(scoring, "PASS_TOKENS", 100)
    model = build()
    first, other, _ = prompts(3)
    paths = [(*range(10 + length, 10 + 2 * length), 0) for length in (1, 2, 3, 5, 7, 11, 2)]
    rows = [(first, (*paths,)), (other, (*paths[:3],)), (first, (paths[6], paths[0]))]
    alone = [
        torch.stack([model(torch.tensor([[*prompt, *path]])).logits[0, -1, 0] for path in labels])
        for prompt, labels in rows
    ]
    torch.stack([row.log_softmax(0)[1] for row in alone]).sum().backward()
    wanted = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    scores, hidden = label_scores(Scorer(model), *zip(*rows, strict=True), pad_id=0)
    logprobs, _ = choice_logprobs(model, *zip(*rows, strict=True), pad_id=0, temperature=2.0, separately=True)
    for row, mine, logprob in zip(alone, scores, logprobs, strict=True):
        torch.testing.assert_close(mine[: len(row)], row, atol=1e-4, rtol=0)
        assert mine[len(row) :].isinf().all()
        torch.testing.assert_close(logprob[: len(row)], (row / 2).log_softmax(0), atol=1e-4, rtol=0)
    scores.log_softmax(1)[:, 1].sum().backward()
    for name, gradient in wanted.items():
        torch.testing.assert_close(dict(model.named_parameters())[name].grad, gradient, atol=1e-3, rtol=1e-3)
    _, state = choice_logprobs(model, [other], [single(5, 6)], pad_id=0)
    torch.testing.assert_close(hidden[1], state[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("build", BUILDERS)
def test_token_logprobs_are_the_models_own(build) -> None:
    model, rows = build(), [[*row, 7, 8, 9] for row in prompts(3)]
    masks = [[0] * (len(row) - 3) + [1, 0, 1] for row in rows]
    ours, _, hidden, all_of_them = token_logprobs(model, rows, masks, pad_id=0, temperature=0.8, whole=True)
    expected = []
    for row, mask in zip(rows, masks, strict=True):
        logprobs = torch.log_softmax(model(torch.tensor([row])).logits[0] / 0.8, dim=-1)
        expected += [logprobs[place - 1, row[place]] for place, one in enumerate(mask) if one]
    torch.testing.assert_close(ours, torch.stack(expected), atol=1e-5, rtol=0)
    assert all_of_them.shape == (6, VOCABULARY)
    assert hidden.shape == (6, 32)
    with pytest.raises(ValueError, match="first token"):
        token_logprobs(model, [[1, 2]], [[1, 1]], pad_id=0)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("entropy_learns", [False, True])
def test_blocks_of_logits_have_the_gradients_of_all_at_once(
    monkeypatch: pytest.MonkeyPatch, share: bool, entropy_learns: bool
) -> None:
    model, rows = llama(), [[*row, 7, 8, 9] for row in prompts(3)]
    model.get_output_embeddings().weight.requires_grad_(False)
    masks = [[0] * (len(row) - 3) + [1, 1, 1] for row in rows]
    found = []
    for block in (2**20, 2 * VOCABULARY):
        monkeypatch.setitem(scoring.BLOCK, "cpu", block)
        logprob_N, entropy_N, hidden_ND, _ = token_logprobs(
            model, rows, masks, pad_id=0, temperature=0.8, share=share, entropy_learns=entropy_learns
        )
        model.zero_grad()
        weights = torch.linspace(-1, 2, len(logprob_N))
        loss = (logprob_N * weights).sum() + (0.3 * entropy_N * weights.flip(0)).sum() * entropy_learns
        loss.backward()
        learnt = [parameter.grad.clone() for parameter in model.parameters() if parameter.requires_grad]
        found.append([logprob_N.detach(), entropy_N.detach(), hidden_ND.detach(), *learnt])
    for whole, blocks in zip(*found, strict=True):
        torch.testing.assert_close(blocks, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sharded", [False, True], ids=["model", "scorer"])
@pytest.mark.parametrize("build", [gpt2, llama])
def test_branches_in_one_row_do_not_see_each_other(build, sharded, monkeypatch) -> None:
    model = build()
    labels = [((5, 9, 1), (5, 9, 2), (5, 8), (6, 9, 1, 4), (6, 9, 1, 5), (7,)), single(3, 4), ((5, 8), (5, 9))]
    rows, read = prompts(3), list[int]()

    def scored() -> list[torch.Tensor]:
        model.zero_grad()
        read.clear()
        logprobs, hidden = choice_logprobs(Scorer(model) if sharded else model, rows, labels, pad_id=0, temperature=0.7)
        (logprobs.exp() * torch.arange(6)).sum().backward()
        return [logprobs, hidden, *(weight.grad.clone() for weight in model.parameters())]

    model.get_input_embeddings().register_forward_hook(lambda _, given, __: read.append(given[0].numel()))
    expected = scored()
    monkeypatch.setattr(scoring, "reads_branches", lambda model: True)
    found = scored()
    assert len(read) == 1
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
