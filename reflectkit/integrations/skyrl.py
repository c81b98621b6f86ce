"""Each env as a text env of SkyRL (github.com/NovaSky-AI/SkyRL), through its package `skyrl-gym`.

    from reflectkit.integrations import skyrl

    name = skyrl.register("support", brief=False)
    skyrl.write_rows("train.jsonl", skyrl.rows("support", task_file="data/support/train.json"))

Call `register` in the process that trains.

A row has the first prompt, and the task as JSON text: datasets would give the data of all tasks the
same fields. The model answers with the number of a choice, a call of a tool (in the plain form or
inside `<tool_call>`), or words. What an env shows comes as messages of the user, because SkyRL
gives chat templates no tools. skyrl_gym is imported on use.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectkit.config import build
from reflectkit.env import rules_of
from reflectkit.envs import env_class
from reflectkit.envs.conversation import MARKS
from reflectkit.envs.setup import EnvSetup, PlugInConfig
from reflectkit.errors import ConfigError, IllegalActionError
from reflectkit.eventloop import shared_result_of
from reflectkit.integrations import tasks_of
from reflectkit.jsonl import write_jsonl
from reflectkit.models.labels import encodable
from reflectkit.prompts import RESULT_MARKER, UNSEEN, as_data, label, one_line
from reflectkit.seeding import derive
from reflectkit.tools import (
    HERMES,
    OPENED,
    PLAIN,
    PLAIN_RULES,
    TURN_RULES,
    after_thought,
    parse,
    tools_text,
)
from reflectkit.types import Message, Observation, ToolUse, to_json

PREFIX = "reflectkit/"
CHOICE_RULES = "Answer with the number of one action."
MARKER = re.compile(r"\b(?:action|answer|choice)(?: is)?\W{0,4}[:=]\s*([^\n]*)", re.IGNORECASE)
AROUND = "*`\"'[](){}<>$., "
"""What may stand around an answer."""


def register(env: str, name: str = "", **settings: Any) -> str:
    """Register env `env` with these settings: the id, "reflectkit/ENV" unless `name` is given.

    Registering the same again changes nothing. Raises ConfigError for other settings under the same
    id, and what the env's settings raise.
    """
    from skyrl_gym.envs.registration import register as add
    from skyrl_gym.envs.registration import registry

    setup_of(env, settings)
    name = name or f"{PREFIX}{env}"
    # A name stands for one set of settings
    arguments = {"env": env, **settings}
    if name not in registry:
        add(id=name, entry_point=f"{__name__}:SkyRLEnv", kwargs=arguments)
    elif registry[name].kwargs != arguments:
        raise ConfigError(
            f"{name!r} is registered with {registry[name].kwargs}; give these settings another"
            " name="
        )
    return name


def rows(
    env: str,
    level: str = "",
    task_file: Path | str | None = None,
    *,
    name: str = "",
    seed: int = 0,
    **settings: Any,
) -> list[dict[str, Any]]:
    """A row of SkyRL's dataset for each problem: `prompt`, `env_class`, `data_source`, `task`,
    `level` and `seed`.

    level: the problems' level; default: the env's last, or any in a file. task_file: problems for
    an env that does not list its own. name: as in `register`. seed: each problem's own start is
    derived from it. The episodes of a row are one group, because they start alike.

    Raises UnknownNameError: no such env or level. ConfigError, DataError: no problems, or wrong
    settings.
    """
    # 1. The problems, each with a start that is derived from its id
    setup = setup_of(env, settings)
    result = []
    for task in tasks_of(env, level, task_file):
        start = derive(seed, "skyrl", task.id) % 2**31  # Arrow and JSON readers hold it exactly
        inner: Any = setup.make(setup.horizon_at(task.level))
        with contextlib.closing(inner):
            prompt = View(rules_of(inner)).first(shared_result_of(inner.reset(task, start)))

        # 2. What SkyRL reads of a row
        row = {
            "prompt": prompt,
            "env_class": name or f"{PREFIX}{env}",
            "data_source": f"{task.env}/{task.level}",
        }
        result.append(row | {"task": json.dumps(to_json(task)), "level": task.level, "seed": start})
    return result


def write_rows(path: Path | str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write `rows` as JSON lines, or as Parquet if the name ends in .parquet. Raises ConfigError
    for another ending.
    """
    # The ending says in which form
    path = Path(path)
    if path.suffix in (".jsonl", ".json"):
        write_jsonl(path, rows)
    elif path.suffix == ".parquet":
        from datasets import Dataset

        path.parent.mkdir(parents=True, exist_ok=True)
        Dataset.from_list([dict(row) for row in rows]).to_parquet(path)
    else:
        raise ConfigError(f"{path}: SkyRL reads .parquet, .jsonl and .json; name one of these")
    return path


def setup_of(env: str, settings: Mapping[str, Any]) -> EnvSetup:
    """The environment with these settings. Raises UnknownNameError, ConfigError."""
    env_class(env)
    return build(PlugInConfig, {"env": env, **settings}, f"settings of env '{env}'").setup


def __getattr__(name: str) -> Any:
    if name == "SkyRLEnv":
        from reflectkit.integrations.skyrl_env import SkyRLEnv

        return SkyRLEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class View:
    """What the model reads of an env's observations, as messages for a chat template without tools;
    and what it means by an answer. rules: the env's.
    """

    def __init__(self, rules: str) -> None:
        self.rules = rules
        self._observation = Observation(())

    def first(self, observation: Observation) -> list[dict[str, str]]:
        """The first prompt: the rules, and what can be answered, as the system's message."""
        # 1. The system's message: rules, tools or choices
        self._observation = observation
        messages = observation.messages if observation.replies else ()
        system = [message.content for message in messages if message.role == "system"]
        if not system:
            system = [self.rules]
        if observation.tools:
            system.append(tools_text(observation.tools))
            system.append(TURN_RULES if observation.replies else PLAIN_RULES)
        elif observation.choices:
            system.append(CHOICE_RULES)

        # 2. The rest of the conversation
        rest = [message for message in messages if message.role != "system"]
        if not rest:
            rest = [Message("user", observation.text)]
        head = {"role": "system", "content": encodable("\n\n".join(system))}
        return [head, *self._messages(rest, observation.choices)]

    def next(self, observation: Observation) -> list[dict[str, str]]:
        """The messages since the last observation; the model's own are in SkyRL's transcript."""
        new: Sequence[Message] = [Message("user", observation.text)]
        if observation.replies:
            new = observation.messages[len(self._observation.messages) :]
        self._observation = observation
        from_others = [message for message in new if message.role != "assistant"]
        return self._messages(from_others, observation.choices)

    def read(self, text: str) -> int | str | ToolUse:
        """The action that an answer names. Raises IllegalActionError, whose message is for the
        model.
        """
        observation = self._observation
        if observation.choices:
            return read_choice(text, observation.choices)
        if observation.tools:
            form = HERMES if OPENED in text else PLAIN
            return parse(text, observation.tools, form, replies=observation.replies)
        return text if observation.replies else one_line(after_thought(text))

    def _messages(
        self, messages: Sequence[Message], choices: Sequence[str]
    ) -> list[dict[str, str]]:
        """`messages` from the user, in one where several follow each other: some templates insist
        on turns.
        """
        # 1. A turn of the conversation for each change of speaker
        turns: list[dict[str, str]] = []
        for message in messages:
            role, content = "assistant", message.content
            if message.role != "assistant":
                role, content = "user", harmless(message.content)
            if message.name:
                content = f"{RESULT_MARKER} {message.name}: {content}"
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += f"\n\n{encodable(content)}"
            else:
                turns.append({"role": role, "content": encodable(content)})

        # 2. The choices, in the last one
        if choices and turns:
            lines = [f"{label(index)} {encodable(choice)}" for index, choice in enumerate(choices)]
            turns[-1]["content"] += "\n".join(["\nActions:", *lines])
        return turns


def read_choice(text: str, choices: Sequence[str]) -> int:
    """The index of the choice that an answer names by its label or its full text, behind any
    reasoning: as all of the answer, after its last "Action:", "Answer:" or "Choice:", or as its
    last line.

    >>> read_choice("<think>Is 0 better?</think>Action: **1**", ("south", "north"))
    1
    >>> read_choice("I go there.\\nNorth.", ("south", "north"))
    1

    Raises IllegalActionError, which says what may be answered.
    """
    # The whole answer, what follows the last marker, or the last line
    words = after_thought(text).strip()
    candidates = MARKER.findall(words)
    lines = [line for line in words.splitlines() if line.strip()]
    for candidate in (words, *candidates[-1:], *lines[-1:]):
        answer = candidate.strip(AROUND).casefold()
        for index, choice in enumerate(choices):
            mark, name = label(index).strip(), one_line(choice).casefold()
            exact = candidate.strip(AROUND) == mark  # labels differ by case
            if exact or answer in (name, f"{mark.casefold()} {name}", f"{mark.casefold()}. {name}"):
                return index
    last = len(choices) - 1
    raise IllegalActionError(
        f"{words[-40:]!r} names no action; answer with a number from 0 to {last}"
    )


def harmless(text: str) -> str:
    """What users and tools say, with a zero-width space in what chat templates and tokenizers read
    as a mark.
    """
    return MARKS.sub(lambda mark: f"{mark[0][0]}{UNSEEN}{mark[0][1:]}", as_data(text))
