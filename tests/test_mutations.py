"""The faults of tests/mutations.py: each has one place in the package, and tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation, place_of, sources


@pytest.fixture(scope="module")
def contents() -> dict[Path, str]:
    return sources(ROOT / "reflectkit")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_has_one_place_and_its_tests_exist(mutation: Mutation, contents: dict[Path, str]) -> None:
    place_of(mutation, contents)
    for test in mutation.tests:
        file, _, function = test.partition("::")
        name = function.partition("[")[0]
        assert f"def {name}(" in (ROOT / file).read_text("utf-8")
