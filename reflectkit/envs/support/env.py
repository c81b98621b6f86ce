"""Support: talk with a customer of an online shop, and change the shop's records with tools, within a policy.

Observation
    The conversation: the policy (unless `brief`), what the user said, the agent's calls and replies, and the results.
Tools
    15: six look something up, eight change a record, `escalate` hands over. One call or one reply a turn.
Reward
    At the end 1 if the records are as they should be and the user was told what they should be told; else 0, and
    `info["figures"]` says why.
Episode end
    The user says goodbye or leaves, or the agent escalates.
Source
    A domain of our own in the manner of tau-bench (arXiv 2406.12045). The user is scripted and deterministic, or a chat
    model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from reflectkit.config import Config, option
from reflectkit.console import Progress
from reflectkit.env import Taskset, Teacher, UserTurn, check_task
from reflectkit.envs.conversation import ConversationEnv, UserSettings
from reflectkit.envs.support.hearing import agrees, heard
from reflectkit.envs.support.policy import POLICY, UserRequest, complete
from reflectkit.envs.support.scoring import Conduct, changes_json, judge, truth, untold
from reflectkit.envs.support.shop import CUSTOMERS, Ledger, shop
from reflectkit.envs.support.tasks import ALL, NAME, ONE, REFUSE, SEVERAL, make_task, source_of
from reflectkit.envs.support.teacher import SCRIPTED, SupportTeacher
from reflectkit.envs.support.tools import TOOLS, execute
from reflectkit.envs.support.user import Persona, UserIdentity, instructions
from reflectkit.errors import DataError
from reflectkit.seeding import generator
from reflectkit.types import Task, ToolCall, ToolSpec, from_json

BENCHMARK = 64  # tasks to measure the env on


class SupportSettings(UserSettings):
    """The env's settings."""

    user: str = option(SCRIPTED, help="Who the agent talks with: scripted, openai:MODEL, azure:… or local:MODEL.")
    brief: bool = option(
        False, help="Leave out the policy and the tools in the prompt, for a model trained without them."
    )


@dataclass(frozen=True, slots=True)
class ShopSource:
    """How the database is made again. digest: that of the database that the task was made for."""

    seed: Annotated[int, Field(ge=0)]
    customers: Annotated[int, Field(ge=1, le=100_000)]
    digest: str


@dataclass(frozen=True, slots=True)
class DeskTask:
    """What a task's data hold. customer: who the user is, by id."""

    database: ShopSource
    customer: str
    user: UserIdentity
    requests: Annotated[tuple[Annotated[UserRequest, AfterValidator(complete)], ...], Field(min_length=1)]


class Requests(Taskset):
    """The problems of `Support`."""

    problem_generator: ClassVar[str] = "reflectkit.envs.support.problems:SupportTasks"

    def example(self, level: str, seed: int) -> Task:
        """A generated task, for users without a file of them."""
        source = source_of(seed % 2**31, CUSTOMERS)
        return make_task(seed, 0, SEVERAL if level == ALL else level, shop(source["seed"], CUSTOMERS), source)

    def at_level(self, task: Task, level: str) -> Task | None:
        """The task itself, if it is of `level` or `level` is "all"."""
        return task if level in (ALL, task.level) else None

    def aspects(self, task: Task) -> Mapping[str, str]:
        """The user's mood."""
        return {"mood": str(task.data.get("user", {}).get("mood", ""))}

    def benchmark(self, folder: Path, files: int, seed: int, progress: Progress) -> tuple[list[Task], dict[str, Any]]:
        """Single requests of users of a generated shop."""
        source = source_of(seed % 2**31, CUSTOMERS)
        database = shop(source["seed"], CUSTOMERS)
        return [make_task(seed, number, ONE, database, source) for number in range(BENCHMARK)], {}


class Support(ConversationEnv):
    """See the module's text for the rules, and `SupportSettings`. user: default: the task's scripted user."""

    name: ClassVar[str] = NAME
    taskset: ClassVar[Taskset] = Requests()
    teacher_type: ClassVar[type[Teacher]] = SupportTeacher
    levels: ClassVar[tuple[str, ...]] = (ONE, SEVERAL, REFUSE, ALL)
    horizons: ClassVar[dict[str, int]] = {ONE: 20, SEVERAL: 40, REFUSE: 20, ALL: 40}
    Settings: ClassVar[type[Config]] = SupportSettings
    settings: SupportSettings
    rules: ClassVar[str] = (
        "Goal: do what the user of an online shop wants, as far as the policy allows it.\n"
        f"{POLICY}"
        "Actions: one call of a tool, or one reply to the user, in each turn.\n"
        "End: the user says goodbye, or a colleague takes over.\n"
        "Reward: 1 if the records end up as they should, the user was told what they should be told, and the rules were"
        " kept, else 0."
    )

    def _begin(self, task: Task, seed: int) -> str:
        check_task(task, self.name, self.levels[:-1])
        content = from_json(DeskTask, task.data, path=task.id)
        database = shop(content.database.seed, content.database.customers)
        if database.digest != content.database.digest:
            raise DataError(
                task.id, "was made for another database than its seed gives; make the tasks again with `gen-task`"
            )
        if content.customer not in database.tables["customers"]:
            raise DataError(task.id, "is no customer of the database", field="data.customer")
        self._requests = content.requests
        self._expected = truth(database, self._requests, task.id)
        self.ledger = Ledger(database)
        self._instructions = instructions(content.user, self._requests)
        self.persona = Persona(content.user, self._requests, generator(seed, "user"))
        self.conduct = Conduct(database, content.customer)
        return "" if self.settings.brief else POLICY

    @property
    def _tools(self) -> Sequence[ToolSpec]:
        return TOOLS

    @property
    def _offered(self) -> Sequence[ToolSpec]:
        return () if self.settings.brief else TOOLS

    def _user_turn(self, said: str) -> UserTurn | Awaitable[UserTurn]:
        if self.user is not None:
            return self._asked(self.user, self._instructions)
        return self.persona.answer(said) if said else self.persona.begin()

    def _execute(self, call: ToolCall) -> tuple[str, bool, bool]:
        done, text = execute(self.ledger, call)
        if done and self.conduct.saw(call, self._agreed()):
            self.persona.acted = True
        return text, not done, self.ledger.escalated

    def _agreed(self) -> bool:
        """Whether the user has said yes to the change that is made now."""
        if self.user is None:
            return self.persona.confirmed
        words = [message.content for message in self.transcript.spoken if message.role == "user"]
        return agrees(heard(words[-1]))

    def _verdict(self, ended: bool) -> tuple[float, dict[str, Any]]:
        missing_facts = untold(self._requests, self._replies())
        satisfied = ended and not self.persona.has_left
        wrong = judge(self.ledger, self._expected, self._requests, missing_facts, self.conduct, satisfied)
        success = not any(wrong.values())
        return float(success), {
            "figures": {name: float(value) for name, value in wrong.items()},
            "success": success,
            "changes": changes_json(self.ledger),
            "expected": changes_json(self._expected),
            "untold": missing_facts,
        }

    def _replies(self) -> list[list[str]]:
        """What the user heard during each request; of a user without a script, all of it during each."""
        if self.user is None:
            return self.persona.replies
        said = [heard(message.content) for message in self.transcript.spoken if message.role == "assistant"]
        return [said] * len(self._requests)

    def _state(self) -> object:
        """What the teacher's next action depends on."""
        persona = self.persona
        need = SupportTeacher(self).need
        return need, persona.number, persona.revised, persona.pushes, dict(persona.revealed)

    def _before(self, meaning: object) -> None:
        self._was = self._state()

    def _after(self, ended: bool) -> None:
        self.mark = "mistake" if self._state() == self._was and not ended else "good"
