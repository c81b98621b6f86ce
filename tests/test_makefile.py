"""The Makefile: what `make help` lists, which environment is used, what reaches the command. Nothing is made (`make
-n`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OUTER = (
    "VIRTUAL_ENV",
    "VENV",
    "ENV",
    "ARGS",
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "MAKEOVERRIDES",
)  # these may run under make
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in OUTER}
ENVIRONMENT = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("CONDA_")}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*arguments: str, **variables: str) -> str:
    """What `make ARGUMENTS` prints."""
    done = subprocess.run(
        ["make", *arguments], cwd=ROOT, env=ENVIRONMENT | variables, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_help_lists_every_target_and_names_the_environment() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {name for line in re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE) for name in line.split()}
    shown = make("help", VIRTUAL_ENV="/my/env")
    assert {line.split()[0] for line in shown.splitlines() if line.startswith("  ")} == targets
    assert "installed in /my/env" in shown


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({}, ".venv"),
        ({"VIRTUAL_ENV": "/my/env"}, "/my/env"),
        ({"CONDA_PREFIX": "/conda/envs/a", "CONDA_DEFAULT_ENV": "a"}, "/conda/envs/a"),
        ({"CONDA_PREFIX": "/conda", "CONDA_DEFAULT_ENV": "base"}, ".venv"),
        ({"VIRTUAL_ENV": "/my/env", "CONDA_PREFIX": "/conda/envs/a", "CONDA_DEFAULT_ENV": "a"}, "/my/env"),
        ({"VIRTUAL_ENV": "/my/env", "VENV": "mine"}, "mine"),
    ],
)
def test_the_active_environment_is_used(variables: dict[str, str], folder: str) -> None:
    assert f"\n{folder}/bin/reflectkit run taxi-tiny" in "\n" + make("-n", "demo", **variables)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["gen-task", "ENV=memory"], "gen-task --env memory"),
        (["gen-task"], "gen-task"),
        (["filter-repo", "ENV=my_env:Mine"], "filter-repo --env my_env:Mine"),
        (["split"], "split --env taxi"),
        (["split", "ENV=memory", "ARGS=--seed 1"], "split --env memory --seed 1"),
        (["view", "ENV=memory"], "view"),
    ],
)
def test_the_environment_that_is_named_reaches_the_command(arguments: list[str], command: str) -> None:
    last = make("-n", *arguments).splitlines()[-1]
    assert " ".join(last.split()) == f".venv/bin/reflectkit {command}"


def test_the_gpu_check_installs_nothing_and_does_without_an_environment() -> None:
    """A machine with a GPU may have no network."""
    (line,) = make("-n", "gpu-check", "VENV=/no/such/env", "PYTHON=python3.12", "ARGS=--only sft").splitlines()
    assert line == "python3.12 -m benchmarks.bench gpu --only sft"
