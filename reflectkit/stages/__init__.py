"""One file per command: a frozen config and `run(config, progress) → Report`. No printing, no math.

`STAGES` is the pipeline in order; the command line and `run` read it, and a module is imported when its stage is used.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib.abc import InspectLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reflectkit.core.config import StageConfig

STAGES = {
    "play": "reflectkit.stages.play",
    "filter-repo": "reflectkit.stages.filter_repo",
    "gen-task": "reflectkit.stages.gen_task",
    "filter-task": "reflectkit.stages.filter_task",
    "gen-trajectory": "reflectkit.stages.gen_trajectory",
    "split": "reflectkit.stages.split",
    "gen-sft": "reflectkit.stages.gen_sft",
    "gen-comments": "reflectkit.stages.gen_comments",
    "sft": "reflectkit.stages.sft",
    "rlft": "reflectkit.stages.rlft",
    "evaluate": "reflectkit.stages.evaluate",
    "pack": "reflectkit.stages.pack",
    "plot": "reflectkit.stages.plot",
    "view": "reflectkit.stages.view",
    "export": "reflectkit.stages.export",
    "run": "reflectkit.stages.run",
    "bench": "reflectkit.stages.bench",
}


def config_class(name: str) -> type[StageConfig]:
    """The config of stage `name`, whose class says what the stage reads and writes."""
    kind: type[StageConfig] = importlib.import_module(STAGES[name]).Config
    return kind


def summary(name: str) -> str:
    """What stage `name` is for: the first paragraph of its module's text, read without importing the module."""
    spec = importlib.util.find_spec(STAGES[name])
    assert spec is not None
    assert isinstance(spec.loader, InspectLoader)
    source = spec.loader.get_source(STAGES[name]) or ""
    text = " ".join(source.split('"""')[1].partition("\n\n")[0].split()).partition(": ")[2]
    return text[:1].upper() + text[1:]
