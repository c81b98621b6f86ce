"""Speed against the published Reflect-RL code, in turns in one process. Its checkout is given, and is not changed:

    git clone https://github.com/zhourunlong/Reflect-RL
    make bench-peers MODEL=tiny ARGS="--original Reflect-RL"

Their side is `batched_answer`, `calc_Q_values` and `PGTrainer.train` of that checkout; ours is what `rlft` runs. Each
round, their side plays (its actions come from torch's own generator); ours then scores the same prompts itself and
takes the same actions, and both learn from the same turns. Neither has a reflector. Shims, all of them:

- MISSING: modules that the files import and this loop never uses are empty.
- `Adapter` shows our DangerousTaxi through their environment's interface, so that both play the same game with the same
  prompts; their action marker is empty, since ours is part of the prompt.
- The model is the same small GPT-2 in float32, without LoRA and 8 bit, which their loader requires a GPU for; its head
  is shrunk to the six actions, as their loader does.
- transformers 5 has no `_get_logits_processor` and `_get_logits_warper` any more; with their default settings (top p 1,
  temperature 1, top k above the number of actions) both leave the logits as they are.
- The learning rate is 0, as on our side.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import LogitsProcessorList

from benchmarks.common import Follower, Ours, Rounds, row
from benchmarks.rl import player
from reflectkit.envs import env_class, make
from reflectkit.eventloop import result_of
from reflectkit.models.labels import label_ids
from reflectkit.models.load import LoadedModel
from reflectkit.prompts import policy_prompt
from reflectkit.rollouts.episode import Episode
from reflectkit.seeding import derive
from reflectkit.types import Trajectory

MISSING = (
    "autogen",
    "diskcache",
    "gym",
    "gym.envs",
    "gym.envs.toy_text",
    "gym.envs.toy_text.taxi",
    "tiktoken",
    "termcolor",
)
ACTIONS = [str(number) for number in range(6)]
SIZES = {"batches of 16": (16, 16), "its default sizes, 4 episodes and rows one by one": (4, 1)}


@contextlib.contextmanager
def checkout(folder: Path) -> Iterator[tuple[Any, Any]]:
    """(their module `evaluation.evaluate`, their PGTrainer). Their imports work only inside their folder."""
    for name in MISSING:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            continue
        stub: Any = types.ModuleType(name)
        stub.__getattr__ = _anything
        stub.__path__ = []
        sys.modules[name] = stub
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield importlib.import_module("evaluation.evaluate"), importlib.import_module("trainers").PGTrainer
    finally:
        os.chdir(before)
        sys.path.pop(0)


def _anything(name: str) -> Any:
    """What is imported from an empty module."""
    if name.startswith("__"):
        raise AttributeError(name)
    return object


class Adapter:
    """DangerousTaxi of this project through the interface of their environments."""

    make: Callable[[], Any]

    def __init__(self, generation_config: Any, **_: Any) -> None:
        self.generation_config, self.env = generation_config, type(self).make()

    def reset(self, episode: Episode, **_: Any) -> tuple[str, dict[str, Any]]:
        """Begin `episode`."""
        return policy_prompt(result_of(self.env.reset(episode.task, derive(episode.seed, "env")))), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action, given as its label."""
        result = result_of(self.env.step(int(action)))
        return policy_prompt(result.observation), result.reward, result.terminated, result.truncated, result.info


class Theirs:
    """Their loop around our game. rows: per gradient pass."""

    def __init__(self, evaluate: Any, trainer: Any, player: LoadedModel, new: Callable[[], Any], rows: int) -> None:
        self.evaluate, self.player = evaluate, player
        Adapter.make = staticmethod(new)
        evaluate.ACTION_HEADS[Adapter] = "\nActions:"
        evaluate.ACTION_TEMPLATE = ""
        player.tokenizer.padding_side = player.tokenizer.truncation_side = "left"
        player.tokenizer.model_max_length = player.context - 1
        shrink(player)
        self.generation = GenerationConfig(
            max_new_tokens=1, do_sample=True, num_beams=1, temperature=1, top_p=1, top_k=99999,
            pad_token_id=player.pad_id, eos_token_id=player.tokenizer.eos_token_id,
        )  # fmt: skip
        self.trainer = trainer(
            model=player.model,
            tokenizer=player.tokenizer,
            optimizer=torch.optim.Adam(player.model.parameters(), lr=0.0),
            gradient_accumulation_steps=1,
            generation_config=self.generation,
            critic_model=None,
            critic_optimizer=None,
            critic_update_freq=5,
            critic_update_iter=5,
            batch_size=rows,
            max_grad_norm=0.3,
        )

    def play(self, episodes: Sequence[Episode]) -> list[list[dict[str, Any]]]:
        """Their log of each episode: one entry per turn."""
        logs: list[list[dict[str, Any]]] = self.evaluate.batched_answer(
            env_type=Adapter, batch=list(episodes), model=self.player.model, tokenizer=self.player.tokenizer,
            special_decoder=ACTIONS, reflect=False, reflect_prob=1, reflect_model=None, reflect_tokenizer=None,
            first_step=False, generation_config=self.generation,
        )  # fmt: skip
        self.evaluate.calc_Q_values(logs)
        return logs


def shrink(player: LoadedModel) -> None:
    """Their `shrink_head`, and the two methods of generation that are gone."""
    model = player.model
    ids = torch.tensor([path[0] for path in label_ids(player.tokenizer, len(ACTIONS))])
    head = torch.nn.Linear(model.config.n_embd, len(ACTIONS), bias=False)
    head.weight = torch.nn.Parameter(model.lm_head.weight.data[ids].clone(), requires_grad=False)
    model.lm_head, model.lm_head_mode = head, "shrinked"
    model._get_logits_processor = lambda **_: LogitsProcessorList()
    model._get_logits_warper = lambda *_: LogitsProcessorList()


def measure(theirs: Theirs, ours: Ours, batches: Sequence[Sequence[Episode]]) -> tuple[Rounds, int]:
    """The times of one round for each of `batches` but the first, which warms up; and the turns in them."""
    rounds, turns = Rounds(), 0
    follower, labels = Follower(ours.sampler, {}), label_ids(ours.policy.tokenizer, len(ACTIONS))
    ours.agent.policy = follower
    for number, episodes in enumerate(batches):
        with rounds.measure("theirs", "rollout"):
            logs = theirs.play(episodes)
        with rounds.measure("theirs", "update"), open(os.devnull, "w") as silence, contextlib.redirect_stdout(silence):
            theirs.trainer.train(logs)
        follower.taken = {
            derive(episode.seed, "turn", place): labels[int(turn["generation"]["content"])]
            for episode, log in zip(episodes, logs, strict=True)
            for place, turn in enumerate(log)
        }
        with rounds.measure("ours", "rollout"):
            played = ours.play(episodes)
        with rounds.measure("ours", "update"):
            ours.learn(played)
        if not alike(logs, played):
            rounds.leave_out()
        turns += sum(map(len, logs))
        if number == 0:
            rounds.clear()
            turns = 0
    return rounds, turns


def alike(theirs: Sequence[Sequence[dict[str, Any]]], ours: Sequence[Trajectory]) -> bool:
    """Whether both saw the same prompts and gave each action the same probability."""
    for log, trajectory in zip(theirs, ours, strict=True):
        prompts = [entry["tokens"][entry["attention_mask"].bool()][:-1].tolist() for entry in log]
        if prompts != [list(turn.decision.prompt_ids) for turn in trajectory.turns]:
            return False
        logprobs = torch.tensor([turn.decision.logprobs[0] for turn in trajectory.turns])
        if not torch.allclose(torch.tensor([entry["log_prob"] for entry in log]), logprobs, atol=1e-3):
            return False
    return True


def lines(folder: Path, rounds: int, seed: int) -> Iterator[str]:
    """The lines of the table, one after the other, with the model of 1 M parameters. folder: the checkout."""
    kind = env_class("taxi")
    level = kind.levels[-1]

    def new() -> Any:
        return make("taxi", kind.horizons[level])

    with checkout(folder) as (evaluate, trainer):
        for name, (size, rows) in SIZES.items():
            torch.manual_seed(seed)
            chance = random.Random(seed)
            problems = kind.taskset.tasks(level)
            batches = [
                [Episode(task, derive(seed, number, task.id)) for task in chance.sample(problems, size)]
                for number in range(rounds + 1)
            ]
            mine, other = (player("tiny", problems, new, seed) for _ in range(2))
            times, turns = measure(Theirs(evaluate, trainer, other, new, rows), Ours(mine, new), batches)
            yield row(f"the published code: {name}, {turns / rounds:.0f} turns", times)
