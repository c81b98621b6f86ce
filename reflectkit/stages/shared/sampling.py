"""The sampler of the policy's actions and its own settings: `--sampler`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from typing_extensions import override

from reflectkit.core.config import (
    ANSWERS,
    THINKING,
    StageConfig,
    check_own_settings,
    fraction,
    one_of,
    option,
    with_own_settings,
    within,
)
from reflectkit.core.errors import ConfigError
from reflectkit.core.registry import code_files
from reflectkit.data.sft import FILE_OF_ROLE, read_rows
from reflectkit.models.choices import BACKENDS, backend
from reflectkit.models.facts import model_facts
from reflectkit.models.sampler import EVERYTHING, Opening, Sampler, Truncation
from reflectkit.models.servers.settings import KEYS, ServerSettings, is_server

if TYPE_CHECKING:
    from reflectkit.agents.commentators import Commentator

LOCAL = "local"


@dataclass(frozen=True)
class SamplerConfig(StageConfig):
    """Settings of a stage in which a trained policy acts."""

    PANEL: ClassVar = "Sampler"
    CHOOSERS: ClassVar[tuple[str, ...]] = ("sampler", "reflector_sampler")
    SAMPLER: ClassVar[str] = ""
    """The sampler whose own settings the class has, after `chosen`."""
    sampler: str = option(
        LOCAL,
        help=f"Who samples the policy's actions: {', '.join(BACKENDS)}, a server as"
        f" {' or '.join(f'{kind}:URL' for kind in KEYS)}, or your own as package.module:NAME.",
    )
    reflector_sampler: str = option(
        LOCAL, help=f"Who samples the comments: {LOCAL}, or a server as {' or '.join(f'{kind}:URL' for kind in KEYS)}."
    )
    thinking: str = option(
        THINKING[0],
        help="Reasoning of a model with a chat template: on (as its template does), off, or hidden (not shown to it"
        " later).",
    )
    answer: str = option(
        "",
        help="What a policy without SFT answers where it chooses: label (the choice's number) or text (its own words);"
        " others answer as they were trained. Default: label.",
    )
    episode_tokens: int = option(
        0, help="Most tokens that the policy may write in an episode, without enumerated actions; 0: no limit."
    )

    swap_comments: float = option(
        0.0,
        help="Share of the comments that are replaced by the teacher's on other states, from the reflector's SFT rows:"
        " how much wrong ones do harm.",
    )
    swap_from: Path | None = option(
        None,
        help="With --swap-comments, other rows to take those from, in the reflector's own words.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("swap_comments", self.swap_comments)
        if self.swap_from is not None and not self.swap_comments:
            raise ConfigError(f"--swap-from {self.swap_from} is for --swap-comments; add that, or leave it out")
        one_of("thinking", self.thinking, THINKING)
        one_of("answer", self.answer or ANSWERS[0], ANSWERS)
        within("episode_tokens", self.episode_tokens, 0, 10**9)
        self.part(backend(self.sampler).settings)  # which checks them
        if self.reflector_sampler != LOCAL:
            if not is_server(self.reflector_sampler):
                raise ConfigError(
                    f"--reflector-sampler {self.reflector_sampler}: write {LOCAL}, or a server such as"
                    " vllm:http://localhost:8000"
                )
            self.part(backend(self.reflector_sampler).settings)

    @classmethod
    @override
    def chosen(cls, values: Mapping[str, Any]) -> type[Self]:
        """The class with the samplers' own settings. Raises UnknownNameError, and ConfigError if a name is taken."""
        kind, name = super().chosen(values), values.get("sampler", LOCAL)
        if kind.SAMPLER or not isinstance(name, str):
            return kind
        if is_server(name) or is_server(str(values.get("reflector_sampler", LOCAL))):
            kind = with_own_settings(kind, ServerSettings, "Server", "a server", SAMPLER=name)
        if is_server(name):
            return kind
        own, whose = backend(name).settings, f"--sampler {name}"
        check_own_settings(own, whose)
        return with_own_settings(kind, own, whose, whose, SAMPLER=name) if dataclasses.fields(own) else kind

    @property
    @override
    def code_files(self) -> list[Path]:
        """Also those of a sampler of the user's own."""
        own = [] if self.sampler in BACKENDS or is_server(self.sampler) else [self.sampler.partition(":")[0]]
        return [*super().code_files, *code_files(own)]

    def answer_of(self, policy: Path | str) -> str:
        """What `policy` answers where it chooses: what it was trained with, else --answer. Raises ConfigError if these
        differ.
        """
        facts = model_facts(Path(policy))
        trained = facts.get("answer") or (ANSWERS[0] if facts.get("role") in ("policy", "plain") else None)
        if trained is None or self.answer in ("", trained):
            return str(trained or self.answer or ANSWERS[0])
        raise ConfigError(
            f"--answer {self.answer}: {policy} was trained to answer with the choice's {trained}; leave it out, or"
            f" train on rows of `gen-sft --answer {self.answer}`"
        )

    @property
    def truncation(self) -> Truncation:
        """What of the policy's distribution may be drawn."""
        return EVERYTHING

    @property
    def remote(self) -> bool:
        """Whether another process samples the policy's actions."""
        return backend(self.sampler).remote

    def open_reflector(self, checkpoint: str, device: str, player: Any = None, *, frozen: bool = True) -> Sampler:
        """The sampler of the comments of model `checkpoint`. player: its `models.load.Player`, where it is loaded.
        frozen: it is not trained.

        Raises CheckpointError, and ConfigError if a server cannot be used.
        """
        if self.reflector_sampler != LOCAL:
            row = backend(self.reflector_sampler)
            return row.open(Opening(checkpoint, device, role="reflection"), self.part(row.settings))
        from reflectkit.models.load import load_player
        from reflectkit.models.local import LocalSampler

        player = player or load_player(checkpoint, "reflection", device=device)
        return LocalSampler(player, frozen=frozen, rank=0)

    @property
    def comment_files(self) -> list[Path]:
        """Where --swap-comments takes comments from, if it does."""
        if not self.swap_comments:
            return []
        if self.swap_from is not None:
            return [self.swap_from]
        folder: Path = getattr(self, "folder")  # noqa: B009 (of the env, which each stage with a policy has)
        return [folder / FILE_OF_ROLE["reflection"]]

    def swapped(self, commentator: Commentator) -> Commentator:
        """`commentator`, some of whose comments are on other states. Raises DataError."""
        from reflectkit.agents.commentators import Swapped

        others = [row.parts[0][1].strip() for path in self.comment_files for row in read_rows(path)]
        return Swapped(commentator, others, self.swap_comments) if others else commentator

    def open_sampler(self, opening: Opening) -> Sampler:
        """The sampler. Raises CheckpointError."""
        row = backend(self.sampler)
        return row.open(opening, self.part(row.settings))
