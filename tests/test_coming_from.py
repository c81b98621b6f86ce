"""The page for those who come from Reflect-RL's code has all of its settings, and names settings that exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from reflectkit.cli.command import stage_flags
from tests.made import made_by_command

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from-reflect-rl.md").read_text("utf-8")
COMMANDS = re.findall(r"`reflectkit ([^`]+)`", PAGE.split("## Scripts")[1].split("## Settings")[0])
ROWS = re.findall(r"^\| `([a-z0-9_]+)` \| (.+?) \| (.*?) ?\|$", PAGE.split("## Settings")[1], re.MULTILINE)
ORIGINAL = os.environ.get("REFLECT_RL", "")


def test_all_settings_are_there_once() -> None:
    names = [name for name, *_ in ROWS]
    assert len(names) == len(set(names)) == 75


def test_each_has_a_setting_that_exists_or_a_reason() -> None:
    flags = stage_flags(every_env=True)
    for name, here, remark in ROWS:
        named = re.findall(r"`([a-z-]+) (--[a-z0-9-]+)`", here)
        assert named or (here == "none" and remark), name
        assert [flag for command, flag in named if flag not in flags[command]] == [], name


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_complete(command: str) -> None:
    assert made_by_command(shlex.split(command))


def test_the_original_asks_gpt_for_taxis_comments() -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith("| `data_gen.taxi.reflection`"))
    first = shlex.split(re.findall(r"`reflectkit ([^`]+)`", row)[0])
    assert first[first.index("--actor") + 1] == "oracle"
    assert first[first.index("--teacher") + 1].startswith("openai:")


@pytest.mark.skipif(not ORIGINAL, reason="set REFLECT_RL to a checkout of zhourunlong/Reflect-RL")
def test_they_are_the_originals() -> None:
    show = ["git", "-C", ORIGINAL, "show", "HEAD:experiment_args.py"]
    source = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^    ([a-z_0-9]+): .*field\(", source, re.MULTILINE) == [name for name, *_ in ROWS]
