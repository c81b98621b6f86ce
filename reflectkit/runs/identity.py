"""The identity of a run: its stage, its settings and the contents of its inputs, as its config.json records them."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from reflectkit.config import REQUIRED, Config, as_plain, flag, flat, leaves
from reflectkit.errors import DataError
from reflectkit.files import missing, visible_files
from reflectkit.jsonl import dumps, read_json, sha256

RECORDED_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "gymnasium")
CHECKSUM = "sha256"  # key of the checksum over the other entries of a config.json
HASHED_WHOLE = 256 * 2**20  # bytes; a larger file is identified by its size and modification time


@dataclass(frozen=True)
class Identity:
    """What identifies a run. inputs: digests by path. config: the whole settings, for the defaults of those that an
    earlier version did not have.
    """

    stage: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    config: Config

    def as_json(self) -> dict[str, Any]:
        """The entries for config.json."""
        return {"stage": self.stage, "settings": dict(self.settings), "inputs": dict(self.inputs)}

    def fits(self, record: Mapping[str, Any]) -> bool:
        """Whether `record`, the config.json of a run, has this identity."""
        settings = record.get("settings")
        return (
            record.get("stage") == self.stage
            and record.get("inputs") == self.inputs
            and isinstance(settings, dict)
            and recorded_defaults(self.config) | settings == self.settings
        )

    def difference(self, record: Mapping[str, Any]) -> str:
        """The first setting, or else input, that differs in `record`."""
        settings, inputs = record.get("settings"), record.get("inputs")
        if not isinstance(settings, dict) or not isinstance(inputs, dict):
            return "its config.json is damaged"
        recorded = recorded_defaults(self.config) | settings
        for name in sorted({*recorded, *self.settings}):
            if recorded.get(name) != self.settings.get(name):
                shown_name = name if name.isupper() else flag(name)
                return f"{shown_name} {_shown(recorded.get(name))} there, {_shown(self.settings.get(name))} here"
        changed = [path for path in {**self.inputs, **inputs} if self.inputs.get(path) != inputs.get(path)]
        return f"{changed[0]} was different" if changed else "another process made it just now"


def digest(path: Path) -> str:
    """A digest of the contents of `path`, a file or a folder of files.

    Raises DataError if it is missing or cannot be read.
    """
    try:
        if not path.is_dir():
            return _file_digest(path)
    except FileNotFoundError:
        raise missing(path) from None
    except PermissionError:
        raise DataError(path, "cannot be read; change its permissions") from None
    parts = []
    for file in visible_files(path):
        try:
            parts.append(f"{file.relative_to(path)} {_file_digest(file)}")
        except OSError:
            parts.append(f"{file.relative_to(path)} unreadable")
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _file_digest(path: Path) -> str:
    facts = path.stat()
    return sha256(path) if facts.st_size <= HASHED_WHOLE else f"{facts.st_size} bytes, {facts.st_mtime_ns} ns"


def recorded_defaults(config: Config) -> dict[str, Any]:
    """The defaults of the settings that belong to a run's identity, as JSON values: what runs made before a setting
    existed are taken to have.
    """
    rows = [leaf for leaf in leaves(type(config), flat(config)) if leaf.is_identity and leaf.default is not REQUIRED]
    return {leaf.name: as_plain(leaf.default) for leaf in rows}


def _shown(value: Any) -> str:
    text = "not set" if value in (None, "", []) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def circumstances(seed: int) -> dict[str, Any]:
    """The seed, package versions and commit of a run, for config.json."""
    versions = {}
    for package in ("reflectkit", *RECORDED_PACKAGES):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    commit = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        here = Path(__file__).parent
        command = ["git", "-C", str(here), "rev-parse", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return {"seed": seed, "versions": versions, "commit": commit}


def read_record(folder: Path) -> dict[str, Any]:
    """The content of `config.json` in `folder`; empty if it is missing or damaged."""
    try:
        record = read_json(folder / "config.json")
    except (DataError, NotADirectoryError):
        return {}
    return record if isinstance(record, dict) else {}


def intact_record(folder: Path) -> dict[str, Any]:
    """The content of `config.json` in `folder`; empty if it is missing. Raises DataError if it is damaged."""
    if not (folder / "config.json").exists():
        return {}
    record = read_record(folder)
    whole = isinstance(record.get("settings"), dict) and record.get(CHECKSUM) in (None, record_checksum(record))
    if not whole and (folder / "config.json").exists():
        fixes = f"restore it to resume that run, or remove {folder}; --force starts a new run"
        raise DataError(folder / "config.json", f"is damaged and may belong to this command; {fixes}")
    return record


def record_checksum(record: Mapping[str, Any]) -> str:
    """SHA-256 of the other entries of a config.json."""
    text = dumps({name: value for name, value in record.items() if name != CHECKSUM})
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
