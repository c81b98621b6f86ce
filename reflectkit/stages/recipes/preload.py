"""Imports the heavy libraries once, in the server that forks the steps of a `run`, and what every step needs of ours.

They start no threads but the one of pyarrow's allocator, which knows of forks. If torch can use a GPU, each step
imports them itself: importing bitsandbytes looks for GPUs, and after that CUDA cannot be used in a forked process.
"""

import contextlib
import gc
import os
import threading

_parent = os.getppid()
_imported = threading.Event()


def _end_if_alone() -> None:
    while not _imported.wait(0.2):
        if os.getppid() != _parent:
            os._exit(0)  # nobody waits for the steps any more


_watch = threading.Thread(target=_end_if_alone, daemon=True)
_watch.start()

with contextlib.suppress(Exception):  # the step that needs a library says what is wrong with it
    import torch

    if not any(getattr(torch.version, name, None) for name in ("cuda", "hip", "xpu")):
        from reflectkit.models.silence import silence_libraries

        silence_libraries()  # before bitsandbytes is imported, which is noisy without a GPU

        import accelerate  # noqa: F401
        import peft  # noqa: F401
        from transformers import conversion_mapping
        from transformers.models.gpt2 import modeling_gpt2  # noqa: F401
        from trl import SFTTrainer  # noqa: F401

        conversion_mapping.get_checkpoint_conversion_mapping("gpt2")  # compiles a thousand patterns for all models

with contextlib.suppress(Exception):
    from pydantic import TypeAdapter  # noqa: F401

    import reflectkit.rl.checkpoint
    import reflectkit.rl.loop
    import reflectkit.stages.evaluate
    import reflectkit.stages.gen_sft
    import reflectkit.stages.recipes.checks
    import reflectkit.stages.rlft  # noqa: F401

gc.collect()
gc.freeze()  # collections in a step need not go through all that, nor copy its memory

_imported.set()
_watch.join()  # what forks has no thread
