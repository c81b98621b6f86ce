"""Parameters of recipes: flags with their own names, checked, and with folders of their own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from reflectkit.cli.main import main
from reflectkit.commands.run import PipelineConfig, planned
from reflectkit.console import Quiet
from reflectkit.errors import ConfigError
from reflectkit.models.packaged import model_source
from reflectkit.recipe import load_recipe
from tests.command_lines import error_of

RECIPE = """
description: d
steps:
  - {name: repos, stage: filter-repo, repo_dir: mine}
  - {name: demos, stage: gen-trajectory, env: taxi, noise: 0.3, level: pickup}
  - {name: rows, stage: split, env: auto_explore}
  - {name: evaluation, stage: evaluate, env: taxi, policy: [random], level: [pickup]}
parameters:
  place: {help: Where., sets: [repos.repo_dir], own_folders: true}
  noise: {help: How much., sets: [gen-trajectory.noise]}
  levels: {help: Which., sets: [evaluation.level]}
  shuffle: {help: Whether., sets: [defaults.shuffle_action]}
fast:
  demos: {noise: 0.1}
"""
FEW = str(Path(__file__).parents[2] / "research/recipes/taxi-few.yaml")
ALONG = ("--place", "--levels", "--set", "--seed")


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(RECIPE)


def settings(**given: object) -> dict[str, dict[str, object]]:
    return {job.name: dict(job.values) for job in planned(PipelineConfig.from_flat(recipe="r.yaml", **given))[0]}


def test_a_parameter_sets_what_the_recipe_says() -> None:
    given = settings(place=Path("other"), noise=0.2, levels=("pickup,full",), shuffle=True)
    assert given["repos"]["repo_dir"] == Path("other")
    assert given["demos"]["noise"] == 0.2
    assert given["evaluation"]["level"] == ["pickup", "full"]
    assert given["demos"]["shuffle_action"] is True
    assert settings()["demos"]["noise"] == 0.3


def test_a_parameter_overrides_fast_and_set_overrides_both() -> None:
    assert settings(fast=True)["demos"]["noise"] == 0.1
    assert settings(fast=True, noise=0.2)["demos"]["noise"] == 0.2
    assert settings(fast=True, noise=0.2, set=("demos.noise=0.4",))["demos"]["noise"] == 0.4


def test_each_value_of_a_path_has_its_own_folders(tmp_path: Path) -> None:
    names = [
        PipelineConfig.from_flat(recipe="r.yaml", place=Path(folder)).folder
        for folder in ("a/repos", "b/repos", "a/repos/")
    ]
    assert len(set(names)) == 2
    assert names[0] == names[2] == PipelineConfig.from_flat(recipe="r.yaml", place=tmp_path / "a" / "repos").folder
    assert names[0].startswith("r-repos-")
    given = settings(place=Path("a/repos"))["repos"]
    assert given["data_dir"] == Path("data") / names[0].removeprefix("r-")
    assert given["name"] == f"{names[0]}/repos"


def test_each_value_of_a_number_has_its_own_folders() -> None:
    five, usual = (
        PipelineConfig.from_flat(recipe=FEW, demonstrations=5),
        PipelineConfig.from_flat(recipe=FEW, demonstrations=10),
    )
    assert (five.folder, five.data_folder) == ("taxi-few-demonstrations-5", Path("data/demonstrations-5"))
    assert (usual.folder, usual.data_folder) == ("taxi-few", Path("data"))
    given = {job.name: job.values for job in planned(five)[0]}
    names = ("few-rows", "policy-rows", "symmetric-rows", "shuffled-rows")
    assert [given[name]["demonstrations"] for name in names] == [5] * 4
    assert given["demonstrations"]["demonstrations"] == 300


def test_the_fast_variant_has_its_own_data_also_for_a_path() -> None:
    assert PipelineConfig.from_flat(recipe="r.yaml", fast=True).data_folder == Path("data/fast")
    assert PipelineConfig.from_flat(recipe="r.yaml", fast=True, name="own", data_dir=Path("d")).data_folder == Path(
        "d/fast"
    )
    own = PipelineConfig.from_flat(recipe="r.yaml", fast=True, place=Path("a/repos"))
    assert own.folder == f"r-{own.label}-fast"
    assert settings(fast=True, place=Path("a/repos"))["repos"]["data_dir"] == Path("data") / f"{own.label}-fast"


def test_the_full_run_has_the_same_parameters_and_settings() -> None:
    given = {"place": Path("my repos"), "levels": ("pickup", "full"), "shuffle": False, "set": ("demos.noise=0",)}
    fast = PipelineConfig.from_flat(recipe="r.yaml", fast=True, name="own", keep=True, seed=3, **given)
    first, *rest = fast.in_full
    assert first == "r.yaml"
    pairs = {("--place", "my repos"), ("--levels", "pickup"), ("--levels", "full"), ("--set", "demos.noise=0")}
    assert pairs | {("--seed", "3")} == {pair for pair in pairwise(rest) if pair[0] in ALONG}
    assert [one for one in rest if one.startswith("--") and one not in ALONG] == ["--no-shuffle"]
    assert len(rest) == 11
    assert PipelineConfig.from_flat(recipe="r.yaml", fast=True).in_full == ["r.yaml"]


def test_the_recipes_own_value_keeps_the_usual_folders() -> None:
    assert PipelineConfig.from_flat(recipe="r.yaml", place=Path("mine")).folder == "r"
    assert settings(place=Path("mine"))["repos"]["data_dir"] == Path("data")
    assert PipelineConfig.from_flat(recipe="r.yaml", place=Path("other"), name="own").folder == "own"


def test_help_and_list_show_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "r.yaml", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--noise" in shown
    assert "How much. Default: 0.3." in shown
    assert main(["run", "--fast", "--seeds", "2", "r.yaml", "--help"]) == 0
    assert "--noise" in capsys.readouterr().out
    assert main(["list"]) == 0
    assert "--repo-dir" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["r.yaml", "--noise", "much"], "unable to parse"),
        (["r.yaml", "--noise", "3"], "step 'demos': --noise must be less than or equal to 1, got 3.0"),
        (["r.yaml", "--nosie", "1"], "--noise"),
        (["r.yaml", "--levels", "picup"], "step 'evaluation': no level of env 'taxi' named 'picup'"),
        (["r.yaml", "--place", ""], "--place is empty"),
        (["r.yaml", "--place", "nowhere"], "nowhere: no such folder"),
        (["taxi-tiny", "--repo-dir", "x"], "--repo-dir is a setting of recipe 'auto-explore"),
        (["texi-tiny", "--repo-dir", "x"], "did you mean 'taxi-tiny'"),
    ],
)
def test_wrong_names_and_values_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("x: {help: h, sets: [nowhere.noise]}", "no step of recipe bad.yaml in parameters.x named 'nowhere'"),
        ("x: {help: h, sets: [demos.nosie]}", "did you mean 'noise'"),
        ("x: {help: h, sets: [noise]}", "no step of recipe"),
        ("x: {help: h, sets: []}", "is empty"),
        ("x: {help: h, sets: [demos.noise, demos.level]}", "expected one plain type"),
        ("x: {help: h, sets: [demos.noise], own_folders: true}", "own_folders is for a path"),
        ("x: {help: h, set: [demos.noise]}", "parameters.x.sets"),
        ("X-y: {help: h, sets: [demos.noise]}", "can't name a parameter"),
        ("class: {help: h, sets: [demos.noise]}", "can't name a parameter"),
        ("help: {help: h, sets: [demos.noise]}", "can't have the name 'help'"),
        ("seeds: {help: h, sets: [demos.noise]}", "its setting 'seeds' is one of the command's already"),
    ],
)
def test_malformed_parameters_are_one_line(parameter: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text(RECIPE.partition("parameters:")[0] + f"parameters: {{{parameter}}}\n")
    assert message in error_of(["run", "bad.yaml"], capsys)


def test_the_packaged_recipes_name_what_they_set() -> None:
    resolved = load_recipe("auto-explore-tiny").resolved
    assert resolved["max_length"].default == 512
    assert resolved["levels"].default == ["1", "2", "all"]
    dtype = load_recipe("auto-explore-smollm2").resolved["dtype"]
    assert dtype.default == "float32"
    assert dtype.targets == [("sft", "dtype")]


def test_an_unknown_parameter_is_refused_in_python() -> None:
    with pytest.raises((ConfigError, TypeError)):
        PipelineConfig.from_flat(recipe="r.yaml", nowhere=1)


MODEL = """
description: d
steps: [{name: plain, stage: sft, env: corridor, role: plain, model: smollm2-135m, task_file: missing.jsonl}]
"""


def test_a_converted_model_is_shared_by_fast_runs_and_seeds(
    tmp_path: Path, quiet: Quiet, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that has rows would train; what an earlier version converted there stays in use."""
    Path("model.yaml").write_text(MODEL)
    own = Path("data/fast/seed1/models/smollm2-135m")
    for folder in (Path("data/models/smollm2-135m"), own):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    for more in ([], ["--seeds", "2"], ["--fast"], ["--fast", "--seeds", "2"]):
        assert "missing.jsonl" in error_of(["run", "model.yaml", *more], capsys)
    for data in ("data", "data/fast", "data/seed0", "data/seed1", "data/fast/seed0"):
        found = Path(model_source("smollm2-135m", Path(data), quiet))
        assert found.parent.parent == Path(data)
        assert found.samefile("data/models/smollm2-135m")
    assert not own.is_symlink()
    assert not own.parent.is_symlink()
