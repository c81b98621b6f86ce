"""An environment in a file of its own: the example in CONTRIBUTING and what `new` writes run, its setting is a flag, an
environment without a base works, packages offer environments and players, and mistakes in such a file are one line.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import reflectkit
from reflectkit.cli.main import main
from reflectkit.envs import data_folder, env_class
from reflectkit.errors import is_user_code
from reflectkit.jsonl import read_json, read_jsonl, write_json, write_jsonl
from tests.examples import own_module, save_example
from tests.writing import writing_model


@pytest.fixture
def module(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The example in CONTRIBUTING under a module name of this test's, in the working directory and on the
    Python path.
    """
    name = own_module(request.node)
    save_example("my_lock", name, tmp_path, monkeypatch)
    return name


def test_the_example_goes_through_the_data_stages_and_evaluation(module: str) -> None:
    env = ["--env", f"{module}:Lock"]
    assert main(["gen-trajectory", *env, "--turn-cost", "0.2", "--noise", "0"]) == 0
    assert main(["split", *env]) == 0
    assert main(["gen-sft", *env, "--turn-cost", "0.2"]) == 0
    assert len(Path("data/lock/sft.jsonl").read_text().splitlines()) > 40
    assert main(["evaluate", *env, "--turn-cost", "0.2", "--policy", "oracle", "--name", "lock"]) == 0
    assert read_json(Path("results/lock/config.json"))["settings"]["turn_cost"] == 0.2
    (row,) = read_json(Path("results/lock/eval.json"))["rows"]
    assert row["success"] == 1
    assert row["return"] == pytest.approx(1 - 0.2 * (row["steps"] - 1))  # all steps but the last are turns


def test_its_setting_is_a_key_of_files_and_recipes(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("settings.yaml").write_text(f"env: {module}:Lock\nturn_cost: much\npolicy: random\n", encoding="utf-8")
    assert main(["evaluate", "--config", "settings.yaml"]) == 2
    assert "evaluate: --turn-cost must be a valid number, got 'much'" in capsys.readouterr().err
    step = {"name": "evaluation", "stage": "evaluate", "policy": ["oracle"]}
    defaults: dict[str, Any] = {"env": f"{module}:Lock", "turn_cost": 0.3}
    write_json(Path("mine.yaml"), {"description": "", "defaults": defaults, "steps": [step]})
    assert main(["run", "mine.yaml", "--set", "defaults.turn_cost=0.4"]) == 0
    assert read_json(Path("results/mine/evaluation/config.json"))["settings"]["turn_cost"] == 0.4
    capsys.readouterr()
    assert main(["run", "mine.yaml", "--set", "evaluation.turn_cots=0.4"]) == 2
    assert "did you mean 'turn_cost'" in capsys.readouterr().err


def test_an_edit_makes_a_new_run(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Another environment of the same name has other demonstrations: what was made with the old code is not taken."""
    made = [["gen-trajectory", "--noise", "0"], ["split"], ["gen-sft"], ["evaluate", "--policy", "oracle"]]
    commands = [[*command, "--env", f"{module}:Lock"] for command in made]
    assert [main(command) for command in commands] == [0] * 4
    capsys.readouterr()
    assert [main(command) for command in commands] == [0] * 4
    assert capsys.readouterr().out.count("Already finished") == 4
    assert read_json(Path("results/1_gen-trajectory/config.json"))["inputs"].keys() == {f"{module}.py"}

    file = Path(f"{module}.py")
    file.write_text(file.read_text("utf-8").replace("opens the lock", "is the digit"), encoding="utf-8")
    assert [main(command) for command in commands] == [0] * 4
    assert "Already finished" not in capsys.readouterr().out


DRIFTING = """
import random
from reflectkit.envs.corridor import Corridor

class Drifting(Corridor):
    def _text(self):
        return f"{super()._text()} {random.random()}"
"""


def test_an_env_that_differs_each_time_makes_no_rows(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"{module}.py").write_text(DRIFTING, encoding="utf-8")
    made = [["gen-trajectory", "--demonstrations", "6"], ["split"], ["gen-sft"]]
    assert [main([*command, "--env", f"{module}:Drifting"]) for command in made] == [0, 0, 2]
    assert "differs when it is played again with the same seed" in capsys.readouterr().err
    assert not list(Path("data").rglob("sft.jsonl"))


IN_A_FILE = """
from reflectkit import ChoiceEnv, Task
from {neighbour} import TEXT

class NoEnv:
    pass

class Door(ChoiceEnv):
    choices = ("push", "pull")

    @classmethod
    def tasks(cls, level):
        return [Task("one", "door", level, "one", {{}})]

    def _begin(self, task, seed):
        pass

    def _text(self):
        return TEXT

    def _move(self, action):
        return float(action), True, {{"success": action == 1}}
"""


@pytest.mark.parametrize(
    ("form", "neighbour"),
    [
        ("folder/{}.py:Door", "{}_text"),
        ("folder/{}.py", "{}_text"),
        ("run:1/{}.py", "{}_text"),
        ("{}:Door", "{}_text"),
        ("{}:Door", "{}_parts.text"),
    ],
)
def test_an_environment_is_named_by_its_file(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, neighbour: str
) -> None:
    """Its neighbours can be imported, also from a folder without `__init__.py`; its name is the class's, and both files
    are inputs of the run.
    """
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    name = own_module(request.node)
    folder = Path(form).parent
    text = folder / f"{neighbour.format(name).replace('.', '/')}.py"
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text('TEXT = "A door."', encoding="utf-8")
    (folder / f"{name}.py").write_text(IN_A_FILE.format(neighbour=neighbour.format(name)), encoding="utf-8")
    assert main(["evaluate", "--env", form.format(name), "--policy", "random", "--name", "door"]) == 0
    inputs = read_json(Path("results/door/config.json"))["inputs"]
    assert inputs.keys() == {str(folder / f"{name}.py"), str(text)}


PARTS = """
class Inner:
    choices, horizon = ["a", "b"], 1
    def reset(self, seed): return "?"
    def step(self, choice): return "?", 1.0, True

def same(completions, value, **more): return [value]
"""
NAMING = """
from functools import partial
from {name}_parts import Inner as Outer, same
half = partial(same, value=0.5)
"""


def test_a_class_called_as_an_included_env_has_files_of_its_own(request: pytest.FixtureRequest) -> None:
    """It read the problems and demonstrations of the taxi of the package."""
    file = Path(f"{own_module(request.node)}.py")
    file.write_text(
        "from reflectkit.envs.taxi import Taxi as Included\n\n\n"
        "class Taxi:\n"
        "    choices = ('left', 'right')\n\n"
        "    def reset(self, seed):\n"
        "        return ''\n\n"
        "    def step(self, choice):\n"
        "        return '', 0.0, True\n",
        encoding="utf-8",
    )
    assert data_folder(f"{file}:Taxi", Path("data")) == Path("data/own-taxi")
    assert env_class(f"{file}:Taxi").name == "own-taxi"
    for name in ("taxi", "reflectkit.envs.taxi:Taxi", f"{file}:Included"):
        assert data_folder(name, Path("data")) == Path("data/taxi")


GAME = """
import reflectkit


class Guide(reflectkit.Teacher):
    def action(self):
        return {best}

    def comment(self, generator):
        return "Go there."


class Game:
    choices, horizon, teacher_type = ("left", "right"), 1, Guide

    def reset(self, seed):
        return ""

    def step(self, choice):
        return "", 1.0, True
"""


def test_a_class_does_not_read_the_data_of_another_of_its_name(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows of one game were made of the demonstrations of another."""
    name = own_module(request.node)
    first, second = Path(f"{name}_a.py"), Path(f"{name}_b.py")
    for best, file in enumerate((first, second)):
        file.write_text(GAME.format(best=best), encoding="utf-8")
    assert main(["gen-trajectory", "--env", f"{first}:Game", "--demonstrations", "4"]) == 0
    capsys.readouterr()
    for command in ("gen-trajectory", "split", "gen-sft"):
        assert main([command, "--env", f"{second}:Game"]) == 2
        assert f"a class of the same name in {first.resolve()}; rename one" in capsys.readouterr().err
    assert main(["split", "--env", f"{first}:Game"]) == 0
    for command in (["evaluate", "--policy", "random"], ["sft", "--role", "plain"], ["rlft", "--model", "tiny"]):
        assert main([*command, "--env", f"{second}:Game"]) == 2
        assert "a class of the same name in" in capsys.readouterr().err
    assert main(["split", "--env", f"{second}:Game", "--data-dir", "others", "--ratio", "1:1:1"]) == 2  # nothing there
    # A file that is gone was moved
    first.rename(f"{name}_c.py")
    assert main(["split", "--env", f"{name}_c.py:Game", "--ratio", "1:1:1"]) == 0
    assert read_json(Path("data/game/class.json")) == {"file": f"../../{name}_c.py"}


SHARED = """
import random


class Grid:
    choices, horizon = ("left", "right", "wait"), 6
    cells = [0, 0]

    def reset(self, seed):
        self.cells[:] = random.Random(seed).sample(range(9), 2)
        return f"{self.cells}"

    def step(self, choice):
        self.cells[0] += 1
        reward = float((choice == "left") == (self.cells[0] > self.cells[1]))
        return f"{self.cells}", reward, choice != "wait"


class Alone(Grid):
    max_concurrency = 1


class Grows(Grid):
    def reset(self, seed):
        self.cells.append(seed)
        return f"{len(self.cells)}"


class Owned(Grid):
    def reset(self, seed):
        self.cells = [0, 0]
        return super().reset(seed)
"""


TOLD = ("change one another; make its lists", "an episode that is played again goes another way")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Grid", "change one another; make its lists"),
        ("Grows", "an episode that is played again goes another way"),
        ("Alone", ""),
        ("Owned", ""),
    ],
)
def test_episodes_that_share_a_list_are_noticed(
    name: str, told: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """Episodes at the same time wrote over each other's cells, and nothing said so."""
    file = Path(f"{own_module(request.node)}.py")
    file.write_text(SHARED, encoding="utf-8")
    assert main(["evaluate", "--env", f"{file}:{name}", "--policy", "random", "--problems", "4"]) == 0
    said = capsys.readouterr().out
    assert [part for part in TOLD if part in said] == ([told] if told else [])
    training = ["--model", "tiny", "--max-steps", "1", "--episodes", "4"]
    if name == "Grows":  # refused when it is trained on
        assert main(["rlft", "--env", f"{file}:{name}", *training]) == 2
        return
    assert main(["rlft", "--env", f"{file}:{name}", *training]) == 0
    said = capsys.readouterr().out
    assert [part for part in TOLD if part in said] == ([told] if told else [])


WRONG_METHODS = """
import reflectkit


class Asks(reflectkit.Teacher):
    def action(self, state):
        return 0


class Knows(reflectkit.Teacher):
    action = 0


class Game:
    choices = ("left", "right")

    def reset(self, seed):
        return ""

    def step(self, choice):
        return "", 1.0, True


class Asked(Game):
    teacher_type = Asks


class Known(Game):
    teacher_type = Knows


class Short(reflectkit.Env):
    def reset(self, task):
        pass

    def step(self, action):
        pass
"""


def test_a_method_that_takes_other_arguments_is_one_line(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was called an internal error."""
    file = Path(f"{own_module(request.node)}.py")
    file.write_text(WRONG_METHODS, encoding="utf-8")
    for name, message in (
        ("Asked", "line 6: Asks has action(self, state); write def action(self)"),
        ("Known", "action of Knows is 0; write a method, def action(self)"),
        ("Short", "Short has reset(self, task); write def reset(self, task, seed)"),
    ):
        assert main(["play", "--env", f"{file}:{name}", "--policy", "random", "--auto"]) == 2
        assert message in capsys.readouterr().err


def test_the_file_that_names_others_code_is_an_input_too(request: pytest.FixtureRequest) -> None:
    name = own_module(request.node)
    Path(f"{name}_parts.py").write_text(PARTS, encoding="utf-8")
    Path(f"{name}.py").write_text(NAMING.format(name=name), encoding="utf-8")
    write_jsonl(Path("rows.jsonl"), [{"prompt": "?"}])
    files = {f"{name}.py", f"{name}_parts.py"}
    prompts = ["--env", "prompts", "--dataset", "rows.jsonl", "--reward", f"{name}.py:half"]
    for options, inputs in ((["--env", f"{name}.py:Outer"], files), (prompts, files | {"rows.jsonl"})):
        assert main(["evaluate", *options, "--policy", "random", "--problems", "1", "--name", "named"]) == 0
        assert read_json(Path("results/named/config.json"))["inputs"].keys() == inputs
        shutil.rmtree("results/named")


def test_packages_offer_environments_and_players(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "a_package-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: a-package\nVersion: 1.0\n", encoding="utf-8")
    (package / "entry_points.txt").write_text(
        f"[reflectkit.envs]\nlock = {module}:Lock\nbroken = {module}_broken:Lock\n"
        f"[reflectkit.players]\nfirst = {module}_player:make\n",
        encoding="utf-8",
    )
    Path(f"{module}_broken.py").write_text("raise OSError('no\\nlock')", encoding="utf-8")
    Path(f"{module}_player.py").write_text("from reflectkit.agents.scripted import Oracle as make", encoding="utf-8")
    monkeypatch.setenv("COLUMNS", "400")
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["lock", "levels:", "one-digit"] for line in lines)
    assert all(line.startswith(("  ", "environments: ", "recipes: ")) and line[2:3] != " " for line in lines)
    (broken,) = [line for line in lines if line.startswith("  broken ")]
    assert f"of a-package ({module}_broken:Lock): OSError: no lock; fix or remove that package" in broken
    assert main(["evaluate", "--env", "lock", "--turn-cost", "0", "--policy", "first", "--name", "lock"]) == 0
    (row,) = read_json(Path("results/lock/eval.json"))["rows"]
    assert (row["name"], row["success"], row["return"]) == ("first", 1, 1)


RULES = """
import reflectkit


def first(text, choices):
    return choices[0]


def second(text, choices):
    return 1


def third(text, choices):
    return 2


def short(text):
    return 0


class Agent:
    async def decide(self, observation, context):
        return reflectkit.Decision(1)


class Waits:
    def decide(self, observation, context):
        return reflectkit.Decision(1)


class Made(Agent):
    def __init__(self, size):
        pass
"""


def test_rlft_ends_with_commands_that_work(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(f"{own_module(request.node)}.py")
    file.write_text(GAME.format(best=0), encoding="utf-8")
    few = ["--model", "tiny", "--max-steps", "1", "--episodes", "4", "--validate-problems", "0"]
    shared = ["--horizon", "2", "--shuffle-action", "--data-dir", "other data"]
    assert main(["rlft", "--env", f"{file}:Game", *few, *shared, "--reflector", "oracle", "--name", "rl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    commands = [shlex.split(line)[1:] for line in lines[lines.index("Next:") + 1 :]]
    assert [command[0] for command in commands] == ["evaluate", "play", "plot"]
    for command in commands:
        assert "results/rl+oracle" in command or command[0] == "plot"
        assert main(command) == 0


def test_a_rule_in_a_file_is_a_player(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    name = own_module(request.node)
    game, rules = Path(f"{name}_game.py"), Path(f"{name}_rules.py")
    game.write_text(GAME.format(best=0).replace("1.0", 'float(choice == "left")'), encoding="utf-8")
    rules.write_text(RULES, encoding="utf-8")
    players = [f"{rules}:first", f"mine={rules}:second", f"{rules}:Agent"]
    flags = [word for player in players for word in ("--policy", player)]
    evaluate = ["evaluate", "--env", f"{game}:Game", "--problems", "2"]
    assert main([*evaluate, *flags, "--name", "rules"]) == 0
    rows = read_json(Path("results/rules/eval.json"))["rows"]
    assert [(row["name"], row["return"]) for row in rows] == [("first", 1), ("mine", 0), ("Agent", 0)]
    assert str(rules) in read_json(Path("results/rules/config.json"))["inputs"]
    assert main(["play", "--env", f"{game}:Game", "--policy", f"{rules}:first", "--auto"]) == 0
    capsys.readouterr()
    for player, message in (
        ("third", "returned 2, and the choices are ('left', 'right'); write def third(text, choices)"),
        ("short", "too many positional arguments; write def short(text, choices)"),
        ("Waits", "has no async def decide(self, observation, context)"),
        ("Made", "is made without arguments, but: missing a required argument: 'size'"),
        ("frist", "did you mean"),
    ):
        assert main([*evaluate, "--policy", f"{rules}:{player}"]) == 2
        assert message in capsys.readouterr().err


def test_a_name_of_a_module_of_python_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """In that folder, everything that imports the module would have got the environment."""
    assert main(["new", "json"]) == 2
    assert "'json' is a module of Python; write another name, e.g. my_json" in capsys.readouterr().err
    assert not Path("json.py").exists()


@pytest.mark.parametrize("kind", ["choices", "tools", "prompts"])
def test_what_it_writes_is_trained_by_the_command_that_it_prints(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    name = f"new_{kind}"
    assert main(["new", name, "--kind", kind]) == 0
    printed = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("  reflectkit")]
    assert [command[0] for command in printed] == ["play", "rlft"]
    model = str(writing_model(Path("model")))
    train = [re.sub(r"Qwen/\S+", model, argument) for argument in printed[1]]
    few = ["--max-steps", "1", "--episodes", "8", "--validate-problems", "0", "--max-new-tokens", "8"]
    assert main([*train, *few, "--name", "rl"]) == 0
    inputs = read_json(Path("results/rl/config.json"))["inputs"]
    written = {f"{name}.py"} | ({f"{name}.jsonl"} if kind == "prompts" else set())
    assert written <= inputs.keys()
    if kind != "prompts":
        assert env_class(f"{name}.py").__name__ == f"New{kind.capitalize()}"
        play = [*printed[0], "--policy", "random", "--auto"]
        assert main(play) == 0


SHOP = """
class Shop:
    choices, horizon = ["sell"], 2

    def reset(self, seed):
        self.day = 0
        return f"{seed % 5} people wait."

    def step(self, choice):
        self.day += 1
        return "Some people wait.", 1.5, self.day == 2, {"profit": 1.5 * self.day}
"""


def test_a_profit_is_what_is_shown_and_a_game_without_a_decision_is_told(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    name = own_module(request.node)
    Path(f"{name}.py").write_text(SHOP, encoding="utf-8")
    few = ["--max-steps=1", "--episodes=8", "--validate-problems=4", "--validate-steps=1"]
    assert main(["rlft", f"--env={name}.py:Shop", "--model=tiny", *few, "--name=rl"]) == 0
    assert "nothing to decide" in " ".join(capsys.readouterr().out.split())
    figures = read_json(Path("results/rl/report.json"))["figures"]
    assert (figures["return"], figures["profit"], "success_rate" in figures) == (3.0, 3.0, False)
    assert all("success" not in found and found["return"] == 3 for found in figures["held_out"].values())
    (row,) = [row for _, row in read_jsonl(Path("results/rl/metrics.jsonl"))]
    assert (row["validation_profit"], "validation_success_rate" in row) == (3.0, False)
    players = ["--policy=RL=results/rl", "--policy=random"]
    assert main(["evaluate", f"--env={name}.py:Shop", *players, "--problems=4", "--name=e"]) == 0
    assert main(["plot", "--runs=results/rl", "--name=curves"]) == 0
    assert main(["plot", "--evals=results/e", "--name=bars"]) == 0
    assert read_json(Path("results/bars/report.json"))["figures"] == {"RL all": 3.0, "random all": 3.0}


@pytest.mark.parametrize(
    ("algo", "told", "not_told"),
    [
        ("ppo", "every episode of updates 1 to 1 has a return of 0; try more --episodes", "--no-normalize"),
        ("reinforce", "try more --episodes", "--no-normalize"),
        ("grpo", "a larger --group-size", "more --episodes, easier"),
    ],
)
def test_advice_where_no_episode_differs_suits_the_algorithm(
    algo: str, told: str, not_told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "void.py").write_text(
        "class Void:\n"
        "    choices, horizon = ['left', 'right'], 2\n"
        "    def reset(self, seed):\n        return f'Room {seed % 3}.'\n"
        "    def step(self, choice):\n        return 'The end.', 0.0, True\n"
    )
    env = ["--env", f"{tmp_path / 'void.py'}:Void", "--model", "tiny", "--algo", algo]
    assert main(["rlft", *env, "--max-steps", "1", "--episodes", "16", "--validate-problems", "0"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert output.count("nothing to learn") == 1
    assert told in output
    assert not_told not in output


def test_problems_of_different_returns_are_something_to_learn_without_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rooms.py").write_text(
        "class Rooms:\n"
        "    choices, horizon = ['left', 'right'], 2\n"
        "    def reset(self, seed):\n        self.n = seed % 3\n        return f'Room {self.n}.'\n"
        "    def step(self, choice):\n        return 'The end.', float(self.n), True\n"
    )
    env = ["--env", f"{tmp_path / 'rooms.py'}:Rooms", "--model", "tiny", "--group-size", "8"]
    few = ["--max-steps", "1", "--episodes", "32", "--validate-problems", "0"]
    assert main(["rlft", *env, *few, "--algo", "ppo"]) == 0
    assert "nothing to learn" not in capsys.readouterr().out
    assert main(["rlft", *env, *few, "--algo", "grpo"]) == 0
    assert "nothing to learn" in capsys.readouterr().out


def test_code_next_to_the_package_is_the_users() -> None:
    """A clone's folder is where people work."""
    package = Path(reflectkit.__file__).parent
    assert is_user_code(str(package.with_name("maze.py")))
    assert is_user_code(str(package.with_name("reflectkit_maze.py")))
    assert not is_user_code(str(package / "env.py"))


BROKEN = """
class Broken:
    choices = ("a", "b")
    def reset(self, seed): return "?"
    def step(self, choice): return "?", 1.0
"""


def test_an_environment_is_tried_before_torch_is_loaded(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    file = f"{own_module(request.node)}.py"
    Path(file).write_text(BROKEN)
    assert main(["rlft", "--env", file, "--model", "tiny"]) == 2
    told = capsys.readouterr()
    assert "step() of Broken returned ('?', 1.0)" in told.err
    assert "torch" not in told.out
