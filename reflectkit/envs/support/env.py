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
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from reflectkit.core.config import above, option
from reflectkit.core.errors import ConfigError, DataError, IllegalActionError
from reflectkit.core.eventloop import followed
from reflectkit.core.protocols import StepResult
from reflectkit.core.seeding import derive, generator
from reflectkit.core.tools import PLAIN, parse
from reflectkit.core.types import Observation, Task, ToolCall, ToolUse, Trajectory
from reflectkit.core.users import User, UserTurn
from reflectkit.envs.base import BaseEnv, check_task
from reflectkit.envs.conversation import Refusal, Reply, Transcript
from reflectkit.envs.support.conduct import Conduct
from reflectkit.envs.support.database import Database, Ledger
from reflectkit.envs.support.desk import Desk
from reflectkit.envs.support.generate import CUSTOMERS, shop
from reflectkit.envs.support.hearing import agrees, heard
from reflectkit.envs.support.instructions import instructions
from reflectkit.envs.support.judge import changes_json, judge, truth, untold
from reflectkit.envs.support.persona import MOODS, Identity, Persona
from reflectkit.envs.support.policy import POLICY
from reflectkit.envs.support.requests import Request, from_json
from reflectkit.envs.support.tasks import ALL, NAME, ONE, REFUSE, SEVERAL, make_task, source_of
from reflectkit.envs.support.tools import TOOLS, execute

SCRIPTED = "scripted"
MOST_CUSTOMERS = 100_000


@dataclass(frozen=True)
class SupportSettings:
    """The env's settings."""

    user: str = option(SCRIPTED, help="Who the agent talks with: scripted, openai:MODEL, azure:… or local:MODEL.")
    user_url: str | None = option(None, help="The server of the user's model; for local: http://localhost:1234/v1.")
    user_max_usd: float | None = option(None, help="The most that the user's model may cost, in US dollars.")
    brief: bool = option(
        False, help="Leave out the policy and the tools in the prompt, for a model trained without them."
    )

    def __post_init__(self) -> None:
        if self.user_max_usd is not None:
            above("user_max_usd", self.user_max_usd, 0)


class Support(BaseEnv):
    """See the module's text for the rules, and `SupportSettings`.

    user: who talks with the agent; default: the task's scripted user. horizon: that of the wrapper around the env.
    """

    name: ClassVar[str] = NAME
    levels: ClassVar[tuple[str, ...]] = (ONE, SEVERAL, REFUSE, ALL)
    horizons: ClassVar[dict[str, int]] = {ONE: 20, SEVERAL: 40, REFUSE: 20, ALL: 40}
    Settings: ClassVar[type[Any]] = SupportSettings
    settings: SupportSettings
    needs_horizon: ClassVar[bool] = True
    chat_settings: ClassVar[Mapping[str, str]] = {"user": "reflectkit.agents.user:ChatUser"}
    problem_generator: ClassVar[str] = "reflectkit.envs.support.problems:SupportTasks"
    noise: ClassVar[float] = 0.05
    offers_tools: ClassVar[bool] = True
    rules: ClassVar[str] = (
        "Goal: do what the user of an online shop wants, as far as the policy allows it.\n"
        f"{POLICY}"
        "Actions: one call of a tool, or one reply to the user, in each turn.\n"
        "End: the user says goodbye, or a colleague takes over.\n"
        "Reward: 1 if the records end up as they should and the user was told what they should be told, else 0."
    )

    def __init__(self, user: User | None = None, *, horizon: int | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.user, self.horizon = user, horizon
        self._over = True

    def reset(self, task: Task, seed: int) -> Observation | Awaitable[Observation]:
        """Begin `task`. Raises DataError for another env's task, a level or data that this env does not know."""
        check_task(task, self.name, self.levels[:-1])
        database = _database(task)
        self._requests = _requests(task)
        self._expected = truth(database, self._requests, task.id)
        self.ledger = Ledger(database)
        identity, mood, customer = _user(task, database)
        self._instructions = instructions(identity, self._requests, mood)
        self._seed, self._steps, self._over, self._mark = seed, 0, False, ""
        self.persona = Persona(identity, self._requests, mood, generator(seed, "user"))
        self.conduct = Conduct(database, customer)
        self.desk = Desk(self.persona, self.ledger, self.conduct)
        self.transcript = Transcript(self.name, "" if self.settings.brief else POLICY)
        return followed(self._answer(""), self._opened)

    def _opened(self, turn: UserTurn) -> Observation:
        self.transcript.add_user(turn.text)
        return self._observe()

    def step(self, action: int | str | ToolUse) -> StepResult | Awaitable[StepResult]:
        """Carry out a call, or tell the user the reply. Text is read as a call in the plain form, or else as a reply.
        The result is awaitable if the user's answer is.

        Raises
        ------
        IllegalActionError: a choice, or the episode is over. EnvironmentFailure: the user's model cannot be asked.
        """
        if self._over:
            raise IllegalActionError(f"{self.name}: the episode is over; call reset first")
        if isinstance(action, str):
            action = parse(action, TOOLS, PLAIN, replies=True)
        before = self._state()
        meaning = self.transcript.add_action(action)
        self._steps += 1
        info: dict[str, Any] = {}
        if isinstance(meaning, Reply):
            return followed(self._answer(meaning.text), lambda turn: self._answered(turn, before, info))
        if isinstance(meaning, Refusal):
            info["refused"] = meaning.parts
        else:
            info |= self._carry_out(meaning)
        self.conduct.satisfied = self.ledger.escalated
        return self._result(before, info, ended=self.ledger.escalated)

    def _carry_out(self, call: ToolCall) -> dict[str, Any]:
        """The step's info."""
        done, text = execute(self.ledger, call)
        self.transcript.add_result(call.name, text)
        if not done:
            return {"refused": 1}
        if self.conduct.saw(call, self._agreed()):
            self.persona.acted = True
        return {}

    def _agreed(self) -> bool:
        """Whether the user has said yes to the change that is made now."""
        if self.user is None:
            return self.persona.confirmed
        return agrees(
            next(message.content.lower() for message in self.transcript.spoken[::-1] if message.role == "user")
        )

    def _answer(self, said: str) -> UserTurn | Awaitable[UserTurn]:
        """The user's next words; the first ones if nothing was said."""
        if self.user is not None:
            return self.user.say(
                self._instructions, tuple(self.transcript.spoken), derive(self._seed, "user", self._steps)
            )
        return self.persona.answer(said) if said else self.persona.begin()

    def _answered(self, turn: UserTurn, before: object, info: dict[str, Any]) -> StepResult:
        self.transcript.add_user(turn.text)
        self.conduct.satisfied = turn.over and self.persona.outcome != "left"
        return self._result(before, info, ended=turn.over)

    def _result(self, before: object, info: dict[str, Any], *, ended: bool) -> StepResult:
        self._over = ended
        self._mark = "mistake" if self._state() == before and not ended else "good"
        if not ended and self._steps != self.horizon:
            return StepResult(self._observe(), 0.0, False, info=info)
        missing_facts = untold(self._requests, self._replies())
        verdict = judge(self.ledger, self._expected, self._requests, missing_facts, self.conduct)
        info |= {
            "figures": verdict.figures,
            "success": verdict.success,
            "changes": changes_json(self.ledger),
            "expected": changes_json(self._expected),
            "untold": missing_facts,
        }
        return StepResult(self._observe(), float(verdict.success), ended, info=info)

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

    def _observe(self) -> Observation:
        return self.transcript.observe(() if self.settings.brief else TOOLS)

    @classmethod
    def at_level(cls, task: Task, level: str) -> Task | None:
        """The task itself, if it is of `level` or `level` is "all"."""
        return task if level in (ALL, task.level) else None

    @classmethod
    def example(cls, level: str, seed: int) -> Task:
        """A generated task, for users without a file of them."""
        source = source_of(seed % 2**31, CUSTOMERS)
        return make_task(seed, 0, SEVERAL if level == ALL else level, shop(source["seed"], CUSTOMERS), source)

    @classmethod
    def aspects(cls, task: Task) -> Mapping[str, str]:
        """The user's mood."""
        return {"mood": str(task.data.get("user", {}).get("mood", ""))}

    @classmethod
    def is_demonstration(cls, trajectory: Trajectory) -> bool:
        """Whether it succeeded."""
        return trajectory.success

    def oracle(self) -> ToolUse:
        """The best action given only the conversation. Raises ConfigError unless the user is scripted."""
        self._need_script()
        return self.desk.action()

    def mistakes(self) -> list[ToolUse]:
        """Needless actions, which can be made up for."""
        return self.desk.mistakes()

    def note(self) -> str:
        """The mark of the last action: "" at the start, "good", or "mistake" if it brought nothing."""
        return self._mark

    def reflection(self, generator: random.Random) -> str:
        """What is known, what the policy allows, and what is missing."""
        self._need_script()
        return self.desk.comment(generator)

    def _need_script(self) -> None:
        if self.user is not None:
            raise ConfigError("the oracle of env 'support' reads the scripted user's mind; leave out --user")


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
