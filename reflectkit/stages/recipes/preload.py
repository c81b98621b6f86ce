"""What the server that forks the steps of a `run` imports once: the heavy libraries, which start no thread.

Where torch can use a GPU they are left to the steps: bitsandbytes looks for GPUs when it is imported, and CUDA cannot
be used in a fork of a process that has done so.
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
