"""The number of CPU threads of the numerical libraries. It is a setting because it changes the order of sums."""

from __future__ import annotations

import os
import sys

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def use_threads(count: int) -> None:
    """Make torch and numpy compute on `count` CPU threads, whether or not torch is imported yet.

    This overrides the environment's OMP_NUM_THREADS, because the same command must give the same bytes everywhere.
    Processes started later inherit the setting.
    """
    os.environ.update(dict.fromkeys(VARIABLES, str(count)))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(count)
