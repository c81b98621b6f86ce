"""The commands as Python functions, with an environment's class instead of its name."""

from __future__ import annotations

import ast
import dataclasses
import functools
import random
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest

import reflectkit
from docs.python_keywords import PLACE, module, names_module
from reflectkit.envs.python_classes import env_of, has_source, name_of
from reflectkit.errors import ConfigError, DataError
from reflectkit.flag_names import FLAG_NAMES

NOTEBOOK = Path(__file__).parents[2] / "examples" / "maze.ipynb"
STEP = -0.1
FEW = {"model": "tiny", "max_steps": 2, "episodes": 8, "validate_problems": 4}


class Walk:
    """Walk to the right."""

    choices, horizon = ("left", "right"), 6

    def reset(self, seed: int) -> str:
        self.place = random.Random(seed).randrange(4)
        return f"cell {self.place}"

    def step(self, choice: str) -> tuple[str, float, bool]:
        self.place = max(0, self.place + (1 if choice == "right" else -1))
        return f"cell {self.place}", 1.0 if self.place == 4 else STEP, self.place == 4


def test_a_class_trains_plots_evaluates_and_acts() -> None:
    trained = reflectkit.rlft(env=Walk, **FEW)
    assert list(trained.metrics["step"]) == [1, 2]
    assert set(trained.held_out["player"]) == {"before", "after", "random"}
    assert trained.plot().path.read_bytes().startswith(b"\x89PNG")
    again = reflectkit.rlft(env=Walk, **FEW)
    assert again.report.skipped
    assert again.folder == trained.folder

    compared = reflectkit.evaluate(env=Walk, policy={"walker": trained, "random": "random"}, problems=3)
    assert list(compared.episodes.groupby("name").size()) == [3, 3]
    assert "<td>walker</td>" in compared._repr_html_()
    assert trained.policy.act("cell 3", choices=list(Walk.choices)).action in Walk.choices


@pytest.mark.parametrize("env", [Walk(), lambda: Walk(), None])
def test_an_object_is_no_environment(env: Any) -> None:
    for use in (reflectkit.make, lambda env: reflectkit.evaluate(env=env, policy="random")):
        with pytest.raises(ConfigError, match="is no environment's name or class; give its class"):
            use(env)


def test_the_source_of_a_class_is_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name = name_of(Walk)
    assert name_of(Walk) == name
    assert env_of(name.removeprefix("class:")) is Walk
    assert Walk.__annotations__ == {}  # who asks for them adds them
    assert name_of(Walk) == name
    monkeypatch.setattr(sys.modules[__name__], "STEP", -0.2)
    assert name_of(Walk) != name

    source = "class Short:\n    choices = ('a', 'b')\n    def reset(self, seed): return 'go'\n"
    unknown: dict[str, type] = {}
    exec(source, {"__name__": "typed"}, unknown)
    assert not has_source(unknown["Short"])
    assert name_of(unknown["Short"]) != name_of(unknown["Short"])


WALLS: Any = {(0, 1)}
LARGE = numpy.zeros(2000)


class Rule:
    """What something else decides by."""

    limit = 3

    def holds(self, place: int) -> bool:
        return place < self.limit


RULE = Rule()


@functools.lru_cache
def free(place: tuple[int, int]) -> bool:
    return place not in WALLS and LARGE[1000] == 0 and RULE.holds(place[0])


def bounded(limit: int) -> type:
    class Bounded(Walk):
        def step(self, choice: str, cost: float = STEP) -> tuple[str, float, bool]:
            return str(free((0, limit))), cost, True

    return Bounded


@dataclasses.dataclass
class Sized:
    choices: ClassVar[tuple[str, ...]] = ("left", "right")
    size: int = 3

    def reset(self, seed: int) -> str:
        return "?" * self.size


def test_what_decides_and_is_no_json_is_in_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished run of another maze would be taken for this one's."""
    name = name_of(bounded(3))
    assert name_of(bounded(3)) == name
    names = [name, name_of(bounded(4))]
    wall, large = {(0, 2)}, LARGE.copy()
    large[1000] = 1
    for owner, attribute, value in (
        (sys.modules[__name__], "WALLS", wall),
        (sys.modules[__name__], "LARGE", large),
        (RULE, "limit", 4),
        (Rule, "holds", lambda rule, place: False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, value, raising=False)
            names.append(name_of(bounded(3)))
    assert len(set(names)) == 6
    assert has_source(Sized)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": Walk, "model": "tiny", "processes": 2}, "class of this program"),
        ({"env": Walk, "model": "tiny", "episode": 8}, "episodes"),
        ({"env": "class:Walk-00000000", "model": "tiny"}, "another Python program"),
        ({"env": Walk}, "--policy CHECKPOINT"),
        ({"env": Walk, "policy": lambda seen: 0}, "give a name, a path or a Result"),
        ({"env": "taxi", "model": "tiny", "episodes": 0}, "episodes"),
    ],
)
def test_a_mistake_is_one_line(settings: dict[str, object], words: str) -> None:
    with pytest.raises(reflectkit.ReflectkitError, match=words) as caught:
        reflectkit.rlft(**settings)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_player_without_weights_keeps_its_name() -> None:
    with pytest.raises(reflectkit.ReflectkitError, match="random keeps its own name"):
        reflectkit.evaluate(env=Walk, policy={"chance": "random"})


def test_editors_know_the_settings() -> None:
    written, expected = (ast.dump(ast.parse(text)) for text in (PLACE.read_text(encoding="utf-8"), module()))
    assert written == expected, "run `python docs/python_keywords.py`, and format the file"


def test_the_names_of_all_flags_are_known() -> None:
    names: dict[str, frozenset[str]] = {}
    exec(names_module(), names)
    assert names["FLAG_NAMES"] == FLAG_NAMES, "run `python docs/python_keywords.py`"


def test_the_notebook_runs(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(NOTEBOOK, 4)
    for cell in book.cells:
        cell.source = cell.source.replace("max_steps=60", "max_steps=1, episodes=8, validate_problems=2")
        cell.source = cell.source.replace('"random"])', '"random"], problems=2)')
    nbclient.NotebookClient(book, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in book.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert "action=" in shown[-1]["data"]["text/plain"]


def test_demonstrations_become_a_model_in_python(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a dict"):
        reflectkit.split(env="corridor", env_settings=3)
    with pytest.raises(DataError, match=r"run `reflectkit.gen_trajectory\(env=Walk\)` first"):
        reflectkit.split(env=Walk)
    for step in (reflectkit.gen_trajectory, reflectkit.split, reflectkit.gen_sft):
        made = step(env="corridor")
    assert "data/corridor/sft.jsonl" in map(str, made.report.outputs)
