"""Where trained weights are written for a server to read, and what they are called there."""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

from reflectkit.errors import ConfigError
from reflectkit.jsonl import TEMPORARY_PREFIX
from reflectkit.models.load import POLICY_ADAPTER, LoadedModel


class Store:
    """A folder that the server sees too.

    folder: None for a temporary one, which is removed at the end. there: its path on the server's machine, if it
    differs. The names of all weights of this process begin alike, and like those of no other, so that a server never
    takes one for another's.
    """

    def __init__(self, folder: Path | None, there: str = "") -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="reflectkit-weights-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary else Path(folder or ".")
        self.there = there.rstrip("/")
        self.prefix = f"reflectkit-{secrets.token_hex(4)}"

    def name(self, version: int) -> str:
        """What the weights of `version` are called."""
        return f"{self.prefix}-v{version}"

    def version(self, name: Any) -> int | None:
        """The version of weights that a server calls `name`; None if they are not of this process."""
        found = re.fullmatch(rf"{self.prefix}-v([0-9]{{1,18}})", name) if isinstance(name, str) else None
        return int(found[1]) if found else None

    def write(self, player: LoadedModel, version: int) -> str:
        """Write the adapter of `player`, or its whole model, and return its path on the server's machine. Raises
        ConfigError if the folder cannot be written.
        """
        name = self.name(version)
        target, staging = self.folder / name, self.folder / f"{TEMPORARY_PREFIX}{name}"
        try:
            staging.mkdir(parents=True, exist_ok=True)
            only = {}
            if hasattr(player.model, "peft_config"):
                only = {"selected_adapters": [player.adapter or POLICY_ADAPTER]}
            player.model.save_pretrained(staging, safe_serialization=True, **only)
            player.tokenizer.save_pretrained(staging)
            staging.rename(target)
        except OSError as error:
            raise ConfigError(f"--adapter-dir {self.folder}: {error.strerror or error}; name another folder") from None
        return self._there(name)

    def copy(self, folder: Path, name: str) -> str:
        """The path on the server's machine of the adapter in `folder`: a copy called `name` if the user named a folder
        that the server sees. Raises ConfigError if that cannot be written.
        """
        if self._temporary:
            return str(folder.resolve())
        try:
            target = self.folder / name
            target.mkdir(parents=True, exist_ok=True)
            for file in ("adapter_config.json", "adapter_model.safetensors"):
                shutil.copyfile(folder / file, target / file)
        except OSError as error:
            raise ConfigError(f"--adapter-dir {self.folder}: {error.strerror or error}; name another folder") from None
        return self._there(name)

    def _there(self, name: str) -> str:
        return f"{self.there}/{name}" if self.there else str((self.folder / name).resolve())

    def remove(self, name: str) -> None:
        """Remove weights that no one asks for any more."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder / name)
