"""Decoding in slots: rows with a fixed place in memory, so that a GPU can repeat a recorded step.

A recording (`models/recording.py`) has the same shapes and addresses each time. So a row is written
into a slot: its keys and values begin at column 0, and its position is its column. Slots belong to
a model, and stay until its weights are elsewhere. Layers are compiled once that pays.

Shapes: S slots, C columns, H heads of keys and values, D numbers of a head, V tokens of the
vocabulary.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, DynamicCache
from transformers.cache_utils import CacheLayerMixin
from typing_extensions import override

from reflectkit.models.architecture import CACHE, text_config, trunk_of
from reflectkit.models.checkpoint_metadata import first_line
from reflectkit.models.device import on_device
from reflectkit.models.fast_pass import can_compile_for_gpu, compiled_forward, compiling
from reflectkit.models.recording import (
    HELD,
    Memory,
    Recording,
    Weights,
    active_adapters,
    can_record,
    is_recording,
    new_memory,
    stop_recording,
)

ATTENTION = "grouped_step"
"""The name by which models know `grouped_attention`."""
KERNELS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Of attention, the fastest first. cuDNN plans for each new shape, and here there are few."""
OTHER_ATTENTION = ("softcap", "position_bias", "s_aux", "sliding_window")
"""Arguments of attention that is not just a softmax of products."""
COLUMNS = 128
"""The columns of slots are a multiple of it, or of 512 if there are more than MANY_COLUMNS."""
MANY_COLUMNS = 1024
LARGER = 2
"""Slots are also taken if they are at most so many times as large as needed."""
MOST_SIZES = 4
"""Sizes of slots that a model keeps; those that were used least recently are dropped."""
FEWEST_STEPS = 16
"""The least steps for which new slots are made: to record one takes as long as a few others."""
Shape = tuple[int, int, int, torch.dtype]
"""Of a layer's cache: heads, numbers of a key and of a value, and their type."""
STEPS_BEFORE = 10_000
"""The steps of a model after which its layers are compiled: that takes 20 s, and saves 2 ms a step."""


def grouped_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one token (S, heads, 1, D) to keys and values (S, H, C, D), which are not
    repeated for the heads that share them. Returns (S, 1, heads, D).

    Raises RuntimeError: the model's attention is of another kind.
    """
    for name in OTHER_ATTENTION:
        if others.get(name) is not None:
            raise RuntimeError(f"its attention has {name}")
    slots, heads, _, size = query.shape
    groups = key.shape[1]
    grouped = query.reshape(slots, groups, heads // groups, size)
    output = scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return output.reshape(slots, 1, heads, value.shape[-1]), None


AttentionInterface.register(ATTENTION, grouped_attention)


class SlotLayer(CacheLayerMixin):
    """A cache layer of S slots: keys and values (S, H, C, D).

    A token's are written into the column that is its row's position.
    """

    is_croppable = False
    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, position_S1: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self.slot_S = torch.arange(len(keys), device=keys.device)
        self.position_S1 = position_S1
        self.is_initialized = True

    @override
    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: the memory is there."""

    @override
    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a token's keys and values (S, H, 1, D); those of all columns."""
        column_S = self.position_S1[:, 0]
        self.keys[self.slot_S, :, column_S] = key_states[:, :, 0]
        self.values[self.slot_S, :, column_S] = value_states[:, :, 0]
        return self.keys, self.values

    @override
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The columns that a mask has, and those before them."""
        return self.keys.shape[2], 0

    @override
    def get_seq_length(self) -> int:
        """0: rows have different lengths, and their positions are given."""
        return 0

    def get_max_length(self) -> int:
        """The number of columns."""
        return self.keys.shape[2]

    get_max_cache_shape = get_max_length
    """Its name in older versions of transformers."""


class _OwnLayer:
    """A cache that has one layer, whatever number it is asked for.

    Layers that are compiled must not depend on their number, or each would be compiled.
    """

    def __init__(self, layer: SlotLayer) -> None:
        self.layer = layer

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        number: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `SlotLayer.update`."""
        return self.layer.update(key_states, value_states)


class Slots:
    """S rows that a model decodes at once.

    shapes: of the layers' caches. count: S. columns: C, the most tokens of a row. is_compiled:
    whether layers are compiled. memory: of the graphs, which take turns.
    """

    def __init__(
        self,
        model: Any,
        shapes: Sequence[Shape],
        count: int,
        columns: int,
        *,
        is_compiled: bool,
        memory: Any = None,
    ) -> None:
        self.count, self.columns = count, columns
        self.size = _bytes(shapes, count, columns)
        device = next(model.parameters()).device
        self.token_S1 = torch.zeros((count, 1), dtype=torch.long, device=device)
        """Each row's last token, which is still to be read."""
        self.position_S1 = torch.zeros_like(self.token_S1)
        """Its position."""
        self.column_C = torch.arange(columns, device=device)
        self.layers: list[SlotLayer] = []
        for heads, key_size, value_size, dtype in shapes:
            shape = (count, heads, columns)
            keys = torch.zeros((*shape, key_size), dtype=dtype, device=device)
            values = torch.zeros((*shape, value_size), dtype=dtype, device=device)
            self.layers.append(SlotLayer(keys, values, self.position_S1))
        cache = DynamicCache(config=text_config(model))
        cache.layers = list(self.layers)
        most = getattr(text_config(model), "max_position_embeddings", None) or columns
        self.last_position = min(columns, most) - 1
        forward = partial(_step_logits, weakref.ref(self), weakref.ref(model), cache)
        with _stepping(model, self.layers if is_compiled else None):
            self.recording = Recording(forward, device, memory)

    def fill(
        self,
        slots: Sequence[int],
        cache: Any,
        mask_NT: torch.Tensor,
    ) -> None:
        """Put N rows that were read into `slots`.

        cache: their keys and values (N, H, T, D), padded on the left. mask_NT: 1 where a row has a
        token. What follows each is still to be given, in `token_S1`.
        """
        # 1. The column in the cache of each row's tokens; of those that it does not have, the last
        columns = mask_NT.shape[1]
        length_N1 = mask_NT.sum(dim=1, keepdim=True)
        place_T = torch.arange(columns, device=mask_NT.device)
        column_NT = (columns - length_N1 + place_T).clamp(max=columns - 1)
        # 2. Each layer's keys and values, from column 0 on
        slot_N = on_device(slots, mask_NT.device)
        index = column_NT[:, None, :, None]
        for ours, theirs in zip(self.layers, cache.layers, strict=True):
            for target, source in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
                whole = index.expand(-1, source.shape[1], -1, source.shape[3])
                target[slot_N, :, :columns] = source.gather(2, whole)
                # A mask does not hide what is no number
                target[slot_N, :, columns:] = 0
        self.position_S1[slot_N] = length_N1

    def step(self) -> torch.Tensor:
        """logits_SV after each row's last token, which is read. They are valid until the next step.
        Positions move on, as far as there are columns.
        """
        return self.recording.repeat()


def _step_logits(
    slots_of: Callable[[], Slots | None], model_of: Callable[[], Any], cache: Any
) -> torch.Tensor:
    """What a step does; see `Slots.step`. It holds neither the slots, which hold it, nor the model."""
    slots, model = slots_of(), model_of()
    assert slots is not None
    # 1. A row sees the columns up to its position
    is_past_SC = slots.column_C <= slots.position_S1
    allowed = torch.zeros((), dtype=slots.layers[0].keys.dtype, device=slots.column_C.device)
    mask_S11C = torch.where(is_past_SC, allowed, -torch.inf)[:, None, None]
    # 2. The pass, and the next positions
    output = model(
        input_ids=slots.token_S1,
        attention_mask=mask_S11C,
        position_ids=slots.position_S1,
        use_cache=True,
        logits_to_keep=1,
        **{CACHE: cache},
    )
    slots.position_S1.add_(1).clamp_(max=slots.last_position)
    logits_SV: torch.Tensor = output.logits[:, -1]
    return logits_SV


def layer_shapes(model: Any) -> list[Shape]:
    """The shape of each layer's cache, as the model fills it."""
    device = next(model.parameters()).device
    cache = DynamicCache(config=text_config(model))
    token_11 = torch.zeros((1, 1), dtype=torch.long, device=device)
    model(input_ids=token_11, use_cache=True, logits_to_keep=1, **{CACHE: cache})
    shapes = []
    for layer in cache.layers:
        keys, values = layer.keys, layer.values
        shapes.append((keys.shape[1], keys.shape[3], values.shape[3], keys.dtype))
    return shapes


@contextmanager
def _stepping(model: Any, layers: Sequence[SlotLayer] | None) -> Iterator[None]:
    """A model whose attention is `grouped_attention`. layers: those of its cache, if its own are to
    be compiled.
    """
    from torch._dynamo import config

    trunk = trunk_of(model)
    trunk.set_attn_implementation(ATTENTION)
    for layer, cached in zip(trunk.layers, layers or (), strict=False):
        layer.forward = partial(_compiled_step, layer, cached)
    unnumbered = config.patch(allow_unspec_int_on_nn_module=True)
    try:
        with sdpa_kernel(KERNELS, set_priority=True), compiling(), unnumbered:
            yield
    finally:
        for layer in trunk.layers:
            vars(layer).pop("forward", None)
        trunk.set_attn_implementation("sdpa")


def _compiled_step(layer: nn.Module, cached: SlotLayer, *inputs: Any, **arguments: Any) -> Any:
    """A layer's compiled forward, with a cache of its own, whatever it calls it."""
    kind: Any = type(layer)
    for name, value in arguments.items():
        if isinstance(value, DynamicCache):
            arguments[name] = _OwnLayer(cached)
    return compiled_forward(kind)(layer, *inputs, **arguments)


# ------------------------------------------------------------------------------------ of all sizes


class SlotPool:
    """The slots of a model with the adapters that are active, by their number and columns.

    lock: who has it may use them.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.steps = 0
        """How many were made."""
        self._slots: OrderedDict[tuple[int, int], Slots] = OrderedDict()
        self._weights: Weights | None = None
        self._is_compiled = False
        self._shapes: list[Shape] = []
        self._memory: Any = None

    def take(self, model: Any, count: int, columns: int, steps: int) -> Slots | None:
        """At least `count` slots of at least `columns`, for so many steps; None where their memory
        is too much, or too few steps would be recorded.
        """
        # 1. What was recorded reads the weights where they were
        is_compiled = self.steps >= STEPS_BEFORE and can_compile_for_gpu()
        is_as_before = self._weights is not None and self._weights.are_in_place()
        if not is_as_before or self._is_compiled != is_compiled:
            self._begin(model, is_compiled)
        # 2. Slots that are there, if they are not much larger
        size = _rounded(count, columns)
        most = LARGER * size[0] * size[1]
        for known in sorted(self._slots, key=math.prod):
            if known[0] >= count and known[1] >= columns and math.prod(known) <= most:
                self._slots.move_to_end(known)
                return self._slots[known]
        # 3. New ones, in the place of those used least recently
        memory = Memory.of(next(model.parameters()).device)
        new = _bytes(self._shapes, *size)
        if steps < FEWEST_STEPS or not memory.holds(new):
            return None
        while self._slots and (len(self._slots) >= MOST_SIZES or self.size + new > memory.share):
            self._slots.popitem(last=False)
        try:
            slots = Slots(model, self._shapes, *size, is_compiled=is_compiled, memory=self._memory)
        except RuntimeError as error:
            stop_recording(f"a step could not be recorded: {first_line(error)}")
            return None
        self._slots[size] = slots
        return slots

    @property
    def size(self) -> int:
        """Bytes of all keys and values."""
        return sum(slots.size for slots in self._slots.values())

    def _begin(self, model: Any, is_compiled: bool) -> None:
        """Forget the slots of other weights."""
        self._slots.clear()
        self._weights = Weights(model)
        self._is_compiled = is_compiled
        self._shapes = layer_shapes(model)
        self._memory = new_memory(next(model.parameters()).device)


_POOLS: weakref.WeakKeyDictionary[nn.Module, dict[str, SlotPool]] = weakref.WeakKeyDictionary()
"""Of each model, by its active adapters."""
HELD.append(_POOLS)


def pool_of(model: Any) -> SlotPool | None:
    """The slots of `model`; None: it decodes otherwise, as on a CPU."""
    if not is_recording(model) or not decodes_in_slots(model):
        return None
    return _POOLS.setdefault(model, {}).setdefault(active_adapters(model), SlotPool())


def decodes_in_slots(model: Any) -> bool:
    """Whether a model's steps can be recorded: as its passes, and if no adapter adds tokens to its
    prompts.
    """
    config = getattr(model, "active_peft_config", None)
    adds_tokens = bool(getattr(config, "is_prompt_learning", False))
    return not adds_tokens and can_record(trunk_of(model))


def _rounded(count: int, columns: int) -> tuple[int, int]:
    """A power of two slots, and columns that are a multiple of COLUMNS, so that sizes recur.

    >>> _rounded(9, 130)
    (16, 256)
    """
    multiple = COLUMNS if columns <= MANY_COLUMNS else 4 * COLUMNS
    return 1 << (count - 1).bit_length(), -(-columns // multiple) * multiple


def _bytes(shapes: Sequence[Shape], count: int, columns: int) -> int:
    """Of the keys and values of so many slots."""
    size = 0
    for heads, key_size, value_size, dtype in shapes:
        size += count * columns * heads * (key_size + value_size) * dtype.itemsize
    return size
