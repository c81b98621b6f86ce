"""Speed against TRL's GRPOTrainer: the same episodes, played and learnt by both sides in turns in one process.

Their side is TRL's own training loop with a `rollout_func`:

- Choices: one row per turn. The choices of all live episodes are scored in one batch by one forward pass with
  `logits_to_keep=1`, which is less work than `generate`.
- Texts: transformers' `generate`, with a cache, for all prompts at once.
- There is no KL penalty, reference model, gradient checkpointing, logging, saving or mixed precision, and the optimizer
  is fused. Both sides have micro-batches of the same number of rows.
- A generation batch has exactly as many rows as there are to learn, so nothing is padded with empty rows. The trainer,
  its data loader and its optimizer are made once; their start-up is not counted.

Our side is what `rlft` runs: `rollout` and `Learner.update`. What differs in the work: for choices, TRL's loss is over
the whole vocabulary, ours over the legal labels. A round of choices counts only if both sides chose the same actions
with the same log-probabilities. Sampled texts differ, though not in their lengths; both sides learn from ours.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from transformers import ContinuousBatchingConfig, GenerationConfig, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks import floor
from benchmarks.common import Ours, Rounds
from reflectkit.eventloop import result_of
from reflectkit.models.labels import label_ids
from reflectkit.models.load import LoadedModel
from reflectkit.prompts import policy_prompt
from reflectkit.rollouts.episode import Episode
from reflectkit.sampling.base import draw
from reflectkit.sampling.decoding import left_pad, position_ids
from reflectkit.seeding import derive
from reflectkit.types import Observation, Sample, Trajectory

AGREE = 1e-3  # nats: rows padded otherwise are rounded otherwise


@dataclass(frozen=True)
class Row:
    """One row as TRL sees it: a prompt, and what is trained after it. ret: its return."""

    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    ret: float = 0.0


@dataclass
class Chooser:
    """What a user of TRL would write for actions to choose from: a rollout function over live environments."""

    policy: LoadedModel
    make: Callable[[], Any]

    @torch.no_grad()
    def play(self, model: Any, episodes: Sequence[Episode]) -> list[Row]:
        """The turns of the episodes, one after the other."""
        envs = [self.make() for _ in episodes]
        seen = [result_of(env.reset(episode.task, start(episode))) for env, episode in zip(envs, episodes, strict=True)]
        taken: list[list[Row]] = [[] for _ in envs]
        live = list(range(len(envs)))
        while live:
            prompts = self.policy.tokenizer([policy_prompt(seen[index]) for index in live])["input_ids"]
            scores = self._scores(model, prompts, [seen[index] for index in live])
            still = []
            for index, prompt, logprobs in zip(live, prompts, scores, strict=True):
                chosen = draw(logprobs, 1.0, derive(episodes[index].seed, "turn", len(taken[index])))
                result = result_of(envs[index].step(chosen))
                token = label_ids(self.policy.tokenizer, len(logprobs))[chosen][0]
                taken[index].append(Row(prompt, [token], [logprobs[chosen]]))
                seen[index] = result.observation
                if not result.terminated and not result.truncated:
                    still.append(index)
            live = still
        return [row for rows in taken for row in rows]

    def _scores(self, model: Any, prompts: list[list[int]], seen: Sequence[Observation]) -> list[list[float]]:
        """Log-probabilities of the legal labels after each prompt."""
        input_ids, mask = left_pad(prompts, self.policy.pad_id, torch.device("cpu"))
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
    """Texts by transformers' `generate`, or by `generate_batch`: continuous batching. prompt: of an episode. tokens:
    of each text; nothing ends it early.
    """

    policy: LoadedModel
    prompt: Callable[[Episode], list[int]]
    tokens: int
    continuous: bool = False

    @torch.no_grad()
    def play(self, model: Any, episodes: Sequence[Episode]) -> list[Row]:
        """A text for each episode."""
        prompts = [self.prompt(episode) for episode in episodes]
        if self.continuous:
            return self._continuous(model, prompts)
        input_ids, mask = left_pad(prompts, self.policy.pad_id, torch.device("cpu"))
        config = model.generation_config  # a copy would get its empty `eos_token_id` from the model's again
        config.eos_token_id, config.pad_token_id = None, self.policy.pad_id
        config.do_sample, config.top_k, config.max_new_tokens = True, 0, self.tokens
        was_training = model.training
        model.eval()
        written = model.generate(input_ids=input_ids, attention_mask=mask)[:, input_ids.shape[1] :].tolist()
        model.train(was_training)
        return [Row(prompt, line, [0.0] * len(line)) for prompt, line in zip(prompts, written, strict=True)]

    def _continuous(self, model: Any, prompts: list[list[int]]) -> list[Row]:
        """With blocks for all texts at once; the defaults reserve most of the memory, and take twice as long."""
        block = 64
        settings = ContinuousBatchingConfig(
            block_size=block,
            num_blocks=sum(-(-(len(prompt) + self.tokens) // block) for prompt in prompts),
            max_batch_tokens=max(64, sum(map(len, prompts))),
        )
        config = GenerationConfig(
            max_new_tokens=self.tokens, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=self.policy.pad_id
        )
        written = model.generate_batch(
            prompts, generation_config=config, continuous_batching_config=settings, progress_bar=False
        )
        return [
            Row(prompt, text.generated_tokens, [0.0] * self.tokens)
            for prompt, text in zip(prompts, written.values(), strict=True)
        ]


def trl_row(sample: Sample) -> Row:
    """A row of ours as TRL sees it; what is not trained after the prompt does not occur in it."""
    begins = sample.start
    return Row(
        list(sample.tokens[:begins]),
        list(sample.tokens[begins:]),
        list(sample.logprobs[begins:]),
        sample.returns[begins],
    )


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
        with self.rounds.measure("theirs", "rollout"):
            theirs = self.theirs.play(trainer.accelerator.unwrap_model(trainer.model), episodes)
        with self.rounds.measure("ours", "rollout"):
            self.played = self.ours.play(episodes)
        rows = [trl_row(sample) for sample in self.ours.rows(self.played)]
        self.alike = alike(theirs, rows, texts=isinstance(self.theirs, Writer))
        self.update = self.rounds.measure("theirs", "update")
        self.update.__enter__()
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
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
        self.number += 1


def alike(theirs: Sequence[Row], ours: Sequence[Row], *, texts: bool) -> bool:
    """Whether both have played the same episodes: the same prompts, and texts of the same lengths, or choices of the
    same log-probabilities.
    """
    if [row.prompt_ids for row in theirs] != [row.prompt_ids for row in ours]:
        return False
    if texts:
        return [len(row.completion_ids) for row in theirs] == [len(row.completion_ids) for row in ours]
    pairs = list(zip(theirs, ours, strict=True))
    return all(one.completion_ids == other.completion_ids[:1] for one, other in pairs) and all(
        math.isclose(one.logprobs[0], other.logprobs[0], abs_tol=AGREE) for one, other in pairs
    )


def measure(theirs: Any, ours: Ours, batches: Sequence[Sequence[Episode]], rows: int, micro: int) -> Rounds:
    """One round for each of `batches` but the first, which warms up. rows: of each batch; micro: of a micro-batch."""
    rounds = Rounds()
    turns = Turns(theirs, ours, batches, rounds)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, max_steps=len(batches), learning_rate=0.0, beta=0.0,
            per_device_train_batch_size=micro, gradient_accumulation_steps=rows // micro, num_generations=rows,
            loss_type="bnpo", scale_rewards="none", max_grad_norm=0.3, optim="adamw_torch_fused",
            activation_checkpointing=False, logging_strategy="no", save_strategy="no", report_to="none",
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
        trainer.train()
    return rounds
