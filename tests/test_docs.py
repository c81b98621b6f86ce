"""The documentation: its commands parse, and its pages run as they stand.

A fenced block without a language holds shell commands. `<!-- needs: … -->` in the line above it says why no test runs
it. All other blocks are run here from top to bottom, in an empty folder; those of CONTRIBUTING in other tests. Blocks
that need only what the quick start leaves behind (`QUICK_START`) are run in a copy of its folder, whose models have
hardly been trained.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import importlib.util
import io
import os
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import reflectkit
from docs.command_pages import page
from reflectkit.cli.app import stage_command
from reflectkit.cli.main import main
from reflectkit.commands import STAGES
from reflectkit.jsonl import read_json, write_json
from tests.conftest import built_once
from tests.examples import examples, run_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENVIRONMENTS = sorted((DOCS / "environments").glob("*.md"))
PAGES = [
    ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", *sorted(DOCS.glob("*.md")), *ENVIRONMENTS,
    DOCS / "commands/index.md",
    *sorted((ROOT / "research").glob("*.md")),
]  # fmt: skip
RUN_SLOWLY = [
    ROOT / "README.md",
    *(DOCS / f"{name}.md" for name in (
        "data", "slime", "sft", "file-formats", "your-own-model", "your-own-environment", "environments/taxi",
        "environments/auto-explore", "environments/memory", "environments/support",
    )),
]  # fmt: skip
AFTER_QUICK_START = ["rl", "evaluation"]
WITH_MODELS = ["acting", "python"]
QUICK_START = "results/taxi-tiny-fast (the quick start)"
LOGS_FIRST = "an hour of one core"
RECIPE = re.compile(r"as `(\w+\.yaml)`:\n+```yaml\n(.*?)^```$", re.M | re.S)
FENCED = re.compile(r"^(?:<!-- needs: (?P<needs>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    needs: str | None
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Its commands, each on one line; without those inside the quotes of another."""
        text = re.sub(r'"\n(?:.*\n)*?.*"(?=\n)', '"…"', self.text)
        return [line for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.strip()]


def blocks(text: str) -> list[Block]:
    return [Block(match["needs"], match["language"], match["text"]) for match in FENCED.finditer(text)]


def commands(line: str) -> Iterator[list[str]]:
    """The reflectkit commands in a line of a shell, without `reflectkit` itself."""
    if not re.match(r"(?:reflectkit|torchrun|accelerate) ", line):
        return
    words = shlex.split(line.removesuffix(" &"), comments=True)
    while "reflectkit" in words:
        words = words[words.index("reflectkit") + 1 :]
        end = words.index("&&") if "&&" in words else len(words)
        yield words[:end]
        words = words[end:]


def parse(words: list[str]) -> None:
    """Raises unless `reflectkit WORDS` can be given. Commands with files of the reader's own are left out, and so are
    those with an environment whose package is missing.
    """
    own = any(word.endswith(".yaml") for word in words)
    no_package = importlib.util.find_spec("beelinebench") is None and any(word.startswith("beeline:") for word in words)
    if words[0] in STAGES and not own and not no_package and "--help" not in words and "…" not in words:
        stage_command(words[0], words[1:]).make_context(words[0], words[1:])


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_commands_on_the_page_parse(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text("utf-8")
    for name, code in (examples(DOCS / "your-own-environment.md") | examples(path)).items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    for block in blocks(text):
        for line in block.lines if not block.language else ():
            for words in commands(line):
                parse(words)
                if words[0] == "new":
                    assert main(words) == 0
    for name in examples(path):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("stage", STAGES)
def test_examples_of_the_command_parse(stage: str) -> None:
    for example in importlib.import_module(STAGES[stage].module).EXAMPLES:
        found = list(commands(example))
        assert found, example
        for words in found:
            parse(words)


RUN_ELSEWHERE = {
    ROOT / "CONTRIBUTING.md", *RUN_SLOWLY, *(DOCS / f"{name}.md" for name in (*AFTER_QUICK_START, *WITH_MODELS)),
}  # fmt: skip
RUN = [
    path
    for path in PAGES
    if path not in RUN_ELSEWHERE and any(not block.needs for block in blocks(path.read_text("utf-8")))
]


@pytest.mark.parametrize(
    "path", [*RUN, *(pytest.param(path, marks=pytest.mark.slow) for path in RUN_SLOWLY)], ids=page_id
)
def test_the_page_runs(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks(path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", AFTER_QUICK_START)
def test_the_page_runs_after_the_quick_start(
    name: str, quick_start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(quick_start, tmp_path / "folder")
    monkeypatch.chdir(folder)
    run_blocks(DOCS / f"{name}.md", monkeypatch, capsys, met=(QUICK_START,))


@pytest.mark.slow
def test_the_agent_of_the_page_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the page's commands, with two updates instead of what it says."""
    page = tmp_path / "train-your-agent.md"
    text = re.sub(r"--max-steps \d+", "--max-steps 2", (DOCS / page.name).read_text("utf-8"))
    text = text.replace("--episodes 32", "--episodes 8").replace("--validate-problems 50", "--validate-problems 2")
    page.write_text(text)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    run_blocks(page, monkeypatch, capsys, met=(LOGS_FIRST,))
    for name in ("rl", "rl-comments"):
        assert read_json(Path(f"results/boxes/{name}/held_out.json")).keys() == {"before", "after"}


@pytest.fixture(scope="module")
def quick_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `reflectkit run taxi-tiny --fast` leaves behind, after very few steps."""
    few = ["sft.max_steps=2", "rlft.max_steps=1", "rlft.episodes=16", "evaluate.eval_reps=1"]

    def build(folder: Path) -> None:
        folder.mkdir()
        with contextlib.chdir(folder):
            assert main(["run", "taxi-tiny", "--fast", *(word for each in few for word in ("--set", each))]) == 0

    return built_once(tmp_path_factory, "quick-start", build)


def run_blocks(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    met: Collection[str] = (),
) -> None:
    """Run the blocks of the page at `path` in the working directory, but those with needs that are not `met`.
    Standard input ends after two lines, which ends a person's play.
    """
    programs = {code: module for module, code in examples(path).items()}
    recipes = {code: name for name, code in RECIPE.findall(path.read_text("utf-8"))}
    for block in blocks(path.read_text("utf-8")):
        if block.needs is not None and block.needs not in met:
            continue
        if block.language == "python" and block.text in programs:
            Path(f"{programs[block.text]}.py").write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, str(path), "exec"), {"__name__": path.stem})
        elif block.text in recipes:
            Path(recipes[block.text]).write_text(block.text, encoding="utf-8")
        for line in block.lines if not block.language else ():
            words = shlex.split(line, comments=True)
            monkeypatch.setattr(sys, "stdin", io.StringIO("1\nh\n"))
            if words[:2] == ["python", "-m"]:
                monkeypatch.setattr(sys, "argv", words[2:])
                runpy.run_module(words[2], run_name="__main__")
            elif words[0] == "python":
                with monkeypatch.context() as patch:
                    patch.syspath_prepend(str(Path.cwd()))
                    runpy.run_path(words[1], run_name="__main__")
            else:
                assert main(words[1:]) == 0, (line, capsys.readouterr().err)
    for module in programs.values():
        monkeypatch.delitem(sys.modules, module, raising=False)


@pytest.mark.parametrize("name", WITH_MODELS)
def test_the_python_of_the_page_runs(
    name: str, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With untrained models in the places that the page names."""
    for role, place in (("policy", "reflect-rl/checkpoint-24"), ("reflection", "reflector/checkpoint-100")):
        folder = shutil.copytree(checkpoints[role], tmp_path / "results" / "taxi-tiny-fast" / place)
        write_json(folder / "reflectkit.json", read_json(folder / "reflectkit.json") | {"env": "taxi"})
    names = run_page(DOCS / f"{name}.md")
    if name == "acting":
        names["agent"].close()
    assert capsys.readouterr().out


def test_the_pages_of_the_commands_are_what_help_says() -> None:
    for name in STAGES:
        text = (DOCS / "commands" / f"{name}.md").read_text("utf-8")
        assert text == page(name), "run `python docs/command_pages.py docs/commands`"


PACKAGE = Path(reflectkit.__file__).parent
MODULES = [
    ".".join(("reflectkit", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in sorted(PACKAGE.rglob("*.py"))
    if "boxed" not in path.parts and ">>> " in path.read_text("utf-8")
]


OPTIONAL = {"reflectkit.envs.beeline.trials": "beelinebench"}
"""The package that a module imports and that the tests do without."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_print_what_they_say(name: str) -> None:
    package = OPTIONAL.get(name)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{name} needs {package}")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


NAMED = re.compile(r"`([\w/]+)\.py`: ((?:`[\w.]+`(?:, )?)+)")


def test_the_design_page_names_code_where_it_is() -> None:
    """Each function or class that stands after a file on the page is defined in that file."""
    named = NAMED.findall((DOCS / "design.md").read_text("utf-8"))
    assert len(named) > 30
    for path, names in named:
        module = importlib.import_module(f"reflectkit.{path.replace('/', '.')}")
        for name in re.findall(r"`([\w.]+)`", names):
            value: object = module
            for part in name.split("."):
                value = getattr(value, part)
            assert getattr(value, "__module__", module.__name__) == module.__name__, name
