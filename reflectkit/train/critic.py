"""The critic: the value of a state, from the policy's hidden state or from a trunk of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from torch import nn

from reflectkit.errors import refuse
from reflectkit.models.architecture import trunk_of
from reflectkit.models.device import on_device
from reflectkit.models.load import LoadedModel
from reflectkit.models.rows import right_pad
from reflectkit.models.tiny import WIDTH
from reflectkit.train.advantages import SPREAD, deviation

PREFIX = "critic."
"""What the names of its weights begin with in a checkpoint."""
SCALE_RATE = 0.2
"""How far the scale of a critic's output moves in an update, as a share of the way to that of the
update's returns.
"""


class Critic(nn.Module):
    """Predicts a value for each decision. Its last layer starts at 0, so the first values are 0.

    Its output counts in standard deviations of the returns from their mean, both moving averages
    over updates. So a profit of 300 and a reward of 1 are learned alike, also where the first
    episodes were all bad.

    head: "linear", or "mlp" (one hidden layer). trunk: "detached" reads the policy's last hidden
    state without training the policy; "shared" trains the policy's trunk too; "separate" trains a
    copy of the trunk. seed: for the weights of an mlp's first layer.
    """

    mean: torch.Tensor
    """Of the returns, in units of reward."""
    deviation: torch.Tensor
    """Their standard deviation."""
    knows_returns: torch.Tensor
    """Whether both are known."""

    def __init__(
        self,
        player: LoadedModel,
        head: str = "linear",
        trunk: str = "detached",
        seed: int = 0,
    ) -> None:
        super().__init__()
        is_adapter = hasattr(player.model, "peft_config") or player.quantize != "none"
        copies = "--critic-trunk separate trains a full copy of the trunk"
        mistake = f"{copies}, but the policy is an adapter; use detached"
        refuse(trunk == "separate" and is_adapter, mistake)
        self.trunk = trunk
        self.pad_id = player.pad_id

        # 1. The head, whose last layer starts at 0
        width = player.model.config.get_text_config().hidden_size
        last = nn.Linear(width, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.head: nn.Module = last
        if head == "mlp":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed % 2**63)
                first = nn.Linear(width, width)
            self.head = nn.Sequential(first, nn.Tanh(), last)

        # 2. The scale of its output, which is saved with its weights
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("deviation", torch.ones(()))
        self.register_buffer("knows_returns", torch.zeros((), dtype=torch.bool))

        # 3. A trunk of its own
        self.own_trunk = None
        if trunk == "separate":
            self.own_trunk = copy.deepcopy(trunk_of(player.model))
            self.own_trunk.requires_grad_(True)
        self.to(next(player.model.parameters()).device)

    def forward(
        self,
        hidden_ND: torch.Tensor,
        prompts: Sequence[Sequence[int]],
    ) -> torch.Tensor:
        """values_N, in units of reward, for N prompts whose last hidden states are hidden_ND."""
        # 1. Hidden states: of its own trunk, or the policy's, with or without gradients
        if self.own_trunk is not None:
            hidden_ND = self._read(self.own_trunk, prompts)
        elif self.trunk == "detached":
            hidden_ND = hidden_ND.detach()

        # 2. Values
        hidden_ND = _as_narrow(hidden_ND)
        dtype = next(self.head.parameters()).dtype
        outputs_N1: torch.Tensor = self.head(hidden_ND.to(dtype))
        return self.mean + self.deviation * outputs_N1.squeeze(-1)

    @torch.no_grad()
    def follow(self, returns: Sequence[float]) -> None:
        """Move mean and standard deviation towards those of `returns`, the first time all the way.
        Values stay as they are (PopArt, arXiv 1602.07714, section 2.2).

        returns: of an update, in units of reward. Nothing changes if they are all equal.
        """
        if not returns or max(returns) - min(returns) <= SPREAD:
            return
        # 1. Mean and deviation of a mixture of all returns before and those of this update
        rate = SCALE_RATE if self.knows_returns else 1.0
        old_mean, old_deviation = float(self.mean), float(self.deviation)
        update_mean, update_deviation = fmean(returns), deviation(returns)
        mean = (1 - rate) * old_mean + rate * update_mean
        old_square = old_deviation**2 + (old_mean - mean) ** 2
        update_square = update_deviation**2 + (update_mean - mean) ** 2
        new_deviation = math.sqrt((1 - rate) * old_square + rate * update_square)

        # 2. The last layer says the same values in the new unit
        if self.knows_returns:
            self.last.weight.mul_(old_deviation / new_deviation)
            shift = old_mean - mean
            self.last.bias.mul_(old_deviation).add_(shift).div_(new_deviation)
        self.mean.fill_(mean)
        self.deviation.fill_(new_deviation)
        self.knows_returns.fill_(True)

    @property
    def last(self) -> nn.Linear:
        """The last layer of the head."""
        layer = self.head[-1] if isinstance(self.head, nn.Sequential) else self.head
        assert isinstance(layer, nn.Linear)
        return layer

    @torch.no_grad()
    def value(self, player: LoadedModel, prompt: Sequence[int]) -> float:
        """The value of one prompt of `player`, in units of reward."""
        player.activate()
        hidden_ND = self._read(trunk_of(player.model), [prompt])
        return float(self(hidden_ND, [prompt])[0])

    def _read(self, trunk: Any, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """hidden_ND: the last hidden state of each of N prompts."""
        device = next(trunk.parameters()).device
        input_ids_NT = right_pad(prompts, self.pad_id, device)
        hidden_NTD = trunk(input_ids=input_ids_NT, use_cache=False).last_hidden_state
        ends = [len(prompt) - 1 for prompt in prompts]
        end_N = on_device(ends, device)
        prompt_N = torch.arange(len(prompts), device=device)
        hidden_ND: torch.Tensor = hidden_NTD[prompt_N, end_N]
        return hidden_ND


def _as_narrow(hidden_ND: torch.Tensor) -> torch.Tensor:
    """States that are wider than those of the tiny models, made as small as these, whose root mean
    square is 1. `--critic-rate` is meant for them.

    A step of Adam moves each weight by about the rate, and so a value by the rate times the sum of
    a state's magnitudes. For SmolLM2-135M that was 3.4 deviations of the returns, for a tiny model
    0.5. The critic swung from side to side, and the policy settled on one action.
    """
    width = hidden_ND.shape[-1]
    if width <= WIDTH:
        return hidden_ND
    size_N1 = hidden_ND.float().pow(2).mean(dim=-1, keepdim=True).sqrt()
    return hidden_ND * (WIDTH / width / size_N1.clamp(min=1e-6))
