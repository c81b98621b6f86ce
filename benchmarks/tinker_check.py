"""rlft through a real training service: SkyRL's server on this CPU (`make tinker-check`).

Trains the corridor from reward, texts by a reward function, and taxi with a frozen reflector on the same service. Kills
server and client in the middle and lets the same command resume. Compares log-probabilities with transformers', before
and after training. Prints tokens a second, requests in flight, memory, and our own process's share of the CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from reflectkit.eventloop import run_sync
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_jsonl
from reflectkit.models.checkpoint_metadata import ROLE_FILE, SERVICE
from reflectkit.models.load import LoadedModel, load_player
from reflectkit.runs.run import checkpoints
from reflectkit.sampling.checks import spread
from reflectkit.sampling.engine import ServiceSettings
from reflectkit.sampling.service import open_service

ROWS = 64
"""Rows of a pass, for which alone the server compiles."""
LIMIT = 1e-3
"""Nats by which log-probabilities may differ from transformers'."""
EPISODES = 64
"""Of an update of the corridor or of texts; as many requests must be in flight."""
HEAD = 10.0
"""Factor of the head of the base for texts: random weights say every token with nearly the same probability, and an
adapter below such a head can hardly change that."""
RISE = 0.2
"""By which the return of texts must rise."""
REWARD = '''def letters(completions, **_):
    """The share of an answer's characters that are letters."""
    return [sum(c.isascii() and c.isalpha() for c in text) / max(1, len(text)) for text in completions]
'''
PARTS = ("corridor", "texts", "taxi")
START_S, RUN_S = 300.0, 1800.0
"""Seconds that the server may take to start, and a run of rlft."""


@dataclass
class Usage:
    """Of processes: CPU seconds, and the most memory in MiB."""

    cpu_s: float = 0.0
    memory: float = 0.0


def process_group(pid: int) -> list[int]:
    """The processes of the group of `pid`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if os.getpgid(int(folder.name)) == pid:
                    found.append(int(folder.name))
            except ProcessLookupError:
                continue
    return found


def usage(pid: int) -> Usage:
    """Of the present processes of the group of `pid`."""
    total, ticks = Usage(), os.sysconf("SC_CLK_TCK")
    for member in process_group(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text("utf-8").rpartition(")")[2].split()
            status = Path(f"/proc/{member}/status").read_text("utf-8")
        except OSError:
            continue
        total.cpu_s += (int(fields[11]) + int(fields[12])) / ticks
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                total.memory += int(line.split()[1]) / 1024
    return total


class Server:
    """SkyRL's server of `base`, whose files are in `folder`. python: of the environment that has SkyRL."""

    def __init__(self, python: Path, base: Path, folder: Path) -> None:
        self.python, self.base, self.folder = python, base, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        environment = self.python.parent.parent
        backend = {
            "max_lora_adapters": 8,
            "max_lora_rank": 8,
            "train_micro_batch_size": ROWS,
            "sample_max_num_sequences": 16,
        }
        command = [
            *(str(environment / "bin" / "uv"), "run", "--no-project", "--active", "--"),
            *("python", "-m", "skyrl.tinker.api", "--base-model", str(self.base), "--backend", "jax"),
            *("--backend-config", json.dumps(backend), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--database-url", f"sqlite:///{self.folder / 'state.sqlite'}"),
            *("--checkpoints-base", str(self.folder / "checkpoints")),
        ]
        variables = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder.parent.parent / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1",
            "VIRTUAL_ENV": str(environment),
            "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
        }
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=variables, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.url}/api/v1/healthz", timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(1)
            if self.process.poll() is not None:
                break
        raise SystemExit(f"the server did not start; see {self.folder / 'server.log'}")

    def kill(self) -> None:
        """Kill all its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def serving(python: Path, base: Path, folder: Path) -> Iterator[Server]:
    """A server, killed at the end."""
    server = Server(python, base, folder)
    try:
        yield server
    finally:
        server.kill()


def reflectkit(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    """A command in `cwd`, in a process group of its own."""
    command = [sys.executable, "-m", "reflectkit", *map(str, arguments)]
    with (cwd / "client.log").open("a") as log:
        return subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log, text=True, start_new_session=True)


def tiny_base(env: str, folder: Path) -> Path:
    """A Qwen3 with random weights for `env` that may be policy and reflector."""
    process = reflectkit("rlft", "--env", env, "--model", "tiny", "--plan", cwd=folder)
    if process.wait():
        raise SystemExit(f"no tiny model of {env}; see {folder / 'client.log'}")
    (made,) = (folder / "data" / env / "models").glob("tiny-*")
    base = folder / "base"
    shutil.rmtree(base, ignore_errors=True)
    shutil.copytree(made, base)
    write_json(base / ROLE_FILE, {name: value for name, value in read_json(base / ROLE_FILE).items() if name != "role"})
    return base


def texts(base: Path, folder: Path) -> list[object]:
    """Arguments of rlft for texts of `base`, whose head is made to say something; their files are in `folder`."""
    weights = load_file(base / "model.safetensors")
    weights["lm_head.weight"] *= HEAD
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    (folder / "rewards.py").write_text(REWARD, "utf-8")
    write_jsonl(folder / "problems.jsonl", [{"prompt": f"Go {number}"} for number in range(8)])
    data = ("--dataset", folder / "problems.jsonl", "--reward", f"{folder / 'rewards.py'}:letters")
    return ["--env", "prompts", *data, "--max-new-tokens", 8, "--validate-problems", 0, "--episodes", EPISODES]


def trained(
    name: str, server: Server, folder: Path, *settings: object, steps: int, rate: float = 5e-3, kill_after: int = 0
) -> Path:
    """The run of rlft on `server`.

    settings: more arguments. rate: of learning. kill_after: the checkpoint after which server and client are killed,
    once.
    """
    command = [
        *("rlft", "--model", server.base, "--engine", f"tinker:{server.url}", "--service-rows", ROWS),
        *("--lora-r", 8, "--algo", "grpo", "--epochs", 2, "--minibatch", 512, "--learning-rate", rate),
        *("--max-steps", steps, "--save-steps", 1, "--name", "there", "--results-dir", "results", *settings),
    ]
    run, started = folder / "results" / "there", time.monotonic()
    client = reflectkit(*command, cwd=folder)
    if kill_after:
        while client.poll() is None and not (run / f"checkpoint-{kill_after}" / ROLE_FILE).is_file():
            if time.monotonic() - started > RUN_S:
                os.killpg(client.pid, signal.SIGKILL)
                raise SystemExit(f"{name}: no checkpoint after {RUN_S:.0f} s; see {folder / 'client.log'}")
            time.sleep(0.2)
        os.killpg(client.pid, signal.SIGKILL)
        client.wait()
        server.kill()
        saved = len(figures_of(run))
        print(f"{name}: server and client killed after update {saved}; the same command resumes", flush=True)
        server.start()
        client = reflectkit(*command, cwd=folder)
    ours, theirs = Usage(), Usage()
    began, before = time.monotonic(), usage(server.process.pid)
    while client.poll() is None:
        if time.monotonic() - started > RUN_S:
            os.killpg(client.pid, signal.SIGKILL)
            raise SystemExit(f"{name}: not done after {RUN_S:.0f} s; see {folder / 'client.log'}")
        now = usage(client.pid)
        # One that has just ended has no memory any more
        ours = Usage(max(ours.cpu_s, now.cpu_s), max(ours.memory, now.memory))
        theirs = usage(server.process.pid)
        time.sleep(0.5)
    if client.returncode:
        raise SystemExit(f"{name}: rlft ended with {client.returncode}; see {folder / 'client.log'}")
    theirs.cpu_s -= before.cpu_s
    report(name, run, steps, ours, theirs, time.monotonic() - began)
    return run


def report(name: str, run: Path, steps: int, ours: Usage, theirs: Usage, seconds: float) -> None:
    """Print what training took. Exits unless every update was made once."""
    rows = figures_of(run)
    numbers = [row["step"] for row in rows]
    if numbers != list(range(1, steps + 1)):
        raise SystemExit(f"{name}: updates {numbers}, expected 1 to {steps}")
    first, last = rows[0], rows[-1]
    update_s = sum(row["rollout_seconds"] + row["update_seconds"] for row in rows)
    share = ours.cpu_s / max(1e-9, ours.cpu_s + theirs.cpu_s)
    in_flight = most_in_flight(rows)
    print(
        f"{name}: {steps} updates, success {first['success_rate']:.0%} to {last['success_rate']:.0%},"
        f" return {first['return']:.2f} to {last['return']:.2f};"
        f" {sum(row['tokens'] for row in rows) / update_s:,.0f} tokens/s; at most {in_flight} requests in flight;"
        f" differences of log-probabilities at most {max(row.get('logprob_difference_max', 0.0) for row in rows):.1e}\n"
        f"{name}: after the last start {seconds:.0f} s; CPU: ours {ours.cpu_s:.0f} s ({share:.0%}), the service's"
        f" {theirs.cpu_s:.0f} s; memory: ours {ours.memory:,.0f} MiB, the service's {theirs.memory:,.0f} MiB",
        flush=True,
    )


def most_in_flight(rows: Sequence[Mapping[str, Any]]) -> int:
    """The most draws of the policy that waited for the service at once; an update that learns nothing does not say."""
    return max(int(row.get("requests_in_flight", 0)) for row in rows)


def check_in_flight(name: str, run: Path) -> None:
    """Exits unless all EPISODES waited for the service at once."""
    most = most_in_flight(figures_of(run))
    if most < EPISODES:
        raise SystemExit(f"{name}: at most {most} requests in flight, with {EPISODES} episodes")


def figures_of(run: Path) -> list[Mapping[str, Any]]:
    """The rows of its updates."""
    return [row for _, row in read_jsonl(run / "metrics.jsonl")]


def logprobs_here(player: LoadedModel, row: Sequence[int]) -> list[float]:
    """By transformers: the log-probabilities of the tokens of `row` after the first."""
    with torch.no_grad():
        logits = player.model(torch.tensor([row[:-1]])).logits[0]
    return torch.log_softmax(logits.float(), dim=-1).gather(1, torch.tensor([row[1:]]).T)[:, 0].tolist()


def difference(here: Sequence[float], there: Sequence[float]) -> float:
    """The largest."""
    return max(abs(one - other) for one, other in zip(here, there, strict=True))


def compare_base(server: Server) -> None:
    """Compare log-probabilities of the base with transformers'."""
    player = load_player(server.base, device="cpu")
    service = open_service(f"tinker:{server.url}", ServiceSettings(service_rows=ROWS))
    rows = [spread(player.vocabulary, count) for count in (8, 12, 20)]

    async def said() -> list[list[float]]:
        adapter = await service.adapter(str(server.base), 8, 0)
        found = await adapter.forward(rows)
        await adapter.close()
        return found

    there = run_sync(said())
    apart = max(difference(logprobs_here(player, row), values) for row, values in zip(rows, there, strict=True))
    tell("the base", apart)


def compare_trained(run: Path, folder: Path) -> None:
    """Bring the adapter home, and compare what it says by transformers with what the service said as it was saved."""
    home = folder / "home"
    if reflectkit("export", "--policy", run, "--out-dir", home, cwd=folder).wait():
        raise SystemExit(f"export failed; see {folder / 'client.log'}")
    player = load_player(home, device="cpu")
    saved = read_json(checkpoints(run)[-1] / "training_state.json")[SERVICE]["probe"]
    tell("the trained adapter", difference(logprobs_here(player, spread(len(player.tokenizer), len(saved) + 1)), saved))


def tell(what: str, apart: float) -> None:
    """Print a difference. Exits if it is above the limit."""
    print(f"log-probabilities of {what} differ from transformers' by {apart:.1e} at most (limit {LIMIT:g})", flush=True)
    if not apart <= LIMIT:
        raise SystemExit("log-probabilities differ")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="python of the environment with SkyRL")
    parser.add_argument("--folder", type=Path, default=Path("build/tinker-check"))
    parser.add_argument("--steps", type=int, default=8, help="updates in the corridor")
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all")
    parser.add_argument("--text-steps", type=int, default=5, help="updates of texts")
    parser.add_argument("--taxi-steps", type=int, default=2)
    given = parser.parse_args(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    for part in given.part or PARTS:
        folder = given.folder.resolve() / part
        folder.mkdir(parents=True)
        base = tiny_base("taxi" if part == "taxi" else "corridor", folder)
        settings = texts(base, folder) if part == "texts" else ["--env", part]
        with serving(given.python.absolute(), base, folder / "server") as server:
            compare_base(server)
            if part == "corridor":
                settings += ["--episodes", EPISODES]
                run = trained(part, server, folder, *settings, steps=given.steps, kill_after=2)
                check_in_flight(part, run)
                compare_trained(run, folder)
            elif part == "texts":
                run = trained(part, server, folder, *settings, steps=given.text_steps, rate=1e-2)
                check_in_flight(part, run)
                rows = figures_of(run)
                if rows[-1]["return"] < rows[0]["return"] + RISE:
                    raise SystemExit(f"texts: the return rose by less than {RISE:g}")
            else:
                settings += ["--reflector", base, "--episodes", 16, "--validate-problems", 0, "--horizon", 8]
                trained(part, server, folder, *settings, steps=given.taxi_steps)
    print("tinker-check passed")


if __name__ == "__main__":
    main()
