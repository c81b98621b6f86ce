"""The shell commands on the pages: each can be given, and each is run by a test or has a mark of what it needs.

A fenced block without a language holds shell commands. `<!-- needs: … -->` in the line before it says why no test runs
it; its commands are still parsed (test_documents.py). All other blocks of the pages in `RUN` are run here from top to
bottom, in an empty folder; those of your-own-environment.md in test_tutorial.py.
"""

from __future__ import annotations

import io
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from tests.examples import examples
from tests.made import made_by_command
from tests.pictures import play
from tests.test_documents import commands, logical_lines

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), DOCS / "commands/index.md"]
RUN = ("five-minutes", "data", "environments", "evaluation", "more-environments", "slime", "your-own-model")
ELSEWHERE = ("your-own-environment",)
FENCED = re.compile(r"^(?:<!-- needs: (?P<needs>[^\n]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
FOREIGN = {"git", "pip", "hf", ".", "alfworld-download", "HF_HUB_OFFLINE=1"}
"""Programs that are not ours: a block with one of them has a mark."""
TARGETS = set(re.findall(r"^([a-z0-9-]+)(?: [a-z0-9 -]+)?:.*", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


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
        return [line for line in logical_lines(text) if line.strip()]


def blocks(text: str) -> list[Block]:
    return [Block(match["needs"], match["language"], match["text"]) for match in FENCED.finditer(text)]


def unfit(block: Block, name: str) -> Iterator[str]:
    """What is wrong with a block of shell commands on page `name`."""
    if block.needs is None and name not in (*RUN, *ELSEWHERE):
        yield "neither run by a test nor marked"
    for line in block.lines:
        words = shlex.split(line, comments=True)
        if any(map(made_by_command, commands(line))) or words[0] in ("reflectkit", "export", "python"):
            continue
        if words[0] == "make":
            missing = {word for word in words[1:] if "=" not in word} - TARGETS
            yield from (f"no target {target}" for target in missing)
        if words[0] not in (*FOREIGN, "make", "torchrun", "accelerate"):
            yield f"not a command: {line}"
        elif block.needs is None:
            yield f"no mark of what this needs: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_each_command_exists_and_is_run_or_marked(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in examples(page).items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    shell = [block for block in blocks(page.read_text("utf-8")) if not block.language]
    assert [fault for block in shell for fault in unfit(block, page.stem)] == []


def test_what_is_wrong_is_noticed() -> None:
    text = "```\nmake tea\n```\n<!-- needs: tea -->\n```\nmake tea  # hot\nfly away\n```\n```\nhf download x\n```\n"
    found = [list(unfit(block, "results")) for block in blocks(text)]
    assert found == [
        ["neither run by a test nor marked", "no target tea", "no mark of what this needs: make tea"],
        ["no target tea", "not a command: fly away"],
        ["neither run by a test nor marked", "no mark of what this needs: hf download x"],
    ]


@pytest.mark.parametrize("name", RUN)
def test_the_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person's play is ended by the end of standard input; all else runs to its end."""
    page = DOCS / f"{name}.md"
    programs = examples(page)
    monkeypatch.chdir(tmp_path)
    ran = 0
    for block in blocks(page.read_text("utf-8")):
        if block.language == "python":
            saved = [module for module, code in programs.items() if code == block.text]
            if saved:
                Path(f"{saved[0]}.py").write_text(block.text, encoding="utf-8")
            else:
                exec(compile(block.text, str(page), "exec"), {"__name__": name})
        for line in block.lines if not block.language and block.needs is None else ():
            words = shlex.split(line, comments=True)
            monkeypatch.setattr(sys, "stdin", io.StringIO("1\nh\n"))
            if words == ["export", "PYTHONPATH=."]:
                monkeypatch.syspath_prepend(str(tmp_path))
            elif words[:2] == ["python", "-m"]:
                monkeypatch.setattr(sys, "argv", words[2:])
                runpy.run_module(words[2], run_name="__main__")
            elif words[0] == "python":
                runpy.run_path(words[1], run_name="__main__")
            else:
                assert main(words[1:]) == 0, (line, capsys.readouterr().err)
            ran += 1
    assert ran, "nothing to run: take the page out of RUN"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pictures_are_there_small_and_described(page: Path) -> None:
    text = page.read_text("utf-8")
    shown = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text) + re.findall(r'<img alt="([^"]*)" src="([^"]+)"', text)
    assert len(shown) == text.count("![") + text.count("<img")
    for words, target in [*shown, *(("the other colours", one) for one in re.findall(r'srcset="([^"]+)"', text))]:
        assert len(words.split()) >= 3, target
        assert (page.parent / target).stat().st_size < 150_000, target


def test_the_picture_of_play_is_made_and_fetches_nothing(tmp_path: Path) -> None:
    play(tmp_path / "play.svg")
    for picture in (tmp_path / "play.svg", DOCS / "pictures/play.svg"):
        text = picture.read_text("utf-8").replace("&#160;", " ")
        assert "$ reflectkit play --env taxi --teacher" in text
        assert text.index("Your move: o") < text.index("The oracle would: ")
        assert "@font-face" not in text


def test_the_table_of_the_fast_demo_is_that_of_the_results() -> None:
    here, there = rows("five-minutes", "## Train"), rows("results", "## DangerousTaxi, drop-off only")
    assert here == there
    assert len(here) == 6


def rows(page: str, heading: str) -> list[str]:
    """The table below `heading`, without its bold type."""
    section = (DOCS / f"{page}.md").read_text("utf-8").partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| .*%.* \|$", section.replace("**", ""), re.MULTILINE)
