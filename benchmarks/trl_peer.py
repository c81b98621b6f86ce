"""Speed against TRL's GRPOTrainer: the same episodes, played and learnt by both sides in turns in one process.

    make bench-peers            # trains two small players first (four minutes), then measures

Their side is TRL's own training loop with a `rollout_func`, one row per turn:

- The choices of all live episodes are scored in one batch by one forward pass with `logits_to_keep=1`, which is less
  work than `generate`. Comments are generated greedily for all live episodes at once, with a cache, by `generate`.
- Micro-batches of MICRO rows were the fastest of 16, 32 and all. There is no KL penalty, reference model, gradient
  checkpointing, logging, saving or mixed precision (float32 as ours), and the optimizer is fused.
- A generation batch has exactly as many rows as the episodes have turns, so nothing is padded with empty rows. The
  trainer, its data loader and its optimizer are made once; their start-up is not counted.

Our side is what `rlft` runs: `rollout` and `Learner.update`. What differs in the work: TRL's loss is over the whole
vocabulary, ours over the legal labels; TRL knows no memo of comments. A round counts only if both sides chose the same
actions with the same log-probabilities; the table says how many were left out. Where rounding decides between two
tokens of a comment, the episodes may differ from there on.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.common import Ours, Rounds, different_starts, one_group, row, timed
from reflectkit.envs import env_class, make
from reflectkit.eventloop import result_of
from reflectkit.models.load import LoadedModel, load_player
from reflectkit.models.tokens import completion_ids, label_ids, prompt_ids
from reflectkit.prompts import one_line, policy_prompt, reflection_prompt
from reflectkit.rollouts.episode import Episode
from reflectkit.sampling.base import draw
from reflectkit.sampling.decoding import left_pad, position_ids
from reflectkit.seeding import derive
from reflectkit.train.advantages import returns_to_go
from reflectkit.types import Observation, Task, Trajectory

MICRO = 16
EPISODES = 8
AGREE = 1e-3  # nats: rows padded otherwise are rounded otherwise


@dataclass(frozen=True)
class Row:
    """One turn as TRL sees it. ret: the return from here on."""

    prompt_ids: list[int]
    token: int
    logprob: float
    ret: float


class Theirs:
    """What a user of TRL would write: a rollout function over live environments."""

    def __init__(
        self, policy: LoadedModel, reflector: LoadedModel | None, new: Callable[[], Any], comment_tokens: int = 100
    ) -> None:
        self.policy, self.reflector, self.make, self.comment_tokens = policy, reflector, new, comment_tokens
        self.episodes: Sequence[Episode] = ()
        self.rows: list[list[Row]] = []

    @torch.no_grad()
    def play(self, model: Any) -> list[list[Row]]:
        """The rows of each episode."""
        envs = [self.make() for _ in self.episodes]
        seen = [result_of(env.reset(one.task, start(one))) for env, one in zip(envs, self.episodes, strict=True)]
        taken: list[list[tuple[list[int], int, float, float]]] = [[] for _ in envs]
        live = list(range(len(envs)))
        while live:
            now = [seen[index] for index in live]
            comments = self._comments(now) if self.reflector else [None] * len(now)
            texts = [policy_prompt(one, comment) for one, comment in zip(now, comments, strict=True)]
            prompts = self.policy.tokenizer(texts)["input_ids"]
            scores = self._scores(model, prompts, now)
            still = []
            for index, prompt, logprobs in zip(live, prompts, scores, strict=True):
                chosen = draw(logprobs, 1.0, derive(self.episodes[index].seed, "turn", len(taken[index])))
                result = result_of(envs[index].step(chosen))
                token = label_ids(self.policy.tokenizer, len(logprobs))[chosen][0]
                taken[index].append((prompt, token, logprobs[chosen], result.reward))
                seen[index] = result.observation
                if not result.terminated and not result.truncated:
                    still.append(index)
            live = still
        returns = [returns_to_go([turn[3] for turn in turns], 1.0) for turns in taken]
        return [
            [Row(prompt, token, logprob, ret) for (prompt, token, logprob, _), ret in zip(turns, rets, strict=True)]
            for turns, rets in zip(taken, returns, strict=True)
        ]

    def _scores(self, model: Any, prompts: list[list[int]], seen: Sequence[Observation]) -> list[list[float]]:
        """Log-probabilities of the legal labels behind each prompt."""
        input_ids, mask = left_pad(prompts, self.policy.pad_id, torch.device("cpu"))
        output = model(
            input_ids=input_ids, attention_mask=mask, position_ids=position_ids(mask), use_cache=False, logits_to_keep=1
        )
        labels = [[path[0] for path in label_ids(self.policy.tokenizer, len(one.choices))] for one in seen]
        return [
            torch.log_softmax(logits[ids], dim=-1).tolist()
            for logits, ids in zip(output.logits[:, -1], labels, strict=True)
        ]

    def _comments(self, seen: Sequence[Observation]) -> list[str]:
        """A greedy comment on each observation, up to the end of its line."""
        assert self.reflector is not None
        tokenizer = self.reflector.tokenizer
        ends = [tokenizer.eos_token_id, *completion_ids(tokenizer, "\n")]
        prompts = [prompt_ids(tokenizer, reflection_prompt(one)) for one in seen]
        input_ids, mask = left_pad(prompts, self.reflector.pad_id, torch.device("cpu"))
        written = self.reflector.model.generate(
            input_ids=input_ids,
            attention_mask=mask,
            max_new_tokens=self.comment_tokens,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=self.reflector.pad_id,
        )[:, input_ids.shape[1] :]
        texts = [[token for token in line if token != self.reflector.pad_id] for line in written.tolist()]
        texts = [line[:-1] if line and line[-1] in ends else line for line in texts]
        return [one_line(text) for text in tokenizer.batch_decode(texts, skip_special_tokens=True)]


def start(episode: Episode) -> int:
    """The seed of the environment's reset, as `rollouts.episode.play` derives it."""
    return derive(episode.seed, "env") if episode.start is None else episode.start


class Turns(TrainerCallback):
    """Lets our side play and learn after each of their steps, and keeps the clock."""

    def __init__(self, theirs: Theirs, ours: Ours, batches: Sequence[Sequence[Episode]], rounds: Rounds) -> None:
        self.theirs, self.ours, self.batches, self.rounds = theirs, ours, batches, rounds
        self.number = 0
        theirs.episodes = batches[0]
        self.began = time.process_time()

    def roll(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`."""
        with timed(self.rounds.theirs["rollout"]):
            self.theirs.rows = self.theirs.play(trainer.accelerator.unwrap_model(trainer.model))
            rows = [one for turns in self.theirs.rows for one in turns]
            rows = list(islice(cycle(rows), len(prompts)))  # other episodes may have more turns, or fewer
            return {
                "prompt_ids": [one.prompt_ids for one in rows],
                "completion_ids": [[one.token] for one in rows],
                "logprobs": [[one.logprob] for one in rows],
                "returns": [one.ret for one in rows],
            }

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Close their round, and play ours."""
        whole = time.process_time() - self.began
        self.rounds.theirs["update"].append(whole - self.rounds.theirs["rollout"][-1])
        played = self.ours.round(self.batches[self.number], self.rounds)
        if not alike(self.theirs.rows, played):
            self.rounds.leave_out()
        if self.number == 0:  # a warm-up
            self.rounds.clear()
            if self.ours.memo == "kept":
                self.ours.agent.reflector = self.ours.new_reflector()
        self.number += 1
        self.theirs.episodes = self.batches[min(self.number, len(self.batches) - 1)]
        self.began = time.process_time()


def alike(theirs: Sequence[Sequence[Row]], ours: Sequence[Trajectory]) -> bool:
    """Whether both have played the same episodes with the same log-probabilities."""
    for rows, trajectory in zip(theirs, ours, strict=True):
        mine = [turn.decision for turn in trajectory.turns]
        same = [one.token for one in rows] == [decision.token_ids[0] for decision in mine]
        same = same and [tuple(one.prompt_ids) for one in rows] == [decision.prompt_ids for decision in mine]
        if not same or any(
            not math.isclose(one.logprob, decision.logprobs[0], abs_tol=AGREE)
            for one, decision in zip(rows, mine, strict=True)
        ):
            return False
    return True


def measure(ours: Ours, theirs: Theirs, batches: Sequence[Sequence[Episode]], rows: int, micro: int = MICRO) -> Rounds:
    """The times of one round for each of `batches` but the first, which warms up. rows: the turns of each batch."""
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
        turns.began = time.process_time()
        trainer.train()
    return rounds


def scenes(
    policy: LoadedModel, reflector: LoadedModel, tasks: Sequence[Task], new: Callable[[], Any], rounds: int, seed: int
) -> Iterator[tuple[str, Ours, list[list[Episode]]]]:
    """(name, our side, batches) of each line of the table."""
    alone = Ours(policy, None, new)
    yield "8 different starts", alone, different_starts(alone, tasks, EPISODES, rounds + 1, seed, MICRO)
    yield "one group of 8", alone, [one_group(alone, tasks, EPISODES, seed, MICRO)] * (rounds + 1)
    cold, warm, kept = (Ours(policy, reflector, new, memo=memo) for memo in ("cold", "warm", "kept"))
    started = different_starts(cold, tasks, EPISODES, rounds + 1, seed, MICRO)
    yield "reflector, no comment known", cold, started
    yield "reflector, all comments known", warm, [started[0]] * (rounds + 1)
    yield f"reflector, the first {rounds} updates of a run", kept, started


def lines(policy: Path, reflector: Path, rounds: int, seed: int) -> Iterator[str]:
    """The lines of the table, one after the other."""
    kind = env_class("taxi")
    level = kind.levels[-1]

    def new() -> Any:
        return make("taxi", kind.horizons[level])

    mine, other = (
        [load_player(policy, "policy", device="cpu"), load_player(reflector, "reflection", device="cpu")]
        for _ in range(2)
    )
    for name, ours, batches in scenes(*mine, kind.taskset.tasks(level), new, rounds, seed):
        rows = sum(len(played.turns) for played in ours.play(batches[0]))
        theirs = Theirs(other[0], other[1] if ours.reflector else None, new)
        times = measure(ours, theirs, batches, rows)
        together = f"; together {times.overall:.2f}" if ours.memo == "kept" else ""
        yield row(f"TRL: {name}, {rows} turns{together}", times)
