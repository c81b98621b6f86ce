"""Every setting of every command, with values that it cannot have: one line that names it, and exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

import pytest

from reflectkit.cli.main import main
from reflectkit.commands import STAGES, config_class
from reflectkit.config import Leaf, alternatives, build, is_path, leaves, literals, parsed_type
from reflectkit.envs import ENVS
from reflectkit.errors import ConfigError
from reflectkit.train.algorithms import ALGORITHMS

GIVEN: dict[str, dict[str, Any]] = {
    "new": {"name": "maze"},
    "filter-repo": {"env": "auto_explore"},
    "filter-task": {"env": "auto_explore"},
    "sft": {"role": "plain"},
    "rlft": {"policy": "x"},
    "serve": {"policy": "x"},
    "evaluate": {"policy": ["random"]},
    "run": {"recipe": "auto-explore-tiny"},
    "export": {"policy": "x", "out_dir": "y"},
    "view": {"paths": ["x"]},
    "plot": {"runs": ["a=x"]},
}
"""Settings with which a command's config can be built."""
DISTILLED = {"algo": "none", "reflector": "oracle", "distill_comments": 1.0}
SEVERAL = {"rlft": [{"algo": name} for name in ALGORITHMS if name != "none"] + [DISTILLED]}
SEVERAL["rlft"] += [{"sampler": "vllm:http://localhost:1"}]
BEFORE = {"gen-task": [{"env": name} for name in ("auto_explore", "memory", "alfworld", "support", "tau")]}


def trees() -> list[tuple[str, dict[str, Any]]]:
    """(stage, settings) of every command, with each choice that brings settings."""
    found = []
    for stage in STAGES:
        names = {leaf.name for leaf in leaves(config_class(stage))}
        given = ({"env": "corridor"} if "env" in names else {}) | GIVEN.get(stage, {})
        more = [{"env": env} for env in ENVS if stage == "evaluate"] + SEVERAL.get(stage, [])
        found += [(stage, given | chosen) for chosen in BEFORE.get(stage, [{}, *more])]
    return found


def bad_values(leaf: Leaf) -> Iterator[Any]:
    """Values that the setting cannot have: of other types, out of its bounds, NaN, huge and empty ones."""
    (kind,) = alternatives(leaf.hint)
    is_list = get_origin(kind) is tuple
    values: list[Any] = [{"a": 1}, 1.5, True, [[]]]
    values += [] if kind is not leaf.hint else [None]
    if kind in (int, float):
        values += ["3", "", [], float("nan"), float("inf"), 10**400, *out_of_bounds(leaf)]
        values.remove(1.5) if kind is float else None
    elif kind is bool:
        values += ["true", "", [], 0]
        values.remove(True)
    elif is_path(leaf.hint) or parsed_type(leaf.hint):
        values += ["", "\0", "a\udce9", 3]
    elif list(literals(leaf.hint)):
        values += ["no such name", 3] + ([] if is_list else [["x"]])
    else:
        values += ["a\udce9", 3] + ([] if is_list else [["x"]])
    return iter(values)


def out_of_bounds(leaf: Leaf) -> Iterator[float]:
    for bound in leaf.field.metadata:
        for name, step in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
            if (limit := getattr(bound, name, None)) is not None:
                yield limit + step * max(1, abs(limit))


TRIED: set[int] = set()
"""Fields that several commands share are tried once."""


@pytest.mark.parametrize(("stage", "given"), trees(), ids=lambda value: value if isinstance(value, str) else "")
def test_no_setting_takes_what_it_cannot_have(stage: str, given: dict[str, Any]) -> None:
    kind = config_class(stage)
    build(kind, given, stage)
    rows = leaves(kind, given)
    if {"algo", "sampler"} & given.keys() or (stage == "evaluate" and given["env"] != "corridor"):
        rows = [leaf for leaf in rows if "settings" in leaf.path]  # the others are tried without this choice
    for leaf in rows:
        if id(leaf.field) in TRIED:
            continue
        TRIED.add(id(leaf.field))
        for value in bad_values(leaf):
            with pytest.raises(ConfigError) as caught:
                build(kind, given | {leaf.name: value}, stage)
            assert leaf.name.replace("_", "-").rstrip("-") in str(caught.value).lower(), (leaf.name, value)
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 600


def unquoted(value: Any) -> str:
    """`value` as YAML."""
    return {"nan": ".nan", "inf": ".inf"}.get(str(value), str(value)) if isinstance(value, float) else repr(value)


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "new"])  # which makes no run
def test_a_bad_value_in_a_file_is_one_line_and_exit_code_2(
    stage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = config_class(stage)
    given = ({"env": "corridor"} if "env" in {leaf.name for leaf in leaves(kind)} else {}) | GIVEN.get(stage, {})
    arguments = [
        str(given.pop(leaf.name)) for leaf in leaves(kind) if leaf.is_argument and isinstance(given[leaf.name], str)
    ]
    file = tmp_path / "settings.yaml"
    for key, text in [
        ("seed", "-1"),
        ("threads", "0"),
        ("data_dir", "''"),
        ("sead", "1"),
        ("name", "../x"),
    ]:
        file.write_text("".join(f"{name}: {unquoted(value)}\n" for name, value in given.items()) + f"{key}: {text}\n")
        assert main([stage, *arguments, "--config", str(file)]) == 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1), told.err
        assert key.replace("_", "-") in told.err
