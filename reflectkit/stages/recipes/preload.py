"""Imports the heavy libraries once, in the server that forks the steps of a `run`. They start no threads.

If torch can use a GPU, each step imports them itself: importing bitsandbytes looks for GPUs, and after that CUDA cannot
be used in a forked process.
"""

import contextlib
import os

_parent = os.getppid()

with contextlib.suppress(Exception):  # the step that needs a library says what is wrong with it
    import torch

    if not any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")):
        from reflectkit.models.silence import silence_libraries

        silence_libraries()  # before bitsandbytes is imported, which is noisy without a GPU

        import accelerate  # noqa: F401
        import peft  # noqa: F401
        from trl import SFTTrainer  # noqa: F401

    import reflectkit.stages.recipes.schedule  # noqa: F401

if os.getppid() != _parent:
    os._exit(0)  # nobody waits for the steps any more
