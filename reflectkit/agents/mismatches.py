"""Warnings about players that were trained for something else, in lists of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.agents.player_refs import Player
from reflectkit.config import as_plain, flag, flat, is_path, leaves
from reflectkit.envs import ENVS
from reflectkit.envs.python_classes import class_in, env_text
from reflectkit.envs.setup import EnvSetup
from reflectkit.models.checkpoint_metadata import load_tokenizer, model_facts
from reflectkit.models.refs import ModelRef
from reflectkit.prompts import PROMPT_VERSION
from reflectkit.runs.run import CHECKPOINT, digest, read_record

if TYPE_CHECKING:
    from reflectkit.envs.setup import EnvConfig


def playing_mismatches(
    env: EnvConfig, players: Sequence[Player], folders: Sequence[Path]
) -> list[str]:
    """All warnings about playing in `env`. folders: of the models that play and comment."""
    warnings = []
    for player in players:
        warning = comments_mismatch(player)
        if warning:
            warnings.append(warning)
    warnings += env_mismatches(env.name, folders)
    warnings += settings_mismatches(env, folders)
    warnings += unfinished_runs(folders)
    warnings += template_mismatches(env, [player.checkpoint for player in players])
    return warnings


def comments_mismatch(player: Player) -> str:
    """The warning of `unlike_training` about the player of a --policy; "" for none."""
    add = f"give its reflector, {player.name}={player.policy}+REFLECTOR"
    leave = f"leave out +{player.reflector}"
    text = unlike_training(player.policy, player.reflector, add, leave)
    return f"{player.name}: {text}" if text else ""


def unlike_training(
    policy: ModelRef | None,
    reflector: ModelRef | None,
    add: str,
    leave: str,
) -> str:
    """A warning if a policy plays with comments and was trained without, or the reverse; "" for
    none.

    A checkpoint of `rlft` says whether a reflector commented; one of `sft` has its role. There is
    no warning if neither is known. add, leave: advice how to give a reflector, and how to leave it
    out.
    """
    # 1. Whether it read comments in training; None if unknown
    facts = {} if policy is None else policy.facts
    had_comments: bool | None
    if "reflector" in facts:
        had_comments = bool(facts["reflector"])
    else:
        reads_comments = {"policy": True, "plain": False, "think": False}
        had_comments = reads_comments.get(str(facts.get("role")))

    # 2. Whether it reads comments here; a policy that learned both ways may do either
    has_comments = reflector is not None
    if had_comments is None or had_comments == has_comments or facts.get("acts_alone"):
        return ""
    if had_comments:
        return f"{policy} was trained with comments but plays without; {add}"
    return f"{policy} was trained without comments but plays with a reflector; {leave}"


def env_mismatches(env: str, folders: Iterable[Path]) -> list[str]:
    """Warnings about models that were trained in another env, or with other prompts."""
    warnings = []
    for folder in dict.fromkeys(folders):
        facts = model_facts(folder)
        trained_env = facts.get("env")
        trained_version = facts.get("prompts", 0)
        if not isinstance(trained_env, str):
            continue
        if not _is_same_env(trained_env, env):
            there, here = env_text(trained_env), env_text(env)
            warnings.append(
                f"{folder} was trained in env '{there}', but plays in '{here}'; use a checkpoint"
                f" of '{here}', or the env '{there}'"
            )
        elif trained_version != PROMPT_VERSION:
            warnings.append(
                f"{folder} was trained on version {trained_version} of the prompts, but plays on"
                f" {PROMPT_VERSION}; train it again, or expect lower scores"
            )
    return warnings


def _is_same_env(there: str, here: str) -> bool:
    """Whether these are names of one env: a class may be handed over by a program, or named with
    its file, whose path depends on the folder. Its code is compared elsewhere.
    """
    files = [class_in(name) or name.partition(".py:")[2] for name in (there, here)]
    if all(files):
        return files[0] == files[1]
    return ENVS.get(there, there) == ENVS.get(here, here)


def settings_mismatches(env: EnvConfig, folders: Iterable[Path]) -> list[str]:
    """Warnings about models that were trained with other settings or with other code of `env`.

    Paths among the settings do not count. The code is known of models that `rlft` trained.
    """
    settings_here = plain_settings(env) | {"shuffle_action": env.shuffle_action}
    code_files = EnvSetup(env.name, Path(), env.settings).code_files
    code_here = {str(path): digest(path) for path in code_files}
    warnings = []
    for folder in dict.fromkeys(folders):
        # 1. The settings in training, from the record of a run of rlft, or from the model's facts
        record = read_record(folder.parent)
        facts = model_facts(folder)
        settings_there = facts.get("env_settings")
        if record.get("stage") == "rlft":
            settings_there = record.get("settings")

        # 2. Those that differ
        if not isinstance(settings_there, dict):
            settings_there = {}
        if settings_there.get("env", facts.get("env")) == env.name:
            names = [name for name in settings_here if name in settings_there]
            names = [name for name in names if settings_there[name] != settings_here[name]]
            if names:
                then = " ".join(f"{flag(name)} {settings_there[name]}" for name in names)
                now = " ".join(f"{flag(name)} {settings_here[name]}" for name in names)
                warnings.append(f"{folder} was trained with {then}, but plays with {now}")

        # 3. Files of code that differ
        code_there = record.get("inputs", {})
        changed_files = [
            name for name in code_here if code_here[name] != code_there.get(name, code_here[name])
        ]
        if changed_files:
            warnings.append(f"{folder} was trained with an earlier {' and '.join(changed_files)}")
    return warnings


def plain_settings(env: EnvConfig) -> dict[str, Any]:
    """The settings of `env` as JSON values, without the paths among them."""
    paths = {row.name for row in leaves(type(env.settings)) if is_path(row.hint)}
    settings = {}
    for name, value in flat(env.settings).items():
        if name not in paths:
            settings[name] = as_plain(value)
    return settings


def length_mismatches(max_new_tokens: int, folders: Iterable[Path]) -> list[str]:
    """Warnings about models that were trained with another maximum length of answers, in tokens."""
    warnings = []
    for folder in folders:
        limit = read_record(folder.parent).get("settings", {}).get("max_new_tokens")
        if limit not in (None, max_new_tokens):
            warnings.append(
                f"{folder} was trained with --max-new-tokens {limit}, but plays with"
                f" {max_new_tokens}"
            )
    return warnings


def unfinished_runs(folders: Iterable[Path]) -> list[str]:
    """Warnings about models whose run has not finished."""
    warnings = []
    for folder in dict.fromkeys(folders):
        max_steps = read_record(folder.parent).get("settings", {}).get("max_steps")
        match = CHECKPOINT.fullmatch(folder.name)
        if match is None or not max_steps or (folder.parent / "report.json").is_file():
            continue
        if int(match[1]) < max_steps:
            warnings.append(f"{folder.parent} has not finished; {folder.name} of {max_steps} plays")
    return warnings


def template_mismatches(env: EnvConfig, policies: Iterable[ModelRef | None]) -> list[str]:
    """Warnings about policies that write text or calls in `env`, but not in a chat template's form.

    Either the policy has no chat template, or the form of calls in its template is unknown.
    """
    action_kind = env.kind.action_kind(env.settings)
    if action_kind == "choice":
        return []
    from reflectkit.models.chat import Dialogue

    models = {policy for policy in policies if policy is not None and policy.has_weights}
    warnings = []
    for policy in sorted((model for model in models if not model.facts.get("role")), key=str):
        dialogue = Dialogue(load_tokenizer(policy.text))
        if not dialogue.template:
            warnings.append(
                f"{policy} has no chat template: it continues the prompt as text; give a model that"
                " was trained to answer, or train it by sft first"
            )
        elif action_kind == "tools" and dialogue.unknown_form:
            warnings.append(
                f"{policy}: the form of calls in its chat template is not known"
                ' (docs/call-formats.md); it is asked for name {"argument": value} instead'
            )
    return warnings
