"""What README, the pages, the help and the Makefile say is there: each path in `results/` and `data/` is made by a
recipe, or by a command that stands before it. Nothing runs: `made.py` tells from the settings. Also what the pages say
about the code.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflectkit.commands import STAGES
from reflectkit.envs import ENVS
from reflectkit.envs.memory.retrieval import READER_TOKENS
from reflectkit.recipe import recipe_names
from tests.examples import examples
from tests.made import made_by_command, made_by_run

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs/commands/index.md",
]
MENTION = re.compile(r"(?<![\w/.{}-])(?:results|data)/[\w./@<>{},*-]*[\w>}/*]")
PLACEHOLDER = rf"results/(?:<number>_(?:{'|'.join(STAGES)}|<command>)|<name>(?:\.2)?|<recipe>/<step>)(?:/[\w.]+)?"
OF_ONES_OWN = {
    "data/memory/train.parquet",  # Mem-alpha's published data
    "data/memory/reader.jsonl",  # answers of a chat model that reads for memory
    "data/support/user.jsonl",  # answers of a chat model that plays the customer
    "data/tau/user.jsonl",  # answers of a chat model that plays the user
    "data/models",  # --model smollm2-135m
}


@pytest.fixture(scope="module")
def recipes() -> set[str]:
    """What the packaged recipes make, alone and with --seeds 3, `make demo FAST=1`, and `make bench`."""
    made = [made_by_run(name) for name in recipe_names()]
    made += [made_by_run(name, seeds=3) for name in recipe_names() if name.endswith("-tiny")]
    made.append(made_by_run("taxi-tiny", fast=True))
    made.append(made_by_run("taxi-tiny", seeds=3, data_dir=Path("data/bench"), results_dir=Path("results/bench")))
    return {path for one in made for paths in one.values() for path in paths}


def logical_lines(text: str) -> Iterator[str]:
    yield from re.sub(r"\\\n\s*", " ", text).splitlines()


def commands(line: str) -> Iterator[list[str]]:
    """The reflectkit commands of a line of a shell, without `reflectkit` itself."""
    if not re.match(r"(?:reflectkit|torchrun|accelerate) ", line):
        return
    words = shlex.split(line, comments=True)
    while "reflectkit" in words:
        words = words[words.index("reflectkit") + 1 :]
        end = words.index("&&") if "&&" in words else len(words)
        yield words[:end]
        words = words[end:]


def spread(path: str) -> list[str]:
    """`a/{b,c}/d` as `a/b/d` and `a/c/d`."""
    if match := re.search(r"\{([^{}]*)\}", path):
        return [
            one for part in match[1].split(",") for one in spread(path[: match.start()] + part + path[match.end() :])
        ]
    return [path.rstrip("/")]


def is_made(path: str, made: set[str]) -> bool:
    """Whether `path` is one of `made`, or a folder above one, or stands for many, or is in the repository.

    A run of other settings beside one of them, NAME.2, is as good as that one.
    """
    if re.fullmatch(PLACEHOLDER, path) or path in OF_ONES_OWN:
        return True
    first = re.sub(r"\.\d(?=/|$)", "", path)
    if any(one == first or one.startswith(f"{first}/") for one in made):
        return True
    return bool(re.match(r"data/auto_explore/repos(?:/|$)", path)) and (ROOT / path).exists()


def missing(text: str, made: set[str]) -> list[str]:
    """The paths in `text` that are not there when the reader comes to them."""
    made, wrong = set(made), []
    for line in logical_lines(text):
        for words in commands(line):
            if "--config" not in words:
                made |= set(made_by_command(words))
        wrong += [path for mention in MENTION.findall(line) for path in spread(mention) if not is_made(path, made)]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_paths_on_the_pages_are_made(
    page: Path, recipes: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text(encoding="utf-8")
    for name, code in examples(page).items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
    assert missing(text, recipes) == []


@pytest.mark.parametrize("stage", STAGES)
def test_paths_in_the_help_are_made(stage: str, recipes: set[str]) -> None:
    module = importlib.import_module(STAGES[stage])
    assert missing("\n".join([module.__doc__ or "", *module.EXAMPLES]), recipes) == []
    for example in module.EXAMPLES:
        assert list(commands(example)), example


def test_paths_in_the_makefile_are_made(recipes: set[str]) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert missing(text.replace("$(BIN)/", ""), recipes) == []


def test_a_path_that_nothing_makes_is_found(recipes: set[str]) -> None:
    wrong = [
        "results/4_sft/checkpoint-700",
        "results/taxi-tiny/policy/checkpoint-251",
        "results/mine/checkpoint-9",
        "data/taxi/x.json",
    ]
    text = "reflectkit sft --env taxi --role policy --max-steps 8 --name mine\nsee `results/mine/checkpoint-8`, "
    assert missing(text + " and ".join(f"`{path}`" for path in wrong), recipes) == wrong


def test_the_pages_have_the_codes_figures_and_environments() -> None:
    assert f"in {READER_TOKENS:,} tokens, go to `--reader`" in (ROOT / "docs/environments.md").read_text("utf-8")
    comparison = (ROOT / "docs/comparison.md").read_text("utf-8")
    (row,) = re.findall(r"^\| Environments included \|([^|]*)\|", comparison, re.MULTILINE)
    named = {"auto_explore": "AutoExplore", "taxi": "DangerousTaxi", "alfworld": "ALFWorld", "corridor": "toy"}
    assert [name for name in ENVS if named.get(name, name) not in row] == []
