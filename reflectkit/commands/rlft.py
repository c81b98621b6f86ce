"""rlft: online RL of a policy with REINFORCE, PPO or GRPO; a reflector may comment on each state
first.

The reflector is frozen, or learns in turns with the policy (`--train-reflector`). If killed and
started again, the run resumes from its last checkpoint. With `--processes N`, or under torchrun or
`accelerate launch`, several processes play and learn together, with the same result.
"""

from __future__ import annotations

from contextlib import closing

from reflectkit.commands import Traits
from reflectkit.console import Progress, Quiet, Report
from reflectkit.errors import memory_explained
from reflectkit.runs.run import Run
from reflectkit.text import pluralize
from reflectkit.train.processes import Processes, check_launch, launch, shared_run, start_processes
from reflectkit.train.resolve import RLRun, prepare, resolve
from reflectkit.train.rl_config import LIMITS
from reflectkit.train.rl_config import RLConfig as RLConfig

EXAMPLES = (
    "reflectkit rlft --env corridor --model tiny",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/policy/checkpoint-250 --reflector"
    " results/taxi-tiny/reflector/checkpoint-700",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --algo ppo"
    " --curriculum pickup --curriculum full",
    (
        "reflectkit rlft --env auto_explore --model gpt2-xl --lora-r 16 --quantize 8bit --algo"
        " grpo --group-size 8"
    ),
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --lora-r 16"
    " --sampler vllm:http://localhost:8000 --max-staleness 1",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --processes 2",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/plain/checkpoint-600 --calibrate",
    "reflectkit rlft --env decisions --dataset tickets.jsonl --policy results/router --recorded"
    " answers.jsonl --outcomes outcomes.jsonl",
    "reflectkit rlft --env taxi --policy results/taxi-tiny/policy/checkpoint-250 --reflector"
    " results/taxi-tiny/reflector/checkpoint-700 --train-reflector 2",
)
TRAITS = Traits(trains=True, makes_arm=True)


CONFIG = RLConfig


@memory_explained(
    "lower --max-concurrency or --max-tokens-per-batch, or use --lora-r, --quantize or a smaller"
    " model"
)
def run(config: RLConfig, progress: Progress) -> Report:
    """Train and write `metrics.jsonl` and `checkpoint-<step>/`.

    Raises CheckpointError, DataError, DivergedError, and ConfigError if the model cannot read the
    prompts.
    """
    # One process starts the others, and then waits for their report
    check_launch(config.processes)
    if config.processes > 1 and not config.checkpoints.plan:
        return launch("rlft", config, run)

    # 1. Resolve: mistakes are told before torch is imported
    problems = prepare(config, progress)
    progress.news(f"rlft ({config.algo.name}): loading torch")
    from reflectkit.train import build, report

    if config.chat_reflector is not None and config.chat.dry_run:
        return report.cost_of_comments(problems, config.chat_reflector, progress)
    processes = start_processes("rlft", config.policy.device, config.run.threads)
    progress = progress if processes.first else Quiet()
    rl_run = resolve(problems, processes, progress)
    if config.checkpoints.plan:
        return build.plan(rl_run, processes, progress)

    with shared_run("rlft", rl_run.config, list(rl_run.inputs), processes, LIMITS) as current:
        if current.done:
            return _finished(current.done, config.max_steps, progress)
        if processes.first:  # the notes play episodes, which one process need do
            for note in rl_run.problems.notes:
                progress.news(note)
        return _train(rl_run, current, processes, progress)


def _train(rl_run: RLRun, current: Run, processes: Processes, progress: Progress) -> Report:
    """The three steps after `resolve`."""
    from reflectkit.train import build, loop, report

    with (
        # 2. Build
        build.chat_comments(rl_run, current.folder, progress) as chat,
        closing(build.resumed_trainer(rl_run, current, processes, progress, chat)) as trainer,
    ):
        resumed = f", from update {trainer.step + 1}" if trainer.step else ""
        name, summary = rl_run.config.algo.name, rl_run.problems.summary
        progress.news(f"rlft ({name}): {summary} → {current.folder}{resumed}")
        # 3. The loop of updates
        callbacks = loop.default_callbacks(rl_run, chat)
        state = loop.fit(rl_run, trainer, current.folder, callbacks, progress)
    # 4. Report
    return report.report(state, current, chat)


def _finished(report: Report, max_steps: int, progress: Progress) -> Report:
    """The report of a run that had ended before."""
    # A smaller --max-steps than before changes nothing
    steps = report.figures["steps"]
    if steps > max_steps:
        more = f"more than --max-steps {max_steps}; another --name trains anew"
        progress.news(f"{report.folder} has made {pluralize(steps, 'update')}, {more}")
    return report
