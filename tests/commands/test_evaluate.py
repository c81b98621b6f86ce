"""evaluate: what is played, kept and warned of; tables computed again; oracle scores; whose comments; bad files."""

from __future__ import annotations

import copy
import csv
import dataclasses
import gc
import math
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from reflectkit.agents.mismatches import env_mismatches, settings_mismatches, template_mismatches, unfinished_runs
from reflectkit.cli.main import main
from reflectkit.commands import evaluate
from reflectkit.console import Quiet
from reflectkit.env import Taskset
from reflectkit.envs.corridor import Corridor
from reflectkit.envs.setup import EnvConfig
from reflectkit.evals.aggregate import player_row
from reflectkit.evals.config import EvaluateConfig
from reflectkit.evals.play import oracle_scores
from reflectkit.evals.resolve import title_of
from reflectkit.evals.rows import EpisodeRow
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_jsonl
from reflectkit.models.load import load_player
from reflectkit.models.refs import ModelRef
from reflectkit.prompts import PROMPT_VERSION
from reflectkit.runs.run import digest
from reflectkit.types import Decision, Observation, Status, Task, Trajectory, Turn
from tests.command_lines import error_of
from tests.models.test_call_forms import plain_tokenizer
from tests.sft_runs import Interrupting

HERE = __name__
TASKS = tuple(Corridor.taskset.tasks("long"))


FLIPPED = (
    b'{"task": "corridor-long-1", "seed": "1", "status": "completed", "success": true, "return": 1.0, "turns": []}\n'
)


@pytest.mark.parametrize("damage", [b'{"task": "corr', b"\xff\xff\n", FLIPPED])
def test_damaged_lines_are_dropped_and_their_episodes_played_again(
    tmp_path: Path, damage: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"env": "corridor", "policy": ("oracle",), "max_concurrency": 1}
    whole = evaluate.run(EvaluateConfig.from_flat(**settings, results_dir=tmp_path / "whole"), Quiet())
    with pytest.raises(KeyboardInterrupt):
        evaluate.run(EvaluateConfig.from_flat(**settings), Interrupting(at=3))
    (kept,) = (tmp_path / "results").glob("*_evaluate/episodes/*.jsonl")
    lines = kept.read_bytes().splitlines(keepends=True)
    assert len(lines) == 3
    kept.write_bytes(lines[0] + damage)
    assert main(["evaluate", "--env=corridor", "--policy=oracle", "--max-concurrency=1"]) == 0
    assert "damaged lines dropped: 1;" in " ".join(capsys.readouterr().out.split())
    assert read_json(Path("results/1_evaluate/eval.json")) == read_json(whole.folder / "eval.json")


LENGTH = 20_000


class LongTasks(Taskset):
    def tasks(self, level: str) -> list[Task]:
        return [dataclasses.replace(task, env="long-texts") for task in TASKS]


class LongTexts(Corridor):
    """Each observation is another text of 20 kB."""

    name = "long-texts"
    taskset = LongTasks()

    def _text(self) -> str:
        return super()._text() + "x" * LENGTH


class Watching(Quiet):
    """Counts the trajectories in memory when the last episode ends."""

    ended = alive = 0

    def advance(self, amount: int = 1, **figures: float) -> None:
        self.ended += amount
        if self.ended == 120:
            self.alive = sum(isinstance(one, Trajectory) for one in gc.get_objects())


def test_memory_does_not_grow_with_the_episodes(tmp_path: Path) -> None:
    def config(results: Path, repeats: int) -> EvaluateConfig:
        settings = {"policy": ("oracle",), "max_concurrency": 2, "results_dir": results, "eval_reps": repeats}
        return EvaluateConfig.from_flat(env=f"{HERE}:LongTexts", **settings)

    evaluate.run(config(tmp_path / "first", 1), Quiet())  # imports
    watching = Watching()
    gc.collect()
    tracemalloc.start()
    report = evaluate.run(config(tmp_path, 20), watching)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert watching.alive <= 4
    written = report.folder / "episodes.jsonl"
    assert written.stat().st_size > 120 * LENGTH * 2
    assert peak < written.stat().st_size / 4
    (figures,) = read_json(report.folder / "eval.json")["rows"]
    whole = [EpisodeRow.read(line) for _, line in read_jsonl(written)]
    assert figures == player_row([whole]).to_json(), "the tables are those of the whole episodes"


def again(*sources: Path | str) -> int:
    return main(["evaluate", "--env", "corridor", "--name", "again", *(f"--from={source}" for source in sources)])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("level", 10**30, "field 'level': expected"),
        ("figures", None, ""),
        ("turns", [{"info": None}], ""),
        ("status", "odd", "field 'status': is none of completed, truncated, aborted, but 'odd'"),
    ],
)
def test_a_damaged_line_is_named_and_null_is_unknown(
    name: str, value: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {
        "name": "a",
        "level": "long",
        "task": "1",
        "status": "completed",
        "success": True,
        "return": 1.0,
        "turns": [],
    }
    write_jsonl(Path("lines.jsonl"), [line, line | {"task": "2", name: value}])
    assert again("lines.jsonl") == (2 if said else 0)
    assert said in capsys.readouterr().err


def test_the_same_tables_come_of_kept_episodes_and_of_several_as_of_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    playing = ["evaluate", "--env=corridor", "--policy=random", "--policy=oracle", "--eval-reps=2", "--name=played"]
    assert main(playing) == 0
    evaluated = tmp_path / "results/played"
    assert again(evaluated) == 0
    first, second = (read_json(tmp_path / "results" / name / "eval.json") for name in ("played", "again"))
    assert second == {name: first[name] for name in ("rows", "differences")}
    assert {one["clusters"] for one in second["rows"]} == {one["tasks"] for one in second["rows"]}
    for name in ("eval.md", "eval.csv"):
        old, new = ((tmp_path / "results" / run / name).read_text() for run in ("played", "again"))
        assert old.split("\n")[2:] == new.split("\n")[2:]
    assert "clusters" in next(csv.reader((evaluated / "eval.csv").open()))
    shutil.rmtree("results/again")
    assert again(evaluated, evaluated / "episodes.jsonl") == 0
    for alone, together in zip(first["rows"], read_json(Path("results/again/eval.json"))["rows"], strict=True):
        assert together["by_seed"] == [alone["success"]] * 2
        assert (together["tasks"], together["clusters"]) == (alone["tasks"], alone["clusters"])
        assert together["episodes"] == 2 * alone["episodes"]
        assert together["pass_at"] == alone["pass_at"], "the plays of two seeds are not more tries of one model"
    told = "has other episodes than evaluate wrote there"
    assert told not in capsys.readouterr().out
    episodes = (evaluated / "episodes.jsonl").read_text().splitlines(keepends=True)
    (evaluated / "episodes.jsonl").write_text("".join(episodes[:-1]))
    shutil.rmtree("results/again")
    assert again(evaluated) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (
            [(0, 0, (0.5, 0.5)), (0, 1, (0.75, 0.25))],
            {"agreement": 0.5, "choice_nll": 1.5 * math.log(2), "choice_brier": (0.5 + 1.125) / 2},
        ),
        ([(1, 1, ()), (1, 1, ()), (0, 1, ())], {"agreement": 2 / 3}),
        ([], {"agreement": 0.0, "choice_nll": math.log(2), "choice_brier": 0.5}),  # counts as a wrong guess
        (
            [(0, 1, (1.0, 0.0))],
            {"agreement": 0.0, "choice_nll": pytest.approx(708.4, abs=0.1), "choice_brier": 2.0},  # is not infinite
        ),
    ],
)
def test_scores_are_means_over_turns(turns: list[Any], expected: dict[str, float]) -> None:
    """turns: (action, the oracle's choice, probabilities). Agreement 1/2; -(ln 0.5 + ln 0.25) / 2 = 1.5 ln 2."""
    seen = Observation((), ("left", "right"))
    made = [Turn(seen, Decision(action, probabilities=shares), 0.0, {"oracle": best}) for action, best, shares in turns]
    trajectory = Trajectory(TASKS[0], 0, tuple(made), Status.COMPLETED, True, final=seen)
    scores = oracle_scores(trajectory)
    assert scores.keys() == expected.keys()
    assert all(scores[name] == pytest.approx(value) for name, value in expected.items())


def test_the_teacher_comments_in_a_reflectors_place(
    checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("checkpoint-9", "checkpoint-10"):
        shutil.copytree(checkpoints["policy"], f"results/ours/{place}")
    Path("results/ours/config.json").write_text('{"stage": "rlft", "settings": {}}')
    arguments = ["--env", "corridor", "--policy", "ours=results/ours+oracle"]
    assert main(["evaluate", *arguments]) == 0
    folder = next(Path("results").glob("*_evaluate"))
    assert set(read_json(folder / "config.json")["inputs"]) == {"results/ours/checkpoint-10"}
    assert main(["evaluate", "--env", "corridor", "--policy", "ours=results/ours+nothing", "--name", "empty"]) == 0
    assert read_json(Path("results/empty/eval.json"))["rows"][0]["figures"]["comment_tokens"]["mean"] == 0
    tokenizer = load_player(Path("results/ours/checkpoint-10"), device="cpu").tokenizer
    for _, line in read_jsonl(folder / "episodes.jsonl"):
        lengths = [len(tokenizer(" " + turn["reflection"])["input_ids"]) for turn in line["turns"]]
        assert line["figures"]["comment_tokens"] == pytest.approx(sum(lengths) / len(lengths))
    swapped = ["--swap-comments", "0.5", "--name", "swapped"]
    assert "data/corridor/sft_reflection.jsonl" in error_of(["evaluate", *arguments, *swapped], capsys)
    Path("data/corridor").mkdir(parents=True)
    Path("data/corridor/sft_reflection.jsonl").write_text('{"prompt": "Where?", "completion": " Elsewhere."}\n')
    assert main(["evaluate", *arguments, *swapped]) == 0
    lines = Path("results/swapped/episodes.jsonl").read_text()
    assert "Elsewhere." in lines
    assert " to the right." in lines
    assert "data/corridor/sft_reflection.jsonl" in read_json(Path("results/swapped/config.json"))["inputs"]
    Path("own.jsonl").write_text('{"prompt": "Where?", "completion": " In my words."}\n')
    assert main(["evaluate", *arguments, "--swap-comments", "1", "--swap-from", "own.jsonl", "--name", "own"]) == 0
    lines = Path("results/own/episodes.jsonl").read_text()
    assert "In my words." in lines
    assert "Elsewhere." not in lines
    assert "own.jsonl" in read_json(Path("results/own/config.json"))["inputs"]


def test_a_model_in_anothers_place_is_one_line(
    checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "--env", "taxi", "--policy"]
    assert "is a reflector, not a policy" in error_of([*command, f"x={checkpoints['reflection']}"], capsys)
    told = error_of([*command, f"x={checkpoints['policy']}+{checkpoints['policy']}"], capsys)
    assert "is a policy model, not a reflector" in told


def test_only_problems_beside_their_training_split_are_called_held_out(tmp_path: Path) -> None:
    assert main(["split", "--env=taxi"]) == 0
    split = tmp_path / "data/taxi"
    shutil.copy(split / "test.json", tmp_path / "some.json")
    for file, title in ((split / "test.json", "Held-out problems"), (tmp_path / "some.json", "Problems")):
        playing = ["evaluate", "--env=taxi", "--policy=random", "--problems=2", "--name=t", "--force"]
        assert main([*playing, "--task-file", str(file)]) == 0
        (table, *_) = read_json(tmp_path / "results/t/report.json")["tables"]
        assert table["title"] == f"{title} of {file}"


def test_a_policy_of_rl_without_the_split_has_no_held_out_problems_in_it(tmp_path: Path) -> None:
    assert main(["split", "--env=taxi"]) == 0
    training = tmp_path / "data/taxi/train.json"
    for number, (read, title) in enumerate(
        (
            ({"data/taxi/train.json": digest(training)}, "Held-out problems of data/taxi/test.json"),
            ({"data/elsewhere/train.json": digest(training)}, "Held-out problems of data/taxi/test.json"),
            ({}, "Problems of data/taxi/test.json; a player was trained without this split"),
            ({"data/taxi/train.json": "0"}, "Problems of data/taxi/test.json; a player was trained without this split"),
        )
    ):
        write_json(tmp_path / f"{number}/config.json", {"stage": "rlft", "settings": {}, "inputs": read})
        config = EvaluateConfig.from_flat(env="taxi", policy=("random",))
        tasks = config.held_out.tasks("test", "full")
        assert title_of(config, {"full": tasks}, [tmp_path / f"{number}/checkpoint-1"]) == title


QUIET_GAME = """
from reflectkit import ChoiceEnv

class Quiet(ChoiceEnv):
    choices = ("a", "b")

    def _begin(self, task, seed):
        self.seen = 0

    def _move(self, action):
        self.seen += 1
        return float(action), self.seen == 2, {}

    def _text(self):
        return str(self.seen)
"""


def test_what_makes_tables_mislead_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("quiet_game.py").write_text(QUIET_GAME)
    playing = ["evaluate", "--env=quiet_game.py:Quiet", "--policy=random", "--problems=9"]

    def told(*arguments: str) -> str:
        assert main([*playing, *arguments]) == 0
        return " ".join(capsys.readouterr().out.split())

    assert "does not say which episodes succeed" in told("--name=a")
    assert "success" not in (tmp_path / "results/a/eval.md").read_text()
    (row,) = read_json(tmp_path / "results/a/eval.json")["rows"]
    assert (row["success"], row["low"]) == (None, None)
    assert 0 < row["return"] < 2
    assert "no episode ended within 1 step" in told("--horizon=1", "--name=b")
    assert (tmp_path / "results/b/eval.json").read_text().count('"success": null') == 1, "cut off, it says nothing"
    assert main(["evaluate", "--env=corridor", "--policy=oracle", "--eval-reps=2", "--name=c"]) == 0
    assert "went alike" in capsys.readouterr().out
    assert again(tmp_path / "results/c", tmp_path / "results/c/episodes.jsonl") == 0
    assert "went alike" not in capsys.readouterr().out, "the oracle is no model with seeds"
    assert "went alike" not in told("--eval-reps=2", "--name=d"), "it is drawn"


def test_a_policy_trained_on_other_rows_has_no_held_out_problems(tmp_path: Path) -> None:
    Path("sums.jsonl").write_text("".join(f'{{"prompt": "{number} + 1 ="}}\n' for number in range(40)))
    Path("marks.py").write_text("def mark(completions, **kwargs):\n    return [1.0]\n")
    config = EvaluateConfig.from_flat(env="prompts", dataset="sums.jsonl", reward=("marks.py:mark",), policy=("x=y",))
    tasks = config.held_out.tasks("test", "all")
    for read, told in (
        (digest(Path("sums.jsonl")), "Held-out problems of"),
        ("0", "; a player was trained on other data"),
    ):
        write_json(tmp_path / "config.json", {"stage": "rlft", "settings": {}, "inputs": {"sums.jsonl": read}})
        assert told in title_of(config, {"all": tasks}, [tmp_path / "checkpoint-1"])


def test_other_code_of_the_env_than_in_training_is_told(tmp_path: Path) -> None:
    Path("own_game.py").write_text("class Own:\n    choices = ['a']\n    reset = step = print\n")
    env, model = EnvConfig.from_flat(env="own_game.py:Own"), tmp_path / "checkpoint-1"
    for read, told in ((digest(Path("own_game.py")), []), ("0", [f"{model} was trained with an earlier own_game.py"])):
        write_json(tmp_path / "config.json", {"stage": "rlft", "settings": {}, "inputs": {"own_game.py": read}})
        assert settings_mismatches(env, [model]) == told


def test_other_settings_of_the_env_than_in_training_are_told(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"stage": "rlft", "settings": {"env": "memory", "brief": True}})
    model = tmp_path / "checkpoint-1"
    (text,) = settings_mismatches(EnvConfig.from_flat(env="memory"), [model])
    assert text == f"{model} was trained with --brief True, but plays with --brief False"
    assert not settings_mismatches(EnvConfig.from_flat(env="memory", brief=True), [model])
    model.mkdir()
    assert unfinished_runs([model]) == []
    write_json(tmp_path / "config.json", {"stage": "sft", "settings": {"max_steps": 1}})
    assert unfinished_runs([model]) == []
    write_json(tmp_path / "config.json", {"stage": "sft", "settings": {"max_steps": 9}})
    assert unfinished_runs([model]) == [f"{tmp_path} has not finished; checkpoint-1 of 9 plays"]
    write_json(tmp_path / "report.json", {})
    assert unfinished_runs([model]) == []
    write_json(model / "reflectkit.json", {"env": "memory", "env_settings": {"brief": True}})
    assert settings_mismatches(EnvConfig.from_flat(env="memory"), [model]) == [text]


def test_a_model_that_writes_without_a_chat_template_is_told(tmp_path: Path) -> None:
    tokenizer = copy.deepcopy(plain_tokenizer())
    prompts, corridor = EnvConfig.from_flat(env="prompts"), EnvConfig.from_flat(env="corridor")
    models = [tmp_path / "base", tmp_path / "chat"]
    for model, template in zip(models, (None, "{{ messages[0]['content'] }}"), strict=True):
        tokenizer.chat_template = template
        tokenizer.save_pretrained(model)
        write_json(model / "config.json", {"model_type": "llama"})
    assert [text.split()[0] for text in template_mismatches(prompts, [ModelRef(str(model)) for model in models])] == [
        str(models[0])
    ]
    assert not template_mismatches(corridor, [ModelRef(str(model)) for model in models])


@pytest.mark.parametrize("here", ["maze.py:Maze", "games/maze.py:Maze", "class:Maze-01234567", "other.py:Walk", "taxi"])
def test_a_class_is_the_same_env_however_it_is_named(tmp_path: Path, here: str) -> None:
    for there in ("maze.py:Maze", "class:Maze-89abcdef"):
        write_json(tmp_path / "reflectkit.json", {"env": there, "prompts": PROMPT_VERSION})
        assert bool(env_mismatches(here, [tmp_path])) == ("Maze" not in here)
