"""Problems from data sets; `--env prompts` answers a prompt in one step."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import field_validator

from reflectkit.config import Config, option
from reflectkit.env import Action, Env, StepResult, Taskset, check_task
from reflectkit.envs.adapters.rewards import (
    RESERVED,
    CompletionIds,
    reward_function,
    score,
    target_of,
)
from reflectkit.envs.adapters.rows import FILES, read_rows
from reflectkit.errors import ConfigError, DataError, IllegalActionError, code_place
from reflectkit.jsonl import dumps
from reflectkit.prompts import one_line
from reflectkit.registry import code_files, module_of
from reflectkit.rollouts.wrappers import ROLES
from reflectkit.types import Decision, Message, Observation, Task, ToolUse

NO_MESSAGES = 'a prompt is a text, or messages such as [{"role": "user", "content": "…"}]'


class DatasetSettings(Config):
    """Problems from a data set, and reward functions."""

    dataset: str = option(
        "",
        help=f"Problems: a file ({', '.join(FILES)}) or a data set of the hub, NAME or NAME:CONFIG."
        " Its column `prompt` is a text or a list of messages; reward functions get all columns.",
        essential=True,
    )
    dataset_split: str = option("train", help="Split of a data set of the hub.")
    reward: tuple[str, ...] = option(
        (),
        help="Reward function in TRL's form, FILE.py:FUNCTION or MODULE:FUNCTION; with a weight,"
        " FUNCTION=0.5. Repeatable; the rewards are added.",
        essential=True,
    )

    @field_validator("reward")
    @classmethod
    def _each_once(cls, reward: tuple[str, ...]) -> tuple[str, ...]:
        names = [target_of(spec)[0] for spec in reward]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"{name} is given twice; give it once, with the sum of the weights"
                )
        return reward


class DatasetTasks(Taskset):
    """The rows of `--dataset`: a problem each; those with the same prompt stay in one split."""

    needs_settings: ClassVar[bool] = True

    @property
    def records_folder(self) -> str:  # type: ignore[override]
        """Each data set has a folder of its own."""
        dataset = self.settings.dataset if self.settings else ""
        split = "" if not dataset or dataset.endswith(FILES) else f"--{self.settings.dataset_split}"
        return re.sub(r"[^\w.-]+", "--", dataset + split).strip(".-")

    def tasks(self, level: str) -> list[Task]:
        """A problem for each row."""
        if not (self.settings and self.settings.dataset):
            raise ConfigError(
                f"env '{self.env.name}' needs --dataset, a file ({', '.join(FILES)}) or a name on"
                " the hub"
            )
        # The first row with a prompt names the group of all rows with it
        first: dict[str, str] = {}
        tasks = []
        for number, row in enumerate(self._rows(self.settings.dataset)):
            group = first.setdefault(json.dumps(row.get("prompt")), str(number))
            tasks.append(Task(str(number), self.env.name, level, group, row))
        return tasks

    def _rows(self, dataset: str) -> list[dict[str, Any]]:
        """The rows of `dataset`. Raises DataError for one without a prompt, or without a column
        that code asks for.
        """
        # 1. Each row needs a prompt
        data = read_rows(dataset, self.settings.dataset_split)
        if "prompt" in data.left_out:
            raise DataError(dataset, f"{data.left_out['prompt']}; {NO_MESSAGES}")
        if "prompt" not in data.rows[0]:
            columns = ", ".join(data.rows[0])
            raise DataError(
                dataset, f"there is no column 'prompt': the columns are {columns}; rename one"
            )
        clashes = RESERVED.intersection(data.rows[0])
        if clashes:
            name = min(clashes)
            raise DataError(
                dataset, f"the column '{name}' is an argument of reward functions; rename it"
            )
        for number, row in enumerate(data.rows, start=1):
            prompt_messages(row["prompt"], f"{dataset}, row {number}")
        # 2. No code may ask for a column that has no form in JSON
        rewards = getattr(self.settings, "reward", ())
        functions = [reward_function(spec)[1] for spec in rewards]
        plain = getattr(self.env, "plain_type", None)
        if plain:
            functions.append(plain.reset)
        for function in functions if data.left_out else ():
            for name in data.left_out.keys() & inspect.signature(function).parameters.keys():
                holds = f"{data.left_out[name]}, and {code_place(function)} asks for it"
                raise DataError(dataset, f"{holds}; store text, numbers, lists or objects there")
        return data.rows

    def input_files(
        self,
        settings: Any,
        folder: Path,
        tasks: Sequence[Task],
    ) -> list[Path]:
        """The data set's file, and the code of the rewards."""
        data = [Path(settings.dataset)] if settings.dataset.endswith(FILES) else []
        # The module that a spec names, and the one that defines the function
        modules = []
        rewards = getattr(settings, "reward", ())
        modules += [module_of(target_of(spec)[0]) for spec in rewards]
        modules += [reward_function(spec)[1].__module__ for spec in rewards]
        return [*data, *code_files(modules)]


def prompt_messages(prompt: Any, where: str) -> tuple[Message, ...]:
    """A row's prompt as messages. Raises DataError, with the place `where`."""
    if isinstance(prompt, str) and prompt.strip():
        return (Message("user", prompt),)
    if not isinstance(prompt, list) or not prompt:
        raise DataError(where, f"{prompt!r:.60} is no prompt; {NO_MESSAGES}", field="prompt")
    calls = [message.get("tool_calls") for message in prompt if isinstance(message, Mapping)]
    messages = [] if any(calls) else [_message(message, where) for message in prompt]
    messages = messages or _with_calls(prompt, where)
    # The policy writes the next message, and continues none
    if messages[-1].role == "assistant":
        raise DataError(
            where,
            "ends with the assistant's message, which is not continued; drop it",
            field="prompt",
        )
    return tuple(messages)


def _message(message: Any, where: str) -> Message:
    """A message without calls. Raises DataError."""
    content = message.get("content") if isinstance(message, Mapping) else None
    # Parts, of which each must be a text
    if isinstance(content, list):
        parts = [part for part in content if isinstance(part, Mapping)]
        if len(parts) == len(content) and all(part.get("type") == "text" for part in parts):
            content = "".join(str(part.get("text", "")) for part in parts)
    if not isinstance(content, str) or message.get("role") not in ROLES:
        raise DataError(where, f"{message!r:.60} is no message; {NO_MESSAGES}", field="prompt")
    name = one_line(str(message.get("name") or "")) if message["role"] == "tool" else ""
    return Message(message["role"], content, name=name)


def _with_calls(prompt: Any, where: str) -> list[Message]:
    """Messages with calls in OpenAI's form. Raises DataError."""
    # Not at the top, as it imports a server
    from reflectkit.envs.adapters.endpoint import Conversations, RequestError

    try:
        request = dumps({"model": "", "messages": prompt}).encode()
        return list(Conversations().read(request).observation.messages)
    except (RequestError, ValueError, TypeError) as error:
        raise DataError(where, f"{error}; {NO_MESSAGES}", field="prompt") from None


class Prompts(Env):
    """Answer the prompt."""

    name = "prompts"
    acts = "text"
    horizons: ClassVar[Mapping[str, int]] = {"all": 1}
    Settings: ClassVar[type[Config]] = DatasetSettings
    taskset: ClassVar[Taskset] = DatasetTasks()

    def reset(self, task: Task, seed: int) -> Observation:
        """Show the prompt."""
        check_task(task, self.name, self.levels)
        if not self.settings.reward:
            raise ConfigError("env 'prompts' needs --reward FILE.py:FUNCTION, in TRL's form")
        self._row: Mapping[str, Any] = task.data
        self._ids = CompletionIds()
        self._observation = Observation(
            prompt_messages(task.data.get("prompt"), task.id), replies=True
        )
        return self._observation

    def decided(self, decision: Decision) -> None:
        """Keep the tokens of the answer, for reward functions."""
        self._ids.add(decision)

    async def step(self, action: Action) -> StepResult:
        """Score the answer."""
        text = action.text if isinstance(action, ToolUse) else action
        if not isinstance(text, str):
            raise IllegalActionError(
                f"prompts: no action {action!r:.80}; one text answers a prompt"
            )
        row = self._row
        completion: Any = text
        if not isinstance(row["prompt"], str):
            # In the form of the prompt, as TRL has it
            completion = [{"role": "assistant", "content": text}]
        reward, info = await score(self.settings.reward, row, completion, self._ids.ids)
        return StepResult(self._observation, reward, True, info=info)
