"""Numbers in YAML files of settings."""

from __future__ import annotations

import pytest

from reflectkit.commands.sft import SFTConfig
from reflectkit.config import build, parse_yaml


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "0.1e-3", "1.0e-04", "+1e-4"])
def test_an_exponent_needs_no_point(text: str) -> None:
    values = parse_yaml(f"{{env: taxi, role: plain, learning_rate: {text}}}", "settings.yaml")
    assert build(SFTConfig, values, "sft").optim.learning_rate == 1e-4


def test_a_word_with_digits_stays_a_word() -> None:
    assert parse_yaml("[1e, e-4, 1e-4-final, 0x1f]", "names.yaml") == ["1e", "e-4", "1e-4-final", 31]
