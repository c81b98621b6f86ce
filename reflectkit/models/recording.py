"""Passes that a GPU repeats from a recording, a CUDA graph.

A pass of a small model is hundreds of kernels of a few microseconds each, and launching them one by
one from Python takes several times as long as computing them. A recording launches all of them at
once. It reads and writes the same places in memory each time, so that its inputs are copied there,
and rows are filled up to sizes that recur. Only passes without gradients are recorded.

Shapes: B rows, T tokens of the longest, D numbers of a hidden state.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from reflectkit.models.architecture import CACHE, attends_to_all, takes_masks, takes_positions
from reflectkit.models.checkpoint_metadata import first_line
from reflectkit.models.fast_pass import has_plain_layers, is_turned_off

MOST_WORK = 1.5e13
"""The most weights times tokens of a pass that is recorded: 100 ms of a fast GPU. A larger one keeps
it busy anyway, and tokens that only fill rows up would cost more than launching kernels.
"""
ROWS = (2, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128)
"""The numbers of rows of recorded passes."""
MULTIPLES = ((256, 32), (1024, 64))
"""Up to so many tokens, their number is a multiple of the second."""
LONGEST_MULTIPLE = 128
"""The multiple beyond these."""
WIDEST = 2048
"""The most tokens of a row of a recorded pass: it makes a mask of all pairs of them."""
SEEN_BEFORE = 3
"""A pass is recorded after so many of its size: that takes as long as a few passes."""
Size = tuple[int, int, bool]
"""Of a recorded pass: rows, tokens of each, and whether it has a mask of pairs."""
MOST_RECORDINGS = 48
"""Of a model; those that were used least recently are dropped."""
MEMORY = 8
"""Recorded masks and outputs take at most one in so many bytes of the GPU."""


class Recording:
    """What `function` does, a pass without gradients, to be repeated.

    device: other than a GPU, it is done each time. memory: of `new_memory`, for recordings that
    take turns. Raises RuntimeError if the pass cannot be recorded.
    """

    def __init__(
        self,
        function: Callable[[], torch.Tensor],
        device: torch.device,
        memory: Any,
    ) -> None:
        self._function = function
        self.graph: torch.cuda.CUDAGraph | None = None
        self.output = torch.empty(0)
        """What `function` returned. It is valid until the next recording is repeated."""
        if device.type == "cuda":
            with torch.cuda.device(device):
                self._record(device, memory)

    def _record(self, device: torch.device, memory: Any) -> None:
        # 1. A pass before it prepares what kernels keep
        here = torch.cuda.current_stream(device)
        aside = torch.cuda.Stream(device)
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            self._function()
        here.wait_stream(aside)
        # 2. The pass that is recorded. torch stays where it was if that fails
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, memory, aside, capture_error_mode="thread_local"):
                self.output = self._function()
        except BaseException:
            torch.cuda.set_stream(here)
            with suppress(Exception):
                torch._C._cuda_endAllocateToPool(here.device_index, memory)
            raise
        self.graph = graph

    def repeat(self) -> torch.Tensor:
        """Do it again. Returns `output`."""
        if self.graph is None:
            self.output = self._function()
        else:
            self.graph.replay()
        return self.output


def new_memory(device: torch.device) -> Any:
    """Memory that recordings share."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


class Weights:
    """The weights of a model, to see whether they are where recordings read them.

    Training changes them in place; an adapter may be added, or a layer exchanged. What is computed
    from them between passes, as adapters rounded to bfloat16, is computed anew.
    """

    def __init__(self, model: nn.Module) -> None:
        from reflectkit.models.lora import BFloat16Linear

        self._places: list[tuple[dict[str, Any], str, torch.Tensor, int]] = []
        self._children: list[tuple[dict[str, Any], str, nn.Module]] = []
        self._rounded: list[BFloat16Linear] = []
        for module in model.modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    self._places.append((module._parameters, name, weight, weight.data_ptr()))
            for name, child in module._modules.items():
                if child is not None:
                    self._children.append((module._modules, name, child))
            if isinstance(module, BFloat16Linear):
                self._rounded.append(module)
        self._versions: list[int] = []
        self._roundings: list[int] = []
        self._round()

    def are_in_place(self) -> bool:
        """Whether recordings are still right. Rounds adapters that have changed."""
        for parameters, name, weight, place in self._places:
            if parameters.get(name) is not weight or weight.data_ptr() != place:
                return False
        for children, name, child in self._children:
            if children.get(name) is not child:
                return False
        before = self._roundings
        self._round()
        return self._roundings == before

    def _round(self) -> None:
        """Round the adapters, and note where."""
        if not self._rounded:
            return
        versions = [weight._version for _, _, weight, _ in self._places]
        if versions == self._versions:
            return
        self._versions = versions
        self._roundings = []
        for layer in self._rounded:
            self._roundings += [matrix.data_ptr() for matrix in layer.rounding()]


def active_adapters(model: nn.Module) -> str:
    """What adapters a pass of `model` reads, as its first layer with adapters and its first module
    that is trained beside them have it; "" without any.
    """
    if "peft" not in sys.modules:
        return ""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    kinds: list[type] = [BaseTunerLayer, AuxiliaryTrainingWrapper]
    found = []
    for module in model.modules():
        for kind in kinds:
            if isinstance(module, kind):
                kinds.remove(kind)
                is_merged = getattr(module, "merged", False)
                found.append(f"{module.active_adapters} {module.disable_adapters} {is_merged}")
                break
        if not kinds:
            break
    return " ".join(found)


def can_record(trunk: Any) -> bool:
    """Whether passes of `trunk` are the same launches each time: its layers are plain and attend to
    all tokens, and what turns positions into angles does not look at them.
    """
    config = trunk.config.get_text_config()
    angles = str(getattr(config, "rope_parameters", "")) + str(getattr(config, "rope_scaling", ""))
    is_fixed = "dynamic" not in angles and "longrope" not in angles
    is_plain = takes_positions(trunk) and attends_to_all(trunk) and has_plain_layers(trunk)
    return is_fixed and is_plain


# ------------------------------------------------------------------------------- passes over rows


class _RecordedPass:
    """A pass of a trunk over B rows of T tokens. masked: whether it has a mask of pairs of tokens,
    and positions.
    """

    def __init__(self, trunk: Any, rows: int, width: int, masked: bool, memory: Any) -> None:
        weight = next(trunk.parameters())
        device = weight.device
        self.inputs = {"input_ids": torch.zeros((rows, width), dtype=torch.long, device=device)}
        if masked:
            shape = (rows, 1, width, width)
            self.inputs["attention_mask"] = torch.ones(shape, dtype=torch.bool, device=device)
            self.inputs["position_ids"] = torch.zeros_like(self.inputs["input_ids"])
        self.size = _pass_bytes(trunk, rows, width, masked)
        forward = partial(_last_hidden_state, weakref.ref(trunk), self.inputs)
        self.recording = Recording(forward, device, memory)

    def read(self, arguments: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The last hidden states (B, T, D) of a pass with `arguments`, until the next pass."""
        rows, width = arguments["input_ids"].shape
        for name, place in self.inputs.items():
            given = arguments[name]
            if name != "attention_mask":
                place[:rows, :width] = given
                continue
            # A token that only fills up sees the first one: seeing none is no number
            place.zero_()
            place[:, :, :, 0] = True
            place[:rows, :, :width, :width] = given
        return self.recording.repeat()[:rows, :width]


def _last_hidden_state(trunk_of: Callable[[], Any], inputs: Mapping[str, Any]) -> torch.Tensor:
    output: torch.Tensor = trunk_of()(**inputs, use_cache=False).last_hidden_state
    return output


def _pass_bytes(trunk: Any, rows: int, width: int, masked: bool) -> int:
    """Of the masks, ours and the model's, and the output of a recorded pass."""
    weight = next(trunk.parameters())
    output = rows * width * trunk.config.get_text_config().hidden_size * weight.dtype.itemsize
    return output + rows * width * width * (1 + masked)


class Recorder:
    """The recorded passes of a trunk with the adapters that are active. lock: who has it may read."""

    def __init__(self, trunk: Any) -> None:
        self.lock = threading.Lock()
        self._seen: Counter[Size] = Counter()
        self._begin(trunk)

    def _begin(self, trunk: Any) -> None:
        """Forget the recordings of other weights."""
        self._passes: OrderedDict[Size, _RecordedPass] = OrderedDict()
        self._weights = Weights(trunk)
        self._can_record = can_record(trunk)
        self._weight_count = sum(weight.numel() for weight in trunk.parameters())
        self._most_positions = getattr(trunk.config, "max_position_embeddings", None) or WIDEST
        self._memory = new_memory(next(trunk.parameters()).device)

    def size_of(self, rows: int, width: int, masked: bool) -> Size | None:
        """The size of the recording for so many rows of so many tokens; None: it is not recorded."""
        widest = min(WIDEST, self._most_positions)
        size = (rounded_rows(rows), min(rounded_width(width), widest), masked)
        work = size[0] * size[1] * self._weight_count
        is_small = width <= widest and work <= MOST_WORK
        return size if is_small and self._can_record else None

    def read(self, trunk: Any, arguments: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """The last hidden states of the pass, which is recorded once it has recurred; None: it is
        not recorded.
        """
        # 1. Whether this pass can be
        if not self._weights.are_in_place():
            self._begin(trunk)
        rows, width = arguments["input_ids"].shape
        size = self.size_of(rows, width, "attention_mask" in arguments)
        if size is None:
            return None
        # 2. It is recorded in the place of those that were used least recently
        if size not in self._passes:
            self._seen[size] += 1
            if self._seen[size] <= SEEN_BEFORE or not self._make_room(trunk, size):
                return None
            try:
                self._passes[size] = _RecordedPass(trunk, *size, self._memory)
            except RuntimeError as error:
                stop_recording(f"a pass could not be recorded: {first_line(error)}")
                return None
        self._passes.move_to_end(size)
        return self._passes[size].read(arguments)

    def _make_room(self, trunk: Any, size: Size) -> bool:
        """Drop recordings until there is memory for one of `size`; whether that is possible."""
        memory = Memory.of(next(trunk.parameters()).device)
        new = _pass_bytes(trunk, *size)
        if not memory.holds(new):
            return False
        total = sum(recorded.size for recorded in self._passes.values())
        while self._passes and (len(self._passes) >= MOST_RECORDINGS or total + new > memory.share):
            dropped_size, dropped = self._passes.popitem(last=False)
            total -= dropped.size
            self._seen[dropped_size] = 0
        return True


@dataclass(frozen=True)
class Memory:
    """Bytes that recordings of one kind may take. share: all of them. free: for new ones."""

    share: int
    free: int

    @classmethod
    def of(cls, device: torch.device) -> Memory:
        """That of a GPU, whose free memory is also what torch keeps for later."""
        if device.type != "cuda":
            return cls(2**40, 2**40)
        free, total = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return cls(total // MEMORY, (free + kept) // 2)

    def holds(self, new: int) -> bool:
        """Whether there is room for so many bytes, once others are dropped."""
        return new <= min(self.share, self.free)


def rounded_rows(rows: int) -> int:
    """The rows of the recorded pass for so many.

    >>> rounded_rows(9), rounded_rows(300)
    (12, 384)
    """
    for most in ROWS:
        if rows <= most:
            return most
    return -(-rows // ROWS[-1]) * ROWS[-1]


def rounded_width(width: int) -> int:
    """The tokens of a row of the recorded pass for so many.

    >>> rounded_width(70), rounded_width(257), rounded_width(1025)
    (96, 320, 1152)
    """
    multiple = LONGEST_MULTIPLE
    for most, each in reversed(MULTIPLES):
        if width <= most:
            multiple = each
    return -(-width // multiple) * multiple


_RECORDERS: weakref.WeakKeyDictionary[nn.Module, dict[str, Recorder]] = weakref.WeakKeyDictionary()
"""Of each trunk, by its active adapters."""
HELD: list[MutableMapping[Any, Any]] = [_RECORDERS]
"""Where recordings are held, of all kinds."""
_reasons_to_stop: list[str] = []


def stop_recording(reason: str) -> None:
    """Drop all recordings, and make no more in this process, which is told in a warning."""
    for held in HELD:
        held.clear()
    if not _reasons_to_stop:
        warnings.warn(f"{reason}; scoring and decoding go on without CUDA graphs", stacklevel=2)
    _reasons_to_stop.append(reason)


def is_recording(model: Any) -> bool:
    """Whether passes of `model` may be recorded: it is on a GPU and in evaluation mode, and nothing
    speaks against it.
    """
    if _reasons_to_stop or is_turned_off() or model.training:
        return False
    return is_on_gpu(model) and takes_masks(model)


def is_on_gpu(model: Any) -> bool:
    """Whether `model` is on a GPU."""
    return bool(next(model.parameters()).device.type == "cuda")


def recorder_of(trunk: Any) -> Recorder | None:
    """The recorded passes of `trunk` as it is now; None where there can be none."""
    if torch.is_grad_enabled() or not is_recording(trunk):
        return None
    recorders = _RECORDERS.setdefault(trunk, {})
    adapters = active_adapters(trunk)
    if adapters not in recorders:
        recorders[adapters] = Recorder(trunk)
    return recorders[adapters]


def recorded_hidden(trunk: Any, arguments: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The last hidden states (B, T, D) of a pass of `trunk`, from a recording; None if there is
    none, and the pass is to be made.
    """
    mask = arguments.get("attention_mask")
    has_known_inputs = CACHE not in arguments and (mask is None or mask.ndim == 4)
    has_known_inputs &= (mask is None) == ("position_ids" not in arguments)
    recorder = recorder_of(trunk) if has_known_inputs else None
    if recorder is None:
        return None
    with recorder.lock:
        hidden_BTD = recorder.read(trunk, arguments)
        return None if hidden_BTD is None else hidden_BTD.clone()
