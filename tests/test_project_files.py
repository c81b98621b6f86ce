"""The files around the code: how to cite it, report a bug and read the changelog, and the README on a package index."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from reflectkit.version import VERSION

ROOT = Path(__file__).parents[1]
ISSUE_FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
ATTRIBUTES = {
    "markdown": {"value"},
    "input": {"label", "description", "placeholder", "value"},
    "textarea": {"label", "description", "placeholder", "value", "render"},
    "checkboxes": {"label", "description", "options"},
}


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    """setup.py as a module, which then builds nothing."""
    spec = importlib.util.spec_from_file_location("reflectkit_setup", ROOT / "setup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "abstract", "keywords"} <= citation.keys()
    assert (citation["version"], citation["license"], citation["type"]) == (VERSION, "Apache-2.0", "software")
    assert ("date-released" in citation) == ("dev" not in VERSION)
    (paper,) = citation["references"]
    assert paper["url"].rpartition("/")[2] in (ROOT / "docs/citing.md").read_text("utf-8")
    assert [author["family-names"] for author in paper["authors"]] == ["Zhou", "Du", "Li"]


def test_a_capped_dependency_is_tested_at_the_newest_version_that_it_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    capped = [one for every in lists for one in map(Requirement, every) if "<" in str(one.specifier)]
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    for requirement in capped:
        version = tested[requirement.name]
        major, minor = map(int, version.split(".")[:2])
        assert requirement.specifier.contains(version)
        assert not requirement.specifier.contains(f"{major}.{minor + 1}")
    assert {requirement.name for requirement in capped} >= {"torch", "transformers", "trl"}


def test_the_changelog_has_this_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    dated = [match[1] for heading in headings if (match := re.fullmatch(r"\[(.+)\] - \d{4}-\d\d-\d\d", heading))]
    assert (VERSION in dated[:1]) == ("dev" not in VERSION)


@pytest.mark.parametrize("path", ISSUE_FORMS, ids=lambda path: path.name)
def test_issue_forms_have_the_form_that_is_read(path: Path) -> None:
    form: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    if path.name == "config.yml":
        assert form.keys() <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "body", "labels", "title"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len({field["attributes"]["label"] for field in fields})
    for field in form["body"]:
        assert field.keys() <= {"type", "id", "attributes", "validations"}
        assert field["attributes"].keys() <= ATTRIBUTES[field["type"]]
        assert field.get("validations", {}).keys() <= {"required"}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_relative_links_lead_to_files(page: Path) -> None:
    text = (ROOT / page).read_text("utf-8")
    targets = re.findall(r"\]\((?![a-z]+:)([^)#\s]+)[^)]*\)", text)
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_readme_of_a_package_index_has_no_relative_links(setup: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    relative = re.compile(r"\]\((?![a-z]+:|#)|\bsrc(?:set)?=\"(?![a-z]+:)")
    assert relative.search(readme)
    for source in ("", "https://example.org/reflectkit"):
        text = setup.long_description(readme, source, VERSION)
        assert not relative.search(text)
        assert text.count("\n## ") == readme.count("\n## ")
        assert ("https://example.org/reflectkit/blob/HEAD/docs/results.md" in text) == bool(source)


def test_links_and_pictures_are_left_out_or_made_absolute(setup: ModuleType) -> None:
    readme = (
        '<picture>\n<source srcset="d.png">\n<img alt="x" src="p.png">\n</picture>\n\n![Curve](a/b.png)\n\n'
        '<img src="c.png" width="9">\n\n[Page](docs/page.md#part), [site](https://x.org) and [below](#below)\n'
    )
    assert setup.long_description(readme, "", "1.2").startswith("\n\nPage, [site](https://x.org) and [below](#below)\n")
    there = setup.long_description(readme, "https://h.org/r", "1.2")
    assert re.findall(r"\((.+?)\)", there) == [
        *(f"https://h.org/r/raw/v1.2/{name}.png" for name in ("p", "a/b", "c")),
        "https://h.org/r/blob/v1.2/docs/page.md#part",
        "https://x.org",
        "#below",
    ]
