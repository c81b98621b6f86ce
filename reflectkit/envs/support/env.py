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

import random
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from reflectkit.config import Config, option
from reflectkit.console import Progress
from reflectkit.env import Taskset, Teacher, UserTurn
from reflectkit.envs.base import check_task
from reflectkit.envs.conversation import ConversationEnv, ConversationTeacher, UserSettings
from reflectkit.envs.support.conduct import Conduct
from reflectkit.envs.support.database import Database, Ledger
from reflectkit.envs.support.desk import Desk
from reflectkit.envs.support.generate import CUSTOMERS, shop
from reflectkit.envs.support.hearing import agrees, heard
from reflectkit.envs.support.instructions import instructions
from reflectkit.envs.support.judge import changes_json, judge, truth, untold
from reflectkit.envs.support.persona import LEFT, MOODS, Identity, Persona
from reflectkit.envs.support.policy import POLICY
from reflectkit.envs.support.requests import Request, from_json
from reflectkit.envs.support.tasks import ALL, NAME, ONE, REFUSE, SEVERAL, make_task, source_of
from reflectkit.envs.support.tools import TOOLS, execute
from reflectkit.errors import ConfigError, DataError
from reflectkit.seeding import generator
from reflectkit.types import Task, ToolCall, ToolSpec, ToolUse

SCRIPTED = "scripted"
NO_ORACLE = "the oracle of env 'support' reads the scripted user's mind; leave out --user"
MOST_CUSTOMERS = 100_000
BENCHMARK = 64  # tasks to measure the env on


class SupportSettings(UserSettings):
    """The env's settings."""

    user: str = option(SCRIPTED, help="Who the agent talks with: scripted, openai:MODEL, azure:… or local:MODEL.")
    brief: bool = option(
        False, help="Leave out the policy and the tools in the prompt, for a model trained without them."
    )


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


class SupportTeacher(ConversationTeacher):
    """What would be right in `Support`."""

    env: Support

    def action(self) -> ToolUse:
        """The best action given only the conversation. Raises ConfigError unless the user is scripted."""
        self._need_script()
        return self.env.desk.action()

    def mistakes(self) -> list[ToolUse]:
        """Needless actions, which can be made up for."""
        return self.env.desk.mistakes()

    def comment(self, generator: random.Random) -> str:
        """What is known, what the policy allows, and what is missing."""
        self._need_script()
        return self.env.desk.comment(generator)

    @classmethod
    def check(cls, settings: SupportSettings) -> None:
        """Raises ConfigError unless the user is scripted."""
        if settings.user != SCRIPTED:
            raise ConfigError(NO_ORACLE)

    def _need_script(self) -> None:
        if self.env.user is not None:
            raise ConfigError(NO_ORACLE)


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
        database = _database(task)
        self._requests = _requests(task)
        self._expected = truth(database, self._requests, task.id)
        self.ledger = Ledger(database)
        identity, mood, customer = _user(task, database)
        self._instructions = instructions(identity, self._requests, mood)
        self.persona = Persona(identity, self._requests, mood, generator(seed, "user"))
        self.conduct = Conduct(database, customer)
        self.desk = Desk(self.persona, self.ledger, self.conduct)
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
        satisfied = ended and self.persona.outcome != LEFT
        verdict = judge(self.ledger, self._expected, self._requests, missing_facts, self.conduct, satisfied)
        return float(verdict.success), {
            "figures": verdict.figures,
            "success": verdict.success,
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
        """What the oracle's next action depends on."""
        persona = self.persona
        return self.desk.need, persona.number, persona.revised, persona.pushes, dict(persona.revealed)

    def _before(self, meaning: object) -> None:
        self._was = self._state()

    def _after(self, ended: bool) -> None:
        self.mark = "mistake" if self._state() == self._was and not ended else "good"


def _database(task: Task) -> Database:
    """The task's database, made again. Raises DataError if it is not the one that the task was made for."""
    source = task.data.get("database")
    source = source if isinstance(source, dict) else {}
    seed, customers = source.get("seed"), source.get("customers")
    if type(seed) is not int or type(customers) is not int or not 1 <= customers <= MOST_CUSTOMERS or seed < 0:
        raise DataError(task.id, "expected a seed and a number of customers", field="data.database")
    database = shop(seed, customers)
    if database.digest != source.get("digest"):
        raise DataError(
            task.id, "was made for another database than its seed gives; make the tasks again with `gen-task`"
        )
    return database


def _requests(task: Task) -> list[Request]:
    values = task.data.get("requests")
    if not isinstance(values, list) or not values:
        raise DataError(task.id, "expected a list of requests", field="data.requests")
    try:
        return [from_json(value) for value in values]
    except ValueError as error:
        raise DataError(task.id, str(error), field="data.requests") from None


def _user(task: Task, database: Database) -> tuple[Identity, str, str]:
    """(identity, mood, customer) of the task's user."""
    user, customer = task.data.get("user"), task.data.get("customer")
    if not isinstance(user, dict) or not all(isinstance(user.get(name), str) for name in ("name", "city", "email")):
        raise DataError(task.id, "expected the user's name, city and email", field="data.user")
    if user.get("mood") not in MOODS:
        raise DataError(task.id, f"the mood is one of {', '.join(MOODS)}", field="data.user.mood")
    if not isinstance(customer, str) or customer not in database.tables["customers"]:
        raise DataError(task.id, "is no customer of the database", field="data.customer")
    return Identity(user["name"], user["city"], user["email"]), user["mood"], customer
