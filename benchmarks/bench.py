"""bench: measure speed on this machine, with figures comparable within one run.

`bench env` measures only the environment, in CPU time of this process and of the processes that the environment
started, so that other work on the machine does not count. `bench rl` measures rollouts and updates in wall time,
against bare passes of the same model over the same tokens, and counts the tokens of both sides. An environment that
does not list its own problems is measured, without `--task-file`, on generated ones: auto_explore on a repository of
`--files` files, alfworld on one game of each type, memory and support on 64 problems; tau needs `--task-file`. An
environment that works in other processes is also measured in parallel, in CPU time and wall time.

`bench sft` measures the training steps of `sft` in CPU time, on generated rows of 82 to 256 words or on those of
`--task-file`, in batches of `--batch-size`. After each step, the same model makes a bare forward and backward pass over
the same batch with the same padding: the trunk over all positions, the LM head and the cross-entropy only where the
step has a loss. This floor has no optimizer, no clipping of gradients, no data loader, no metrics and no checks; the
step has them all. The ratio is the time of the floor divided by that of the steps.

`bench sft` takes no environment.

`bench gpu` checks on one GPU, without a network, that everything that trains and samples works there, with its speed
and peak memory. Each part runs in its own process; the table is written after each. Without a GPU it runs tiny shapes
on the CPU, which tests the check itself. When `--minutes` are over, the parts that are left are skipped. The exit code
is 1 if a part fails. The same command goes on with what failed or had no time.
"""

from __future__ import annotations

import contextlib
import inspect
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self, get_args

import psutil
from pydantic import model_validator

from benchmarks import gpu
from benchmarks.problems import problems_of
from reflectkit.agents.scripted import RandomAgent
from reflectkit.cli.main import main
from reflectkit.config import Config, option, with_values
from reflectkit.console import Progress, Report, Table, figures_table
from reflectkit.data.problems import read_records
from reflectkit.env import Env
from reflectkit.envs import NONE_LISTED
from reflectkit.envs.setup import EnvConfig, EnvSetup, RolloutConfig, at_level
from reflectkit.errors import ConfigError, unknown_name
from reflectkit.eventloop import result_of
from reflectkit.models.hub import PACKAGED, TINY
from reflectkit.models.packaged import is_installed
from reflectkit.models.refs import ModelRef
from reflectkit.rollouts.episode import Episode, rollout
from reflectkit.runs.run import RunConfig, open_run
from reflectkit.seeding import derive, generator
from reflectkit.text import pluralize
from reflectkit.train.sft.config import SFTConfig
from reflectkit.types import DType, Task

EXAMPLES = (
    "python -m benchmarks.bench env --env auto_explore",
    "python -m benchmarks.bench env --env taxi --steps 200000",
    "python -m benchmarks.bench rl --env taxi",
    "python -m benchmarks.bench sft --model tiny --model tiny-hybrid",
    "python -m benchmarks.bench sft --model smollm2-135m --lora-r 16 --batch-size 4",
    "python -m benchmarks.bench gpu",
)
Size = Literal["tiny", "gpt2-small"]
SIZES: tuple[Size, ...] = get_args(Size)
ROUNDS = 5
STEPS_TINY = 8
GENERATED_BATCHES = 8
SIDE_BY_SIDE = 16


class BenchConfig(Config):
    """Settings of bench."""

    what: Literal["env", "rl", "sft", "gpu"] = option(help="What to measure: env, rl, sft or gpu.", argument=True)
    env: EnvConfig = EnvConfig(name="taxi")
    steps: int | None = option(
        None,
        help="env: total number of steps; default: 100,000, or 2,000 if the env works in other processes. sft: steps"
        " per round; default: 8, or 1 if the model is pretrained.",
    )
    size: tuple[Size, ...] = option(
        (),
        help="rl: models to measure: tiny, gpt2-small (124 M parameters; repeat the flag); default: both, or tiny alone"
        " where episodes are long.",
    )
    episodes: int | None = option(None, help="rl: episodes per round; default: about half a minute's, 8 to 128.", ge=1)
    rounds: int = option(
        5, help="rl, sft: number of rounds, summarised by the median; gpt2-small runs half of them.", ge=1
    )
    model: tuple[str, ...] = option(
        (),
        help="sft: models to measure, as in `sft --model` (repeat the flag); default: tiny, tiny-hybrid, and"
        " smollm2-135m if its packages are installed.",
    )
    dtype: DType = option("float32", help="sft: data type of a pretrained model's weights.")
    lora_r: int = option(16, help="sft: rank of a pretrained model's LoRA adapter; 0 trains all weights.", ge=0)
    batch_size: int = option(8, help="sft: rows per gradient step.", ge=1)
    max_length: int = option(256, help="sft: maximum tokens per row.", ge=1)
    role: Literal["reflection", "policy", "plain"] = option(
        "reflection", help="sft: which player the rows of --task-file are for."
    )
    files: int = option(1000, help="Number of files in the generated repository, if the env explores one.", ge=1)
    task_file: Path | None = option(
        None, help="Problems to play, or sft: rows; default: the env's own problems, or generated ones."
    )
    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", help="rl, gpu: auto (a GPU if there is one), cpu or cuda. gpu runs tiny shapes on a CPU."
    )
    fast: bool = option(False, help="gpu: tiny shapes, which test the check itself, on a GPU too.")
    only: tuple[str, ...] = option((), help="gpu: run this part only, after setup (repeat the flag).")
    minutes: float = option(gpu.MINUTES, help="gpu: time for all parts; those that are left are skipped.", ge=1)
    rollout: RolloutConfig = RolloutConfig()
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run, self.rollout.horizon)

    @model_validator(mode="after")
    def _check(self) -> Self:
        least = 1 if self.what == "sft" else ROUNDS
        if self.taken < least:
            raise ConfigError(f"--steps must be at least {least}, got {self.taken}")
        for name in self.only:
            if name not in gpu.names_of_parts():
                raise unknown_name("--only", name, gpu.names_of_parts())
        if self.what == "sft":
            for name in self.models:
                self.training(name, Path())
        return self

    @property
    def models(self) -> tuple[str, ...]:
        """The models whose SFT is measured."""
        return self.model or (*TINY, *(name for name in PACKAGED if is_installed(name)))

    def training(self, model: str, rows: Path) -> SFTConfig:
        """The settings of `sft` for `model` on the file `rows`: one round to warm up, and the measured ones."""
        tiny = model in TINY
        return SFTConfig.from_flat(
            env=self.env.name,
            role=self.role,
            task_file=rows,
            model=model,
            max_steps=(self.rounds + 1) * (self.steps or (STEPS_TINY if tiny else 1)),
            batch_size=self.batch_size,
            max_length=self.max_length,
            lora_r=0 if tiny else self.lora_r,
            dtype="float32" if tiny else self.dtype,
            device="cpu",
            seed=self.run.seed,
        )

    @property
    def taken(self) -> int:
        """Total number of steps."""
        return (
            self.steps
            if self.steps is not None
            else 2_000
            if inspect.iscoroutinefunction(self.env.kind.step)
            else 100_000
        )


CONFIG = BenchConfig


def run(config: BenchConfig, progress: Progress) -> Report:
    """Measure, and write the figures to `report.json`."""
    measured = {"env": _environment, "rl": _learning, "sft": _training, "gpu": _on_a_gpu}
    return measured[config.what](config, progress)


def _on_a_gpu(config: BenchConfig, progress: Progress) -> Report:
    """What trains and samples, part by part. Raises ConfigError if --device cuda finds no GPU."""
    facts = gpu.machine(config.device, config.run.threads)
    with open_run("bench", config) as current:
        if current.done:
            return current.done
        fast = config.fast or facts["kind"] == "cpu"
        bench = gpu.Bench(current.folder.absolute(), facts["kind"], fast, config.run.seed, config.run.threads)
        chosen = {"setup", *config.only} if config.only else set(gpu.names_of_parts())
        with progress.bar("bench gpu: parts", len(chosen)) as bar:
            rows = gpu.check(sorted(chosen), bench, facts, config.minutes, bar)
        current.tables.append(gpu.table(bench, facts, rows))
        written = (current.folder / "table.md", current.folder / "table.json")
        failed = [row.part for row in rows if row.status == "failed"]
        figures = {**facts, "failed": failed}
        if failed:
            log = current.folder / f"{failed[0]}.log"
            closing = (f"failed: {', '.join(failed)}; see {log}. The same command keeps the finished parts.",)
            return Report("bench", current.folder, figures, written, tuple(current.tables), closing=closing, code=1)
        if late := [row.part for row in rows if row.note == gpu.TIME_IS_UP]:
            closing = (f"no time for {', '.join(late)}; the same command goes on with these.",)
            return Report("bench", current.folder, figures, written, tuple(current.tables), closing=closing)
        gpu.tidy(bench)
        return current.finish(figures, written)


def _learning(config: BenchConfig, progress: Progress) -> Report:
    """Rollouts and updates of models with random weights."""
    from benchmarks.rl import FEWEST, PARTS, fitting, measure, tokens_of_an_episode
    from reflectkit.models.hub import silence_libraries

    silence_libraries()
    with open_run("bench", config, again=True) as current, _problems(config, progress) as (configured, tasks):
        make = configured.setup.maker(tasks[0].level)
        figures: dict[str, Any] = {}
        tokens = tokens_of_an_episode(tasks, make, config.run.seed)
        fit = {size: fitting(size, tokens) for size in SIZES}
        for size in config.size or (SIZES[0], *(size for size in SIZES[1:] if fit[size] >= FEWEST)):
            episodes = config.episodes or max(FEWEST, fit[size])
            rounds = config.rounds if size == SIZES[0] else -(-config.rounds // 2)
            with progress.bar(f"{config.setup.env_name}: {size}, {episodes} episodes", (rounds + 1) * PARTS) as bar:
                measured = measure(size, tasks, make, episodes, rounds, config.run.seed, bar, config.device)
            figures |= {f"{size}_{name}": value for name, value in measured.items()}
            current.tables.append(
                figures_table(f"RL in {config.setup.env_name}, {size}, batches of 32", "value", measured)
            )
        return current.finish(figures)


def _training(config: BenchConfig, progress: Progress) -> Report:
    """Training steps of each model, and their floor."""
    from reflectkit.models.hub import silence_libraries

    silence_libraries()
    with open_run("bench", config, again=True) as current, tempfile.TemporaryDirectory() as folder:
        from benchmarks import sft as bench_sft

        rows = config.task_file or Path(folder) / "rows.jsonl"
        if config.task_file is None:
            bench_sft.write_rows(rows, GENERATED_BATCHES * config.batch_size, config.run.seed)
        measured = {}
        for model in config.models:
            source = ModelRef.parse(model).source(config.run.data_dir, progress)
            training = config.training(source.text, rows)
            with progress.bar(f"sft: {model}", training.max_steps) as bar:
                measured[model] = bench_sft.figures(bench_sft.measure(training, config.rounds, bar))
        current.tables.append(
            bench_sft.table(f"SFT, batches of {pluralize(config.batch_size, 'row')}, CPU time", measured)
        )
        return current.finish(
            {f"{model}_{name}": value for model, values in measured.items() for name, value in values.items()}
        )


def _environment(config: BenchConfig, progress: Progress) -> Report:
    """Take random steps, and count the CPU time of the resets and the steps."""
    with (
        open_run("bench", config, again=True) as current,
        _problems(config, progress) as (configured, tasks),
        contextlib.ExitStack() as stack,
    ):
        env: Any = configured.setup.maker(tasks[0].level)()
        stack.callback(env.close)
        if inspect.iscoroutinefunction(config.env.kind.step):
            result_of(env.reset(tasks[0], config.run.seed))  # starts its processes before the first round
        rates, resets = [], []
        with progress.bar(f"{config.setup.env_name}: steps", config.taken) as bar:
            for number in range(ROUNDS):
                share = config.taken * (number + 1) // ROUNDS - config.taken * number // ROUNDS
                rate, times = play_round(env, tasks, share, derive(config.run.seed, "bench", number))
                rates.append(rate)
                resets += times
                bar.advance(share, steps_per_cpu_second=rate)
        figures = {
            "steps_per_cpu_second": statistics.median(rates),
            "slowest_round": min(rates),
            "fastest_round": max(rates),
            "reset_cpu_ms": 1000 * statistics.median(resets),
            "reset_cpu_ms_p95": 1000 * sorted(resets)[int(0.95 * len(resets))],
            "resets": len(resets),
        }
        if inspect.iscoroutinefunction(config.env.kind.step):
            figures |= _side_by_side(configured.setup.maker(tasks[0].level), tasks, config.run.seed)
        rows = tuple(
            (name.replace("_", " "), f"{value:,.3f}" if value < 100 else f"{value:,.0f}")
            for name, value in figures.items()
        )
        current.tables.append(
            Table(
                f"{config.setup.env_name}: {pluralize(config.taken, 'random step')}, CPU time", ("what", "value"), rows
            )
        )
        return current.finish(figures)


class CpuClock:
    """CPU seconds of this process and of the child processes that existed when the clock was created."""

    def __init__(self) -> None:
        self._processes = psutil.Process().children(recursive=True)
        self._seconds = dict.fromkeys(self._processes, 0.0)

    def now(self) -> float:
        """CPU seconds so far; for a process that has ended, until its last reading."""
        for process in self._processes:
            with contextlib.suppress(OSError, psutil.Error):
                self._seconds[process] = _cpu_seconds(process)
        return time.process_time() + sum(self._seconds.values())


def _cpu_seconds(process: psutil.Process) -> float:
    if sys.platform == "linux":
        return time.clock_gettime(
            ~process.pid << 3 | 2
        )  # as clock_getcpuclockid(3): to the nanosecond, not to the tick of 10 ms
    times = process.cpu_times()
    return float(times.user + times.system)


def play_round(env: Any, tasks: list[Task], steps: int, seed: int) -> tuple[float, list[float]]:
    """(steps per CPU second, CPU seconds of each reset). The choices are drawn before the clock starts."""
    chance = generator(seed)
    draws = [chance.random() for _ in range(steps)]
    resets: list[float] = []
    observation, number = None, 0
    clock = CpuClock()
    started = clock.now()
    for draw in draws:
        if observation is None:
            before = clock.now()
            observation = result_of(env.reset(tasks[number % len(tasks)], derive(seed, number)))
            resets.append(clock.now() - before)
            number += 1
        result = result_of(
            env.step(int(draw * len(observation.choices)) if observation.choices else env.teacher().action())
        )
        observation = None if result.terminated or result.truncated else result.observation
    return steps / (clock.now() - started), resets


def _side_by_side(make: Callable[[], Env], tasks: list[Task], seed: int) -> dict[str, float]:
    """Steps per second, including resets, of concurrent random episodes; each engine has already started a game."""
    episodes = [
        Episode(tasks[number % len(tasks)], derive(seed, "side by side", number)) for number in range(SIDE_BY_SIDE)
    ]
    envs = [make() for _ in episodes]
    for env, episode in zip(envs, episodes, strict=True):
        result_of(env.reset(episode.task, 0))
    clock = CpuClock()
    started, started_wall = clock.now(), time.perf_counter()
    played = rollout(episodes, envs.pop, RandomAgent(), width=SIDE_BY_SIDE)
    steps = sum(len(trajectory.turns) for trajectory in played)
    return {
        f"steps_per_cpu_second_{SIDE_BY_SIDE}_at_once": steps / (clock.now() - started),
        f"steps_per_wall_second_{SIDE_BY_SIDE}_at_once": steps / (time.perf_counter() - started_wall),
    }


@contextmanager
def _problems(config: BenchConfig, progress: Progress) -> Iterator[tuple[BenchConfig, list[Task]]]:
    """The settings of the env, and the problems to play."""
    if config.task_file is not None:
        tasks = [record.task for record in read_records(config.task_file, config.setup.env_name)]
        yield config, at_level(config.env.name, tasks, config.env.kind.levels[-1], config.task_file)
        return
    with tempfile.TemporaryDirectory(prefix="reflectkit-bench-") as folder:
        tasks, settings = problems_of(config.env.kind, Path(folder), config.files, config.run.seed, progress)
        if not tasks:
            raise ConfigError(NONE_LISTED.format(config.setup.env_name, config.env.kind.levels[-1]))
        yield with_values(config, **settings), tasks


if __name__ == "__main__":
    sys.exit(main(["benchmarks.bench", *sys.argv[1:]]))
