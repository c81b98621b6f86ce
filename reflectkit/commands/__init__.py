"""One file per command: `run(config, progress) → Report`, and `CONFIG`, the class of its settings.
No printing.

`STAGES` is the pipeline in order; the command line and `run` read it, and a module is imported when
its stage is used.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reflectkit.errors import ConfigError

if TYPE_CHECKING:
    from reflectkit.config import Config


@dataclass(frozen=True)
class Stage:
    """A command of the package."""

    module: str
    """Its module, imported when the command is used."""
    summary: str
    """What it is for."""


STAGES = {
    "new": Stage(
        "reflectkit.commands.new",
        "Write a small environment of your own to start from, and say how to play and train it.",
    ),
    "play": Stage(
        "reflectkit.commands.play",
        "Watch an environment or play it yourself, step by step. The player is a person, the"
        " oracle, a rule or a checkpoint.",
    ),
    "filter-repo": Stage(
        "reflectkit.commands.filter_repo",
        "Copy repositories with only the files that questions can be asked about. A table shows"
        " what was dropped and why.",
    ),
    "gen-task": Stage(
        "reflectkit.commands.gen_task",
        "Generate the problems of an env that does not list its own: conversations (memory), games"
        " (alfworld), or questions about the files of filtered repositories (auto_explore), with"
        " one output file per repository.",
    ),
    "filter-task": Stage(
        "reflectkit.commands.filter_task",
        (
            "Merge the files of gen-task, or of the original toolkit, into one clean list of"
            " questions."
        ),
    ),
    "gen-trajectory": Stage(
        "reflectkit.commands.gen_trajectory",
        "Generate demonstrations with reflections from a teacher: correct ones, and ones with a"
        " mistake and its correction.",
    ),
    "split": Stage(
        "reflectkit.commands.split",
        "Divide the problems into train, validate and test, 7:2:1 or as asked, keeping each group"
        " (a start state, a repository, a game) in one split.",
    ),
    "gen-sft": Stage(
        "reflectkit.commands.gen_sft",
        "Write the SFT files by replaying the training split's demonstrations through the"
        " environment, or from logged conversations.",
    ),
    "sft": Stage(
        "reflectkit.commands.sft",
        (
            "Supervised fine-tuning of one player with TRL's SFTTrainer, with the loss on the"
            " completions only."
        ),
    ),
    "rlft": Stage(
        "reflectkit.commands.rlft",
        "Online RL of a policy with REINFORCE, PPO or GRPO; a reflector may comment on each state"
        " first.",
    ),
    "evaluate": Stage(
        "reflectkit.commands.evaluate",
        "Compare several players on the same held-out problems, each with or without a reflector."
        " Reports success with 95 % intervals.",
    ),
    "plot": Stage(
        "reflectkit.commands.plot",
        (
            "Learning curves of RL runs, or bars of evaluations. Runs of the same name (seeds)"
            " give a median and a band."
        ),
    ),
    "view": Stage(
        "reflectkit.commands.view",
        "Write played episodes as one HTML page, or with --inspect as logs for `inspect view`.",
    ),
    "serve": Stage(
        "reflectkit.commands.serve",
        "Answer programs with a trained policy, which a reflector may comment for: OpenAI's chat"
        " completions, and decisions in the forms of OpenAI and System One.",
    ),
    "export": Stage(
        "reflectkit.commands.export",
        (
            "Write a checkpoint as a plain Hugging Face folder with a model card; a LoRA adapter"
            " is merged."
        ),
    ),
    "serve-env": Stage(
        "reflectkit.commands.serve_env",
        "Serve an environment by the OpenEnv protocol, so that other libraries can train in it.",
    ),
    "run": Stage(
        "reflectkit.commands.run",
        (
            "A whole pipeline from a recipe. Each step is a stage; finished steps are skipped"
            " and killed ones resume."
        ),
    ),
}


@dataclass(frozen=True)
class Traits:
    """What a recipe must know of a stage; its module's `TRAITS` differ from these defaults."""

    writes_data: bool = False
    """Whether it writes into the data folder: a recipe's later steps wait for it."""
    trains: bool = False
    """Whether it trains a model."""
    makes_arm: bool = False
    """Whether its output belongs to one arm of a recipe, so that an ablation may change its
    settings.
    """
    output: str = ""
    """The setting with its output path, which two arms must not share."""
    arms: tuple[str, ...] = ()
    """Settings that list one entry for each arm, as NAME=…"""
    reports: bool = False
    """Whether its tables are part of a recipe's own report."""


def is_own(name: str) -> bool:
    """Whether `name` is the dotted name of a module, such as `research.pack`, and its package can
    be imported.
    """
    package, dot, _ = name.partition(".")
    return bool(dot) and package.isidentifier() and importlib.util.find_spec(package) is not None


def stage_module(name: str) -> Any:
    """The module of stage `name`: one of the table, or your own (`is_own`)."""
    return importlib.import_module(STAGES[name].module if name in STAGES else name)


def traits(name: str) -> Traits:
    """What a recipe must know of stage `name`."""
    return getattr(stage_module(name), "TRAITS", Traits())


def config_class(name: str) -> type[Config]:
    """The class of the settings of stage `name`, which its `run` takes: `CONFIG` of its module.

    Raises ConfigError if your own module has none.
    """
    kind: type[Config] | None = getattr(stage_module(name), "CONFIG", None)
    if kind is None:
        raise ConfigError(
            f"stage {name}: the module has no CONFIG; set it to the class of the settings that"
            " run takes"
        )
    return kind
