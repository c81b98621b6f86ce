"""Empty paths are refused in every command: they would be taken for the current folder."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from reflectkit.cli.main import main
from reflectkit.core.config import build
from reflectkit.core.errors import ConfigError
from reflectkit.stages import STAGES


@pytest.mark.parametrize("stage", STAGES)
def test_no_path_setting_may_be_empty(stage: str) -> None:
    config = config_class(stage)
    hints = get_type_hints(config)
    names = [
        item.name
        for item in dataclasses.fields(config)
        if hints[item.name] is Path or Path in get_args(hints[item.name])
    ]
    assert {"data_dir", "results_dir"} <= set(names)
    for name in names:
        for path in ("", "\0"):
            value: Any = ["fine", path] if get_origin(hints[name]) is tuple else path
            with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} (is empty|holds a NUL)"):
                build(config, {name: value}, stage)


@pytest.mark.parametrize(
    "flags", [["--repos-dir", ""], ["--repos-dir="], ["--data-dir", ""], ["--env", "memory", "--parquet", ""]]
)
def test_an_empty_flag_is_refused(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["gen-task", *flags]) == 2
    assert "is empty" in capsys.readouterr().err
    assert main(["gen-task", "--repos-dir", "."]) == 2
    assert "has no repositories" in capsys.readouterr().err


@pytest.mark.parametrize("stage", STAGES)
def test_every_path_is_utf8(stage: str) -> None:
    """It is recorded in config.json. A byte that is not UTF-8 comes from the command line as half a surrogate pair."""
    config = config_class(stage)
    needed: dict[str, Any] = {
        "env": "corridor",
        "role": "plain",
        "what": "env",
        "recipe": "taxi-tiny",
        "policy": ["random"],
    }
    needed |= {"load_dir": "model", "reflect_load_dir": "model", "out_dir": "copy", "out": "copy"}
    given = {item.name: needed[item.name] for item in dataclasses.fields(config) if item.default is dataclasses.MISSING}
    for name in ("data_dir", "results_dir"):
        with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} 'caf.udce9' is not valid UTF-8"):
            build(config, given | {name: "caf\udce9"}, stage)
