"""One update of the policy from rows that it sampled itself.

Rows with the same prompt share one forward pass: an exact saving, since a prompt's distribution is one and the same.
Dropout stays off, so that the first pass repeats the sampler's numbers and the ratio starts at exactly 1.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from reflectkit.core.errors import ReflectkitError
from reflectkit.core.types import Sample
from reflectkit.models.load import Player
from reflectkit.models.scoring import choice_logprobs
from reflectkit.rl.losses import entropy, policy_gradient_loss, value_loss
from reflectkit.rl.returns import advantages


class DivergedError(ReflectkitError):
    """A loss or gradient became NaN or infinite."""


@dataclass(frozen=True)
class Settings:
    """How to learn. learning_rate: Adam's. critic_rate: of the value head. clip: of the ratio. entropy: the bonus' weight.

    max_grad_norm: gradients are scaled down to it. epochs: passes over each batch. minibatch: rows a gradient step.
    baseline, scale: see `returns.advantages`. temperature: the sampler's.
    """

    learning_rate: float
    critic_rate: float = 5e-3
    clip: float = 0.2
    entropy: float = 0.01
    max_grad_norm: float = 0.3
    epochs: int = 1
    minibatch: int = 512
    baseline: str = "critic"
    scale: bool = True
    temperature: float = 1.0


class Learner:
    """Holds the policy, its optimizer and the critic (a linear head on the policy's last hidden state, detached)."""

    def __init__(self, player: Player, settings: Settings, micro_batch: int = 64) -> None:
        self.player, self.settings, self.micro_batch = player, settings, micro_batch
        device = next(player.model.parameters()).device
        width = player.model.config.get_text_config().hidden_size
        self.critic = nn.Linear(width, 1).to(device)
        nn.init.zeros_(self.critic.weight)
        nn.init.zeros_(self.critic.bias)
        self.weights = [weight for weight in player.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": self.weights, "lr": settings.learning_rate},
                {"params": list(self.critic.parameters()), "lr": settings.critic_rate},
            ],
            weight_decay=0.0,
        )

    def update(self, samples: Sequence[Sample], generator: random.Random, rate: float = 1.0) -> dict[str, float]:
        """Learn from `samples`; `generator` shuffles them into minibatches. Returns the mean of each figure.

        rate: what the learning rates are multiplied with at this point of the schedule, 0 … 1.

        Raises
        ------
        DivergedError: a loss is NaN or infinite; the weights are as before the step that found it.
        """
        if not samples:
            return {}
        self.player.model.eval()
        rates = (self.settings.learning_rate, self.settings.critic_rate)
        for group, full in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = full * rate
        returns = [sample.return_to_go for sample in samples]
        values = [sample.value for sample in samples if sample.value is not None]
        if self.settings.baseline == "critic" and len(values) < len(samples):
            raise ValueError("baseline 'critic' needs rows whose decisions carry the critic's value")
        gains = advantages(returns, values, self.settings.baseline, self.settings.scale)
        sums: dict[str, float] = {}
        alike = list(_by_prompt(samples).values())
        pieces = math.ceil(len(samples) / self.settings.minibatch)
        steps = 0
        for _ in range(self.settings.epochs):
            generator.shuffle(alike)
            order = [row for rows in alike for row in rows]  # rows of one prompt stay together, for one forward pass
            for piece in range(pieces):
                chosen = order[piece * len(order) // pieces : (piece + 1) * len(order) // pieces]
                figures = self._step([samples[i] for i in chosen], [gains[i] for i in chosen], [returns[i] for i in chosen])
                steps += 1
                for name, value in figures.items():
                    sums[name] = sums.get(name, 0.0) + value
        return {name: total / steps for name, total in sums.items()}

    def _step(self, samples: Sequence[Sample], gains: Sequence[float], returns: Sequence[float]) -> dict[str, float]:
        settings, total = self.settings, len(samples)
        device = next(self.player.model.parameters()).device
        self.optimizer.zero_grad(set_to_none=True)
        figures = {"loss": 0.0, "entropy": 0.0, "value_loss": 0.0, "kl": 0.0, "ratio_deviation": 0.0}
        for rows, logprobs_UK, hidden_UD, prompt_of_row in self._forward(samples):
            logprobs_BK = logprobs_UK[prompt_of_row]
            action_B = torch.tensor([samples[i].choices.index(samples[i].tokens[-1]) for i in rows], device=device)
            old_B = torch.tensor([samples[i].logprobs[-1] for i in rows], device=device)
            gain_B = torch.tensor([gains[i] for i in rows], device=device)
            return_B = torch.tensor([returns[i] for i in rows], device=device)
            new_B = logprobs_BK.gather(1, action_B[:, None]).squeeze(1)
            spread_B = entropy(logprobs_BK)
            weight = len(rows) / total
            policy_loss = policy_gradient_loss(new_B, old_B, gain_B, settings.clip) * weight
            bonus = settings.entropy * spread_B.mean() * weight
            critic_loss = value_loss(self.critic(hidden_UD.detach().float()).squeeze(-1)[prompt_of_row], return_B) * weight
            (policy_loss - bonus + critic_loss).backward()
            with torch.no_grad():
                change_B = new_B - old_B
                figures["loss"] += float(policy_loss)
                figures["entropy"] += float(spread_B.mean()) * weight
                figures["value_loss"] += float(critic_loss)
                figures["kl"] += float((torch.exp(change_B) - 1 - change_B).mean()) * weight  # Schulman's k3, ≥ 0
                figures["ratio_deviation"] = max(figures["ratio_deviation"], float(change_B.abs().max()))
        norm = float(nn.utils.clip_grad_norm_(self.weights, settings.max_grad_norm))
        figures["gradient_norm"] = norm
        if not all(math.isfinite(value) for value in figures.values()):
            raise DivergedError(
                f"the update diverged ({figures}); lower --learning-rate and run again from the last checkpoint"
            )
        self.optimizer.step()
        return figures

    def _forward(self, samples: Sequence[Sample]) -> Any:
        """(row numbers, logprobs_UK, hidden_UD, index into U of each row) for micro-batches of U distinct prompts."""
        members = _by_prompt(samples)
        distinct = list(members)
        for start in range(0, len(distinct), self.micro_batch):
            part = distinct[start : start + self.micro_batch]
            logprobs_UK, hidden_UD = choice_logprobs(
                self.player.model,
                [prompt for prompt, _ in part],
                [choices for _, choices in part],
                pad_id=self.player.pad_id,
                temperature=self.settings.temperature,
            )
            rows = [number for key in part for number in members[key]]
            prompt_of_row = [index for index, key in enumerate(part) for _ in members[key]]
            yield rows, logprobs_UK, hidden_UD, prompt_of_row


def _by_prompt(samples: Sequence[Sample]) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]]:
    """Row numbers by prompt and legal labels, in order of first appearance."""
    members: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for number, sample in enumerate(samples):
        members.setdefault((sample.tokens[:-1], sample.choices), []).append(number)
    return members
