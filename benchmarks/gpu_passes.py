"""The parts of `bench gpu` that time a model's operations: decoding, rollouts and updates."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.gpu import Bench, Measured
from benchmarks.gpu_parts import (
    ENV,
    PROMPTS,
    bare_passes,
    compile_at_once,
    need_setup,
    reflector_rows,
    row_tokens,
)
from benchmarks.problems import problems_of
from benchmarks.rl import Clock, decoding_rounds
from reflectkit.config import with_values
from reflectkit.console import Quiet
from reflectkit.models.hub import silence_libraries
from reflectkit.models.load import LoadedModel, load_player, with_adapter
from reflectkit.types import Sample

PEAK_TFLOPS = {"A100": 312.0, "H100": 989.0, "H200": 989.0}
"""Of dense bfloat16 products, by a word of the GPU's name (NVIDIA's data sheets)."""


def decoding(bench: Bench) -> Measured:
    """Continuous decoding of texts of different lengths after AutoExplore's prompts, against the bare cached passes."""
    need_setup(bench)
    compile_at_once()
    player = load_player(bench.folder / "model", device=bench.device, dtype="bfloat16")
    count, most = (6, 6) if bench.fast else (128, 64)
    rows = reflector_rows(bench)
    prompts = [row_tokens(player.tokenizer, rows[number % len(rows)])[:-1] for number in range(count)]
    limits = [most // 4 + number * 7 % (most - most // 4) for number in range(count)]
    rate, share = _decoding(player, prompts, limits, max(4, count // 2), rounds=1 if bench.fast else 2)
    return Measured(rate, share, f"bf16, {count} texts of {min(limits)} to {max(limits)} tokens")


def _decoding(
    player: LoadedModel, prompts: Sequence[Sequence[int]], limits: Sequence[int], width: int, rounds: int
) -> tuple[float, float]:
    """(tokens written per second, speed as a share of the bare cached passes); a first round warms up."""
    clock = decoding_rounds(player, prompts, limits, width, rounds)
    return rounds * sum(limits) / sum(clock.seconds["decoding"]), clock.ratio("bare_decoding", "decoding")


def bench_rl(bench: Bench) -> Measured:
    """`bench rl` on AutoExplore (the corridor if `fast`). The row has the figures of updates, its note those of
    rollouts.
    """
    from benchmarks import bench as command
    from benchmarks.rl import measure

    silence_libraries()
    size, episodes, rounds = ("tiny", 4, 1) if bench.fast else ("gpt2-small", 32, 3)
    env: dict[str, Any] = {"env": "corridor"} if bench.fast else {"env": ENV, **PROMPTS}
    config = command.BenchConfig.from_flat(what="rl", **env)
    tasks, settings = problems_of(config.env.kind, bench.folder / "generated", 500, bench.seed, Quiet())
    make = with_values(config, **settings).setup.maker(tasks[0].level)
    with Quiet().bar("", 0) as bar:
        figures = measure(size, tasks, make, episodes, rounds, bench.seed, bar, bench.device)
    rollout, share = figures["rollout_tokens_per_second"], figures["rollout_to_bare_forward"]
    comments = figures["reflecting_rollout_to_bare_passes"]
    return Measured(
        figures["update_tokens_per_second"],
        figures["update_to_bare_forward_backward"],
        f"{size}, float32: updates; rollouts: {rollout:,.0f} tokens/s, {share:.2f} of bare passes, with comments"
        f" {comments:.2f}",
    )


def half_update(bench: Bench, lora_r: int = 0) -> Measured:
    """An update of a model of half a billion parameters in bf16, with a LoRA adapter or of all weights, against bare
    forward and backward passes.
    """
    from reflectkit.train.learner import LearnerSettings
    from reflectkit.train.local_learner import LocalLearner

    player = _half_billion(bench)
    if lora_r:
        player = with_adapter(player, lora_r, lora_r, bench.seed)
    rows, length, learnt, width, rounds = (4, 24, 4, 2, 1) if bench.fast else (64, 1024, 128, 16, 3)
    samples = _samples(player, rows, length, learnt)
    learner = LocalLearner(player, LearnerSettings(learning_rate=1e-5, minibatch=rows, max_tokens=width * length))
    clock = Clock()
    for number in range(rounds + 1):
        with clock.measure("update"):
            learner.update(samples, random.Random(0))
        with clock.measure("bare"):
            bare_passes(player, [sample.tokens for sample in samples], width)
        if number == 0:
            clock.seconds.clear()
    seconds = statistics.median(clock.seconds["update"])
    note = f"{_size(player)}, bf16, {'LoRA' if lora_r else 'all weights'}: {rows} rows of {length:,} tokens"
    card = torch.cuda.get_device_name() if bench.device == "cuda" else ""
    if peak := next((most for name, most in PEAK_TFLOPS.items() if name in card), 0.0):
        work = flops(player, rows, length, learnt, bool(lora_r)) / seconds / 1e12
        note += f"; {work:,.0f} TFLOP/s, MFU {work / peak:.0%}"
    return Measured(rows * length / seconds, clock.ratio("bare", "update"), note)


def flops(player: LoadedModel, rows: int, length: int, learnt: int, adapter: bool) -> float:
    """Floating-point operations of an update, without recomputation: 2 for each weight and token forward, as many
    backward for the activations, and as many for the gradients of weights that are trained; the head only where a token
    is trained; and attention's products over the tokens before each.
    """
    config = player.model.config.get_text_config()
    head = config.vocab_size * config.hidden_size
    weights = {name: weight for name, weight in player.model.named_parameters() if weight.dim() == 2}
    trunk = sum(weight.numel() for name, weight in weights.items() if "embed" not in name and "lm_head" not in name)
    passes = 4 if adapter else 6
    attention = 2 * 2 * config.num_hidden_layers * config.hidden_size * length / 2 * 3
    return float(rows * (length * (passes * trunk + attention) + learnt * passes * head))


def _samples(player: LoadedModel, rows: int, length: int, learnt: int) -> list[Sample]:
    """Rows of random tokens, of which the last `learnt` were written by the policy."""
    tokens_BT = torch.randint(
        player.model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0)
    )
    before = length - learnt
    return [
        Sample(
            tokens=tuple(tokens_T.tolist()),
            loss_mask=(0,) * before + (1,) * learnt,
            decisions=(-1,) * before + (0,) * learnt,
            logprobs=(0.0,) * before + (-10.0,) * learnt,
            advantages=(0.0,) * before + (1.0 if number % 2 else -1.0,) * learnt,
            returns=(0.0,) * length,
            values=(),
            choices=(),
            group_id=str(number),
        )
        for number, tokens_T in enumerate(tokens_BT)
    ]


def half_decoding(bench: Bench) -> Measured:
    """Decoding with a model of half a billion parameters in bf16, against the bare cached passes."""
    player = _half_billion(bench)
    rows, length, written = (4, 12, 4) if bench.fast else (128, 256, 64)
    prompts = [sample.tokens for sample in _samples(player, rows, length, 1)]
    rate, share = _decoding(player, prompts, [written] * rows, rows, rounds=1 if bench.fast else 3)
    return Measured(rate, share, f"{_size(player)}, bf16: {rows} prompts of {length} tokens, {written} written")


def _half_billion(bench: Bench) -> LoadedModel:
    """The shape of Qwen2.5-0.5B with random weights in bf16, in evaluation mode; a padding id for a tokenizer."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    silence_libraries()
    compile_at_once()
    shape: dict[str, Any] = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
        "tie_word_embeddings": True}  # fmt: skip
    if bench.fast:
        shape |= {"hidden_size": 28, "intermediate_size": 56, "num_hidden_layers": 2, "vocab_size": 300}
    torch.manual_seed(bench.seed)
    with torch.device(bench.device):
        model = AutoModelForCausalLM.from_config(Qwen2Config(**shape), dtype=torch.bfloat16)
    return LoadedModel(model.eval(), SimpleNamespace(pad_token_id=0, eos_token_id=0), None, dtype="bfloat16")


def _size(player: LoadedModel) -> str:
    return f"{sum(weight.numel() for weight in player.model.parameters()) / 1e6:,.0f} M parameters"
