"""One file a command: a frozen config and `run(config, progress) → Report`. No printing, no math.

`STAGES` is the pipeline in order; the command line and `run` read it, and a module is imported when its stage is used.
"""

from __future__ import annotations

STAGES = {
    "gen-trajectory": "reflectkit.stages.gen_trajectory",
    "split": "reflectkit.stages.split",
    "gen-sft": "reflectkit.stages.gen_sft",
    "sft": "reflectkit.stages.sft",
    "rlft": "reflectkit.stages.rlft",
    "evaluate": "reflectkit.stages.evaluate",
    "plot": "reflectkit.stages.plot",
    "run": "reflectkit.stages.run",
}
