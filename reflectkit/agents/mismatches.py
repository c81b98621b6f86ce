"""What to warn of before models play: that they were trained for something else. Each function returns its warnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectkit.agents.player_refs import Player
from reflectkit.config import as_plain, flag, flat, is_path, leaves
from reflectkit.envs import ENVS
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
    """All that is wrong with playing in `env`. folders: those of the models that play and comment."""
    warnings = [text for player in players if (text := comments_mismatch(player))]
    warnings += env_mismatches(env.name, folders)
    warnings += settings_mismatches(env, folders)
    warnings += unfinished_runs(folders)
    warnings += template_mismatches(env, [player.checkpoint for player in players])
    return warnings


def comments_mismatch(player: Player) -> str:
    """`unlike_training` of `player`, which a --policy describes; "" if nothing is wrong."""
    add = f"give its reflector, {player.name}={player.policy}+REFLECTOR"
    text = unlike_training(player.policy, player.reflector, add, f"leave out +{player.reflector}")
    return f"{player.name}: {text}" if text else ""


def unlike_training(
    policy: ModelRef | None,
    reflector: ModelRef | None,
    add: str,
    leave: str,
) -> str:
    """What to warn of where a policy plays with comments and was trained without, or the reverse; "" if nothing says
    so. A checkpoint of `rlft` says whether a reflector commented there; one of `sft` has its role.

    add, leave: how to give a reflector, and how to give none.
    """
    # 1. Whether it read comments in training, as far as it says
    facts = {} if policy is None else policy.facts
    if "reflector" in facts:
        had_comments: bool | None = bool(facts["reflector"])
    else:
        had_comments = {"policy": True, "plain": False, "think": False}.get(str(facts.get("role")))

    # 2. Whether it reads them here; one that learned with and without may do either
    has_comments = reflector is not None
    if had_comments is None or had_comments == has_comments or facts.get("acts_alone"):
        return ""
    if had_comments:
        return f"{policy} was trained with comments but plays without; {add}"
    return f"{policy} was trained without comments but plays with a reflector; {leave}"


def env_mismatches(env: str, folders: Iterable[Path]) -> list[str]:
    """Models that were trained in another env than `env`, or on another version of the prompts, as far as they say."""
    warnings = []
    for folder in dict.fromkeys(folders):
        facts = model_facts(folder)
        trained_env = facts.get("env")
        trained_version = facts.get("prompts", 0)
        if not isinstance(trained_env, str):
            continue
        if ENVS.get(trained_env, trained_env) != ENVS.get(env, env):
            warnings.append(
                f"{folder} was trained in env '{trained_env}', but plays in '{env}'; use a checkpoint of '{env}', or"
                f" --env {trained_env}"
            )
        elif trained_version != PROMPT_VERSION:
            warnings.append(
                f"{folder} was trained on version {trained_version} of the prompts, but plays on {PROMPT_VERSION};"
                " train it again, or expect lower scores"
            )
    return warnings


def settings_mismatches(env: EnvConfig, folders: Iterable[Path]) -> list[str]:
    """Models that learned with other settings of `env`, paths left out, or by RL with other code of it."""
    settings_here = plain_settings(env) | {"shuffle_action": env.shuffle_action}
    code_here = {
        str(path): digest(path) for path in EnvSetup(env.name, Path(), env.settings).code_files
    }
    warnings = []
    for folder in dict.fromkeys(folders):
        # 1. Settings, which a run of rlft records, and otherwise the model itself
        record = read_record(folder.parent)
        facts = model_facts(folder)
        settings_there = (
            record.get("settings") if record.get("stage") == "rlft" else facts.get("env_settings")
        )
        if (
            isinstance(settings_there, dict)
            and settings_there.get("env", facts.get("env")) == env.name
        ):
            names = [name for name in settings_here if name in settings_there]
            names = [name for name in names if settings_there[name] != settings_here[name]]
            if names:
                then = " ".join(f"{flag(name)} {settings_there[name]}" for name in names)
                now = " ".join(f"{flag(name)} {settings_here[name]}" for name in names)
                warnings.append(f"{folder} was trained with {then}, but plays with {now}")

        # 2. Code
        code_there = record.get("inputs", {})
        changed_files = [
            name for name in code_here if code_here[name] != code_there.get(name, code_here[name])
        ]
        if changed_files:
            warnings.append(f"{folder} was trained with an earlier {' and '.join(changed_files)}")
    return warnings


def plain_settings(env: EnvConfig) -> dict[str, Any]:
    """The settings of `env` as JSON values, paths left out."""
    paths = {row.name for row in leaves(type(env.settings)) if is_path(row.hint)}
    return {
        name: as_plain(value) for name, value in flat(env.settings).items() if name not in paths
    }


def length_mismatches(max_new_tokens: int, folders: Iterable[Path]) -> list[str]:
    """Models whose answers were limited to another length, in tokens, in training than `max_new_tokens`."""
    warnings = []
    for folder in folders:
        limit = read_record(folder.parent).get("settings", {}).get("max_new_tokens")
        if limit not in (None, max_new_tokens):
            warnings.append(
                f"{folder} was trained with --max-new-tokens {limit}, but plays with {max_new_tokens}"
            )
    return warnings


def unfinished_runs(folders: Iterable[Path]) -> list[str]:
    """Models whose run was stopped."""
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
    """Policies that write in `env` without a chat template, or that would be shown its tools in a form that is not
    their own.
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
                f"{policy} has no chat template: it continues the prompt as text; give a model that was trained to"
                " answer, or train it by sft first"
            )
        elif action_kind == "tools" and dialogue.unknown_form:
            warnings.append(
                f"{policy}: the form of calls in its chat template is not known (docs/call-formats.md); it is asked for"
                ' name {"argument": value} instead'
            )
    return warnings
