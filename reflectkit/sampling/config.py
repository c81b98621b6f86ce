"""Who samples the policy's actions and the comments: `--sampler`, `--reflector-sampler`, and their
own settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from reflectkit.config import Config, NoSettings, Rule, check_own_settings, chosen_by, option
from reflectkit.errors import ConfigError, refuse
from reflectkit.keys import check_address
from reflectkit.models.checkpoint_metadata import SERVICE, model_facts
from reflectkit.models.refs import ModelRef
from reflectkit.registry import code_files, module_of, resolve
from reflectkit.sampling.base import KEYS, Backend, Opening, Sampler, ServerSettings, is_server
from reflectkit.types import ANSWERS, SCORE, Thinking

if TYPE_CHECKING:
    from reflectkit.agents.two_player import CommentSource
    from reflectkit.sampling.engine import PlayerEngineConfig


def open_local(opening: Opening, settings: object = None) -> Sampler:
    """A sampler of the player in this process, which is loaded if there is none, or of a
    checkpoint's weights on a training service. Raises CheckpointError.
    """
    if opening.player is None:
        there = _on_service(opening.checkpoint, "policy", opening.engine)
        if there is not None:
            return there
    from reflectkit.models.load import load_player
    from reflectkit.sampling.hf import LocalSampler

    player = opening.player or load_player(opening.checkpoint, "policy", device=opening.device)
    return LocalSampler(player, scorer=opening.scorer, team=opening.team, watch=opening.watch)


def _on_service(
    checkpoint: str,
    role: str,
    engine: PlayerEngineConfig | None = None,
) -> Sampler | None:
    """The sampler of a model whose weights are on a training service; None for others."""
    has_engine = engine is not None and engine.name
    if not has_engine and SERVICE not in model_facts(Path(checkpoint)):
        return None
    from reflectkit.sampling.service import open_saved

    return open_saved(checkpoint, role, engine)


BACKENDS = {"local": Backend(NoSettings, open_local)}
"""The kinds of samplers by name, except servers."""


def backend(name: str) -> Backend:
    """The kind of sampler `name`.

    Raises UnknownNameError, and ConfigError for what is not a Backend or a server's address; it
    shows no password.
    """
    # 1. By its name here, or by MODULE:NAME of the user's own
    if not is_server(name):
        row = resolve("sampler", name, BACKENDS)
        if not isinstance(row, Backend):
            raise ConfigError(
                f"--sampler {name} is not a reflectkit.sampling.base.Backend but {row!r:.80}"
            )
        return row
    # 2. A server, by the kind and the address
    kind, _, address = name.partition(":")
    check_address(f"--sampler {kind}:URL", address, KEYS[kind], "http://localhost:8000")
    url = address.rstrip("/").removesuffix("/v1")

    def opened(opening: Opening, settings: Any) -> Sampler:
        from reflectkit.sampling.server import open_server

        return open_server(kind, url, opening, settings)

    return Backend(ServerSettings, opened, remote=True)


LOCAL = "local"
_SERVERS = " or ".join(f"{kind}:URL" for kind in KEYS)


def _own_settings(name: str) -> type[Config]:
    """The settings of a sampler that is no server. Raises ConfigError if they cannot be flags."""
    if is_server(name):
        return NoSettings
    own = backend(name).settings
    check_own_settings(own, f"--sampler {name}")
    return own


class SamplerConfig(Config):
    """Sampler: who samples what a trained policy does, and the comments."""

    policy: str = option(
        LOCAL,
        name="sampler",
        help=f"Who samples the policy's actions: {', '.join(BACKENDS)}, a server as {_SERVERS}, or"
        " your own as package.module:NAME.",
    )
    reflector: str = option(
        LOCAL,
        name="reflector_sampler",
        help=f"Who samples the comments: {LOCAL}, or a server as {_SERVERS}.",
    )
    settings: Any = chosen_by("policy", settings=_own_settings)
    server: Any = chosen_by(
        "policy",
        "reflector",
        settings=lambda *names: ServerSettings if any(map(is_server, names)) else NoSettings,
        names=lambda: ("vllm:URL",),
    )
    thinking: Thinking = option(
        "on",
        help="Reasoning of a model with a chat template: on (as its template does), off, or hidden"
        " (not shown to it later).",
    )
    answer: Literal["", "label", "text", "score"] = option(
        "",
        help="What a policy without SFT answers where it chooses: label (the choice's number), text"
        " (its own words) or score (each choice is read alone and given a score); others answer as"
        " they were trained. Default: label, but text for --model tiny.",
    )
    episode_tokens: int = option(
        0,
        help=(
            "Most tokens that the policy may write in an episode, without enumerated actions; 0: no"
            " limit."
        ),
        ge=0,
    )
    swap_comments: float = option(
        0.0,
        help="Share of the comments that are replaced by the teacher's on other states, from the"
        " reflector's SFT rows: how much wrong ones do harm.",
        ge=0,
        le=1,
    )
    swap_from: Path | None = option(
        None,
        help="With --swap-comments, other rows to take those from, in the reflector's own words.",
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        # 1. Comments that are replaced
        swaps = f"--swap-from {self.swap_from} is for --swap-comments; add that, or leave it out"
        yield self.swap_from is not None and not self.swap_comments, swaps
        # 2. The samplers exist, and a reflector's is this process or a server
        backend(self.policy)
        is_other = self.reflector != LOCAL and not is_server(self.reflector)
        server = f"write {LOCAL}, or a server such as vllm:http://localhost:8000"
        yield is_other, f"--reflector-sampler {self.reflector}: {server}"
        backend(self.reflector)

    @property
    def remote(self) -> bool:
        """Whether another process samples the policy's actions."""
        return backend(self.policy).remote

    def answer_of(self, policy: ModelRef) -> str:
        """What `policy` answers where it chooses: what it was trained with, else --answer. Raises
        ConfigError if these differ, or if the sampler cannot answer so.
        """
        # What it was trained with wins; checkpoints of other tools say nothing
        facts = policy.facts
        trained = facts.get("answer") or (
            ANSWERS[0] if facts.get("role") in ("policy", "plain", "think") else None
        )
        if trained is None or self.answer in ("", trained):
            answer = str(trained or self.answer or ANSWERS[0])
            reason = (
                f"--sampler {self.policy}: {policy} scores each choice alone, which a server of"
                " text cannot do"
            )
            refuse(answer == SCORE and self.remote, f"{reason}; use --sampler {LOCAL}")
            return answer
        raise ConfigError(
            f"--answer {self.answer}: {policy} was trained to answer with the choice's {trained};"
            f" leave it out, or train on rows of `gen-sft --answer {self.answer}`"
        )

    def open_policy(self, opening: Opening) -> Sampler:
        """The sampler of the policy's actions. Raises CheckpointError."""
        settings = self.server if is_server(self.policy) else self.settings
        sampler = backend(self.policy).open(opening, settings)
        # One of the user's own may lack something; say so before an episode is played
        names = (*Sampler.__annotations__, "sample", "publish")
        if lacks := [name for name in names if not hasattr(sampler, name)]:
            raise ConfigError(
                f"--sampler {self.policy}: {type(sampler).__name__} has no {', '.join(lacks)}; add"
                " it"
            )
        return sampler

    def open_reflector(
        self,
        checkpoint: str,
        device: str,
        player: Any = None,
        *,
        frozen: bool = True,
        engine: PlayerEngineConfig | None = None,
    ) -> Sampler:
        """The sampler of the comments of model `checkpoint`. player: its `LoadedModel`,
        where it is loaded. frozen: it is not trained. engine: of a command that has one.

        Raises CheckpointError, and ConfigError if a server cannot be used.
        """
        # A server, a training service, or this process
        if self.reflector != LOCAL:
            return backend(self.reflector).open(
                Opening(checkpoint, device, role="reflection"), self.server
            )
        if player is None:
            there = _on_service(checkpoint, "reflection", engine)
            if there is not None:
                return there
        from reflectkit.models.load import load_player
        from reflectkit.sampling.hf import LocalSampler

        player = player or load_player(checkpoint, "reflection", device=device)
        return LocalSampler(player, frozen=frozen, rank=0)

    def input_files(self, folder: Path) -> list[Path]:
        """The files of a sampler of the user's own, where an edit makes a new run, and where
        --swap-comments takes comments from. folder: of the env's rows.
        """
        is_custom = self.policy not in BACKENDS and not is_server(self.policy)
        return [
            *(code_files([module_of(self.policy)]) if is_custom else []),
            *self._comment_files(folder),
        ]

    def _comment_files(self, folder: Path) -> list[Path]:
        if not self.swap_comments:
            return []
        from reflectkit.data.sft_rows import FILE_OF_ROLE

        return [self.swap_from or folder / FILE_OF_ROLE["reflection"]]

    def swapped(self, commentator: CommentSource, folder: Path) -> CommentSource:
        """`commentator`, some of whose comments are on other states. Raises DataError."""
        from reflectkit.agents.two_player import ShuffledComments
        from reflectkit.data.sft_rows import read_rows

        # The teacher's comments are what the reflector's rows complete
        rows = [row for path in self._comment_files(folder) for row in read_rows(path)]
        others = [(prompt, comment.strip()) for prompt, comment in (row.parts[0] for row in rows)]
        return ShuffledComments(commentator, others, self.swap_comments) if others else commentator
