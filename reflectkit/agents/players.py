"""Agents of players, built from checkpoints, chat and decision models, and scripts."""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from reflectkit.agents.player_refs import PLUGINS, Player, plugin_names
from reflectkit.chat.config import (
    HISTORY_TOKENS,
    ChatConfig,
    DecisionConfig,
    Endpoint,
    parse_endpoint,
)
from reflectkit.console import Progress
from reflectkit.env import Agent, Env, check_teacher
from reflectkit.models.checkpoint_metadata import calibration_of
from reflectkit.models.refs import ModelRef
from reflectkit.registry import resolve
from reflectkit.sampling.base import EVERYTHING, Opening, Truncation
from reflectkit.sampling.config import SamplerConfig
from reflectkit.sampling.engine import PlayerEngineConfig

if TYPE_CHECKING:
    from reflectkit.agents.decision_players import DecisionModel
    from reflectkit.chat.client import Budget, ChatClient

LONGEST_NAME = 100
"""The maximum length of a model's name in the name of a file, in characters."""


def journal_path(folder: Path, endpoint: Endpoint) -> Path:
    """The file in `folder` that keeps the answers of a chat model.

    If the name of the model has characters that names of files may not have, a checksum follows it.
    So no two models share a file.

    >>> journal_path(Path(), Endpoint("local", "a_b")).name, journal_path(Path(), Endpoint("local", "a/b")).name
    ('evaluate_local_a_b.jsonl', 'evaluate_local_a_b~c14cddc0.jsonl')
    """
    name = endpoint.model
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        checksum = hashlib.sha256(name.encode()).hexdigest()[:8]
        file_name = re.sub(r"[^A-Za-z0-9.-]+", "_", name)[:LONGEST_NAME]
        name = f"{file_name}~{checksum}"
    return folder / f"evaluate_{endpoint.kind}_{name}.jsonl"


class PlayingConfig(Protocol):
    """The settings of a command that plays."""

    sampler: SamplerConfig
    engine: PlayerEngineConfig
    chat: ChatConfig
    temperature: float
    max_new_tokens: int
    device: str

    @property
    def decisions(self) -> DecisionConfig:
        """Settings of decision models."""


@dataclass(frozen=True)
class PlayersSetup:
    """The settings from which `Players` builds agents."""

    config: PlayingConfig
    players: tuple[Player, ...]
    """All players of the command."""
    kind: type[Env]
    """The env's class."""
    env_folder: Path
    """The folder for the answers of chat models."""
    folder: Path = Path()
    """The folder of the env's SFT rows."""
    history_tokens: int = HISTORY_TOKENS
    """The maximum number of tokens of earlier turns that a chat model reads."""
    truncation: Truncation = EVERYTHING
    """Limits to what the policy may draw."""
    forgets_unusable: bool = False
    """Whether a model is asked again what it once gave no usable answer to, as in a server that runs
    for days.
    """

    def endpoint_of(self, model: str) -> Endpoint:
        """The endpoint of a chat or decision model in a --policy.

        If some models are local, --base-url is only for them. Raises ConfigError.
        """
        names = [name for player in self.players for name in player.api_models]
        has_local = any(name.startswith("local:") for name in names)
        base_url = None
        if model.startswith("local:") or not has_local:
            base_url = self.config.chat.base_url
        return parse_endpoint(model, base_url, "--policy", "", decides=True)


class Players:
    """Builds the agents of players.

    Each reflector is loaded once, and players share its cache of comments. Chat models share one
    budget.
    """

    def __init__(self, setup: PlayersSetup) -> None:
        self.setup = setup
        self._reflectors: dict[ModelRef, Any] = {}
        self._clients: dict[str, ChatClient] = {}
        self._budget: Budget | None = None
        self._stack = contextlib.ExitStack()

    def close(self) -> None:
        """Close the connections to chat models."""
        self._stack.close()

    # --------------------------------------------------------------------------------------- agents

    def agent(self, player: Player) -> Agent:
        """The agent of `player`. Raises CheckpointError, ConfigError."""
        if player.decides:
            from reflectkit.agents.decision_players import DecisionPolicy

            model = self._decision_model(self._client(player.api_models[0]))
            return DecisionPolicy(model, self.setup.config.temperature)
        if player.is_asked:
            return self._chat_agent(player)
        if player.checkpoint is not None:
            return self._checkpoint_agent(player, player.checkpoint)
        if player.code:
            from reflectkit.agents.own import own_player

            return own_player(player.code)
        return self._scripted_agent(player.name)

    def _chat_agent(self, player: Player) -> Agent:
        """A chat model that acts, perhaps with the comments of another one, or by a published
        method.
        """
        from reflectkit.chat.players import ChatMethod, ChatPolicy

        client, *reflectors = [self._client(model) for model in player.api_models]
        if player.method:
            return ChatMethod(player.method, client)
        reflector = reflectors[0] if reflectors else None
        return ChatPolicy(client, reflector, self.setup.history_tokens)

    def _checkpoint_agent(self, player: Player, policy: ModelRef) -> Agent:
        """A checkpoint that acts, with the comments of the player's reflector if it has one."""
        from reflectkit.agents.two_player import TwoPlayerAgent

        # 1. The comments
        config = self.setup.config
        commentator = None
        if player.reflector is not None:
            commentator = self.reflector(player.reflector)
            commentator = config.sampler.swapped(commentator, self.setup.folder)

        # 2. The agent
        opening = Opening(str(policy), config.device, engine=config.engine)
        method = player.method
        agent = TwoPlayerAgent(
            config.sampler.open_policy(opening),
            commentator,
            answer=config.sampler.answer_of(policy),
            temperature=config.temperature,
            truncation=self.setup.truncation,
            max_new_tokens=self.setup.kind.methods.get(method, config.max_new_tokens),
            episode_tokens=config.sampler.episode_tokens,
            thinking=config.sampler.thinking,
            show=True,
            calibration=calibration_of(policy.path),
        )

        # 3. The published method by which it plays
        if method:
            from reflectkit.chat.players import ModelMethod

            return ModelMethod(method, agent)
        return agent

    def _scripted_agent(self, name: str) -> Agent:
        """A player without a model: oracle, random, a baseline of the env, or one of an installed
        package.
        """
        from reflectkit.agents.scripted import Baseline, Oracle, RandomAgent

        if name == "oracle":
            return Oracle()
        if name == "random":
            return RandomAgent()
        if name not in self.setup.kind.baselines and name in plugin_names(name):
            return resolve("player", name, {}, PLUGINS)()  # type: ignore[no-any-return]
        return Baseline(name)

    # ----------------------------------------------------------------------------------- reflectors

    def reflector(self, model: ModelRef) -> Any:
        """The source of comments called `model`, the same one for all players.

        It is a reflector from a checkpoint, a chat or decision model, the env's teacher, or empty
        comments. Raises CheckpointError, ConfigError.
        """
        if model not in self._reflectors:
            self._reflectors[model] = self._open_reflector(model)
        return self._reflectors[model]

    def _open_reflector(self, model: ModelRef) -> Any:
        """A new source of comments called `model`."""
        from reflectkit.agents.two_player import NoComments, TeacherComments

        if model.is_teacher:
            check_teacher(self.setup.kind.teacher_type, self.setup.kind.name, "comment")
            return TeacherComments()
        if model.is_nothing:
            return NoComments()
        if model.decides:
            from reflectkit.agents.decision_players import DecisionReflector

            return DecisionReflector(self._decision_model(self._client(model.text, reflects=True)))
        if model.is_chat:
            from reflectkit.chat.players import ChatReflector

            return ChatReflector(self._client(model.text, reflects=True))
        from reflectkit.agents.typed import reflector_of

        config = self.setup.config
        sampler = config.sampler.open_reflector(model.text, config.device, engine=config.engine)
        return reflector_of(sampler, model.facts, model.text)

    # --------------------------------------------------------------------- chat and decision models

    def stop_if_spent(self, player: Player) -> None:
        """Raises BudgetSpentError if `player` asks chat models, and the budget ran out."""
        if not player.is_asked:
            return
        for model in player.api_models:
            client = self._clients.get(str(self.setup.endpoint_of(model)))
            if client is not None:
                client.stop_if_spent("finished episodes are kept")

    def report(self, progress: Progress) -> None:
        """Report unusable lines in chat models' journals, and peculiarities of their servers."""
        for client in self._clients.values():
            client.report(progress)

    @property
    def usage(self) -> dict[str, dict[str, float]]:
        """The usage of each chat and decision model, by its name."""
        return {name: client.usage for name, client in self._clients.items()}

    def _decision_model(self, client: ChatClient) -> DecisionModel:
        """The decision model that is asked through `client`."""
        from reflectkit.agents.decision_players import DecisionModel

        return DecisionModel(client, rules=not self.setup.config.decisions.plain_questions)

    def _client(self, model: str, *, reflects: bool = False) -> ChatClient:
        """The client of a chat or decision model, which players share.

        reflects: whether the model comments for a checkpoint. Its comments are greedy, and have a
        journal of their own.
        """
        config = self.setup.config
        endpoint = self.setup.endpoint_of(model)
        name = f"reflector {endpoint}" if reflects else str(endpoint)
        if name in self._clients:
            return self._clients[name]

        # 1. The budget of all models
        from reflectkit.chat.client import Budget, client_at

        if self._budget is None:
            self._budget = Budget(config.chat.max_cost_usd)

        # 2. The journal of this model
        journal = journal_path(self.setup.env_folder, endpoint)
        if reflects:
            journal = journal.with_name(journal.name.replace("evaluate", "reflector", 1))

        # 3. The connection
        temperature = 0.0 if reflects or endpoint.decides else config.temperature
        client = client_at(config.chat, endpoint, journal, self._budget, temperature)
        self._clients[name] = self._stack.enter_context(client)
        self._clients[name].forgets_unusable = self.setup.forgets_unusable
        return self._clients[name]
