"""Recipes: what is wrong in them, and what ablations, parameters and --set make of them. Nothing runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.commands.run import Job, PipelineConfig, planned
from reflectkit.recipe import load_recipe, recipe_names
from tests.command_lines import error_of

STEPS = "description: d\nsteps: "
RECIPE = """
description: d
steps:
  - {name: repos, stage: filter-repo, repo_dir: mine}
  - {name: demos, stage: gen-trajectory, env: taxi, noise: 0.3, level: pickup}
  - {name: rows, stage: gen-sft, env: taxi}
  - {name: rl, stage: rlft, env: taxi, policy: x}
  - {name: evaluation, stage: evaluate, env: taxi, policy: ["SFT=x", "RL={rl}"], level: [pickup]}
"""
PARAMETERS = """
parameters:
  place: {help: Where., sets: [repos.repo_dir], own_folders: true}
  noise: {help: How much., sets: [gen-trajectory.noise]}
  levels: {help: Which., sets: [evaluation.level]}
  shuffle: {help: Whether., sets: [defaults.shuffle_action]}
fast:
  demos: {noise: 0.1}
"""


@pytest.fixture(autouse=True)
def recipe() -> None:
    Path("r.yaml").write_text(RECIPE + PARAMETERS)


def jobs(recipe: str = "r.yaml", **settings: object) -> dict[str, Job]:
    return {job.name: job for job in planned(PipelineConfig.from_flat(recipe=recipe, **settings))[0]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STEPS + "[{name: a, stage: spilt}]", "did you mean 'split'"),
        (STEPS + "[{name: a, stage: split, env: taxi}, {name: a, stage: split}]", "'a' can't name a step"),
        (STEPS + "[{name: a, stage: sft, env: taxi, role: plain, model: '{a}'}]", "no earlier step"),
        (STEPS + "[{name: a, stage: split, env: taxi}]\nfast: {a: {task_file: '{b}'}}", "no step before 'a' named 'b'"),
    ],
)
def test_bad_recipes_are_one_line(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text(text)
    assert message in error_of(["run", "bad.yaml", "--fast"], capsys)


@pytest.mark.parametrize(
    ("ablations", "message"),
    [
        ("{x: {of: RL}}", "plays 'RL without x'"),
        ("{x: {of: RL, steps: {rl: {policy: '{rows}'}, rows: {mismatch: 0.1}}}}", "its own out_dir"),
        ("{y: {of: RL, arm: SFT}}", "no ablation of recipe 'bad.yaml' named 'x'"),
    ],
)
def test_bad_ablations_are_one_line(ablations: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text(f"{RECIPE}\nablations: {ablations}\n")
    assert message in error_of(["run", "bad.yaml", "--ablate", "x"], capsys)


def test_a_parameter_overrides_fast_and_set_overrides_both() -> None:
    made = jobs(place=Path("other"), levels=("pickup,full",), shuffle=True)
    assert made["repos"].values["repo_dir"] == Path("other")
    assert made["evaluation"].values["level"] == ["pickup", "full"]
    assert made["demos"].values["shuffle_action"] is True
    noises = [
        jobs(**settings)["demos"].values["noise"]
        for settings in ({}, {"fast": True}, {"fast": True, "noise": 0.2}, {"noise": 0.2, "set": ("demos.noise=0.4",)})
    ]
    assert noises == [0.3, 0.1, 0.2, 0.4]


def test_only_what_differs_and_what_depends_on_it_is_run_again() -> None:
    plain, more = jobs("taxi-tiny"), jobs("taxi-tiny", ablate=("reflection,negatives", "curriculum"))
    assert [name for name in more if name not in plain] == [
        *("reflector@negatives", "policy-rows@negatives", "policy@negatives", "reflect-rl@negatives"),
        "reflect-rl@curriculum",
    ]
    for name in plain.keys() - {"evaluation", "curves"}:
        assert more[name] == plain[name]
    assert more["policy@negatives"].values["model"] == "{reflector@negatives}"
    assert more["evaluation"].values["policy"][-2:] == [
        "Reflect-RL without negatives={reflect-rl@negatives}+{reflector@negatives}",
        "Reflect-RL with a curriculum={reflect-rl@curriculum}+{reflector}",
    ]


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_packaged_recipe_makes_jobs_with_folders_of_their_own(recipe: str) -> None:
    ablations = load_recipe(recipe).ablations
    made = jobs(recipe, ablate=tuple(ablations), seeds=2)
    folders = {(str(job.values["results_dir"]), job.values["name"]) for job in made.values()}
    assert len(folders) == len(made)
    assert {name.partition("@")[2] for name in made if "@" in name} == {
        name for name, ablation in ablations.items() if ablation.steps
    }
    jobs(recipe, fast=True)
