"""What the server that forks the steps of a `run` imports once: the heavy libraries, which start no thread and touch no GPU."""

from reflectkit.models.hush import hush

hush()  # before bitsandbytes is imported, which is noisy without a GPU

import accelerate  # noqa: E402, F401
import peft  # noqa: E402, F401
from trl import SFTTrainer  # noqa: E402, F401

import reflectkit.stages.schedule  # noqa: E402, F401
