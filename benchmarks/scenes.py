"""The lines of the table against TRL: what is played, with which model."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import Follower, Ours, Rounds, different_starts, one_group, row
from benchmarks.problems import problems_of
from benchmarks.rl import player
from benchmarks.trl_peer import Chooser, Writer, measure
from reflectkit.agents.scripted import Demonstrator
from reflectkit.console import Progress, Quiet
from reflectkit.env import Env
from reflectkit.envs import env_class, make
from reflectkit.files import included_repositories
from reflectkit.models.labels import completion_ids
from reflectkit.models.load import LoadedModel, load_player, with_adapter
from reflectkit.models.refs import ModelRef
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.base import Opening, Sampler, ServerSettings
from reflectkit.sampling.config import backend
from reflectkit.seeding import derive
from reflectkit.train.plan import tokens_a_pass
from reflectkit.types import Task, ToolUse

RANK = 16
STARTS, GROUP = 4, 8
"""Episodes of a round, from different starts and from one."""
FEW = 2
"""Episodes of a round where prompts are long."""
STEPS, TALK = 2, 10
"""The most turns of an episode of AutoExplore and of the service desk."""
MISTAKES = 0.2
"""Share of wrong moves of the oracle at the service desk."""
MICRO = 4
"""Rows of a micro-batch."""
PROMPTS, TOKENS = 4, 128
"""Single-turn prompts of a round, and the tokens of each answer."""
BATCHED, BATCHED_TOKENS = 8, 32
"""The same for continuous batching."""


@dataclass
class Bench:
    """A model, and how long it is measured. model: "tiny", or as in `rlft --model`; pretrained ones get an adapter."""

    model: str
    rounds: int
    seed: int
    data_dir: Path
    progress: Progress
    dtype: str = "float32"
    device: str = "cpu"
    scale: int = 1
    """How many times as many episodes, and rows of a micro-batch, as one core has."""

    def player(self, tasks: Sequence[Task], new: Callable[[], Env]) -> LoadedModel:
        """A new copy of the model; all are equal. The vocabulary of the tiny one is made for the tasks."""
        if self.model == "tiny":
            return player("tiny", tasks, new, self.seed, self.device)
        source = ModelRef.parse(self.model).source(self.data_dir, self.progress).text
        loaded = load_player(source, device=self.device, dtype=self.dtype)
        return with_adapter(loaded, RANK, 2 * RANK, self.seed)

    def sides(self, tasks: Sequence[Task], new: Callable[[], Env]) -> tuple[LoadedModel, LoadedModel]:
        """(ours, theirs)."""
        return self.player(tasks, new), self.player(tasks, new)


def taxi(bench: Bench, grouped: bool = False) -> Iterator[str]:
    """Choices among six actions. grouped: in a group from one start."""
    kind = env_class("taxi")
    level = kind.levels[-1]
    tasks = kind.taskset.tasks(level)
    new = partial(make, "taxi", kind.horizons[level])
    mine, other = bench.sides(tasks, new)
    micro = MICRO * bench.scale
    ours, theirs = Ours(mine, new, max_tokens=micro * 96), Chooser(other, new)
    name, batches = rounds_of(bench, ours, tasks, grouped, STARTS * bench.scale, micro)
    prompts = [len(turn.decision.prompt_ids) for played in ours.play(batches[0]) for turn in played.turns]
    rounds = measure(theirs, ours, batches, len(prompts), micro)
    yield row(f"taxi, {name}: {len(prompts)} turns, prompts ≤ {max(prompts)} tokens", rounds)


def distinct_words(completions: list[str], **_: Any) -> list[float]:
    """A reward function in TRL's form."""
    return [len(set(text.split())) / 100 for text in completions]


def sums(count: int, seed: int) -> list[Task]:
    """Single-turn prompts, each another one."""
    chance = random.Random(seed)
    goods = ("apples", "pencils", "tickets", "lamps", "chairs", "stamps", "bottles", "books")
    tasks = []
    for number in range(count):
        (one, other), prices = chance.sample(goods, 2), [chance.randint(2, 98) for _ in range(4)]
        text = (
            f"A shop sells {prices[0]} {one} at {prices[1]} cents each and {prices[2]} {other} at {prices[3]} cents"
            " each. How much does it take in? Explain each step."
        )
        tasks.append(Task(str(number), "prompts", "all", str(number), {"prompt": text}))
    return tasks


def single_turn() -> Env:
    """An env that shows one prompt."""
    return make("prompts", 1, reward=("benchmarks.scenes:distinct_words",))


def answering(policy: LoadedModel, tokens: int, micro: int, server: Sampler | None = None) -> Ours:
    """Our side, which answers single-turn prompts with so many tokens; nothing ends an answer early."""
    ours = Ours(policy, single_turn, max_tokens=micro * 256, max_new_tokens=tokens, server=server)
    ours.agent.dialogue.stop_ids = ours.agent._stop_ids = frozenset()
    return ours


def answers(bench: Bench) -> Iterator[str]:
    """Single-turn prompts with answers of a fixed length, by sampling at temperature 1."""
    prompts, micro = PROMPTS * bench.scale, MICRO * bench.scale
    tasks = sums(prompts, bench.seed)
    mine, other = bench.sides(tasks, single_turn)
    ours = answering(mine, TOKENS, micro)
    batches = [
        [Episode(task, derive(bench.seed, number, task.id)) for task in tasks] for number in range(bench.rounds + 1)
    ]
    rounds = measure(Writer(other, ours.agent.labels), ours, batches, prompts, micro)
    yield row(f"{prompts} single-turn prompts, {TOKENS} tokens each, theirs by `generate`", rounds)


def batching(bench: Bench) -> Iterator[str]:
    """Rollouts alone, against transformers' continuous batching."""
    prompts = BATCHED * bench.scale
    tasks = sums(prompts, bench.seed)
    mine, other = bench.sides(tasks, single_turn)
    ours = answering(mine, BATCHED_TOKENS, MICRO)
    episodes = [Episode(task, derive(bench.seed, task.id)) for task in tasks]
    theirs, rounds = Writer(other, ours.agent.labels, continuous=True), Rounds()
    for number in range(bench.rounds + 1):
        with rounds.measure("ours", "rollout"):
            played = ours.play(episodes)
        with rounds.measure("theirs", "rollout"):
            theirs.play(other.model, episodes, played)
        if number == 0:  # a warm-up
            rounds.clear()
    rounds.tokens = prompts * BATCHED_TOKENS
    yield row(f"{prompts} single-turn prompts, {BATCHED_TOKENS} tokens each, theirs by `generate_batch`", rounds)


def vllm(bench: Bench) -> Iterator[str]:
    """Rollouts alone, in this process and by a vLLM server with the adapter; nothing without the variable VLLM_PYTHON,
    the Python of the server's environment.
    """
    python = os.environ.get("VLLM_PYTHON")
    if not python:
        return
    prompts = PROMPTS * bench.scale
    tasks = sums(prompts, bench.seed)
    policy = bench.player(tasks, single_turn)
    ours, rounds = answering(policy, TOKENS, MICRO), Rounds()
    episodes = [Episode(task, derive(bench.seed, task.id)) for task in tasks]
    with tempfile.TemporaryDirectory() as folder:
        source = ModelRef.parse(bench.model).source(bench.data_dir, bench.progress).text
        with vllm_server(python, source, bench.dtype, Path(folder)) as url:
            opening, settings = Opening(source, player=policy), ServerSettings(adapter_dir=Path(folder))
            theirs = answering(policy, TOKENS, MICRO, backend(f"vllm:{url}").open(opening, settings))
            for number in range(bench.rounds + 1):
                for name, side in (("ours", ours), ("theirs", theirs)):
                    with rounds.measure(name, "rollout"):
                        side.play(episodes)
                if number == 0:  # a warm-up
                    rounds.clear()
    rounds.tokens = prompts * TOKENS
    yield row(f"{prompts} single-turn prompts, {TOKENS} tokens each, theirs by vLLM", rounds)


@contextlib.contextmanager
def vllm_server(python: str, model: str, dtype: str, folder: Path) -> Iterator[str]:
    """The address of a vLLM server of the model, with its log in `folder`, until the context ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--dtype", dtype, "--host",
        "127.0.0.1", "--port", str(port), "--enable-lora", "--max-lora-rank", str(RANK)]  # fmt: skip
    more = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1"}  # fmt: skip
    with (folder / "vllm.log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | more, stdout=log, stderr=log, start_new_session=True)
    try:
        while server.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/v1/models", timeout=1):
                yield url
                return
            time.sleep(1)
        sys.exit((folder / "vllm.log").read_text("utf-8", "replace")[-2000:])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def rounds_of(
    bench: Bench, ours: Ours, tasks: Sequence[Task], grouped: bool, starts: int, micro: int
) -> tuple[str, list[list[Episode]]]:
    """What a round plays, in words, and the episodes of each. grouped: a group from one start."""
    if grouped:
        group = GROUP * bench.scale
        # the more episodes, the rarer is a group in which each has several turns and their sum is a multiple of `micro`
        turns, multiple = (2.0, micro) if bench.scale == 1 else (1.25, MICRO)
        return f"one group of {group}", [one_group(ours, tasks, group, bench.seed, multiple, turns)] * (
            bench.rounds + 1
        )
    batches = different_starts(ours, tasks, starts, bench.rounds + 1, bench.seed, micro)
    return f"{starts} different starts", batches


def explore(bench: Bench, grouped: bool = False) -> Iterator[str]:
    """Choices in AutoExplore's included repositories; some labels are two tokens. grouped: as in `taxi`."""
    chance = random.Random(bench.seed)
    tasks = []
    micro = MICRO * bench.scale
    for number, repository in enumerate(sorted(included_repositories().iterdir()) * bench.scale):
        file = chance.choice(sorted(path for path in repository.glob("*/*") if path.is_file()))
        line = max(file.read_text(encoding="utf-8").splitlines(), key=len)[:80]
        data = {"question": f"Where does it say {line}?", "filename": f"{file.parent.name}/{file.name}"}
        tasks.append(Task(str(number), "auto_explore", "1", repository.name, data | {"root": repository.name}))
    new = partial(make, "auto_explore", STEPS, repos_dir=included_repositories())
    mine, other = bench.sides(tasks, new)
    ours = Ours(mine, new)
    name, batches = rounds_of(bench, ours, tasks, grouped, FEW * bench.scale, micro)
    turns = [turn for played in ours.play(batches[0]) for turn in played.turns]
    longest = max(len(turn.decision.prompt_ids) for turn in turns)
    ours.learner.max_tokens = micro * longest
    rounds = measure(Writer(other, ours.agent.labels), ours, batches, len(turns), micro)
    yield row(f"auto_explore, {name}: {len(turns)} turns, prompts ≤ {longest} tokens", rounds)


def service_desk(bench: Bench) -> Iterator[str]:
    """Conversations with tool calls: those of the oracle, with mistakes, in a group from one start. Without a chat
    template, the tiny model's conversations are not one row each.
    """
    if bench.model == "tiny":
        return
    with tempfile.TemporaryDirectory() as folder:
        tasks, _ = problems_of(env_class("support"), Path(folder), 0, bench.seed, Quiet())
    new = partial(make, "support", TALK)
    few = FEW * bench.scale
    mine, other = bench.sides(tasks, new)
    ours = Ours(mine, new)
    follower = Follower(ours.sampler, {})
    ours.agent.policy = follower
    end = min(ours.agent.dialogue.stop_ids)
    batches = []
    for number in range(bench.rounds + 1):
        task, begin = tasks[number], derive(bench.seed, number)
        episodes = [Episode(task, derive(begin, index), task.id, start=begin) for index in range(few)]
        batches.append(episodes)
        for trajectory in rollout(episodes, new, Demonstrator(MISTAKES)):
            for place, turn in enumerate(trajectory.turns):
                action = turn.decision.action
                ids = completion_ids(mine.tokenizer, action.text if isinstance(action, ToolUse) else str(action))
                follower.taken[derive(derive(trajectory.seed, "turn", place), "text")] = (*ids, end)
    lengths = [len(sample.tokens) for sample in ours.rows(ours.play(batches[0]))]
    ours.learner.max_tokens = max(tokens_a_pass(mine.model, recompute=False), max(lengths) * bench.scale)  # as `rlft`
    rounds = measure(Writer(other, ours.agent.labels), ours, batches, few, micro=bench.scale)
    yield row(f"support, one group of {few}: transcripts ≤ {max(lengths):,} tokens", rounds)


SCENES: dict[str, Callable[[Bench], Iterator[str]]] = {
    "taxi": taxi,
    "taxi-group": partial(taxi, grouped=True),
    "explore": explore,
    "explore-group": partial(explore, grouped=True),
    "desk": service_desk,
    "answers": answers,
    "batching": batching,
    "vllm": vllm,
}
