"""tau-bench: serve the customers of a shop or an airline with tools, within a policy, in the
benchmark's own package.

Departs from the package: each task carries its domain and split; a change of the package is
noticed; the reward is computed without changing anything, from the changed records instead of
hashes of whole databases; a call whose arguments do not match the tool's schema is refused instead
of executed in part; a result over 16,000 characters is cut.

Observation
    The conversation: the domain's policy, what the user said, the agent's calls and replies, and
    the results.
Tools
    The domain's: 16 in retail, 14 in airline. One call or one reply a turn.
Reward
    The package's: at the end 1 if the database is as the right calls leave it and the replies
    contain the required texts, else 0; `info["figures"]` says why.
Episode end
    The user ends the conversation, or the agent transfers it to a person.
Source
    tau-bench, arXiv 2406.12045, package tau_bench 0.1. Horizon: the benchmark's 30 steps.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from reflectkit.config import Config, Rule, option
from reflectkit.console import Progress, Table
from reflectkit.env import Taskset, Teacher, UserTurn, check_task
from reflectkit.envs.conversation import (
    FIRST,
    ConversationEnv,
    ConversationTeacher,
    Refusal,
    UserSettings,
)
from reflectkit.envs.problems import Generated, ProblemGenerator
from reflectkit.envs.tau import package
from reflectkit.envs.tau.package import SPLITS
from reflectkit.errors import ConfigError, DataError
from reflectkit.text import pluralize
from reflectkit.tools import use_of
from reflectkit.types import Message, Task, ToolCall, ToolSpec, ToolUse, from_json

NAME = "tau"
NOBODY = "none"
ALL = "all"
HORIZON = 30
FILE_OF_SPLIT = {"train": "train", "dev": "validate", "test": "test"}


class TauSettings(UserSettings):
    """The env's settings."""

    user: str = option(
        NOBODY,
        help="The model that plays the user: openai:MODEL, azure:DEPLOYMENT or local:MODEL; none:"
        " nobody answers, for the oracle.",
    )
    several_calls: Literal["refuse", "first"] = option(
        FIRST,
        help="What several calls in one turn do: first (the first is carried out, and the others are"
        " passed over, as by the benchmark's own agent) or refuse (none is, and the agent is told"
        " why).",
    )


@dataclass(frozen=True, slots=True)
class Place:
    """What a task's data hold: one of the package's tasks, without its texts."""

    domain: Literal["retail", "airline"]
    split: Literal["train", "dev", "test"]
    index: Annotated[int, Field(ge=0)]
    digest: str


class Nobody:
    """The user where none is given: says the whole instruction at the start, and ends at the first
    reply.
    """

    def say(
        self,
        instructions: str,
        conversation: Sequence[Message],
        seed: int,
    ) -> UserTurn:
        """The instruction; nothing after it."""
        return UserTurn("", over=True) if conversation else UserTurn(instructions)


class TauTasks(Taskset):
    """The problems of `Tau`."""

    problem_generator: ClassVar[str] = "reflectkit.envs.tau.env:TauProblems"
    split_by: ClassVar[tuple[str, ...]] = ("group", "question")

    def at_level(self, task: Task, level: str) -> Task | None:
        """The task itself, if it is of domain `level`; each belongs to "all" as well."""
        if level == ALL:
            return replace(task, level=ALL)
        return task if task.level == level else None

    def cluster(self, task: Task) -> str:
        """The customer: the benchmark has variants of a request by the same one."""
        return task.group or task.id

    def split_of(self, task: Task) -> str:
        """The package's split; its "dev" is for validation."""
        return FILE_OF_SPLIT.get(str(task.data.get("split")), "")


class TauTeacher(ConversationTeacher):
    """What would be right in `Tau`."""

    env: Tau

    def action(self) -> ToolUse:
        """The next of the right calls; after the last, a reply with the required texts."""
        right = self.env.right_call
        return ToolUse(self.env.closing) if right is None else use_of([right])

    def mistakes(self) -> list[ToolUse]:
        """A look-up of a customer that does not exist."""
        return [use_of([ToolCall("get_user_details", {"user_id": "unknown"})])]

    def comment(self, generator: random.Random) -> str:
        """The tool that comes next, and why the last call was of no use."""
        right = self.env.right_call
        # Only the teacher's own mistakes bring nothing
        back = "That did not help. " if self.env.mark == "mistake" else ""
        if right is None:
            wordings = (
                "Everything is done; tell the user.",
                "Everything is done; only the reply is left.",
            )
            return back + generator.choice(wordings)
        return f"{back}{generator.choice(('Next', 'Now'))}: {right.name}."


class Tau(ConversationEnv):
    """tau-bench: retail and airline customers; needs the tau_bench package.

    See the module's text for the rules, and `TauSettings`.

    user: None: only calls, and the oracle's reply at the end, can be played.
    """

    name: ClassVar[str] = NAME
    taskset: ClassVar[Taskset] = TauTasks()
    teacher_type: ClassVar[type[Teacher]] = TauTeacher
    levels: ClassVar[tuple[str, ...]] = (*SPLITS, ALL)
    """The domains; "all" is any of them."""
    horizons: ClassVar[dict[str, int]] = dict.fromkeys(levels, HORIZON)
    Settings: ClassVar[type[Config]] = TauSettings
    settings: TauSettings
    rules: ClassVar[str] = (
        "Goal: do what the customer of a shop or an airline wants, as far as the policy allows.\n"
        "Actions: one tool call, or one reply to the customer, at a time.\n"
        "End: the episode ends when the customer ends the conversation, or when you transfer it"
        " to a person.\n"
        "Reward: 1 if the database ends up as it should and the customer was told what they need"
        " to know, else 0."
    )

    def _begin(self, task: Task, seed: int) -> str:
        # 1. Find the problem in the package, which must be the one that was listed
        check_task(task, self.name, self.levels)
        self._place = place = from_json(Place, task.data, path=task.id)
        where = f"in {place.domain} {place.split}"
        if task.level not in (place.domain, ALL):
            raise DataError(
                task.id,
                f"level {task.level!r}, but the domain is {place.domain!r}",
                field="level",
            )
        problems: Sequence[package.Problem] = ()
        if place.split in SPLITS[place.domain]:
            problems = package.problems(place.domain, place.split)
        if place.index >= len(problems):
            has = f"tau_bench has {pluralize(len(problems), 'task')} {where}, from 0"
            raise DataError(task.id, has, field="data.index")
        # The digest covers the task and its whole domain
        self._problem = problems[place.index]
        if self._problem.digest != place.digest:
            raise DataError(
                task.id,
                f"the installed tau_bench has another task {place.index} {where}; list the tasks"
                " again with `reflectkit gen-task --env tau`",
                field="data.digest",
            )
        # 2. A fresh database
        self._domain = package.domain(self._place.domain)
        self._tables = self._domain.database.copy()
        self._right_calls = 0
        """Number of the right calls that were made."""
        return self._domain.policy

    @property
    def _tools(self) -> Sequence[ToolSpec]:
        return self._domain.tools

    def _before(self, meaning: ToolCall | str | Refusal) -> None:
        # Nobody would answer
        if self.user is None and isinstance(meaning, str) and meaning != self.closing:
            raise ConfigError(
                "env 'tau' needs a user for replies; give --user openai:MODEL, or --user"
                " local:MODEL with --user-url http://localhost:1234/v1 (without one only --policy"
                " oracle can be played)"
            )
        # The next of the right calls, or a reply after the last
        right = self.right_call
        is_right = isinstance(meaning, str) if right is None else meaning == right
        self.mark = "good" if is_right else "mistake"

    def _user_turn(self, said: str) -> UserTurn | Awaitable[UserTurn]:
        return self._asked(self.user or Nobody(), self._problem.instruction)

    def _execute(self, call: ToolCall) -> tuple[str, bool, bool]:
        self._right_calls += call == self.right_call
        result = self._domain.execute(self._tables, call)
        refused = result.startswith(("Error", "Unknown action"))
        return result, refused, call.name in self._domain.ending

    def _verdict(self, is_over: bool) -> tuple[float, dict[str, Any]]:
        """(reward, info) of the last step. is_over: not by the horizon."""
        # 1. The changes
        place = self._place
        changes = self._domain.database.changes(self._tables)
        expected = package.expected(place.domain, place.split, place.index)
        wrong, missing, forbidden = changes.verdict(expected)
        # 2. The required texts, which the package looks for without commas, in any case
        replies = []
        for message in self.dialogue:
            if message.role == "assistant":
                replies.append(message.content.lower().replace(",", ""))
        untold = []
        for text in self._problem.outputs:
            if not any(text.lower() in reply for reply in replies):
                untold.append(text)
        success = is_over and not (wrong or missing or forbidden or untold)
        # 3. A transfer to a person that no right call asks for
        last = self.messages[-1]
        is_transfer = last.role == "tool" and last.name in self._domain.ending
        is_needless = all(call.name != last.name for call in self._problem.actions)
        gave_up = (is_transfer and is_needless) or not is_over
        figures = {
            "wrong_change": float(wrong),
            "missing_change": float(missing),
            "forbidden_change": float(forbidden),
            "fact_not_told": float(bool(untold)),
            "gave_up": float(not success and gave_up),
        }
        return float(success), {
            "success": success,
            "figures": figures,
            "changes": changes.fields,
            "expected": expected.fields,
            "untold": untold,
        }

    @property
    def right_call(self) -> ToolCall | None:
        """The next of the right calls."""
        calls = self._problem.actions
        return calls[self._right_calls] if self._right_calls < len(calls) else None

    @property
    def closing(self) -> str:
        """The reply after the last call, with the required texts."""
        return " ".join(["That is done.", *(f"{text}." for text in self._problem.outputs)])


class ProblemSettings(Config):
    """The generator's settings."""

    domain: tuple[Literal["retail", "airline"], ...] = option(
        (), help="Only this domain: retail or airline (repeat the flag)."
    )
    split: tuple[Literal["train", "dev", "test"], ...] = option(
        (), help="Only this split: train, dev, test (repeat the flag)."
    )

    @override
    def contradictions(self) -> Iterator[Rule]:
        splits, domains = ", ".join(self.split), " and ".join(self.domain)
        yield not self.selected, f"--split {splits}: {domains} has only test"

    @property
    def selected(self) -> list[tuple[str, str]]:
        """(domain, split), in the package's order."""
        pairs = []
        for name, splits in SPLITS.items():
            for split in splits:
                if name in (self.domain or SPLITS) and split in (self.split or splits):
                    pairs.append((name, split))
        return pairs


class TauProblems(ProblemGenerator):
    """The tasks of the chosen domains and splits."""

    Settings: ClassVar[type[Config]] = ProblemSettings
    noun: ClassVar[str] = "tasks"
    settings: ProblemSettings

    def generate(self, progress: Progress) -> Generated:
        """`data.json` with all of them, and `train.json`, `validate.json` (the package's "dev") and
        `test.json`.

        Raises ConfigError if the package is missing.
        """
        # 1. The tasks of each split
        tasks: list[Task] = []
        rows = []
        figures = {"tasks": 0}
        with progress.bar("Splits", len(self.settings.selected)) as bar:
            for name, split in self.settings.selected:
                split_tasks = tasks_of(name, split)
                tasks += split_tasks
                customers = {task.group for task in split_tasks}
                rows.append((name, split, str(len(split_tasks)), str(len(customers))))
                figures[f"{name}_{split}"] = len(split_tasks)
                bar.advance()
        figures["tasks"] = len(tasks)
        # 2. The files of our splits
        files = {}
        for name in FILE_OF_SPLIT.values():
            files[name] = [task for task in tasks if Tau.taskset.split_of(task) == name]
        table = Table(
            f"Tasks in {self.folder}",
            ("domain", "split", "tasks", "customers"),
            tuple(rows),
        )
        return Generated({"data": tasks, **files}, figures, (table,))


def tasks_of(name: str, split: str) -> list[Task]:
    """The tasks of one split. Raises ConfigError if the package is missing."""
    tasks = []
    for index, problem in enumerate(package.problems(name, split)):
        data = {"domain": name, "split": split, "index": index, "digest": problem.digest}
        group = f"{name}/{problem.customer}"
        tasks.append(Task(f"{name}-{split}-{index}", NAME, name, group, data))
    return tasks
