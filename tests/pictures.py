"""Makes the pictures of the pages, `make pictures`, or `python -m tests.pictures FOLDER`: demo, `play`, `view`, `plot`.

Needs a Chromium, and the results of `reflectkit run taxi-tiny --fast` in the working directory.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from reflectkit.cli.main import main
from tests.browser import find, opened

WIDTH = 84  # columns of the terminal
WINDOW = {"x": 0, "y": 0, "width": 1280, "height": 860, "scale": 1}  # pixels of the browser
COLOURS = 128  # of a picture: a third of the size, and nothing to see
EPISODE = 400  # the first ones are of the players that are not trained
RUN = Path("results/taxi-tiny-fast")
PLAY = ["play", "--env", "taxi", "--teacher", "--seed", "7"]
KEYS = "o\n"
LOCAL = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Without fonts, which are fetched."""


class Typed(io.StringIO):
    """Standard input whose lines appear on the screen, as in a terminal."""

    def readline(self, size: int | None = -1, /) -> str:
        line = super().readline(-1 if size is None else size)
        print(line, end="")
        return line


@contextlib.contextmanager
def standard_input(text: str) -> Iterator[None]:
    earlier, sys.stdin = sys.stdin, Typed(text)
    try:
        yield
    finally:
        sys.stdin = earlier


def play(target: Path) -> None:
    """The first step of an episode that a person plays, who asks for the best move, as a terminal shows them."""
    shown = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(shown), standard_input(KEYS):
        assert main([*PLAY, "--results-dir", folder]) == 0
    command, lines = " ".join(["reflectkit", *PLAY]), shown.getvalue().splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("Your move:"))
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("\n".join([f"$ {command}", *lines[:last], "Your move: ▏"])))
    target.write_text(console.export_svg(title=command, code_format=LOCAL), encoding="utf-8")


def demo(target: Path) -> None:
    """What `make demo` ends with."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert main(["run", "taxi-tiny", "--fast"]) == 0
    lines = shown.getvalue().splitlines()
    first = max(number for number, line in enumerate(lines) if line.startswith(("┏", "╭"))) - 1
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text("\n".join(["$ make demo", "…", *lines[first:]])))
    target.write_text(console.export_svg(title="make demo", code_format=LOCAL), encoding="utf-8")


def view(folder: Path) -> None:
    """The page of the evaluation, at an episode that was won, in light and in dark."""
    with tempfile.TemporaryDirectory() as scratch, opened(Path(scratch)) as browser:
        page = Path(scratch) / "view.html"
        assert main(["view", str(RUN / "evaluation"), "--out", str(page)]) == 0
        for colours in ("light", "dark"):
            browser.open(f"{page.as_uri()}#episode={EPISODE}", dark=colours == "dark", width=WINDOW["width"])
            browser.wait("document.querySelector('#detail blockquote') && 1")
            made = browser.call("Page.captureScreenshot", format="png", clip=WINDOW)["data"]
            whole = Image.open(io.BytesIO(base64.b64decode(made))).convert("RGB")
            whole.quantize(COLOURS, dither=Image.Dither.NONE).save(folder / f"view-{colours}.png", optimize=True)


def plot(target: Path) -> None:
    """The learning curves of both policies."""
    runs = [f"Reflect-RL={RUN / 'reflect-rl'}", f"SFT + RL={RUN / 'sft-rl'}"]
    assert main(["plot", "--runs", runs[0], "--runs", runs[1], "--out", str(target)]) == 0


def make(folder: Path) -> None:
    """Write all pictures to `folder`."""
    if find() is None:
        sys.exit("no chromium or google-chrome on the PATH (Debian: apt-get install chromium)")
    if not RUN.is_dir():
        sys.exit(f"no {RUN} here: run `reflectkit run taxi-tiny --fast` first")
    folder.mkdir(parents=True, exist_ok=True)
    demo(folder / "demo.svg")
    play(folder / "play.svg")
    view(folder)
    plot(folder / "plot.png")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
