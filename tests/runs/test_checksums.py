"""Sealed folders: every changed, lost or added file is noticed and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from reflectkit.errors import CheckpointError
from reflectkit.runs.run import CHECKSUMS, refuse_damage, seal, verify


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-1"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.json", "b.bin", "deep/c.json"):
        (folder / name).write_bytes(name.encode() * 3)
    seal(folder)
    return folder


def test_an_unchanged_folder_passes_and_a_resealed_one(sealed: Path) -> None:
    verify(sealed)
    (sealed / "a.json").write_bytes(b"other")
    seal(sealed)
    verify(sealed)


@pytest.mark.parametrize("name", ["deep/c.json", CHECKSUMS])
def test_every_flipped_bit_is_noticed(sealed: Path, name: str) -> None:
    path = sealed / name
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckpointError) as caught:
            verify(sealed)
        assert str(sealed) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_is_loaded_may_have_more_or_fewer_files_but_no_changed_one(sealed: Path) -> None:
    (sealed / "note.txt").write_text("mine")
    (sealed / "a.json").unlink()
    refuse_damage(sealed)
    refuse_damage(sealed / "deep")
    (sealed / "deep" / "c.json").write_bytes(b"other")
    for folder in (sealed, sealed / "deep"):
        with pytest.raises(CheckpointError, match=r"c\.json is damaged: .*; train it again"):
            refuse_damage(folder)
