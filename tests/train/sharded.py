"""Run by torchrun: trains the corridor with the policy sharded over gloo, or whole, and saves the end. Arguments: kind
(sharded: FSDP2; whole), folder.

accelerate shards on GPUs alone, so its `prepare` is stood in for; all else is what `rlft` does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.envs import make
from reflectkit.envs.corridor import Corridor
from reflectkit.models.load import LoadedModel, load_player
from reflectkit.sampling.hf import LocalSampler
from reflectkit.train import checkpoint
from reflectkit.train.critic import Critic
from reflectkit.train.curriculum import Level
from reflectkit.train.learner import LearnerSettings
from reflectkit.train.local_learner import LocalLearner
from reflectkit.train.processes import Processes
from reflectkit.train.trainer import Trainer, TrainerConfig
from tests.train.training import objective


class Wrapped:
    """An optimizer behind `optimizer`, as accelerate's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


class Gloo:
    """What `Processes` needs of accelerate's Accelerator, on a CPU."""

    distributed_type = "FSDP"

    def __init__(self) -> None:
        self.process_index, self.num_processes = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def prepare(self, scorer: Any, optimizer: Any) -> tuple[Any, Any]:
        rate = optimizer.param_groups[0]["lr"]
        for module in scorer.modules():
            if isinstance(module, GPT2Block):
                fully_shard(module)
        fully_shard(scorer)
        return scorer, Wrapped(torch.optim.AdamW(scorer.parameters(), lr=rate, weight_decay=0.0))


def build_trainer(source: Path, processes: Processes) -> Trainer:
    player: LoadedModel = load_player(source, "policy", device="cpu")
    critic = Critic(player)
    settings = LearnerSettings(learning_rate=1e-3, minibatch=40, max_tokens=400, max_grad_norm=1.0)
    learner = LocalLearner(player, settings, critic, processes=processes)
    spread = {"scorer": learner.scorer, "team": processes} if processes.sharded else {}
    agent = TwoPlayerAgent(LocalSampler(player, watch=learner.observe, **spread))
    level = Level("long", Corridor.taskset.tasks("long"), lambda: make("corridor", 8))
    config = TrainerConfig([level], 2, 8, objective("ppo", group_size=1, replay_size=3), seed=0, width=8)
    return Trainer(config, agent, learner, processes=processes)


def main(kind: str, folder: Path) -> None:
    """An update, a checkpoint, a fresh start from it, and another update."""
    torch.set_num_threads(1)
    if kind == "sharded":
        torch.distributed.init_process_group("gloo")
    processes = Processes(Gloo() if kind == "sharded" else None)
    trainer = build_trainer(folder / "policy", processes)
    trainer.train_step()
    half = checkpoint.save(folder / kind, trainer, {}, {})
    processes.wait()
    trainer = build_trainer(half, processes)
    checkpoint.restore(half, trainer)
    trainer.train_step()
    checkpoint.save(folder / kind, trainer, {}, {})
    processes.wait()
    if kind != "whole":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
