"""How many CPU threads the numerical libraries use: a setting, since sums in another order give other floats."""

from __future__ import annotations

import os
import sys

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def use_threads(count: int) -> None:
    """Make torch and numpy compute on `count` CPU threads, whether or not torch is imported yet.

    The environment's own OMP_NUM_THREADS is overridden: the same command must give the same bytes everywhere. Processes
    started later inherit the setting.
    """
    os.environ.update(dict.fromkeys(VARIABLES, str(count)))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(count)
