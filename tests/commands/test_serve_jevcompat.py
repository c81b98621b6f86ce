"""serve passes System One's conformance suite, jevcompat, with its official client."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.models.load import LoadedModel
from reflectkit.models.tiny import build_model, build_tokenizer
from tests.commands.test_serve_decisions import serving
from tests.train.training import agent_of

pytest.importorskip("jevcompat", reason="needs jevcompat: pip install jevcompat")


@pytest.mark.slow
@pytest.mark.parametrize("reflects", [False, True])
def test_every_requirement_is_met(reflects: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jevcompat.runner import run

    tokenizer = build_tokenizer(["Queue 123: Tickets routed to queue 123"] * 3, [], 400)
    policy, reflector = (
        LoadedModel(build_model(tokenizer, 8192, seed, init_range=0.3), tokenizer, role)
        for seed, role in enumerate(("plain", "reflection"))
    )
    statuses: dict[str, set[str]] = {}
    for token in ("", "s3cret-key"):
        monkeypatch.setenv("REFLECTKIT_TOKEN", token)
        with serving(agent_of(policy, reflector if reflects else None)) as url:
            report = run(url, key=token or None)
        assert report.conformant, [(result.id, result.findings) for result in report.results if result.findings]
        for result in report.results:
            statuses.setdefault(result.id, set()).add(result.status)
    assert len(statuses) == 48
    assert {name for name, found in statuses.items() if "pass" not in found or "fail" in found} == set()
