"""The page in a real browser: hostile text does nothing, ten thousand episodes open at once, keys and filters work.

Skipped where there is no Chromium (Debian: `apt-get install chromium`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reflectkit.commands import view
from reflectkit.console import Quiet
from tests.browser import Browser, find, opened
from tests.episodes import HOSTILE, conversation, episode, write

pytestmark = pytest.mark.skipif(find() is None, reason="no chromium or google-chrome on the PATH")

ENVS = ("taxi", "memory", "auto_explore", "__proto__")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("profile")) as one:
        yield one


def page(folder: Path, rows: Iterator[dict[str, object]] | list[dict[str, object]]) -> str:
    write(folder, rows)
    return view.run(view.ViewConfig.from_flat(paths=(folder,)), Quiet()).outputs[0].as_uri()


def chosen(browser: Browser, part: str) -> str:
    """The address once it names `part`: the episode is then drawn."""
    return str(browser.wait(f"location.hash.includes({json.dumps(part)}) && location.hash"))


PAGES = {
    "episodes": [episode(text, env=env, name=text) for env in ENVS for text in HOSTILE],
    "conversations": [conversation(text) for text in HOSTILE],
}


@pytest.mark.parametrize("rows", PAGES.values(), ids=PAGES)
def test_hostile_text_does_nothing(browser: Browser, tmp_path: Path, rows: list[dict[str, object]]) -> None:
    url = page(tmp_path, rows)
    browser.open(url)
    elements = browser.do("[...document.querySelectorAll('script, style, meta, iframe, base')].length")
    for number in range(len(rows)):
        text = HOSTILE[number % len(HOSTILE)]
        browser.press("j")
        chosen(browser, f"episode={number}&")
        browser.do("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        strange = (
            "#detail :is(script, img, svg, style, a, meta, iframe, object, embed, b, [onerror], [onload],"
            " [onmouseover])"
        )
        assert browser.do(f"document.querySelectorAll({json.dumps(strange)}).length") == 0
        if text.isascii() and text.isprintable():
            assert text in texts(browser, "blockquote, .message.user > div")
    assert browser.do("[...document.querySelectorAll('script, style, meta, iframe, base')].length") == elements
    assert browser.do("document.title") == "Episodes · reflectkit"
    assert [asked for asked in browser.requests if asked.split("#")[0] != url] == []
    assert browser.dialogs == []
    assert browser.errors == []


def texts(browser: Browser, selector: str) -> list[str]:
    """The text of each element."""
    return list(browser.do(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.textContent)"))
