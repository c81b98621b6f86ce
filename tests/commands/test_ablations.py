"""run --ablate: what is run once more and what is shared, what an ablation changes, and the rows that come of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.commands.run import Job, PipelineConfig, planned
from reflectkit.console import Report
from reflectkit.jsonl import read_json, write_jsonl
from reflectkit.recipe import Ablation, compared, load_recipe, recipe_names

RECIPE = """
description: the toy env, for tests
defaults: {env: corridor}
steps:
  - {name: demonstrations, stage: gen-trajectory, demonstrations: 6}
  - {name: split, stage: split}
  - {name: rows, stage: gen-sft}
  - {name: plain, stage: sft, role: plain, max_steps: 4, max_length: 64}
  - {name: rl, stage: rlft, policy: "{plain}", max_steps: 2, episodes: 4}
  - {name: evaluation, stage: evaluate, task_file: "{data}/corridor/train.json",
     policy: ["SFT={plain}", "SFT + RL={rl}"]}
ablations:
  rl: {of: SFT + RL, arm: SFT}
  entropy: {of: SFT + RL, steps: {rl: {entropy_coef: 0.5}}}
"""


def jobs(recipe: str, *ablate: str, **more: object) -> dict[str, Job]:
    config = PipelineConfig.from_flat(recipe=recipe, ablate=ablate, **more)  # type: ignore[arg-type]
    return {job.name: job for job in planned(config)[0]}


def test_only_what_differs_and_what_depends_on_it_is_run_again() -> None:
    plain, more = jobs("taxi-tiny"), jobs("taxi-tiny", "reflection,negatives", "curriculum")
    added = [name for name in more if name not in plain]
    assert added == ["reflector@negatives", "policy-rows@negatives", "policy@negatives",
                     "reflect-rl@negatives", "reflect-rl@curriculum"]  # fmt: skip
    assert {
        name: job.values for name, job in more.items() if name in plain and job.stage not in ("evaluate", "plot")
    } == {name: job.values for name, job in plain.items() if job.stage not in ("evaluate", "plot")}
    policy = more["policy@negatives"]
    assert policy.values["model"] == "{reflector@negatives}"
    assert more["reflect-rl@curriculum"].values["policy"] == "{policy}"
    assert more["evaluation"].values["policy"][-2:] == [
        "Reflect-RL without negatives={reflect-rl@negatives}+{reflector@negatives}",
        "Reflect-RL with a curriculum={reflect-rl@curriculum}+{reflector}",
    ]
    assert more["curves"].values["runs"][-1] == "Reflect-RL with a curriculum={reflect-rl@curriculum}"


def test_a_default_is_set_for_every_step_that_has_it() -> None:
    made = jobs("alfworld-gpt2-xl", set=("defaults.games-dir=elsewhere", "defaults.horizon=50", "reflect-rl.horizon=9"))
    assert {job.values["games_dir"] for job in made.values() if "games_dir" in job.values} == {"elsewhere"}
    assert "games_dir" in made["games"].values
    assert "games_dir" not in made["split"].values
    assert made["reflect-rl"].values["horizon"] == 9, "a step's own setting goes before"
    assert made["sft-rl"].values["horizon"] == 50


def test_one_player_as_a_text_gets_its_ablation_beside_it(tmp_path: Path) -> None:
    recipe = tmp_path / "toy.yaml"
    recipe.write_text(RECIPE.replace('["SFT={plain}", "SFT + RL={rl}"]', '"SFT + RL={rl}"'))
    made = jobs(str(recipe), "entropy")
    assert made["evaluation"].values["policy"] == ["SFT + RL={rl}", "SFT + RL without entropy={rl@entropy}"]


def test_every_packaged_ablation_makes_jobs() -> None:
    known = {name: list(load_recipe(name).ablations) for name in recipe_names()}
    for name in ("taxi-tiny", "auto-explore-tiny", "auto-explore-gpt2-xl", "taxi-gpt2-xl"):
        assert known[name][:3] == ["reflection", "negatives", "curriculum"]
    assert known["auto-explore-gpt2-xl"][3:] == ["sft", "rl"], "the rest of the paper's table"
    for name, ablations in known.items():
        made = jobs(name, *ablations)
        changed = [one for one in ablations if load_recipe(name).ablations[one].steps]
        assert {job.partition("@")[2] for job in made if "@" in job} == set(changed), name


def test_rl_without_sft_starts_from_the_pretrained_model() -> None:
    made = jobs("auto-explore-gpt2-xl", "sft")
    values = made["sft-rl@sft"].values
    assert (values["policy"], values["model"], values["lora_r"]) == (None, "gpt2-xl", 16)
    assert "plain@sft" not in made
    assert "RL only={sft-rl@sft}" in made["evaluation"].values["policy"]


def test_a_setting_goes_for_a_step_and_its_copies_but_not_over_what_is_ablated() -> None:
    made = jobs("taxi-tiny", "curriculum", set=("reflect-rl.max_steps=7", "reflect-rl.curriculum=[dropoff]"))
    assert [made[name].values["max_steps"] for name in ("reflect-rl", "reflect-rl@curriculum")] == [7, 7]
    assert made["reflect-rl"].values["curriculum"] == ["dropoff"]
    assert made["reflect-rl@curriculum"].values["curriculum"] == ["pickup", "dropoff", "full"]
    made = jobs("taxi-tiny", "curriculum", set=("reflect-rl@curriculum.curriculum=[full]",), fast=True)
    assert made["reflect-rl@curriculum"].values["curriculum"] == ["full"]
    assert made["reflect-rl@curriculum"].values["max_steps"] == 24


@pytest.mark.parametrize(
    ("recipe", "more", "folder"),
    [
        ("taxi-tiny", {}, "taxi-tiny"),
        ("taxi-tiny", {"fast": True}, "taxi-tiny-fast"),
        ("taxi-tiny", {"fast": True, "name": "x/y"}, "x/y"),
        ("elsewhere/my recipe (2).yaml", {}, "my-recipe-2-"),
        ("../..yaml", {}, "recipe"),
        ("-.yml", {}, "recipe"),
    ],
)
def test_steps_lie_in_the_recipes_folder_or_the_named_one(
    recipe: str, more: dict[str, object], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "elsewhere").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    if recipe not in recipe_names():
        Path(recipe).write_text("description: One.\nsteps: [{name: a, stage: split, env: taxi}]\n", encoding="utf-8")
    assert PipelineConfig.from_flat(recipe=recipe, **more).folder == folder  # type: ignore[arg-type]


@pytest.mark.parametrize("recipe", recipe_names())
def test_no_two_steps_have_one_folder(recipe: str) -> None:
    made = jobs(recipe, *load_recipe(recipe).ablations, seeds=2)
    folders = [(job.values["results_dir"], job.values["name"]) for job in made.values()]
    assert folders == [
        (Path("results") / job.prefix, f"{recipe}/{name.removeprefix(job.prefix)}") for name, job in made.items()
    ]
    assert {job.prefix for job in made.values()} == {"seed0/", "seed1/"}


def test_a_run_with_ablations_has_their_rows_and_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(RECIPE)
    assert main(["run", "toy.yaml", "--ablate", "rl,entropy"]) == 0
    assert "Ablations" in capsys.readouterr().out
    figures = read_json(Path("results/toy/run/report.json"))["figures"]
    steps = {name: Path(folder) for name, folder in figures["steps"].items()}
    assert steps == {name: Path("results/toy", name) for name in steps}
    assert "rl@entropy" in steps
    rows = {row["name"]: row["success"] for row in read_json(steps["evaluation"] / "eval.json")["rows"]}
    assert list(rows) == ["SFT", "SFT + RL", "SFT + RL without entropy"]
    with_it, without = (read_json(steps[name] / "config.json")["settings"] for name in ("rl", "rl@entropy"))
    assert without == with_it | {"entropy_coef": 0.5}
    found = {one["ablation"]: one["difference"] for one in figures["ablations"] if one["figure"] == "success"}
    assert found["rl"] == pytest.approx(rows["SFT + RL"] - rows["SFT"])
    assert found["entropy"] == pytest.approx(rows["SFT + RL"] - rows["SFT + RL without entropy"])


def test_ablations_are_compared_over_seeds_together(tmp_path: Path) -> None:
    """Task a: 1 and 1 less 0 and 1, so 0.5; task b: 0 less 1; the mean of both is -0.25."""
    played = {
        "seed0": [("plain", "a", 0), ("ours", "a", 1)],
        "seed1": [("plain", "a", 1), ("ours", "a", 1), ("plain", "b", 1), ("ours", "b", 0), ("other", "a", 1)],
    }
    for seed, episodes in played.items():
        lines = [
            {"name": name, "level": "full", "task": task, "status": "completed", "success": bool(won)}
            for name, task, won in episodes
        ]
        write_jsonl(tmp_path / seed / "episodes.jsonl", lines)
    reports = [Report("evaluate", tmp_path / seed, {}) for seed in played]
    (found,) = compared({"comments": Ablation("ours", "plain")}, reports)
    assert (found["ablation"], found["first"], found["second"]) == ("comments", "ours", "plain")
    assert (found["difference"], found["tasks"]) == (-0.25, 2)


@pytest.mark.parametrize(
    ("ablations", "message"),
    [
        ("{rll: {of: SFT + RL, arm: SFT}}", "did you mean 'rll'"),
        ("{rl: {of: SFT + R, arm: SFT}}", "plays 'SFT + R'"),
        ("{rl: {of: SFT + RL}}", "plays 'SFT + RL without rl'"),
        ("{rl: {of: SFT + RL, steps: {rll: {max_steps: 1}}}}", "did you mean 'rl'"),
        ("{rl: {of: SFT + RL, steps: {split: {by: repo}}}}", "changes steps of gen-sft, sft, rlft"),
        ("{rl: {of: SFT + RL, steps: {rl: {max_stepz: 1}}}}", "did you mean 'max_steps'"),
        ("{rl: {of: SFT + RL, steps: {rows: {mismatch: 0.1}}}}", "its own out_dir"),
        ("{rl: {off: SFT + RL}}", "field 'ablations.rl.of'"),
        ("{rl: {of: SFT + RL, arms: SFT}}", "field 'ablations.rl.arms'"),
        ("{rl: 3}", "field 'ablations.rl'"),
        ("{a/b: {of: SFT + RL, arm: SFT}}", "can't name an ablation"),
        ("{}", "has no ablations"),
    ],
)
def test_bad_ablations_are_one_line(
    ablations: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.yaml").write_text(RECIPE.partition("ablations:")[0] + f"ablations: {ablations}\n")
    assert main(["run", "toy.yaml", "--ablate", "rl"]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_a_list_of_no_ablation_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "taxi-tiny", "--fast", "--ablate", ","]) == 2
    assert "--ablate is empty" in capsys.readouterr().err


def test_evaluate_says_where_ablations_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--env", "taxi", "--policy", "random", "--ablate", "reflection"]) == 2
    assert "`reflectkit run` has it" in capsys.readouterr().err
