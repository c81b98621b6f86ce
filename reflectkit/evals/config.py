"""Settings of evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from typing_extensions import override

from reflectkit.agents.player_refs import Player, parse_policy
from reflectkit.agents.players import PlayersSetup
from reflectkit.chat.config import (
    HISTORY_HELP,
    HISTORY_TOKENS,
    ORACLE,
    ChatConfig,
    DecisionConfig,
    Endpoint,
    address_in_use,
)
from reflectkit.config import Config, Rule, flag, non_default, option
from reflectkit.data.problems import Problems
from reflectkit.envs.setup import EnvConfig, EnvSetup, RolloutConfig, check_level, refuse_uncounted
from reflectkit.models.refs import TEACHER
from reflectkit.runs.run import RunConfig
from reflectkit.sampling.base import Truncation
from reflectkit.sampling.config import SamplerConfig
from reflectkit.sampling.engine import PlayerEngineConfig

PLAY_SETTINGS = (
    "policy",
    "task_file",
    "level",
    "problems",
    "score_oracle",
    "predict_success",
    "dry_run",
)
"""Settings about what is played. With --from nothing is played, so it excludes them."""


class EvaluateConfig(Config):
    """Settings of evaluate."""

    env: EnvConfig
    policy: tuple[str, ...] = option(
        (),
        help="Who plays (repeat the flag): oracle, random, or a baseline of the env; NAME=MODEL or"
        " NAME=MODEL+REFLECTOR, where a model is a checkpoint, a run or a hub id, and +oracle,"
        " +nothing and +openai:MODEL comment, too; your own rule, FILE.py:FUNCTION; a chat model"
        " (openai:MODEL, azure:DEPLOYMENT, local:MODEL), or two as ACTOR+REFLECTOR; a decision"
        " model (decisions:MODEL, systemone:MODEL); METHOD:MODEL, a published method of the env.",
        essential=True,
    )
    task_file: Path | None = option(
        None,
        help="Held-out problems; default: test.json in the env's data folder, or before a"
        " split those that rlft does not train on.",
        essential=True,
    )
    level: tuple[str, ...] = option(
        (), help="Levels to play (repeat the flag); default: the last.", essential=True
    )
    problems: int = option(
        0,
        help="Play only this many problems of a level, drawn by --seed as evenly as may be from its"
        " clusters; 0: all, or 100 where each seed is a problem.",
        ge=0,
        essential=True,
    )
    eval_reps: int = option(
        1,
        help="Episodes per problem; more of them narrow the interval if play is random.",
        ge=1,
        essential=True,
    )
    episodes: tuple[Path, ...] = option(
        (),
        name="from_",
        help="Play nothing, but recompute the tables from these evaluation runs or episodes.jsonl"
        " files (repeat the flag; several are pooled like seeds).",
        essential=True,
    )
    temperature: float = option(
        0.0,
        help="Sampling temperature of the policy; 0 takes the most likely action.",
        ge=0,
        essential=True,
    )
    top_p: float = option(
        1.0,
        help="Draw only from the likeliest choices, or tokens of a text, that together have this"
        " probability; for checkpoints.",
        gt=0,
        le=1,
    )
    top_k: int = option(0, help="Draw only from this many of the likeliest; 0: all.", ge=0)
    min_p: float = option(
        0.0,
        help="Draw only what is at least this many times as likely as the likeliest.",
        ge=0,
        le=1,
    )
    max_new_tokens: int = option(
        128,
        help="Maximum length of an answer in tokens, in environments without enumerated actions.",
        ge=1,
    )
    score_oracle: bool = option(
        False,
        help="Also compare each choice with the oracle's: agreement; choice_nll, the mean negative"
        " log-probability of the oracle's choice in nats; choice_brier, the Brier score of the"
        " probabilities; and their calibration.",
    )
    predict_success: bool = option(
        False,
        help="Also predict at the start of each episode whether it will succeed, by a question to"
        " the player and by its checkpoint's critic, and report how well these predictions are"
        " calibrated.",
    )
    device: str = option("auto", help="auto, cpu, cuda, …")
    history_tokens: int = option(HISTORY_TOKENS, help=HISTORY_HELP, ge=0)
    rollout: RolloutConfig = RolloutConfig()
    sampler: SamplerConfig = SamplerConfig()
    engine: PlayerEngineConfig = PlayerEngineConfig()
    chat: ChatConfig = ChatConfig()
    decisions: DecisionConfig = DecisionConfig()
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run, self.rollout.horizon, self.chat)

    @cached_property
    def held_out(self) -> Problems:
        """The problems to play, from --task-file or the env."""
        files = {"test": self.task_file} if self.task_file else {}
        return Problems(self.setup, files)

    @cached_property
    def players(self) -> tuple[Player, ...]:
        """The players of --policy. Raises ConfigError."""
        kind = self.env.kind
        baselines = tuple(kind.baselines)
        return tuple(parse_policy(text, baselines, kind.methods) for text in self.policy)

    @property
    def players_setup(self) -> PlayersSetup:
        """The settings from which `Players` builds the agents."""
        setup = self.setup
        return PlayersSetup(
            self,
            self.players,
            self.env.kind,
            setup.env_folder,
            setup.folder,
            self.history_tokens,
            Truncation(self.top_p, self.top_k, self.min_p),
        )

    @property
    def endpoints(self) -> list[Endpoint]:
        """The chat models that play or comment."""
        setup = self.players_setup
        return [setup.endpoint_of(model) for player in self.players for model in player.api_models]

    @property
    @override
    def environment(self) -> dict[str, str]:
        return address_in_use(self.endpoints)

    @override
    def contradictions(self) -> Iterator[Rule]:
        refuse_uncounted(self.env, dry_run=self.chat.dry_run, max_cost_usd=self.chat.max_cost_usd)

        # 1. Tables of saved episodes
        if self.episodes:
            for name in non_default(self, *PLAY_SETTINGS):
                yield True, f"--from plays nothing: leave out {flag(name)}"
            for path in self.episodes:
                yield self.episodes.count(path) > 1, f"--from {path} is given twice"
            return

        # 2. The players
        yield not self.policy, "evaluate needs at least one --policy: NAME=CHECKPOINT, random, …"
        names = [player.name for player in self.players]
        reflectors = [player.reflector for player in self.players]
        for name in names:
            yield names.count(name) > 1, f"--policy: the name {name!r} is given twice"
        if self.score_oracle or ORACLE in names:
            self.env.require_teacher("action")
        if TEACHER in reflectors:
            self.env.require_teacher("comment")
        no_comments = "--swap-comments needs comments; give a --policy NAME=CHECKPOINT+REFLECTOR"
        yield self.sampler.swap_comments and not any(reflectors), no_comments

        # 3. Sampling
        chat_names = " ".join(player.name for player in self.players if player.is_asked)
        for name in non_default(self, "top_p", "top_k", "min_p"):
            for_sampling = f"{flag(name)} is for sampling; add --temperature 1, or leave it out"
            yield not self.temperature, for_sampling
            for_checkpoints = f"{flag(name)} is for checkpoints, not --policy {chat_names}"
            yield chat_names, f"{for_checkpoints}; leave one of them out"

        # 4. Levels and chat models
        for level in self.level:
            check_level(self.env.name, level)
        for endpoint in self.endpoints:
            self.chat.check_budget(endpoint)
