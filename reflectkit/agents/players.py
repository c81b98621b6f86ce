"""Creates the players that --policy describes: scripted agents, baselines of an env, checkpoints, and chat and decision
models.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from reflectkit.chat.config import (
    DECISION_KEYS,
    HISTORY_TOKENS,
    KEYS,
    ChatConfig,
    DecisionConfig,
    Endpoint,
    parse_endpoint,
)
from reflectkit.config import as_plain, flag, flat, is_path, leaves
from reflectkit.console import Progress
from reflectkit.env import Agent, Env
from reflectkit.envs import ENVS
from reflectkit.envs.setup import EnvSetup
from reflectkit.errors import ConfigError
from reflectkit.models.checkpoint_metadata import calibration_of, load_tokenizer, model_facts
from reflectkit.models.refs import ModelKind, ModelRef, resolved
from reflectkit.prompts import PROMPT_VERSION
from reflectkit.registry import plugins, resolve
from reflectkit.runs.run import CHECKPOINT, checkpoints, digest, read_record
from reflectkit.sampling.base import EVERYTHING, Opening, Truncation
from reflectkit.sampling.config import SamplerConfig

if TYPE_CHECKING:
    from reflectkit.chat.client import Budget, ChatClient
    from reflectkit.envs.setup import EnvConfig

SCRIPTED = ("oracle", "random")
ASKED_KINDS = (*KEYS, *DECISION_KEYS)
"""What the name of a chat or decision model begins with."""
LONGEST_NAME = 100  # characters of a model's name in a file name
PLUGINS = "reflectkit.players"
"""The group of entry points in which a package offers its players: NAME = "package.module:make", where `make()` is an
agent.
"""


def method_of(text: str, methods: Iterable[str]) -> tuple[str, str]:
    """(method, model) of a --policy METHOD:MODEL; ("", text) of any other.

    >>> method_of("mem1:openai:small", ("mem1",)), method_of("openai:small", ("mem1",))
    (('mem1', 'openai:small'), ('', 'openai:small'))
    """
    method, _, model = text.partition(":")
    return (method, model) if method in methods else ("", text)


def chat_parts(text: str, methods: Iterable[str] = ()) -> list[str]:
    """The chat models of a --policy without its name: one that acts, or two, of which the second reflects; none for
    other policies. One of `methods` has one. A decision model acts alone.
    """
    method, model = method_of(text, methods)
    kinds = KEYS if method or "+" in model else ASKED_KINDS
    parts = model.split("+") if model.partition(":")[0] in kinds else []
    most = 1 if method else 2
    return parts if len(parts) <= most and all(part.partition(":")[0] in kinds for part in parts) else []


@dataclass(frozen=True)
class Player:
    """Who plays, as a --policy says."""

    name: str
    """Its name in the results."""
    policy: ModelRef | None = None
    """The model that acts, if one does."""
    reflector: ModelRef | None = None
    """Who comments for that, if anyone."""
    method: str = ""
    """The published method that it plays by, if any."""

    @property
    def checkpoint(self) -> ModelRef | None:
        """The model that acts, if its weights are here."""
        return None if self.policy is None or self.policy.is_asked else self.policy

    @property
    def is_chat(self) -> bool:
        """Whether a chat or decision model acts, which is asked over HTTP."""
        return self.policy is not None and self.policy.is_asked

    @property
    def decides(self) -> bool:
        """Whether it is a decision model."""
        return self.policy is not None and self.policy.kind is ModelKind.DECISION

    @property
    def asked(self) -> tuple[str, ...]:
        """The chat and decision models that it asks."""
        return tuple(str(model) for model in (self.policy, self.reflector) if model is not None and model.is_asked)

    def resolved(self, data_dir: Path, progress: Progress) -> Player:
        """With the places of its models; see `ModelRef.resolve`."""
        policy = resolved(self.policy, data_dir, progress)
        return replace(self, policy=policy, reflector=resolved(self.reflector, data_dir, progress, reflects=True))


def parse_policy(text: str, baselines: Sequence[str] = (), methods: Iterable[str] = ()) -> Player:
    """The player of a --policy. baselines, methods: names of those of the env. Raises ConfigError.

    >>> ours = parse_policy("ours=a/b+c/d")
    >>> ours.name, str(ours.policy), str(ours.reflector)
    ('ours', 'a/b', 'c/d')
    >>> parse_policy("big=openai:x+openai:y").asked
    ('openai:x', 'openai:y')
    """
    # 1. Players that need no name
    if text in SCRIPTED or text in baselines or text in _plugins(text):
        return Player(text)
    if folders := _two_folders(text):
        policy, reflector = folders
        return _player(_run_name(Path(policy)), policy, reflector)
    # 2. A name in front, which a chat model or a method may have
    name, equals, model = text.partition("=")
    if not (equals and name) or method_of(name, methods)[0] or name.partition(":")[0] in ASKED_KINDS:
        name, equals, model = text, "", text
    if equals and (model in SCRIPTED or model in baselines or model in _plugins(model)):
        raise ConfigError(f"--policy {text!r}: {model} keeps its own name; write --policy {model}")
    if chat := chat_parts(model, methods):
        return _player(name, *chat, method=method_of(model, methods)[0])
    method, checkpoint = method_of(model, methods)
    if method and (not checkpoint or checkpoint.partition(":")[0] in ASKED_KINDS):
        raise ConfigError(f"--policy {text!r}: write {method}:CHECKPOINT, or {method}: and one chat model")
    if method:
        return _player(name, checkpoint, method=method)
    # 3. A checkpoint, perhaps with a reflector
    if equals and (folders := _two_folders(model)):
        return _player(name, *folders)
    policy, plus, reflector = model.partition("+")
    if not (equals and name and policy) or (plus and not reflector) or ModelRef.parse(policy).is_asked:
        names = ", ".join((*SCRIPTED, *baselines, *(f"{method}:MODEL" for method in methods), *_plugins(text)))
        hint = "" if equals else _hint(text, names.split(", "))
        raise ConfigError(
            f"--policy {text!r}: write NAME=CHECKPOINT, NAME=CHECKPOINT+REFLECTOR, a run's folder, or one of"
            f" {names}{hint}"
        )
    return _player(name, policy, reflector)


def _player(name: str, policy: str, reflector: str = "", *, method: str = "") -> Player:
    """A player with models. Raises ConfigError where the policy is none."""
    acts = ModelRef.parse(policy)
    if not method:
        refuse_without_model(acts)
    return Player(name, acts, ModelRef.parse(reflector) if reflector else None, method)


def _two_folders(text: str) -> tuple[str, str] | None:
    """The folder of a policy that `text` begins with, and its reflector, "" for none; None without such a folder. The
    names of folders may hold "=" and "+"; a reflector's folder is taken before a name that is none.
    """
    places = [place for place, character in enumerate(text) if character == "+" and text[place + 1 :]]
    pairs = [(text, ""), *((text[:place], text[place + 1 :]) for place in reversed(places))]
    pairs = [(policy, reflector) for policy, reflector in pairs if os.path.isdir(policy)]
    pairs.sort(key=lambda pair: bool(pair[1]) and not os.path.isdir(pair[1]))
    return pairs[0] if pairs else None


def _hint(text: str, names: Sequence[str]) -> str:
    """What a --policy without a name probably means: one of the known `names`, a folder, or a chat model."""
    if closest := difflib.get_close_matches(text, names, n=1):
        return f"; did you mean {closest[0]}?"
    folders = {folder.name: folder for folder in sorted(Path("results").glob("**/")) if checkpoints(folder)}
    if closest := difflib.get_close_matches(_run_name(Path(text.partition("+")[0])), folders, n=1):
        return f"; did you mean {closest[0]}={folders[closest[0]]}?"
    if text.startswith("results/"):
        return "; there is no such run"
    return f"; a chat model is openai:{text} or local:{text}, and a model in a folder or on the hub NAME={text}"


def _run_name(checkpoint: Path) -> str:
    """The name of the folder of the run that made `checkpoint`, or of any other model's folder."""
    return checkpoint.parent.name if CHECKPOINT.fullmatch(checkpoint.name) else checkpoint.name


def refuse_without_model(*models: ModelRef | None) -> None:
    """Raises ConfigError if one of the models is the name of comments without a model."""
    for model in models:
        if model is not None and model.kind in (ModelKind.ORACLE, ModelKind.NOTHING):
            raise ConfigError(
                f"'{model}' is no model; evaluate and play take it behind the + of --policy NAME=CHECKPOINT+{model}"
            )


def model_folders(models: Iterable[ModelRef | None]) -> list[Path]:
    """The folders among `models`, as inputs of a run; a hub id is one of its settings."""
    folders = [model.folder for model in dict.fromkeys(models) if model is not None]
    return [folder for folder in folders if folder is not None]


def _plugins(text: str) -> list[str]:
    """The players of installed packages, if `text` may name one."""
    return [] if "=" in text else sorted(plugins(PLUGINS))


def mismatch(player: Player) -> str:
    """`unlike_training` of `player`, which a --policy describes."""
    given = f"give its reflector, {player.name}={player.policy}+REFLECTOR"
    text = unlike_training(player.policy, player.reflector, given, f"leave out +{player.reflector}")
    return f"{player.name}: {text}" if text else ""


def unlike_training(policy: ModelRef | None, reflector: ModelRef | None, add: str, leave: str) -> str:
    """What to warn of where a policy plays with comments and was trained without, or the reverse; "" if nothing says
    so. A checkpoint of `rlft` says whether a reflector commented there; one of `sft` has its role.

    add, leave: how to give a reflector, and how to give none.
    """
    facts = {} if policy is None else policy.facts
    by_role = {"policy": True, "plain": False, "think": False}.get(str(facts.get("role")))
    commented = bool(facts["reflector"]) if "reflector" in facts else by_role
    if commented is None or facts.get("acts_alone") or commented == (reflector is not None):
        return ""
    if commented:
        return f"{policy} was trained with comments but plays without; {add}"
    return f"{policy} was trained without comments but plays with a reflector; {leave}"


def warn_of(env: EnvConfig, players: Sequence[Player], models: Sequence[Path], progress: Progress) -> list[str]:
    """What is wrong with playing in `env`, which is reported and returned. models: those that play and comment."""
    texts = [text for player in players if (text := mismatch(player))]
    texts += [*trained_elsewhere(env.name, models), *other_settings(env, models), *unfinished(models)]
    texts += template_warnings(env, [player.checkpoint for player in players])
    for text in texts:
        progress.news(f"warning: {text}")
    return texts


def trained_elsewhere(env: str, models: Iterable[Path]) -> list[str]:
    """What to warn of: each of the `models` that was trained in another env than `env`, or on another version of the
    prompts, as far as they say.
    """
    texts = []
    for model in dict.fromkeys(models):
        facts = model_facts(model)
        other, trained_on = facts.get("env"), facts.get("prompts", 0)
        if not isinstance(other, str):
            continue
        if ENVS.get(other, other) != ENVS.get(env, env):
            texts.append(
                f"{model} was trained in env '{other}', but plays in '{env}'; use a checkpoint of '{env}', or"
                f" --env {other}"
            )
        elif trained_on != PROMPT_VERSION:
            texts.append(
                f"{model} was trained on version {trained_on} of the prompts, but plays on {PROMPT_VERSION};"
                " train it again, or expect lower scores"
            )
    return texts


def plain_settings(env: EnvConfig) -> dict[str, Any]:
    """The settings of `env` as JSON values, paths left out."""
    paths = {row.name for row in leaves(type(env.settings)) if is_path(row.hint)}
    return {name: as_plain(value) for name, value in flat(env.settings).items() if name not in paths}


def other_settings(env: EnvConfig, models: Iterable[Path]) -> list[str]:
    """What to warn of: each of the `models` that learned with other settings of `env`, paths left out, or by RL with
    other code of it.
    """
    here, texts = plain_settings(env) | {"shuffle_action": env.shuffle_action}, []
    code = {str(path): digest(path) for path in EnvSetup(env.name, Path(), env.settings).code_files}
    for model in dict.fromkeys(models):
        record, facts = read_record(model.parent), model_facts(model)
        there = record.get("settings") if record.get("stage") == "rlft" else facts.get("env_settings")
        trained_in = there.get("env", facts.get("env")) if isinstance(there, dict) else None
        if isinstance(there, dict) and trained_in == env.name:
            apart = [name for name in here if name in there and there[name] != here[name]]
            then, now = (" ".join(f"{flag(name)} {of[name]}" for name in apart) for of in (there, here))
            texts += [f"{model} was trained with {then}, but plays with {now}"] if apart else []
        read = record.get("inputs", {})
        if changed := [name for name in code if code[name] != read.get(name, code[name])]:
            texts.append(f"{model} was trained with an earlier {' and '.join(changed)}")
    return texts


def unfinished(models: Iterable[Path]) -> list[str]:
    """What to warn of: each of the `models` whose run was stopped."""
    texts = []
    for model in dict.fromkeys(models):
        steps = read_record(model.parent).get("settings", {}).get("max_steps")
        place = CHECKPOINT.fullmatch(model.name)
        if place and steps and int(place[1]) < steps and not (model.parent / "report.json").is_file():
            texts.append(f"{model.parent} has not finished; {model.name} of {steps} plays")
    return texts


def template_warnings(env: EnvConfig, policies: Iterable[ModelRef | None]) -> list[str]:
    """What to warn of: each of the `policies` that writes in `env` without a chat template, or that would be shown its
    tools in a form that is not its own.
    """
    kind = env.kind.action_kind(env.settings)
    if kind == "choice":
        return []
    from reflectkit.models.chat import Dialogue

    models = {policy for policy in policies if policy is not None and policy.has_weights}
    texts = []
    for policy in sorted((model for model in models if not model.facts.get("role")), key=str):
        dialogue = Dialogue(load_tokenizer(policy.text))
        if not dialogue.template:
            texts.append(
                f"{policy} has no chat template: it continues the prompt as text; give a model that was trained to"
                " answer, or train it by sft first"
            )
        elif kind == "tools" and dialogue.unknown_form:
            texts.append(
                f"{policy}: the form of calls in its chat template is not known (docs/call-formats.md); it is asked for"
                ' name {"argument": value} instead'
            )
    return texts


def journal_path(folder: Path, endpoint: Endpoint) -> Path:
    """Where a chat model's answers are kept. A model whose name cannot be a file's gets a checksum of it into the name
    of its journal, so that no two models share one.

    >>> journal_path(Path(), Endpoint("local", "a_b")).name, journal_path(Path(), Endpoint("local", "a/b")).name
    ('evaluate_local_a_b.jsonl', 'evaluate_local_a_b~c14cddc0.jsonl')
    """
    name = endpoint.model
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        checksum = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)[:LONGEST_NAME]}~{checksum}"
    return folder / f"evaluate_{endpoint.kind}_{name}.jsonl"


class PlayingConfig(Protocol):
    """The settings of a command that makes players."""

    sampler: SamplerConfig
    chat: ChatConfig
    temperature: float
    max_new_tokens: int
    device: str

    @property
    def decisions(self) -> DecisionConfig:
        """How decision models are asked."""


@dataclass(frozen=True)
class PlayersSetup:
    """What players are made with.

    players: all of them. kind: the env's class. env_folder: for the answers of chat models. folder: of the env's rows.
    history_tokens: of earlier turns that a chat model reads. truncation: which outcomes the policy may draw.
    """

    config: PlayingConfig
    players: tuple[Player, ...]
    kind: type[Env]
    env_folder: Path
    folder: Path = Path()
    history_tokens: int = HISTORY_TOKENS
    truncation: Truncation = EVERYTHING

    def endpoint_of(self, part: str) -> Endpoint:
        """The endpoint of a chat model in a --policy; with local models, --base-url applies only to them. Raises
        ConfigError.
        """
        local = any(model.startswith("local:") for player in self.players for model in player.asked)
        base_url = self.config.chat.base_url if part.startswith("local:") or not local else None
        return parse_endpoint(part, base_url, "--policy", "", decides=True)


class Players:
    """Creates the players; each reflector is loaded once, and players share its memo."""

    def __init__(self, settings: PlayersSetup) -> None:
        self.settings = settings
        self._reflectors: dict[ModelRef, Any] = {}
        self._clients: dict[str, ChatClient] = {}
        self._budget: Budget | None = None
        self._stack = contextlib.ExitStack()

    def close(self) -> None:
        """Close the connections."""
        self._stack.close()

    def stop_if_spent(self, player: Player) -> None:
        """Raises BudgetSpentError if the budget of a chat model that acts as `player` ran out."""
        for part in player.asked if player.is_chat else ():
            if client := self._clients.get(str(self.settings.endpoint_of(part))):
                client.stop_if_spent("finished episodes are kept")

    def report(self, progress: Progress) -> None:
        """Report unusable lines in the chat models' journals, and how their servers had to be asked otherwise."""
        for client in self._clients.values():
            client.report(progress)

    @property
    def usage(self) -> dict[str, dict[str, float]]:
        """Usage of each chat model."""
        return {name: client.usage for name, client in self._clients.items()}

    def _client(self, part: str, *, reflects: bool = False) -> ChatClient:
        """The client of chat model `part`, which players share. reflects: for the comments that a checkpoint reads,
        which are greedy and have a journal of their own.
        """
        config, endpoint = self.settings.config, self.settings.endpoint_of(part)
        name = f"reflector {endpoint}" if reflects else str(endpoint)
        if name not in self._clients:
            from reflectkit.chat.client import Budget, client_at

            self._budget = self._budget or Budget(config.chat.max_cost_usd)
            journal = journal_path(self.settings.env_folder, endpoint)
            if reflects:
                journal = journal.with_name(journal.name.replace("evaluate", "reflector", 1))
            temperature = 0.0 if reflects or endpoint.decides else config.temperature
            client = client_at(config.chat, endpoint, journal, self._budget, temperature)
            self._clients[name] = self._stack.enter_context(client)
        return self._clients[name]

    def agent(self, player: Player) -> Agent:
        """The agent of `player`."""
        settings, kind, config = self.settings, self.settings.kind, self.settings.config
        name, method = player.name, player.method
        if player.decides:
            from reflectkit.agents.decision_players import DecisionModel, DecisionPolicy

            model = DecisionModel(self._client(player.asked[0]), rules=not config.decisions.plain_questions)
            return DecisionPolicy(model, config.temperature)
        if player.is_chat:
            from reflectkit.chat.players import ChatMethod, ChatPolicy

            client, *reflectors = [self._client(part) for part in player.asked]
            if method:
                return ChatMethod(method, client)
            return ChatPolicy(client, reflectors[0] if reflectors else None, settings.history_tokens)
        policy = player.checkpoint
        if policy is None:
            from reflectkit.agents.scripted import Baseline, Oracle, RandomAgent

            if name not in (*SCRIPTED, *kind.baselines) and name in _plugins(name):
                return resolve("player", name, {}, PLUGINS)()  # type: ignore[no-any-return]
            return Oracle() if name == "oracle" else RandomAgent() if name == "random" else Baseline(name)
        from reflectkit.agents.two_player import TwoPlayerAgent

        commentator = self.reflector(player.reflector) if player.reflector else None
        agent = TwoPlayerAgent(
            config.sampler.open_policy(Opening(str(policy), config.device)),
            commentator and config.sampler.swapped(commentator, settings.folder),
            answer=config.sampler.answer_of(policy),
            temperature=config.temperature,
            truncation=settings.truncation,
            max_new_tokens=kind.methods.get(method, config.max_new_tokens),
            episode_tokens=config.sampler.episode_tokens,
            thinking=config.sampler.thinking,
            show=True,
            calibration=calibration_of(policy.path),
        )
        if method:
            from reflectkit.chat.players import ModelMethod

            return ModelMethod(method, agent)
        return agent

    def reflector(self, model: ModelRef) -> Any:
        """Who comments: the `Reflector` of a checkpoint, a chat or decision model, the env's teacher, or nobody. Raises
        CheckpointError, ConfigError.
        """
        if model not in self._reflectors:
            self._reflectors[model] = self._open_reflector(model)
        return self._reflectors[model]

    def _open_reflector(self, model: ModelRef) -> Any:
        from reflectkit.agents.two_player import NoComments, TeacherComments
        from reflectkit.env import check_teacher

        config = self.settings.config
        if model.kind is ModelKind.ORACLE:
            check_teacher(self.settings.kind.teacher_type, self.settings.kind.name, "comment")
            return TeacherComments()
        if model.kind is ModelKind.NOTHING:
            return NoComments()
        if model.kind is ModelKind.DECISION:
            from reflectkit.agents.decision_players import DecisionModel, DecisionReflector

            client = self._client(model.text, reflects=True)
            return DecisionReflector(DecisionModel(client, rules=not config.decisions.plain_questions))
        if model.kind is ModelKind.CHAT:
            from reflectkit.chat.players import ChatReflector

            return ChatReflector(self._client(model.text, reflects=True))
        from reflectkit.agents.typed import reflector_of

        return reflector_of(config.sampler.open_reflector(model.text, config.device), model.facts, model.text)
