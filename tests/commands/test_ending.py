"""What run prints last: the recipe's own words, and commands that the command line accepts."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from reflectkit.cli.command import stage_command
from reflectkit.commands.run import CHECK, Job, closing
from reflectkit.console import Report

POLICY = ["oracle", "Reflect-RL={rl}+{reflector}", "SFT + RL={plain}"]


def lines(fast: bool = False, fast_shows: str = "", full_shows: str = "", **values: object) -> tuple[str, ...]:
    """The ending of a run of three trained players and one evaluation, with `values` as its settings."""
    reports = {name: Report("rlft", Path(name), {}, (Path(f"results/{name}/checkpoint 1"),))
               for name in ("rl", "reflector", "plain")}  # fmt: skip
    reports["evaluation"] = Report("evaluate", Path("results/my evaluation"), {})
    settings = {"env": "taxi", "data_dir": Path("data"), "results_dir": Path("results"), "policy": POLICY, "seed": 0}
    jobs = [Job("evaluation", "evaluate", settings | values)]
    return closing(["taxi-tiny", "--set", "a.b=c d"], fast, fast_shows, full_shows, jobs, reports)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"level": ["pickup", "full"], "eval_reps": 3, "temperature": 1.0, "max_concurrency": 4},
        {"task_file": "{data}/taxi/my problems.json", "data_dir": Path("my data")},
        {"env": "auto_explore", "prompt_tokens": 300, "level": ["1", "all"], "shuffle_action": True},
    ],
)
def test_the_commands_are_accepted(values: dict[str, object]) -> None:
    *_, view, play, evaluate = lines(**values)
    for line in (view, play, evaluate):
        program, stage, *arguments = shlex.split(line)
        assert Path(program).name == "reflectkit"
        command = stage_command(stage, arguments)
        context = command.make_context(stage, list(arguments))
        expected = (
            "results/my evaluation" if stage == "view" else "Reflect-RL=results/rl/checkpoint 1+results/reflector"
        )
        assert expected in str(context.params)


def test_the_level_all_is_left_to_play() -> None:
    play = lines(env="auto_explore", level=["1", "all"])[-2]
    assert "--level" not in play
    assert "--level 1" in lines(env="auto_explore", level=["all", "1"])[-2]


def test_the_fast_run_says_what_it_was() -> None:
    assert lines(fast=True)[0] == CHECK
    first = lines(fast=True, fast_shows="A part alone.", full_shows="takes an hour and shows all")[0]
    assert first.startswith("A part alone. The full run, `")
    assert first.endswith("reflectkit run taxi-tiny --set 'a.b=c d'`, takes an hour and shows all.")
    assert lines(fast_shows="A part alone.")[0] == "Next:"
