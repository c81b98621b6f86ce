"""The page for those who come from Reflect-RL's code has all of its settings, and names settings that exist."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from reflectkit.cli.command import stage_flags

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from-reflect-rl.md").read_text("utf-8")
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


@pytest.mark.skipif(not ORIGINAL, reason="set REFLECT_RL to a checkout of zhourunlong/Reflect-RL")
def test_they_are_the_originals() -> None:
    show = ["git", "-C", ORIGINAL, "show", "HEAD:experiment_args.py"]
    source = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^    ([a-z_0-9]+): .*field\(", source, re.MULTILINE) == [name for name, *_ in ROWS]
