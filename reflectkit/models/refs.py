"""What a model's name means: a `ModelRef` is parsed once from what a person types, and resolved
once to a place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from typing_extensions import override

from reflectkit.chat.config import DECISION_KEYS, KEYS, example_model
from reflectkit.config import FromText
from reflectkit.console import Progress
from reflectkit.errors import CheckpointError
from reflectkit.models.checkpoint_metadata import (
    BETTER,
    REFLECTOR_FOLDER,
    best_checkpoint,
    check_model_folder,
    has_tokenizer,
    model_facts,
)
from reflectkit.models.hub import PACKAGED, TINY, hub_options, looks_local
from reflectkit.models.packaged import packaged_folder
from reflectkit.runs.run import checkpoints


class ModelKind(Enum):
    """What a name stands for, as far as its text says."""

    STORED = "a checkpoint, a run of sft or rlft, another folder, or a hub id"
    PACKAGED = "a model in a Python package"
    TINY = "a model with random weights, built for an environment or for rows"
    CHAT = "a chat model that is asked over HTTP"
    DECISION = "a decision model that is asked over HTTP"
    ORACLE = "the environment's own teacher"
    NOTHING = "empty comments"


KIND_OF_NAME = {
    "oracle": ModelKind.ORACLE,
    "nothing": ModelKind.NOTHING,
    **dict.fromkeys(PACKAGED, ModelKind.PACKAGED),
    **dict.fromkeys(TINY, ModelKind.TINY),
}
"""The names that are no path and no hub id."""


def _kind_of(text: str) -> ModelKind:
    prefix, colon, _ = text.partition(":")
    if colon and prefix in KEYS:
        return ModelKind.CHAT
    if colon and prefix in DECISION_KEYS:
        return ModelKind.DECISION
    return KIND_OF_NAME.get(text, ModelKind.STORED)


@dataclass(frozen=True)
class ModelRef(FromText):
    """A model as settings name it. `str` gives the name back.

    >>> ModelRef.parse("results/taxi-tiny/policy/").text, ModelRef.parse("openai:gpt-4o-mini").kind.name
    ('results/taxi-tiny/policy', 'CHAT')
    """

    text: str
    kind: ModelKind = ModelKind.STORED

    @classmethod
    @override
    def parse(cls, text: str) -> ModelRef:
        """The model called `text`. `./` in front says that a name is a folder's; a path loses the
        slash at its end.
        """
        kind, path = _kind_of(text), str(Path(text))
        if kind in (ModelKind.CHAT, ModelKind.DECISION):
            return cls(text, kind)
        if text.startswith("./") and _kind_of(path) is not ModelKind.STORED:
            return cls(f"./{path}")
        return cls(path, _kind_of(path))

    def __str__(self) -> str:
        return self.text

    @property
    def is_chat(self) -> bool:
        """Whether it is a chat model, which is asked over HTTP."""
        return self.kind is ModelKind.CHAT

    @property
    def decides(self) -> bool:
        """Whether it is a decision model, which is asked over HTTP."""
        return self.kind is ModelKind.DECISION

    @property
    def is_asked(self) -> bool:
        """Whether another program is asked over HTTP."""
        return self.is_chat or self.decides

    @property
    def is_teacher(self) -> bool:
        """Whether it is the environment's own teacher."""
        return self.kind is ModelKind.ORACLE

    @property
    def is_nothing(self) -> bool:
        """Whether it stands for empty comments."""
        return self.kind is ModelKind.NOTHING

    @property
    def only_comments(self) -> bool:
        """Whether it is no model, and can only be who comments."""
        return self.is_teacher or self.is_nothing

    @property
    def is_tiny(self) -> bool:
        """Whether its weights are random and yet to be made."""
        return self.kind is ModelKind.TINY

    @property
    def has_weights(self) -> bool:
        """Whether it is a model that can be loaded."""
        return self.kind in (ModelKind.STORED, ModelKind.PACKAGED, ModelKind.TINY)

    @property
    def path(self) -> Path:
        """Its text as a path, which may not exist."""
        return Path(self.text)

    @property
    def folder(self) -> Path | None:
        """Its folder, an input of a run; None for a hub id, and for what has no weights."""
        return self.path if self.has_weights and looks_local(self.text) else None

    @property
    def facts(self) -> dict[str, Any]:
        """What was saved with the model: role, env, reflector, …; empty if there is nothing that
        can be read.
        """
        return model_facts(self.path) if self.has_weights else {}

    def require(self) -> None:
        """Raises CheckpointError if its name is a folder's or a hub id that cannot be read, before
        torch is imported.
        """
        if self.kind is ModelKind.STORED:
            hub_options(self.text)
            # A run stands for a checkpoint in it
            if looks_local(self.text) and not checkpoints(self.path):
                check_model_folder(self.path)

    def checkpoint(self, progress: Progress) -> ModelRef:
        """For a run, the checkpoint that it stands for, which is reported: the best one if training
        validated, else the newest. Anything else stands for itself.
        """
        inside = checkpoints(self.path) if self.kind is ModelKind.STORED else []
        if not inside or has_tokenizer(self.path):
            return self
        best = best_checkpoint(inside)
        if best is None:
            progress.news(f"{self}: {inside[-1].name}, its newest checkpoint")
            return ModelRef(str(inside[-1]))
        facts = model_facts(best)
        measures = [
            f"{name.replace('_', ' ')} {facts[name]:.3g}" for name in BETTER if name in facts
        ]
        progress.news(f"{self}: {best.name}, its best checkpoint ({', '.join(measures)})")
        return ModelRef(str(best))

    def source(self, data_dir: Path, progress: Progress) -> ModelRef:
        """Where its weights are: `checkpoint`, and for a packaged model the folder in `data_dir`
        into which it is converted first. A hub id stays as it is. Raises CheckpointError.
        """
        if self.kind is ModelKind.PACKAGED:
            return ModelRef(str(packaged_folder(self.text, data_dir, progress)))
        return self.checkpoint(progress)

    def resolve(
        self,
        data_dir: Path,
        progress: Progress,
        *,
        reflects: bool = False,
    ) -> ModelRef:
        """`source`, of which it is known that it can be loaded. reflects: a checkpoint in which
        both players learned stands for its reflector. What has no weights stands for itself.

        Raises CheckpointError for no model, and for a hub id that cannot be fetched, before torch
        is imported.
        """
        if not self.has_weights:
            return self
        source = self.source(data_dir, progress)
        try:
            source.require()
        except CheckpointError as error:
            name = example_model(self.text)
            chat = f"; a chat model is written openai:{name} or local:{name}"
            raise CheckpointError(f"{error}{'' if looks_local(source.text) else chat}") from None
        reflector = source.path / REFLECTOR_FOLDER
        if reflects and looks_local(source.text) and reflector.is_dir():
            return ModelRef(str(reflector))
        return source


TEACHER = ModelRef("oracle", ModelKind.ORACLE)
"""The environment's own teacher, in a reflector's place."""


def resolved(
    model: ModelRef | None,
    data_dir: Path,
    progress: Progress,
    *,
    reflects: bool = False,
) -> ModelRef | None:
    """`ModelRef.resolve`, for a model that may be None."""
    return None if model is None else model.resolve(data_dir, progress, reflects=reflects)
