"""Speed and memory of `reflectkit serve`, and memory with many programs at once (`--env program:…`).

The requests are turns of a conversation with two tools; an answer has at most 16 tokens. The tiny models have
random weights, so an answer has nearly always that many. Time is wall-clock time for a single client and the server's
CPU time for each answer, which other work on the machine hardly changes. Each measurement has a process of its own,
whose largest memory is what the system kept of it.

    python -m benchmarks.serving serve tiny smollm2-135m     # the second needs `make smollm2`
    python -m benchmarks.serving programs 20 200
    python -m benchmarks.serving decisions smollm2-135m

The last compares the CPU time of decisions, in this process, with that of one forward pass over the prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import torch

from reflectkit.agents.deciding import Decider
from reflectkit.agents.two_player import TwoPlayerAgent
from reflectkit.console import Quiet
from reflectkit.decisions.questions import Question
from reflectkit.env import Context
from reflectkit.envs import make
from reflectkit.eventloop import run_sync
from reflectkit.models.architecture import trunk_of
from reflectkit.models.labels import prompt_ids
from reflectkit.models.load import LoadedModel, load_player, save_player
from reflectkit.models.refs import ModelRef
from reflectkit.models.tiny import build_model, build_tokenizer
from reflectkit.prompts import policy_prompt
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.sampling.hf import LocalSampler
from reflectkit.types import Task

BOX = {"type": "object", "properties": {"box": {"type": "integer"}}, "required": ["box"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": does, "parameters": BOX}}
    for name, does in (("look", "Look into a box."), ("answer", "Say which box it is."))
]
QUESTION = "Each of the boxes 1 to 4 holds a ball. Which one holds the red ball?"
TOKENS, TURNS = 16, 3
ONE, AT_ONCE = 4, 8
"""Conversations of the single client, and of those that ask at the same time."""
STATE_TOKENS, REPEATS = 500, 3
ENV = make("taxi")
PROGRAM = f"""
import json, os, urllib.request
messages = [{{"role": "user", "content": {QUESTION!r}}}]
for _ in range({TURNS}):
    body = json.dumps({{"model": "any", "messages": messages, "tools": {TOOLS!r}}}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, body, {{"Content-Type": "application/json"}})
    messages.append(json.load(urllib.request.urlopen(request))["choices"][0]["message"])
    messages.append({{"role": "user", "content": "Look again."}})
print(1.0)
"""


def tiny(role: str | None) -> LoadedModel:
    """A tiny model with random weights."""
    tokenizer = build_tokenizer([QUESTION, json.dumps(TOOLS)], [], 512)
    return LoadedModel(build_model(tokenizer, 1024, 0), tokenizer, role)


def converse(url: str) -> list[float]:
    """Hold one conversation. Returns the seconds of each answer."""
    seconds = []
    messages = [{"role": "user", "content": QUESTION}]
    for _ in range(TURNS):
        body = json.dumps({"model": "any", "messages": messages, "tools": TOOLS, "max_tokens": TOKENS}).encode()
        request = urllib.request.Request(f"{url}/chat/completions", body, {"Content-Type": "application/json"})
        started = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            messages.append(json.load(answer)["choices"][0]["message"])
        seconds.append(time.perf_counter() - started)
        messages.append({"role": "user", "content": "Look again."})
    return seconds


def serve(model: str, *, reflects: bool) -> list[str]:
    """The row of one server."""
    with TemporaryDirectory() as folder:
        names = {"policy": model, "reflector": model}
        for name, role in (("policy", None), ("reflector", "reflection")) if model == "tiny" else ():
            names[name] = f"{folder}/{name}"
            save_player(Path(names[name]), tiny(role))
        command = [sys.executable, "-m", "reflectkit", "serve", "--policy", names["policy"], "--port", "0"]
        command += ["--reflector", names["reflector"]] if reflects else []
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            url = next(filter(None, (re.search(r"http://\S+", line) for line in process.stdout)))[0]
            converse(url)
            spent = [cpu_seconds(process.pid)]
            alone = [seconds for _ in range(ONE) for seconds in converse(url)]
            spent.append(cpu_seconds(process.pid))
            started = time.perf_counter()
            with ThreadPoolExecutor(AT_ONCE) as pool:
                answers = sum(map(len, pool.map(converse, [url] * AT_ONCE)))
            wall = time.perf_counter() - started
            spent.append(cpu_seconds(process.pid))
            memory = largest_memory(process.pid)
        finally:
            process.kill()
            process.wait()
    one, many = (spent[1] - spent[0]) / len(alone), (spent[2] - spent[1]) / answers
    latency = f"{statistics.median(alone) * 1000:,.0f} ms"
    times = (f"{one * 1000:,.0f} ms", f"{many * 1000:,.0f} ms", f"{answers / wall:.1f}")
    return [model, "yes" if reflects else "no", latency, *times, f"{memory:,.0f} MB"]


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def largest_memory(pid: int) -> float:
    """The most memory that a process of Linux has held so far, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def play(programs: int) -> list[str]:
    """Play `programs` at once, in this process. Returns the row."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "program.py"
        path.write_text(PROGRAM, encoding="utf-8")
        agent = TwoPlayerAgent(LocalSampler(tiny(None)), max_new_tokens=TOKENS)
        episodes = [Episode(Task(str(number), "program", "all", "", {}), number) for number in range(programs)]
        name = f"program:{sys.executable} -I -S {path}"
        played = rollout(episodes, lambda: make(name, TURNS + 1), agent, width=programs, patience=600)
    statuses = Counter(f"{item.status.value} with {len(item.turns)} answers" for item in played)
    memory = largest_memory(os.getpid())
    return [str(programs), ", ".join(f"{count} {what}" for what, count in statuses.items()), f"{memory:,.0f} MB"]


def decisions(model: str) -> list[list[str]]:
    """The rows of one model: a choice among 20 options, yes or no, and eight times yes or no about one state."""
    player = tiny(None)
    if model != "tiny":
        player = load_player(ModelRef.parse(model).resolve(Path("data"), Quiet()).text, device="cpu")
    player.model.eval()
    sentence, ids = "The parcel with the red label lies on shelf 12. ", list[int]()
    state = sentence
    while len(ids) < STATE_TOKENS:
        state += sentence
        ids = prompt_ids(player.tokenizer, state)
    choice = Question("choice", "Where does it go?", tuple(f"to gate {number}" for number in range(20)))
    predicates = [Question("predicate", f"Is shelf {number} free?", ("yes", "no")) for number in range(8)]
    measured = []
    for name, questions in (
        ("choice, 20 options", [choice]),
        ("yes or no", predicates[:1]),
        ("8 questions", predicates),
    ):
        prompt = prompt_ids(player.tokenizer, policy_prompt(questions[0].observation(state)))
        passed, decided = [], []
        for _ in range(REPEATS):
            passed.append(cpu_seconds_of(lambda prompt=prompt: forward(player, prompt)))  # type: ignore[misc]
            fresh = Decider(TwoPlayerAgent(LocalSampler(player)))  # which remembers nothing
            answer = fresh.answer(state, questions, Context(0, ENV))
            decided.append(cpu_seconds_of(lambda answer=answer: run_sync(answer)))  # type: ignore[misc]
        ratio = statistics.median(decided) / statistics.median(passed)
        times = [f"{statistics.median(each) * 1000:,.0f} ms" for each in (passed, decided)]
        measured.append([model, name, str(len(prompt)), *times, f"{ratio:.2f}"])
    return measured


def forward(player: LoadedModel, prompt: list[int]) -> None:
    """One pass over a prompt."""
    with torch.no_grad():
        trunk_of(player.model)(input_ids=torch.tensor([prompt]), use_cache=False)


def cpu_seconds_of(work: Callable[[], object]) -> float:
    """CPU time of `work` in this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Rows as a table of Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))


def show_play(programs: Sequence[int]) -> None:
    """The episodes and the largest memory of so many programs at once, as JSON."""
    for count in programs:
        print(json.dumps(play(count)))


def show_programs(programs: Sequence[int]) -> None:
    """A table of the memory of programs at once; each line is measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.serving", "play"]
    rows = [json.loads(subprocess.check_output([*command, str(count)]).splitlines()[-1]) for count in programs]
    print(table(["programs at once", "episodes", "largest memory"], rows))


def show_decisions(models: Sequence[str]) -> None:
    """A table of the time of decisions."""
    rows = [row for model in models for row in decisions(model)]
    print(table(["model", "decision", "tokens", "a pass over the first prompt", "CPU time", "ratio"], rows))


def show_serve(models: Sequence[str]) -> None:
    """A table of the time of answers, without and with a reflector."""
    heads = [
        "model",
        "reflector",
        "latency",
        "CPU per answer, 1 client",
        f"{AT_ONCE} clients",
        "answers per second",
        "largest memory",
    ]
    print(table(heads, [serve(model, reflects=reflects) for model in models for reflects in (False, True)]))


def main() -> None:
    """Measure what the arguments say, and print it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    of_models: tuple[tuple[str, Callable[[Sequence[str]], None], str], ...] = (
        ("serve", show_serve, "time of answers"),
        ("decisions", show_decisions, "time of decisions"),
    )
    for name, show, what in of_models:
        command = commands.add_parser(name, help=what)
        command.add_argument("values", metavar="MODEL", nargs="+", help="tiny or smollm2-135m")
        command.set_defaults(show=show)
    of_counts: tuple[tuple[str, Callable[[Sequence[int]], None], str], ...] = (
        ("programs", show_programs, "memory with programs"),
        ("play", show_play, "the same, in this process"),
    )
    for name, show_count, what in of_counts:
        command = commands.add_parser(name, help=what)
        command.add_argument("values", metavar="PROGRAMS", nargs="+", type=int, help="how many at once")
        command.set_defaults(show=show_count)
    given = parser.parse_args()
    given.show(given.values)


if __name__ == "__main__":
    main()
