"""Decoding in slots writes what decoding without them writes, on any device; on a GPU its steps are replayed."""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from reflectkit.models.architecture import CACHE
from reflectkit.models.lora import join_products
from reflectkit.models.recording import Memory
from reflectkit.sampling import decoding, slots
from reflectkit.sampling.base import EVERYTHING, Truncation
from reflectkit.sampling.decoding import GeneratedText, decode
from reflectkit.sampling.slots import FEWEST_STEPS, SlotPool, decodes_in_slots, pool_of

VOCABULARY = 300
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}


def llama(heads: int = 2) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=heads)).eval()


def qwen() -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=1)).eval()


def prompts(count: int, longest: int) -> list[list[int]]:
    chance = random.Random(0)
    lengths = [chance.randrange(1, longest) for _ in range(count)]
    return [[chance.randrange(VOCABULARY) for _ in range(length)] for length in lengths]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlotPool]:
    """The slots of all models, which then use them on a CPU, too."""
    pool = SlotPool()
    monkeypatch.setattr(decoding, "pool_of", lambda model: pool)
    return pool


def written(model: Any, rows: list[list[int]], width: int, **settings: Any) -> list[GeneratedText]:
    limits = [1 + 5 * number % 17 for number in range(len(rows))]
    return decode(
        model,
        rows,
        pad_id=0,
        stop_ids=frozenset(range(20)),
        max_new_tokens=limits,
        seeds=range(len(rows)),
        width=width,
        **settings,
    )


def check_same(ours: list[GeneratedText], theirs: list[GeneratedText]) -> None:
    assert [text.token_ids for text in ours] == [text.token_ids for text in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert our.logprobs == pytest.approx(their.logprobs, abs=1e-4)


@pytest.mark.parametrize("make", [llama, qwen])
@pytest.mark.parametrize("width", [1, 3, 8, 64])
@pytest.mark.parametrize(
    ("temperature", "truncation"), [(0.0, EVERYTHING), (1.0, EVERYTHING), (0.7, Truncation(top_p=0.9, top_k=40))]
)
def test_slots_write_the_same(
    monkeypatch: pytest.MonkeyPatch, pool: SlotPool, make: Any, width: int, temperature: float, truncation: Truncation
) -> None:
    model, rows = make(), prompts(21, 40)
    ours = written(model, rows, width, temperature=temperature, truncation=truncation)
    assert pool.steps > 0
    monkeypatch.undo()
    check_same(ours, written(model, rows, width, temperature=temperature, truncation=truncation))
    lengths = {len(text.token_ids) for text in ours}
    assert len(lengths) > 3


def test_long_prompts_that_are_cached_go_on_in_slots(monkeypatch: pytest.MonkeyPatch, pool: SlotPool) -> None:
    model = llama()
    start = prompts(1, 300)[0] + prompts(9, 40)[-1] * 8
    rows = [start + row for row in prompts(9, 40)]
    assert min(map(len, rows)) > decoding.LONG
    ours = [written(model, rows, 4, temperature=1.0, prefix_cache=cache) for cache in (decoding.PrefixCache(), None)]
    monkeypatch.undo()
    theirs = written(model, rows, 4, temperature=1.0)
    for texts in ours:
        check_same(texts, theirs)


def test_slots_are_kept_by_size_and_dropped_with_the_weights(pool: SlotPool) -> None:
    model = llama()
    first = pool.take(model, 3, 100, FEWEST_STEPS)
    assert first is not None
    assert (first.count, first.columns) == (4, 128)
    assert pool.take(model, 4, 128, FEWEST_STEPS) is first
    assert pool.take(model, 2, 50, 1) is first  # at most twice as large
    assert pool.take(model, 1, 1, FEWEST_STEPS) is not first
    assert pool.take(model, 100, 128, FEWEST_STEPS - 1) is None
    model.model.layers[0].mlp.up_proj.weight.data.zero_()  # in place, as training does
    assert pool.take(model, 4, 128, FEWEST_STEPS) is first
    for count in (9, 33):
        pool.take(model, count, 1, FEWEST_STEPS)
    assert pool.take(model, 4, 128, FEWEST_STEPS) is first
    pool.take(model, 129, 1, FEWEST_STEPS)  # one more than there may be: the least recent goes
    assert set(pool._slots) == {(4, 128), (16, 128), (64, 128), (256, 128)}
    assert pool.take(model, 4, 128, FEWEST_STEPS) is first
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data.clone()  # in another place
    assert pool.take(model, 4, 128, FEWEST_STEPS) is not first


def test_slots_have_a_part_of_the_memory(monkeypatch: pytest.MonkeyPatch, pool: SlotPool) -> None:
    model = llama()
    size = 2 * 2 * 8 * 2 * 4  # layers, keys and values, numbers, heads, bytes
    most = 10 * 128 * size
    monkeypatch.setattr(Memory, "of", classmethod(lambda cls, device: Memory(most, most)))
    assert pool.take(model, 16, 128, FEWEST_STEPS) is None
    large = pool.take(model, 8, 128, FEWEST_STEPS)
    assert large is not None
    kept = weakref.ref(large.layers[0].keys)
    assert pool.take(model, 2, 128, FEWEST_STEPS) is not None
    assert pool.size == 10 * 128 * size
    assert pool.take(model, 1, 300, FEWEST_STEPS) is not None
    del large
    assert kept() is None  # the large ones went, at once
    assert pool.size == (2 + 3) * 128 * size


def test_what_was_no_number_does_not_reach_the_next_row(pool: SlotPool) -> None:
    model = llama()
    taken = pool.take(model, 2, 128, FEWEST_STEPS)
    assert taken is not None
    for layer in taken.layers:
        layer.keys.fill_(torch.nan)
        layer.values.fill_(torch.nan)
    texts = written(model, prompts(2, 40), 2)
    assert all(math.isfinite(value) for text in texts for value in text.logprobs)


def test_attention_of_other_kinds_is_not_recorded() -> None:
    queries = torch.zeros(1, 2, 1, 8)
    keys = values = torch.zeros(1, 1, 4, 8)
    mask = torch.zeros(1, 1, 1, 4)
    output, _ = slots.grouped_attention(None, queries, keys, values, mask, 1.0, dropout=0.0, softcap=None)
    assert output.shape == (1, 1, 2, 8)
    with pytest.raises(RuntimeError, match="softcap"):
        slots.grouped_attention(None, queries, keys, values, mask, 1.0, softcap=50.0)


def test_models_whose_steps_cannot_be_recorded_are_decoded_without_slots() -> None:
    model = llama()
    assert decodes_in_slots(model)
    assert pool_of(model) is None  # on a CPU
    model.config.sliding_window = 8
    assert not decodes_in_slots(model)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("steps_before", [0, slots.STEPS_BEFORE])
def test_a_gpu_replays_what_it_would_compute(
    monkeypatch: pytest.MonkeyPatch, adapter: bool, dtype: torch.dtype, steps_before: int
) -> None:
    """The logits of a recorded step, compiled or not, before and after the weights are trained in place."""
    monkeypatch.setattr(slots, "STEPS_BEFORE", steps_before)
    model = llama().to("cuda", dtype)
    if adapter:
        model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"))
        join_products(model.eval())
    rows = prompts(5, 40)
    ids = torch.tensor([[1] * (40 - len(row)) + row for row in rows], device="cuda")
    mask = torch.tensor([[0] * (40 - len(row)) + [1] * len(row) for row in rows], device="cuda")
    positions = decoding.position_ids(mask)
    for scale in (1.0, 2.0):
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.05 * scale)
            elif "up_proj" in name:
                weight.data.mul_(scale)
        with torch.no_grad():
            pool = pool_of(model)
            assert pool is not None
            taken = pool.take(model, len(rows), 64, FEWEST_STEPS)
            assert taken is not None
            assert taken.recording.graph is not None
            past = model(input_ids=ids[:, :-1], attention_mask=mask[:, :-1], position_ids=positions[:, :-1])
            taken.fill(range(5), getattr(past, CACHE), mask[:, :-1])
            taken.token_S1[:5] = ids[:, -1:]
            logits = taken.step()[:5].float()
            expected = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -1].float()
        error = float((logits - expected).abs().max() / expected.abs().max())
        assert error < (1e-4 if dtype == torch.float32 else 0.05)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_texts_on_a_gpu_are_the_same_without_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = llama().to("cuda"), prompts(21, 40)
    for temperature in (0.0, 1.0):
        ours = written(model, rows, 8, temperature=temperature)
        with monkeypatch.context() as patch:
            patch.setattr(decoding, "pool_of", lambda model: None)
            check_same(ours, written(model, rows, 8, temperature=temperature))
