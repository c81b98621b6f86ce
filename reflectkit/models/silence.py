"""Keep the libraries' progress bars and notices off the terminal, where they would break up ours."""

from __future__ import annotations

import logging
import warnings


def silence_libraries() -> None:
    """Silence transformers, datasets, TRL and bitsandbytes except for errors. Cheap to call again."""
    import datasets
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    for name in ("bitsandbytes", "trl", "peft", "accelerate", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for category in (FutureWarning, DeprecationWarning, UserWarning):
        warnings.filterwarnings(
            "ignore", category=category, module=r"(transformers|trl|peft|accelerate|datasets|torch)\b.*"
        )
