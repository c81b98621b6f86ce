"""Act in your own program: `load_agent("results/…", reflector="results/…").act("what is seen",
choices=["up"])`.

The players are those of `--policy`, and the prompts those of training. Requests of any number of
threads and coroutines are answered in one thread of the agent, and those that wait at the same time
share a batch.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from typing_extensions import override

from reflectkit.agents.mismatches import env_mismatches, unlike_training
from reflectkit.agents.player_refs import Player, chat_parts, model_folders, parse_policy
from reflectkit.agents.players import Players, PlayersSetup
from reflectkit.chat.config import ChatConfig, DecisionConfig, key_of
from reflectkit.config import Config, build, build_known, option
from reflectkit.console import Quiet
from reflectkit.env import Agent, Context, Env
from reflectkit.envs import env_class
from reflectkit.errors import AgentError, ConfigError, ReflectkitError
from reflectkit.eventloop import LoopThread
from reflectkit.models.refs import ModelRef
from reflectkit.rollouts.wrappers import ROLES
from reflectkit.runs.run import RunConfig, read_record
from reflectkit.sampling.config import SamplerConfig
from reflectkit.sampling.engine import PlayerEngineConfig
from reflectkit.seeding import derive
from reflectkit.types import THINKING, Decision, Message, Observation, ToolCall, ToolUse

Input = str | Observation | Sequence[Message | Mapping[str, str]] | Any
"""What an agent sees: a text; messages, oldest first, each a `Message` or `{"role": …, "content":
…}`; all of an `Observation`; or what the game of Gymnasium returns that it was trained in.
"""


@dataclass(frozen=True, slots=True)
class Act:
    """What an agent did."""

    action: str
    """The choice; or the text that it wrote, tool calls included."""
    index: int | None = None
    """Index of the choice, from 0; None if there were no choices."""
    comment: str | None = None
    """The reflection that it read before it acted; None without a reflector."""
    probabilities: tuple[float, ...] = ()
    """Probability of each choice, in their order; empty without choices, and for chat models."""
    calls: tuple[ToolCall, ...] = ()
    """The valid tool calls, where tools are offered."""
    game_action: Any = None
    """The action for `step` of the game of Gymnasium in which the policy was trained, if it was
    shown what such a game returns.
    """


def observation_of(view: Input, choices: Sequence[str] | None) -> Observation:
    """`view` as an observation. Raises ConfigError."""
    # 1. The choices
    legal = tuple(choices or ())
    if isinstance(choices, str) or not all(isinstance(choice, str) and choice for choice in legal):
        raise ConfigError(
            f"choices must be a list of texts that are not empty, not {choices!r:.80}"
        )

    if len(set(legal)) < len(legal):
        raise ConfigError(f"choices are {choices!r:.80}; give choices that all differ")

    # 2. What is seen, in one of three forms
    if isinstance(view, Observation):
        return dataclasses.replace(view, choices=legal) if legal else view
    if isinstance(view, str):
        return Observation((Message("user", view),), legal)
    try:
        plain: Any = view
        parts = [
            each if isinstance(each, Message) else Message(each["role"], each["content"])
            for each in plain
        ]
    except (TypeError, KeyError, IndexError):  # the last of an array
        parts = []
    if not parts or any(message.role not in ROLES for message in parts):
        raise ConfigError(
            f"what is seen is a text, an Observation, or a list of Message, not {view!r:.80}"
        )
    return Observation(tuple(parts), legal)


class AgentConfig(Config):
    """Settings of an agent in your own program."""

    temperature: float = option(0.0, help="Of the sampling.", ge=0)
    max_new_tokens: int = option(128, help="Of an answer without choices.", ge=1)
    device: str = option("auto", help="auto, cpu, cuda, …")
    sampler: SamplerConfig = SamplerConfig()
    engine: PlayerEngineConfig = PlayerEngineConfig()
    chat: ChatConfig = ChatConfig()
    decisions: DecisionConfig = DecisionConfig()
    run: RunConfig = RunConfig()


class _Program(Env):
    """Stands for the env where there is only a program: chat models read its rules."""

    name, levels = "program", ()

    def __init__(self, rules: str) -> None:
        self.rules = rules


def load_agent(
    policy: str | Path,
    reflector: str | Path | None = None,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    max_new_tokens: int = 128,
    device: str = "auto",
    thinking: str | None = None,
    answer: str = "",
    base_url: str | None = None,
    engine: str = "",
    rules: str = "",
) -> LoadedAgent:
    """The agent of a policy, which a reflector comments for.

    Args:
        policy: A checkpoint, a run of `sft` or `rlft` (its best checkpoint if training validated,
            else the newest), a hub id, a chat model (`openai:MODEL`, `azure:…`, `local:…`), or
            anything else that `--policy` takes.
        reflector: The same, for the model that comments.
        temperature: 0 takes the likeliest action.
        seed: Of the sampling; the same calls in the same order get the same answers.
        max_new_tokens: Maximum length of an answer without choices.
        device: `auto`, `cpu`, `cuda`, …
        thinking: Reasoning of a model with a chat template (`on`, `off` or `hidden`); default: as
            in training, or `on`.
        answer: What a model without SFT answers where it chooses (`label`, `text` or `score`);
            default: as in training, or `label`.
        base_url: Server of a `local:` model.
        engine: Training service that holds the weights, `tinker:URL`; default: where they were
            trained.
        rules: What a chat model is told of the environment.

    Raises:
        CheckpointError: A model cannot be loaded.
        ConfigError: A setting is invalid.
    """
    # 1. The models, and what they were trained for
    player = _parsed(policy, reflector).resolved(RunConfig().data_dir, Quiet())
    checkpoint = player.checkpoint
    if checkpoint is not None:
        _warn_of_mismatch(checkpoint, player.reflector)

    # 2. The settings, checked as those of a command
    settings = {
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "device": device,
        "answer": answer,
        "base_url": base_url,
        "engine": engine,
        "seed": seed,
        "thinking": thinking or _trained_with(checkpoint).get("thinking", THINKING[0]),
    }
    config = build(AgentConfig, settings, "load_agent")

    # 3. The players. Journals of chat models are kept until the agent is closed
    folder = TemporaryDirectory(prefix="reflectkit-agent-") if player.api_models else None
    place = Path(folder.name if folder else ".")
    setup = PlayersSetup(config, (player,), Env, place, forgets_unusable=True)
    for part in player.api_models:
        key_of(setup.endpoint_of(part))
    players = Players(setup)
    closing = (players.close, *([folder.cleanup] if folder else []))
    chooses = checkpoint is not None and checkpoint.facts.get("acts") == "choice"
    return LoadedAgent(
        players.agent(player),
        _trained_env(checkpoint),
        policy=None if checkpoint is None else checkpoint.path,
        chooses=chooses,
        seed=seed,
        rules=rules,
        closing=closing,
    )


class LoadedAgent:
    """Acts on what it is shown. Made by `load_agent`; it may be used from any thread, and is an
    `Agent` for `rollout`.

    agent: who decides. trained_env: the env that it was trained in, if that is on record, with its
    settings there. policy: the checkpoint that acts, if one does. chooses: whether it learned to
    choose from a list. closing: what to call at the end.
    """

    def __init__(
        self,
        agent: Agent,
        trained_env: tuple[type[Env], Any] | None = None,
        *,
        policy: Path | None = None,
        chooses: bool = False,
        seed: int = 0,
        rules: str = "",
        closing: Sequence[Any] = (),
    ) -> None:
        self.policy = policy
        self._agent, self._trained_env, self._chooses, self._seed = (
            agent,
            trained_env,
            chooses,
            seed,
        )
        self._env, self._numbers = _Program(rules), itertools.count()
        self._thread = LoopThread("reflectkit-agent")
        self._games: list[Any] = []
        self._in_turn = threading.Lock()
        # The finalizer must not hold the agent itself
        steps = (self._thread.close, partial(_close_all, self._games), *closing)
        self._finalizer = weakref.finalize(self, lambda: [step() for step in steps])

    def act(self, seen: Input, choices: Sequence[str] | None = ()) -> Act:
        """What it does about `seen`.

        Args:
            seen: A text, a list of messages, an `Observation`, or what the game of Gymnasium
                returned that it was trained in.
            choices: The legal actions, in the order of training; default: those of the env that it
                was trained in, if they are the same in every state or `seen` has their mask.
                Without choices it answers in words.

        Raises:
            ConfigError: `seen` or `choices` is of the wrong kind.
            AgentError: It could not decide.
            CheckpointError: The model cannot distinguish two of the choices.
        """
        (act,) = self._running().result(self._act(self._request(seen, choices)))
        return act

    async def act_async(self, seen: Input, choices: Sequence[str] | None = ()) -> Act:
        """`act` for coroutines, such as those of a server: while it waits, others run, and their
        requests share its batch.
        """
        (act,) = await asyncio.wrap_future(
            self._running().submit(self._act(self._request(seen, choices)))
        )
        return act

    def act_batch(
        self, seen: Sequence[Input], choices: Sequence[str] | Sequence[Sequence[str]] = ()
    ) -> list[Act]:
        """What it does about each of `seen`, in one batch. choices: for all of them, or a list for
        each.
        """
        if isinstance(seen, str | Observation):
            raise ConfigError("act_batch takes a list of what is seen; for one, call act")
        is_shared = not choices or all(isinstance(choice, str) for choice in choices)
        each: Sequence[Any] = [choices] * len(seen) if is_shared else choices
        if len(each) != len(seen):
            raise ConfigError(
                f"{len(seen)} observations and {len(each)} lists of choices; give one for each"
            )
        # In one batch
        requests = [self._request(*pair) for pair in zip(seen, each, strict=True)]
        return self._running().result(self._act(*requests))

    async def decide(self, observation: Observation, context: Context) -> Decision:
        """The whole decision, with tokens and log-probabilities, in an episode that `rollout`
        plays.
        """
        if self._trained_env is not None and (env_name := context.env.name) != (
            trained := self._trained_env[0].name
        ):
            warnings.warn(
                f"the policy was trained in env '{trained}', but plays in '{env_name}'",
                stacklevel=2,
            )
        return await asyncio.wrap_future(
            self._running().submit(self._agent.decide(observation, context))
        )

    @override
    def __repr__(self) -> str:
        return f"<LoadedAgent of {self.policy or 'no checkpoint'}>"

    def close(self) -> None:
        """End its thread and its connections."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _running(self) -> LoopThread:
        """Its thread. Raises AgentError after `close`."""
        if not self._finalizer.alive:
            raise AgentError("this agent was closed; load it again")
        return self._thread

    def _request(self, view: Input, choices: Sequence[str] | None) -> tuple[Observation, Context]:
        """What is asked, with the actions of the env that the policy was trained in if none are
        given; its seed is the number of the request.

        Raises ConfigError where these differ from state to state, and for a conversation in which
        earlier comments are missing.
        """
        # 1. A policy that reads comments needs those of all turns
        observation = observation_of(*self._in_game(view, choices))
        is_begun = "assistant" in [message.role for message in observation.messages]
        if observation.replies and getattr(self._agent, "reflector", None) and is_begun:
            raise ConfigError(
                "in a conversation the policy reads its earlier comments, too: play it with"
                " `rollout`"
            )

        # 2. The actions of the environment that it was trained in
        has_actions = bool(observation.choices or observation.tools or observation.replies)
        if self._trained_env is not None and not has_actions:
            env, settings = self._trained_env
            kind = env.action_kind(settings)
            # A class lists the choices that are the same in every state
            if isinstance(
                class_choices := getattr(getattr(env, "plain_type", env), "choices", None),
                tuple | list,
            ):
                observation = dataclasses.replace(observation, choices=tuple(class_choices))
            elif kind == "tools":
                raise ConfigError(
                    f"the policy was trained in env '{env.name}', which offers tools: pass"
                    " its Observation"
                )
            elif kind == "choice":
                raise ConfigError(
                    f"the policy was trained in env '{env.name}', where it chooses: give"
                    " choices=[…]"
                )
        elif self._chooses and not has_actions:
            raise ConfigError("the policy was trained to choose: give choices=[…]")

        # 3. The seed is the number of the request
        return observation, Context(derive(self._seed, "act", next(self._numbers)), self._env)

    def _in_game(self, view: Input, choices: Sequence[str] | None) -> tuple[Input, Any]:
        """`view` and `choices`, as a game of Gymnasium shows them if the policy was trained in one."""
        if not self._knows_game or isinstance(view, Observation):
            return view, choices
        is_conversation = (
            isinstance(view, list | tuple)
            and bool(view)
            and all(isinstance(each, Message | Mapping) for each in view)
        )
        # One thread at a time: the game has the random numbers and the folder of its class
        with self._in_turn:
            if isinstance(view, str) or is_conversation:
                return view, choices or self._game.usual_choices
            text, legal = self._game.seen(view)
        return text, choices or legal

    @property
    def _knows_game(self) -> bool:
        """Whether the policy was trained in a game of Gymnasium."""
        return self._trained_env is not None and hasattr(self._trained_env[0], "game_action")

    @property
    def _game(self) -> Any:
        """The game that it was trained in, made on first use."""
        assert self._trained_env is not None
        env, settings = self._trained_env
        if not self._games:
            values = {name: getattr(settings, name) for name in type(settings).model_fields}
            self._games.append(env(**values))
        return self._games[0]

    def _with_game_action(self, act: Act) -> Act:
        """`act` with the action of the game of Gymnasium in which the policy was trained."""
        if not (self._games and isinstance(act.index, int)):
            return act
        try:
            return dataclasses.replace(act, game_action=self._games[0].game_action(act.action))
        except ValueError:  # choices of the caller's own
            return act

    async def _act(self, *requests: tuple[Observation, Context]) -> list[Act]:
        decisions = await asyncio.gather(*(self._agent.decide(*request) for request in requests))
        acts = []
        for (observation, _), decision in zip(requests, decisions, strict=True):
            if wrong := decision.failure or decision.truncation_reason:
                raise AgentError(str(wrong))
            action, comment = decision.action, decision.reflection
            if isinstance(action, int):
                acts.append(
                    Act(observation.choices[action], action, comment, decision.probabilities)
                )
            elif isinstance(action, ToolUse):
                acts.append(Act(action.text, None, comment, calls=action.calls))
            else:
                acts.append(Act(action, None, comment))
        return list(map(self._with_game_action, acts))


def _close_all(games: Sequence[Any]) -> None:
    for game in games:
        game.close()


def _parsed(policy: str | Path, reflector: str | Path | None) -> Player:
    """The player, as of a --policy. Raises ConfigError."""
    # A chat model
    text, other = str(policy), "" if reflector is None else str(reflector)
    if chat_parts(text):
        return parse_policy(f"{text}+{other}" if other else text)
    # A folder or a hub id, in which "=" may stand
    if os.path.exists(text) or ("=" not in text and text != "random"):
        return Player("agent", ModelRef.parse(text), ModelRef.parse(other) if other else None)
    # Anything else that --policy takes
    player = parse_policy(text)
    if other and (player.reflector or player.policy is None):
        raise ConfigError(f"{text} plays without the reflector {other}; leave one out")
    return dataclasses.replace(player, reflector=ModelRef.parse(other)) if other else player


def _warn_of_mismatch(policy: ModelRef, reflector: ModelRef | None) -> None:
    add = f"pass reflector={policy.facts.get('reflector') or '…'!r}"
    texts = [unlike_training(policy, reflector, add, f"leave out reflector={str(reflector)!r}")]
    if _trained_env(policy):
        texts += env_mismatches(policy.facts["env"], model_folders([policy, reflector]))
    for text in filter(None, texts):
        warnings.warn(text, stacklevel=3)


def _trained_with(policy: ModelRef | None) -> dict[str, Any]:
    """The settings of the run that made checkpoint `policy`; empty if they are not on record."""
    return {} if policy is None else dict(read_record(policy.path.parent).get("settings", {}))


def _trained_env(policy: ModelRef | None) -> tuple[type[Env], Any] | None:
    """The env that the policy was trained in, with its settings there; None if that is not on
    record.
    """
    name = None if policy is None else policy.facts.get("env")
    if policy is None or not isinstance(name, str):
        return None
    try:
        kind = env_class(name)
        return kind, build_known(kind.Settings, _trained_with(policy))
    except ReflectkitError:  # of a module or a version that is not here
        return None
