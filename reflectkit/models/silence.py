"""Keep the libraries' progress bars and notices off the terminal, where they would break up ours, and their usage
reports off the network.
"""

from __future__ import annotations

import contextlib
import logging
import warnings


def silence_libraries() -> None:
    """Silence transformers, datasets, TRL and bitsandbytes except for errors. Cheap to call again."""
    import transformers
    from huggingface_hub import constants

    constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL's trainers report the GPU and the type of the model to the hub
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with contextlib.suppress(ModuleNotFoundError):  # only SFT needs it
        import datasets

        datasets.disable_progress_bars()
    for name in ("bitsandbytes", "trl", "peft", "accelerate", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for category in (DeprecationWarning, UserWarning):
        warnings.filterwarnings(
            "ignore", category=category, module=r"(transformers|trl|peft|accelerate|datasets|torch)\b.*"
        )
    warnings.filterwarnings(
        "ignore", message="`is_gradient_checkpointing` is deprecated"
    )  # peft 0.21 asks by this name
