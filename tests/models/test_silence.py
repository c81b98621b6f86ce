"""What the libraries are kept from doing."""

from __future__ import annotations

import warnings

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _telemetry

from reflectkit.models.hub import silence_libraries


def test_no_library_reports_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    silence_libraries()
    _telemetry.send_telemetry("trl/SFTTrainer", library_name="trl")
    assert constants.HF_HUB_DISABLE_TELEMETRY
    assert _telemetry._TELEMETRY_THREAD is None


def test_what_a_library_will_remove_is_not_hidden() -> None:
    silence_libraries()
    with pytest.raises(FutureWarning):  # as pyproject.toml turns it into
        warnings.warn_explicit("going away", FutureWarning, "utils.py", 1, module="transformers.utils")
