"""Players of evaluate and play: a `Player` is parsed from the text of a --policy, and has its
models.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reflectkit.chat.config import example_model
from reflectkit.console import Progress
from reflectkit.errors import ConfigError
from reflectkit.models.refs import ModelRef, resolved
from reflectkit.registry import code_files, import_module, module_of, plugins
from reflectkit.runs.run import CHECKPOINT, checkpoints

SCRIPTED = ("oracle", "random")
"""The names of players without a model that every env has."""
PLUGINS = "reflectkit.players"
"""The group of entry points in which a package offers players: NAME = "package.module:make", where
`make()` returns an agent.
"""


OWN_PLAYER = re.compile(r"(?:(?P<name>[^=:]+)=)?(?P<code>[^=]+\.py:(?P<attribute>[^\W\d]\w*))")
"""A player in a file of the user's own: FILE.py:NAME or NAME=FILE.py:NAME."""


@dataclass(frozen=True)
class Player:
    """A player: a policy with or without a reflector, or a player without a model."""

    name: str
    """The name in the results."""
    policy: ModelRef | None = None
    """The model that acts; None for a player without a model."""
    reflector: ModelRef | None = None
    """The model that comments for the policy; None without comments."""
    method: str = ""
    """The published method of the env by which the model plays; "" for none."""
    code: str = ""
    """Where the user's own player is written, FILE.py:NAME; "" for any other."""

    @property
    def checkpoint(self) -> ModelRef | None:
        """The model that acts, if it is loaded here; None if it is asked over HTTP, or there is
        none.
        """
        if self.policy is None or self.policy.is_asked:
            return None
        return self.policy

    @property
    def is_asked(self) -> bool:
        """Whether a chat or decision model acts, which is asked over HTTP."""
        return self.policy is not None and self.policy.is_asked

    @property
    def decides(self) -> bool:
        """Whether a decision model acts."""
        return self.policy is not None and self.policy.decides

    @property
    def api_models(self) -> tuple[str, ...]:
        """The chat and decision models that are asked over HTTP; the one that acts comes first."""
        models = (self.policy, self.reflector)
        return tuple(str(model) for model in models if model is not None and model.is_asked)

    def resolved(self, data_dir: Path, progress: Progress) -> Player:
        """The same player, with the folders of its models; see `ModelRef.resolve`."""
        policy = resolved(self.policy, data_dir, progress)
        reflector = resolved(self.reflector, data_dir, progress, reflects=True)
        return replace(self, policy=policy, reflector=reflector)


def parse_policy(text: str, baselines: Sequence[str] = (), methods: Iterable[str] = ()) -> Player:
    """The player of a --policy.

    baselines, methods: names of the env's scripted players, and of its published methods. Raises
    ConfigError if the text has none of the known forms.

    >>> ours = parse_policy("ours=a/b+c/d")
    >>> ours.name, str(ours.policy), str(ours.reflector)
    ('ours', 'a/b', 'c/d')
    >>> parse_policy("big=openai:x+openai:y").api_models
    ('openai:x', 'openai:y')
    >>> parse_policy("rules.py:nearest")
    Player(name='nearest', policy=None, reflector=None, method='', code='rules.py:nearest')
    """
    # 1. A player without a model, e.g. "oracle" or "rules.py:nearest"
    if text in SCRIPTED or text in baselines or text in plugin_names(text):
        return Player(text)
    match = OWN_PLAYER.fullmatch(text)
    if match is not None:
        return Player(match["name"] or match["attribute"], code=match["code"])

    # 2. A run's folder, whose name is the player's: FOLDER or FOLDER+REFLECTOR
    folders = _split_folders(text)
    if folders is not None:
        policy, reflector = folders
        return _player(_run_name(Path(policy)), policy, reflector)

    # 3. The name before "="; in a chat model or a method, "=" is part of the model's own name
    name, equals, model = text.partition("=")
    is_named = bool(equals and name)
    if not is_named or method_of(name, methods)[0] or ModelRef.parse(name).is_asked:
        name, equals, model = text, "", text
    if equals and (model in SCRIPTED or model in baselines or model in plugin_names(model)):
        raise ConfigError(f"--policy {text!r}: {model} keeps its own name; write --policy {model}")

    # 4. Chat models, and a method by which any model can play: METHOD:MODEL
    api_models = chat_parts(model, methods)
    method, checkpoint = method_of(model, methods)
    if api_models:
        return _player(name, *api_models, method=method)
    if method and (not checkpoint or ModelRef.parse(checkpoint).is_asked):
        raise ConfigError(
            f"--policy {text!r}: write {method}:CHECKPOINT, or {method}: and one chat model"
        )
    if method:
        return _player(name, checkpoint, method=method)

    # 5. A checkpoint: NAME=CHECKPOINT or NAME=CHECKPOINT+REFLECTOR
    if equals:
        folders = _split_folders(model)
        if folders is not None:
            return _player(name, *folders)
    policy, plus, reflector = model.partition("+")
    is_complete = bool(equals and name and policy) and not (plus and not reflector)
    if is_complete and not ModelRef.parse(policy).is_asked:
        return _player(name, policy, reflector)

    # 6. None of these forms
    names = [*SCRIPTED, *baselines]
    names += [f"{method}:MODEL" for method in methods]
    names += plugin_names(text)
    hint = "" if equals else _hint(text, names)
    raise ConfigError(
        f"--policy {text!r}: write NAME=CHECKPOINT, NAME=CHECKPOINT+REFLECTOR, a run's folder,"
        f" FILE.py:NAME, or one of {', '.join(names)}{hint}"
    )


def method_of(text: str, methods: Iterable[str]) -> tuple[str, str]:
    """(method, model) of a --policy METHOD:MODEL; ("", text) of any other text.

    >>> method_of("mem1:openai:small", ("mem1",)), method_of("openai:small", ("mem1",))
    (('mem1', 'openai:small'), ('', 'openai:small'))
    """
    method, _, model = text.partition(":")
    return (method, model) if method in methods else ("", text)


def chat_parts(text: str, methods: Iterable[str] = ()) -> list[str]:
    """The chat or decision models in a --policy, if it has no other models.

    text: the --policy without its NAME=. The first model acts, and the second, if there is one,
    comments. A method has one model. A decision model plays without a second one and without a
    method. Empty for other policies.
    """
    method, model = method_of(text, methods)
    parts = model.split("+")
    models = [ModelRef.parse(part) for part in parts]

    # 1. All models are asked over HTTP, and there are not too many
    most_models = 1 if method else 2
    if not all(model.is_asked for model in models) or len(models) > most_models:
        return []

    # 2. All are chat models, or there is just a decision model
    is_alone = len(models) == 1 and not method
    if is_alone or all(model.is_chat for model in models):
        return parts
    return []


def refuse_without_model(*models: ModelRef | None) -> None:
    """Raises ConfigError if one of the models is just a source of comments, e.g. oracle."""
    for model in models:
        if model is not None and model.only_comments:
            raise ConfigError(
                f"'{model}' is no model; evaluate and play take it behind the + of --policy"
                f" NAME=CHECKPOINT+{model}"
            )


def model_folders(models: Iterable[ModelRef | None]) -> list[Path]:
    """The folders of those of `models` that are in folders, without repeats."""
    distinct = [model for model in dict.fromkeys(models) if model is not None]
    return [model.folder for model in distinct if model.folder is not None]


def player_files(players: Iterable[Player]) -> list[Path]:
    """The files of the user's own players, and those that they import."""
    modules = [module_of(player.code) for player in players if player.code]
    for module in modules:
        import_module("player", module)
    return code_files(modules)


def plugin_names(text: str) -> list[str]:
    """The names of players of installed packages; none if `text` cannot be such a name."""
    if "=" in text:
        return []
    return sorted(plugins(PLUGINS))


def _player(
    name: str,
    policy: str,
    reflector: str = "",
    *,
    method: str = "",
) -> Player:
    """The player with these models. Raises ConfigError if the policy is not a model."""
    policy_model = ModelRef.parse(policy)
    if not method:
        refuse_without_model(policy_model)
    reflector_model = ModelRef.parse(reflector) if reflector else None
    return Player(name, policy_model, reflector_model, method)


def _split_folders(text: str) -> tuple[str, str] | None:
    """(folder of the policy, reflector or "") of a text FOLDER or FOLDER+REFLECTOR.

    None if the text does not begin with a folder. Names of folders may contain "=" and "+". If the
    text can be split in several ways, one with a folder as the reflector is preferred.
    """
    pairs = [(text, "")]
    for place in reversed(range(len(text) - 1)):
        if text[place] == "+":
            pairs.append((text[:place], text[place + 1 :]))
    candidates = [(policy, reflector) for policy, reflector in pairs if os.path.isdir(policy)]
    for policy, reflector in candidates:
        if not reflector or os.path.isdir(reflector):
            return policy, reflector
    return candidates[0] if candidates else None


def _hint(text: str, names: Sequence[str]) -> str:
    """The end of an error message: what a --policy without a name probably means.

    names: of the players that can be given without NAME=.
    """
    # 1. A typing mistake in a name
    close_names = difflib.get_close_matches(text, names, n=1)
    if close_names:
        return f"; did you mean {close_names[0]}?"

    # 2. A run's name instead of its folder
    folders = {
        folder.name: folder for folder in sorted(Path("results").glob("**/")) if checkpoints(folder)
    }
    run_name = _run_name(Path(text.partition("+")[0]))
    close_runs = difflib.get_close_matches(run_name, folders, n=1)
    if close_runs:
        return f"; did you mean {close_runs[0]}={folders[close_runs[0]]}?"

    # 3. Something else
    if text.startswith("results/"):
        return "; there is no such run"
    name = example_model(text)
    return (
        f"; a chat model is openai:{name} or local:{name}, and a model in a folder or on the hub"
        f" NAME={text}"
    )


def _run_name(checkpoint: Path) -> str:
    """The name of the run that wrote `checkpoint`, or the name of any other model's folder."""
    if CHECKPOINT.fullmatch(checkpoint.name):
        return checkpoint.parent.name
    return checkpoint.name
