"""What a --policy means: a `Player` is parsed once from the text that a person types, and names its models."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reflectkit.console import Progress
from reflectkit.errors import ConfigError
from reflectkit.models.refs import ModelRef, resolved
from reflectkit.registry import plugins
from reflectkit.runs.run import CHECKPOINT, checkpoints

SCRIPTED = ("oracle", "random")
PLUGINS = "reflectkit.players"
"""The group of entry points in which a package offers its players: NAME = "package.module:make", where `make()` is an
agent.
"""


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
    def is_asked(self) -> bool:
        """Whether a chat or decision model acts, which is asked over HTTP."""
        return self.policy is not None and self.policy.is_asked

    @property
    def decides(self) -> bool:
        """Whether it is a decision model."""
        return self.policy is not None and self.policy.decides

    @property
    def api_models(self) -> tuple[str, ...]:
        """The chat and decision models that it asks over HTTP: the one that acts first."""
        models = (self.policy, self.reflector)
        return tuple(str(model) for model in models if model is not None and model.is_asked)

    def resolved(self, data_dir: Path, progress: Progress) -> Player:
        """With the places of its models; see `ModelRef.resolve`."""
        policy = resolved(self.policy, data_dir, progress)
        reflector = resolved(self.reflector, data_dir, progress, reflects=True)
        return replace(self, policy=policy, reflector=reflector)


def parse_policy(text: str, baselines: Sequence[str] = (), methods: Iterable[str] = ()) -> Player:
    """The player of a --policy. baselines, methods: names of those of the env. Raises ConfigError.

    >>> ours = parse_policy("ours=a/b+c/d")
    >>> ours.name, str(ours.policy), str(ours.reflector)
    ('ours', 'a/b', 'c/d')
    >>> parse_policy("big=openai:x+openai:y").api_models
    ('openai:x', 'openai:y')
    """
    # 1. Players that need no name, and a run's folder, which has one
    if text in SCRIPTED or text in baselines or text in plugin_names(text):
        return Player(text)
    folders = _split_folders(text)
    if folders is not None:
        policy, reflector = folders
        return _player(_run_name(Path(policy)), policy, reflector)

    # 2. The name in front; of a chat model and of a method, "=" belongs to the model's own name
    name, equals, model = text.partition("=")
    is_named = bool(equals and name)
    if not is_named or method_of(name, methods)[0] or ModelRef.parse(name).is_asked:
        name, equals, model = text, "", text
    if equals and (model in SCRIPTED or model in baselines or model in plugin_names(model)):
        raise ConfigError(f"--policy {text!r}: {model} keeps its own name; write --policy {model}")

    # 3. Chat models, and methods that any model can play by
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

    # 4. A checkpoint, perhaps with a reflector
    if equals:
        folders = _split_folders(model)
        if folders is not None:
            return _player(name, *folders)
    policy, plus, reflector = model.partition("+")
    is_complete = bool(equals and name and policy) and not (plus and not reflector)
    if is_complete and not ModelRef.parse(policy).is_asked:
        return _player(name, policy, reflector)

    # 5. Nothing of these
    names = [*SCRIPTED, *baselines, *(f"{method}:MODEL" for method in methods), *plugin_names(text)]
    hint = "" if equals else _hint(text, names)
    raise ConfigError(
        f"--policy {text!r}: write NAME=CHECKPOINT, NAME=CHECKPOINT+REFLECTOR, a run's folder, or one of"
        f" {', '.join(names)}{hint}"
    )


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
    parts = model.split("+")
    models = [ModelRef.parse(part) for part in parts]

    # 1. All are asked, and as many as can play together
    if not all(model.is_asked for model in models) or len(models) > (1 if method else 2):
        return []
    # 2. A decision model is alone
    is_alone = len(models) == 1 and not method
    return parts if is_alone or all(model.is_chat for model in models) else []


def refuse_without_model(*models: ModelRef | None) -> None:
    """Raises ConfigError if one of the models is the name of comments without a model."""
    for model in models:
        if model is not None and model.only_comments:
            raise ConfigError(
                f"'{model}' is no model; evaluate and play take it behind the + of --policy NAME=CHECKPOINT+{model}"
            )


def model_folders(models: Iterable[ModelRef | None]) -> list[Path]:
    """The folders among `models`, as inputs of a run; a hub id is one of its settings."""
    distinct = [model for model in dict.fromkeys(models) if model is not None]
    return [model.folder for model in distinct if model.folder is not None]


def plugin_names(text: str) -> list[str]:
    """The players of installed packages, if `text` may name one."""
    return [] if "=" in text else sorted(plugins(PLUGINS))


def _player(
    name: str,
    policy: str,
    reflector: str = "",
    *,
    method: str = "",
) -> Player:
    """A player with models. Raises ConfigError where the policy is none."""
    model = ModelRef.parse(policy)
    if not method:
        refuse_without_model(model)
    return Player(name, model, ModelRef.parse(reflector) if reflector else None, method)


def _split_folders(text: str) -> tuple[str, str] | None:
    """The folder of a policy that `text` begins with, and its reflector, "" for none; None without such a folder. The
    names of folders may hold "=" and "+"; a reflector's folder is taken before a name that is none.
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
    """What a --policy without a name probably means: one of the `names`, a folder, or a chat model."""
    # 1. A name that is nearly right
    close_names = difflib.get_close_matches(text, names, n=1)
    if close_names:
        return f"; did you mean {close_names[0]}?"

    # 2. A run's name instead of its folder
    folders = {
        folder.name: folder for folder in sorted(Path("results").glob("**/")) if checkpoints(folder)
    }
    close_runs = difflib.get_close_matches(_run_name(Path(text.partition("+")[0])), folders, n=1)
    if close_runs:
        return f"; did you mean {close_runs[0]}={folders[close_runs[0]]}?"

    # 3. Something else
    if text.startswith("results/"):
        return "; there is no such run"
    return f"; a chat model is openai:{text} or local:{text}, and a model in a folder or on the hub NAME={text}"


def _run_name(checkpoint: Path) -> str:
    """The name of the folder of the run that made `checkpoint`, or of any other model's folder."""
    return checkpoint.parent.name if CHECKPOINT.fullmatch(checkpoint.name) else checkpoint.name
