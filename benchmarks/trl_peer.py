"""Speed against TRL's GRPOTrainer: the same episodes, played and learnt by both sides in turns in one process.

Their side is TRL's own training loop with a `rollout_func`:

- Choices whose labels are one token: one row per turn. The choices of all live episodes are scored in one batch by one
  forward pass with `logits_to_keep=1`, which is less work than `generate`.
- Other choices, and texts: transformers' `generate`, with a cache, for the prompts of a turn at once. A conversation is
  one row, with a mask for what the model did not write.
- There is no KL penalty, reference model, gradient checkpointing, logging, saving or mixed precision, and the optimizer
  is fused. Both sides have micro-batches of the same number of rows.
- Logits are computed where a token is trained, as TRL does it with Triton. Without, it computes those of every
  position, also in prompts: on a CPU, that is most of its update.
- A generation batch has exactly as many rows as there are to learn, so nothing is padded with empty rows. The trainer,
  its data loader and its optimizer are made once; their start-up is not counted.

Our side is what `rlft` runs: `rollout` and `Learner.update`. What differs in the work: for choices, TRL's loss is over
the whole vocabulary, ours over the legal labels. Both sides go on with the actions that our side sampled, and learn
from them. A round of choices counts only if they had the same log-probabilities on both sides.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from datasets import Dataset
from transformers import ContinuousBatchingConfig, GenerationConfig, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks import floor
from benchmarks.common import PARTS, Ours, Rounds
from reflectkit.eventloop import result_of
from reflectkit.models.labels import LabelPath, label_ids
from reflectkit.models.load import LoadedModel
from reflectkit.models.rows import left_pad
from reflectkit.prompts import policy_prompt
from reflectkit.rollouts.episode import Episode
from reflectkit.sampling.base import draw
from reflectkit.sampling.decoding import position_ids
from reflectkit.seeding import derive
from reflectkit.train.sft.trainers import keeping_activations
from reflectkit.types import Observation, Sample, Trajectory

AGREE = {torch.float32: 1e-3, torch.bfloat16: 0.2}
"""Most nats between two log-probabilities of a token, by the type of the weights: padding changes the rounding."""


@dataclass(frozen=True)
class Row:
    """One row as TRL sees it: a prompt, and what comes after it. mask: 1 where that is trained. ret: its return."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    mask: list[int]
    ret: float = 0.0


@dataclass
class Chooser:
    """What a user of TRL would write for actions to choose from: a rollout function over live environments."""

    policy: LoadedModel
    make: Callable[[], Any]

    @torch.no_grad()
    def play(self, model: Any, episodes: Sequence[Episode], played: Sequence[Trajectory]) -> list[Row]:
        """The turns of the episodes, one after the other. They take the actions of `played`, since their own would
        differ where rounding moves a probability across the random number. They are sampled all the same.
        """
        envs = [self.make() for _ in episodes]
        seen = [result_of(env.reset(episode.task, start(episode))) for env, episode in zip(envs, episodes, strict=True)]
        taken: list[list[Row]] = [[] for _ in envs]
        live = list(range(len(envs)))
        while live:
            prompts = self.policy.tokenizer([policy_prompt(seen[index]) for index in live])["input_ids"]
            scores = self._scores(model, prompts, [seen[index] for index in live])
            still = []
            for index, prompt, logprobs in zip(live, prompts, scores, strict=True):
                turn = len(taken[index])
                draw(logprobs, 1.0, derive(episodes[index].seed, "turn", turn))
                chosen = played[index].turns[turn].decision.action
                assert isinstance(chosen, int)
                result = result_of(envs[index].step(chosen))
                token = label_ids(self.policy.tokenizer, len(logprobs))[chosen][0]
                taken[index].append(Row(prompt, [token], [logprobs[chosen]], [1]))
                seen[index] = result.observation
                if not result.terminated and not result.truncated:
                    still.append(index)
            live = still
        return [row for rows in taken for row in rows]

    def _scores(self, model: Any, prompts: list[list[int]], seen: Sequence[Observation]) -> list[list[float]]:
        """Log-probabilities of the legal labels after each prompt."""
        input_ids, mask = left_pad(prompts, self.policy.pad_id, model.device)
        output = model(
            input_ids=input_ids, attention_mask=mask, position_ids=position_ids(mask), use_cache=False, logits_to_keep=1
        )
        labels = [[path[0] for path in label_ids(self.policy.tokenizer, len(one.choices))] for one in seen]
        return [
            torch.log_softmax(logits[ids], dim=-1).tolist()
            for logits, ids in zip(output.logits[:, -1], labels, strict=True)
        ]


def start(episode: Episode) -> int:
    """The seed of the environment's reset, as `rollouts.episode.play` derives it."""
    return derive(episode.seed, "env") if episode.start is None else episode.start


@dataclass
class Writer:
    """Texts by transformers' `generate`, or by `generate_batch`: continuous batching.

    What is sampled has the lengths of our side's texts, and is thrown away: the next prompt is that after our side's
    text, which the episodes go on with. A label of several tokens is written under the constraint that it is legal. The
    environment and the rendering of prompts cost nothing here.
    """

    policy: LoadedModel
    labels: Callable[[tuple[str, ...]], tuple[LabelPath, ...]]
    continuous: bool = False

    @torch.no_grad()
    def play(self, model: Any, episodes: Sequence[Episode], played: Sequence[Trajectory]) -> None:
        """Write what was written in `played`, turn by turn, for all episodes at once."""
        was_training = model.training
        model.eval()
        for step in range(max(len(trajectory.turns) for trajectory in played)):
            turns = [trajectory.turns[step] for trajectory in played if len(trajectory.turns) > step]
            prompts = [list(turn.decision.prompt_ids) for turn in turns]
            longest = max(len(turn.decision.token_ids) for turn in turns)
            if self.continuous:
                self._continuous(model, prompts, longest)
            else:
                choices = [turn.observation.choices for turn in turns]
                self._generate(model, prompts, longest, [self.labels(each) if each else () for each in choices])
        model.train(was_training)

    def _generate(
        self, model: Any, prompts: list[list[int]], longest: int, labels: Sequence[tuple[LabelPath, ...]]
    ) -> None:
        input_ids, mask = left_pad(prompts, self.policy.pad_id, model.device)
        width, pad_id = input_ids.shape[1], self.policy.pad_id

        def allowed(row: int, ids: torch.Tensor) -> list[int]:
            written = tuple(ids[width:].tolist())
            return [path[len(written)] for path in labels[row] if path[: len(written)] == written != path] or [pad_id]

        config = model.generation_config  # a copy would get its empty `eos_token_id` from the model's again
        config.eos_token_id, config.pad_token_id = None, pad_id
        config.do_sample, config.top_k, config.max_new_tokens = True, 0, longest
        constraint = {"prefix_allowed_tokens_fn": allowed} if any(labels) else {}
        model.generate(input_ids=input_ids, attention_mask=mask, **constraint)

    def _continuous(self, model: Any, prompts: list[list[int]], longest: int) -> None:
        """With blocks for all texts at once; the defaults reserve most of the memory, and take twice as long."""
        block = 64
        settings = ContinuousBatchingConfig(
            block_size=block,
            num_blocks=sum(-(-(len(prompt) + longest) // block) for prompt in prompts),
            max_batch_tokens=max(64, sum(map(len, prompts))),
        )
        config = GenerationConfig(
            max_new_tokens=longest, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=self.policy.pad_id
        )
        model.generate_batch(prompts, generation_config=config, continuous_batching_config=settings, progress_bar=False)


def trl_row(sample: Sample) -> Row:
    """A row of ours as TRL sees it."""
    begins = sample.start
    completion = list(sample.tokens[begins:])
    mask = [1] * len(completion) if sample.choices else list(sample.loss_mask[begins:])
    return Row(list(sample.tokens[:begins]), completion, list(sample.logprobs[begins:]), mask, sample.returns[begins])


class Turns(TrainerCallback):  # type: ignore[misc]
    """Lets our side play after theirs and learn after theirs, and keeps the clock."""

    def __init__(self, theirs: Any, ours: Ours, batches: Sequence[Sequence[Episode]], rounds: Rounds) -> None:
        self.theirs, self.ours, self.batches, self.rounds = theirs, ours, batches, rounds
        self.number = 0
        self.played: list[Trajectory] = []
        self.alike = True
        self.update: AbstractContextManager[None] | None = None

    def roll(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`."""
        episodes = self.batches[self.number]
        model = trainer.accelerator.unwrap_model(trainer.model)
        with self.rounds.measure("ours", "rollout"):
            self.played = self.ours.play(episodes)
        rows = [trl_row(sample) for sample in self.ours.rows(self.played)]
        with self.rounds.measure("theirs", "rollout"):
            theirs = self.theirs.play(model, episodes, self.played)
        self.alike = theirs is None or alike(theirs, rows, AGREE[model.dtype])
        self.update = self.rounds.measure("theirs", "update")
        self.update.__enter__()
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
            "returns": [row.ret for row in rows],
        }

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close their update; make ours, and the bare passes."""
        assert self.update is not None
        self.update.__exit__(None, None, None)
        with self.rounds.measure("ours", "update"):
            samples = self.ours.learn(self.played)
        self.rounds.tokens = sum(len(sample.tokens) for sample in samples)
        if not self.alike:
            self.rounds.leave_out()
        elif self.number % 2:  # every other round, since it takes as long as ours
            policy, size = self.ours.policy, self.ours.max_tokens
            self.rounds.compare("rollout", lambda: floor.rollout(policy, samples, size))
            self.rounds.compare("update", lambda: floor.update(policy, samples, size))
        if self.number == 0:  # a warm-up
            self.rounds.clear()
        for ratio in self.rounds.ratios(*PARTS)[-1:]:
            print(f"round {self.number} of {len(self.batches) - 1}: {ratio:.2f}", file=sys.stderr, flush=True)
        self.number += 1


def alike(theirs: Sequence[Row], ours: Sequence[Row], apart: float) -> bool:
    """Whether both have chosen the same actions after the same prompts, with log-probabilities `apart` at most."""
    sides = [[(row.prompt_ids, row.completion_ids) for row in rows] for rows in (theirs, ours)]
    return sides[0] == sides[1] and all(
        math.isclose(their.logprobs[0], our.logprobs[0], abs_tol=apart) for their, our in zip(theirs, ours, strict=True)
    )


def measure(theirs: Any, ours: Ours, batches: Sequence[Sequence[Episode]], rows: int, micro: int) -> Rounds:
    """One round for each of `batches` but the first, which warms up. rows: of each batch; micro: of a micro-batch, at
    most, since all of a trainer's micro-batches have the same number.
    """
    micro = max(size for size in range(1, micro + 1) if rows % size == 0)
    rounds = Rounds()
    turns = Turns(theirs, ours, batches, rounds)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=theirs.policy.model.device.type == "cpu", bf16=False,
            max_steps=len(batches), learning_rate=0.0, beta=0.0,
            per_device_train_batch_size=micro, gradient_accumulation_steps=rows // micro, num_generations=rows,
            loss_type="bnpo", scale_rewards="none", max_grad_norm=0.3, optim="adamw_torch_fused",
            **keeping_activations(), logging_strategy="no", save_strategy="no", report_to="none",
            disable_tqdm=True, remove_unused_columns=False, dataloader_pin_memory=False, shuffle_dataset=False,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=theirs.policy.model,
            reward_funcs=lambda returns, **_: returns,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "-"}] * len(batches)),
            processing_class=theirs.policy.tokenizer,
            rollout_func=turns.roll,
            callbacks=[turns],
        )
        trainer.remove_callback(PrinterCallback)
        with mock.patch("trl.trainer.utils._use_triton", return_value=True):
            trainer.train()
    return rounds
