"""A training service in this process: real forward and backward passes of a small model with LoRA adapters."""

from __future__ import annotations

import asyncio
import copy
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from reflectkit.jsonl import read_json, write_json
from reflectkit.models.load import LoadedModel, load_player, with_adapter
from reflectkit.sampling.base import SampleRequest
from reflectkit.sampling.protocols import Drawn
from reflectkit.sampling.service_interface import LostWeightsError, OptimizerStep, ServiceAdapter
from reflectkit.train.optimizers import new_optimizer

ALPHA = 32


class FakeAdapter:
    """An adapter whose weights are `player`'s."""

    def __init__(self, service: FakeService, player: LoadedModel) -> None:
        self.service, self.player = service, player
        self.weights = [weight for weight in player.model.parameters() if weight.requires_grad]
        self.optimizer = new_optimizer(self.weights, 1e-3, 0.0) if self.weights else None

    def _logprobs(self, row: Sequence[int]) -> torch.Tensor:
        logits = self.player.model(input_ids=torch.tensor([row[:-1]])).logits[0]
        return torch.log_softmax(logits.float(), dim=-1).gather(1, torch.tensor([row[1:]]).T)[:, 0]

    async def forward(self, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        self.service.calls.append(("forward", len(rows)))
        await self.service.pause()
        with torch.no_grad():
            return [self.service.said(self._logprobs(row).tolist()) for row in rows]

    async def backward(
        self, rows: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], slopes: Sequence[Sequence[float]]
    ) -> list[list[float]]:
        self.service.calls.append(("backward", len(rows)))
        answer = []
        for row, slope in zip(rows, slopes, strict=True):
            logprobs_T = self._logprobs(row)
            (logprobs_T * torch.tensor(slope)).sum().backward()
            answer.append(self.service.said(logprobs_T.tolist()))
        return answer

    async def clipped_backward(
        self,
        rows: Sequence[Sequence[int]],
        old_logprobs: Sequence[Sequence[float]],
        advantages: Sequence[Sequence[float]],
        clip: tuple[float, float],
    ) -> list[list[float]]:
        self.service.calls.append(("clipped", len(rows)))
        answer = []
        for row, old, advantage in zip(rows, old_logprobs, advantages, strict=True):
            logprobs_T = self._logprobs(row)
            ratio_T, advantage_T = (logprobs_T - torch.tensor(old)).exp(), torch.tensor(advantage)
            (-(ratio_T * advantage_T).minimum(ratio_T.clamp(*clip) * advantage_T)).sum().backward()
            answer.append(self.service.said(logprobs_T.tolist()))
        return answer

    async def step(self, step: OptimizerStep) -> float | None:
        self.service.calls.append(("step", 1))
        assert self.optimizer is not None
        norm = torch.nn.utils.clip_grad_norm_(self.weights, step.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = step.learning_rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    async def write(self, ask: SampleRequest, limit: int) -> Drawn:
        await self.service.pause()
        row, said = list(ask.prompt_ids), []
        chance = torch.Generator().manual_seed(ask.seed)
        for _ in range(limit):
            with torch.no_grad():
                logprobs_V = torch.log_softmax(self.player.model(torch.tensor([row])).logits[0, -1], dim=-1)
            drawn = torch.multinomial(logprobs_V.exp(), 1, generator=chance)
            token = int(drawn if ask.temperature else logprobs_V.argmax())
            row.append(token)
            said.append(float(logprobs_V[token]))
            if token in ask.stop_ids:
                break
        return Drawn(tuple(row[len(ask.prompt_ids) :]), tuple(said))

    async def save(self, name: str) -> str:
        assert self.optimizer is not None
        path = f"tinker://model/weights/{name}"
        weights = [weight.detach().clone() for weight in self.weights]
        self.service.states[path] = (weights, copy.deepcopy(self.optimizer.state_dict()))
        return path

    async def load(self, path: str) -> None:
        assert self.optimizer is not None
        if path not in self.service.states:
            raise LostWeightsError(f"fake does not give out {path}")
        weights, optimizer = self.service.states[path]
        with torch.no_grad():
            for mine, saved in zip(self.weights, weights, strict=True):
                mine.copy_(saved)
        self.optimizer.load_state_dict(copy.deepcopy(optimizer))

    async def archive(self, target: Path) -> None:
        with tempfile.TemporaryDirectory() as folder, tarfile.open(target, mode="w:gz") as files:
            self.player.model.save_pretrained(folder)
            config = Path(folder) / "adapter_config.json"
            write_json(config, read_json(config) | {"target_modules": None})  # as SkyRL does
            files.add(folder, "adapter")

    async def close(self) -> None:
        """Nothing is held."""


class FakeService:
    """Has the model in `folder` as its base.

    calls: what was asked, in order, with the number of rows. lie: changes the log-probabilities of a row.
    """

    url = "http://fake"

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, list[tuple[str, int]]()
        self.states: dict[str, Any] = {}
        self.lie: Any = None
        self.waiting = self.most_waiting = 0

    def said(self, logprobs: list[float]) -> list[float]:
        return self.lie(logprobs) if self.lie else logprobs

    async def pause(self) -> None:
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        await asyncio.sleep(0)
        self.waiting -= 1

    async def models(self) -> list[str]:
        return [str(self.folder)]

    async def adapter(self, base: str, rank: int, seed: int) -> ServiceAdapter:
        player = load_player(self.folder, device="cpu")
        return FakeAdapter(self, with_adapter(player, rank, ALPHA, seed, targets="c_attn,c_fc"))

    async def writer(self, base: str) -> ServiceAdapter:
        player = load_player(self.folder, device="cpu")
        player.model.requires_grad_(False)
        return FakeAdapter(self, player)
