"""Recipes that are malformed, or that would be misread, are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_lines import error_of


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b", "expected a mapping"),
        ("steps: [", "not YAML"),
        ("description: d\nsteps: 3", "field 'steps'"),
        ("description: d\nsteps: []", "field 'steps': is empty"),
        (
            "description: d\nsteps: [{name: a, stage: sft, env: taxi, role: plain, model: '{a}'}]",
            "field 'steps.0': reads {a}, which does not come before it",
        ),
        (
            "description: d\nsteps: [{name: a, stage: sft, env: taxi, role: plain, model: '{b}'},"
            " {name: b, stage: sft, env: taxi, role: plain, model: '{a}'}]",
            "field 'steps.0': reads {b}, which does not come before it",
        ),
        ("description: d\nsteps: [{name: a, stage: sft, env: taxi, role: plain, max_steps: true}]", "got true"),
        ("description: d\nsteps: [{name: a, stage: sft, env: taxi, role: plain, learning_rate: no}]", "got false"),
        ("description: d\ndescription: e\nsteps: []", "r.yaml:2: the key 'description' is given twice"),
        (
            "description: d\nsteps:\n- &a {name: a, stage: split, env: taxi}\n- {<<: *a, name: b, name: c}",
            "r.yaml:4: the key 'name' is given twice",
        ),
        (
            "description: d\nsteps: [{name: a, stage: split, env: taxi}]\nfast: {a: {sede: 3}}",
            "no setting of step 'a' (split) named 'sede'",
        ),
        ("description: d\nstops: []", "did you mean 'steps'"),
        ("description: d\nsteps: [{name: a, stage: spilt}]", "did you mean 'split'"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi}, {name: a, stage: split}]", "given twice"),
        ("description: d\nsteps: [{name: a, stage: sft, env: taxi, role: plain, task_file: '{b}'}]", "earlier step"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, size: 3}]", "no setting of step 'a'"),
        ("description: d\nsteps: [{name: a, stage: split, env: [1]}]", "step 'a': --env"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, task_file: '{'}]", "braces"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, task_file: '{data:>9}'}]", "without ':' or '!'"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, task_file: '{data!z}'}]", "without ':' or '!'"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, task_file: '{data.parent}'}]", "earlier step"),
        ("description: d\nsteps: [{name: a, stage: split, env: taxi, task_file: '{}'}]", "earlier step"),
        ("steps: " + "[" * 5000 + "]" * 5000, "nested more than 50 deep"),
        ("steps: " + "[" * 100 + "]" * 100, "nested more than 50 deep"),
        ("\n".join(" " * depth + "a:" for depth in range(2000)), "nested more than 50 deep"),
        ("steps: &a [*a]", "nested more than 50 deep"),
        (
            "a: &b0 [x, x]\n" + "".join(f"a{n}: &b{n + 1} [*b{n}, *b{n}]\n" for n in range(40)),
            "of more than 100,000 parts",
        ),
        ("description: 2024-13-45", "month must be in 1..12"),
        (f"description: {'9' * 5000}", "not YAML"),
    ],
)
def test_bad_recipes_are_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(text)
    assert message in error_of(["run", "r.yaml"], capsys)


@pytest.mark.parametrize(
    ("steps", "extra", "message"),
    [
        (
            "[{name: a, stage: split, env: taxi}]",
            "fast: {a: {task_file: '{nowhere}'}}",
            "no step before 'a' named 'nowhere'",
        ),
        ("[{name: a, stage: split, env: taxi, seed: 3}]", "", "set it with --seed"),
        ("[{name: a, stage: split, env: taxi}]", "defaults: {nosie: 3}", "in the defaults of recipe"),
        ("[{name: data, stage: split, env: taxi}]", "", "can't name a step"),
        ("[{name: a.b, stage: split, env: taxi}]", "", "can't name a step"),
    ],
)
def test_recipes_that_would_be_misread_are_refused(
    steps: str,
    extra: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(f"description: d\nsteps: {steps}\n{extra}\n")
    assert message in error_of(["run", "r.yaml", "--fast"], capsys)
