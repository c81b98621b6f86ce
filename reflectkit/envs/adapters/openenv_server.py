"""An environment of ours behind the OpenEnv protocol (github.com/huggingface/OpenEnv), for
`serve-env`.

Importing this needs the package openenv. `openenv.py` is the other direction: an environment that
an OpenEnv server plays.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from openenv.core.env_server.types import Action, EnvironmentMetadata, State
from openenv.core.env_server.types import Observation as OpenEnvObservation
from pydantic import create_model
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse

from reflectkit.env import rules_of
from reflectkit.envs.adapters.endpoint import TokenGuard
from reflectkit.envs.setup import EnvSetup
from reflectkit.errors import ConfigError, IllegalActionError, ReflectkitError, brief, unknown_name
from reflectkit.eventloop import shared_result_of
from reflectkit.seeding import derive, generator
from reflectkit.tools import PLAIN, PLAIN_RULES, check_call, parse, tools_text, use_of
from reflectkit.types import Observation, Task, ToolCall, ToolSpec, ToolUse

REPLY = ToolSpec(
    "reply",
    "Say something to the user.",
    {"properties": {"text": {"type": "string"}}, "required": ["text"]},
)


def app_of(
    setup: EnvSetup,
    tasks: Mapping[str, Sequence[Task]],
    sessions: int,
    token: str = "",
    seed: int = 0,
    hosts: Sequence[str] = ("*",),
) -> Any:
    """The ASGI app of a server.

    tasks: by level. sessions: at a time. token: what clients must send, if anything. seed: of the
    first reset that names none; those after it get the next ones. hosts: the names under which it
    may be reached.

    Raises ConfigError if the env has a tool called as REPLY, and what it raises for its first
    problem.
    """
    # 1. What the environment offers, by its first problem
    last_level = list(tasks)[-1]
    probe = setup.make(setup.horizon_at(last_level))
    first = shared_result_of(probe.reset(tasks[last_level][0], 0))
    rules = rules_of(probe)
    probe.close()
    if any(tool.name == REPLY.name for tool in first.tools):
        raise ConfigError(
            f"env '{setup.env}' has a tool called {REPLY.name}, which serve-env adds to answer"
            " the user"
        )

    # 2. The application
    service = Service(setup, tasks, first, rules, seeds=itertools.count(seed))
    app = create_fastapi_app(
        partial(Session, service),
        service.action_type,
        CallToolObservation if service.takes_calls else service.observation_type,
        sessions,
        env_name=setup.env_name,
        reset_observation_cls=service.observation_type,
        mode="simulation",
    )
    app.add_exception_handler(ReflectkitError, _refused)
    app.add_middleware(TokenGuard, token=token)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts])
    return app


def _refused(request: Request, error: Exception) -> JSONResponse:
    """The answer over HTTP to a client's mistake. Over WebSocket, OpenEnv tells of it."""
    return JSONResponse({"detail": str(error)}, 400)


@dataclass(frozen=True)
class Service:
    """What all sessions of a server share: the environment, its problems, and its types in OpenEnv."""

    setup: EnvSetup
    tasks: Mapping[str, Sequence[Task]]
    """The problems by level. A reset without a level gets the last one."""
    first: Observation
    """The observation of the first problem at the last level."""
    rules: str
    """What a player reads about the environment."""
    seeds: Iterator[int]
    """The seeds of the resets that name none."""

    @property
    def takes_calls(self) -> bool:
        """Whether an action is a call of a tool, and words to the user are one, too."""
        return bool(self.first.tools and self.first.replies)

    @property
    def fixed_choices(self) -> tuple[str, ...]:
        """The choices of every state; empty if they differ, or there are none."""
        return tuple(getattr(self.setup.kind, "choices", ())) if self.first.choices else ()

    @property
    def lists_choices(self) -> bool:
        """Whether each observation lists its choices."""
        return bool(self.first.choices) and not self.fixed_choices and not self.takes_calls

    @cached_property
    def action_type(self) -> Any:
        """OpenEnv's type of an action: a call, a choice or a text."""
        if self.takes_calls:
            return CallToolAction
        fields: Any = {"text": (str, ...)}
        if self.first.choices:
            choice_type: Any = Literal[self.fixed_choices] if self.fixed_choices else str
            fields = {"choice": (choice_type, ...)}
        return create_model("ServedAction", __base__=Action, **fields)

    @cached_property
    def observation_type(self) -> Any:
        """OpenEnv's type of an observation after a reset, and after a step that is no call."""
        fields: Any = {"text": (str, "")}
        if self.lists_choices:
            fields["choices"] = (list[str], [])
        return create_model("ServedObservation", __base__=OpenEnvObservation, **fields)

    def problem(
        self,
        level: str,
        seed: int,
        task: str | None,
        index: int | None,
    ) -> Task:
        """A problem at `level`: the one with id `task`, or at `index`, or else one that the seed
        draws.

        Raises ConfigError for an unknown level, task or index, and for both of these.
        """
        if not isinstance(level, str) or level not in self.tasks:
            raise unknown_name("level", str(level), self.tasks)
        problems = self.tasks[level]
        if task is not None and index is not None:
            raise ConfigError("name a task or an index, not both")
        if task is not None:
            ids = [problem.id for problem in problems]
            if task not in ids:
                raise unknown_name("task", str(task), ids)
            return problems[ids.index(task)]
        if index is None:
            return generator(seed, "problem").choice(problems)
        if type(index) is not int or not 0 <= index < len(problems):
            raise ConfigError(f"index {index!r:.80} must be 0 to {len(problems) - 1}")
        return problems[index]


class Session(Environment):  # type: ignore[misc, unused-ignore]
    """The environment of one session. The methods are those of OpenEnv's interface."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.service = service
        self.env: Any = None
        self.level = ""
        """The level that `env` was made for."""
        self.observation = service.first
        """The last observation, of which the client has read all."""
        self.over = True
        self.now = State()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        level: str | None = None,
        split: str | None = None,
        task: str | None = None,
        index: int | None = None,
        **_: Any,
    ) -> Any:
        """Begin a problem: the one with this id or index, or else one that the seed draws."""
        # 1. The problem
        service = self.service
        level = level or split or list(service.tasks)[-1]
        if seed is None:
            seed = next(service.seeds)
        if type(seed) is not int or seed < 0:
            raise ConfigError(f"the seed {brief(seed)} must be a whole number from 0")
        problem = service.problem(level, seed, task, index)

        # 2. The environment; that of another level has another horizon
        if level != self.level:
            self.close()
            self.env = service.setup.make(service.setup.horizon_at(level))
            self.level = level

        # 3. The first observation, of which the client has read nothing
        self.observation = Observation(())
        observation = shared_result_of(self.env.reset(problem, derive(seed, "env")))
        self.over = False
        self.now = State(episode_id=episode_id, step_count=0, task=problem.id, level=level)
        return service.observation_type(**self._unread_fields(observation))

    def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        """Act. What is not legal costs no step: the observation says what is wrong."""
        # 1. What takes no step
        if isinstance(action, ListToolsAction):
            return self._list_tools()
        if self.env is None:
            raise ConfigError("step before reset; call reset first")
        if self.over:
            return self._answer(action, {"text": "The episode is over."}, done=True, reward=0.0)

        # 2. The step
        try:
            result = shared_result_of(self.env.step(self._env_action(action)))
        except IllegalActionError as error:
            return self._answer(action, {"text": str(error)}, reward=0.0, metadata={"refused": 1})
        self.now.step_count += 1
        self.over = result.terminated or result.truncated

        # 3. Its result
        metadata = dict(result.info)
        if result.truncated:
            metadata["truncated"] = True
        fields = self._unread_fields(result.observation)
        return self._answer(action, fields, done=self.over, reward=result.reward, metadata=metadata)

    @property
    def state(self) -> Any:
        """The number of steps, the problem and its level."""
        return self.now

    def close(self) -> None:
        """Close the env."""
        if self.env is not None:
            self.env.close()

    def get_metadata(self) -> Any:
        """The env's name and rules."""
        return EnvironmentMetadata(name=self.service.setup.env_name, description=self.service.rules)

    def list_splits(self) -> list[str]:
        """The levels."""
        return list(self.service.tasks)

    def list_tasks(self, split: str) -> list[dict[str, str]]:
        """The problems of a level."""
        problems = self.service.tasks.get(split, ())
        return [{"id": problem.id, "group": problem.group} for problem in problems]

    def num_tasks(self, split: str) -> int:
        """Their number."""
        return len(self.service.tasks.get(split, ()))

    def get_task(self, split: str, index: int) -> dict[str, str]:
        """One of them."""
        return self.list_tasks(split)[index]

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, str]]:
        """Some of them."""
        return self.list_tasks(split)[start:stop]

    def _list_tools(self) -> Any:
        """The tools of the current state, and that to reply."""
        tools = []
        for tool in (*self.observation.tools, REPLY):
            tools.append(
                Tool(name=tool.name, description=tool.description, input_schema=tool.parameters)
            )
        return ListToolsObservation(tools=tools)

    def _env_action(self, action: Any) -> int | str | ToolUse:
        """The action as the env takes it. Raises IllegalActionError for an unknown choice."""
        # 1. A choice
        observation = self.observation
        if self.service.first.choices:
            if action.choice not in observation.choices:
                choices = ", ".join(observation.choices)
                raise IllegalActionError(f"no choice {action.choice!r:.80}; there are: {choices}")
            return observation.choices.index(action.choice)

        # 2. A text, in which there may be calls
        if not self.service.takes_calls:
            if not observation.tools:
                return str(action.text)
            return parse(action.text, observation.tools, PLAIN)

        # 3. A call, or words to the user
        if action.tool_name == REPLY.name:
            return ToolUse(str(action.arguments.get("text", "")))
        call = ToolCall(action.tool_name, action.arguments)
        mistake = check_call(call, observation.tools)
        if mistake:
            return ToolUse(f"{call.name} {json.dumps(call.arguments)}", errors=(mistake,))
        return use_of([call])

    def _unread_fields(self, observation: Observation) -> dict[str, Any]:
        """The fields of OpenEnv's observation: what the client has not read of `observation`, which
        becomes the last one.
        """
        earlier = self.observation
        self.observation = observation
        # 1. In a conversation, the messages that are new to the client
        if observation.replies:
            messages = observation.messages[len(earlier.messages) :]
            texts = [message.content for message in messages if message.role != "assistant"]
            return {"text": "\n".join(texts)}

        # 2. Otherwise the whole observation
        fields: dict[str, Any] = {"text": observation.text}
        if observation.tools:
            tools = f"{tools_text(observation.tools)}\n{PLAIN_RULES}"
            fields["text"] = f"{tools}\n\n{observation.text}"
        if self.service.lists_choices:
            fields["choices"] = list(observation.choices)
        return fields

    def _answer(
        self,
        action: Any,
        fields: Mapping[str, Any],
        **rest: Any,
    ) -> Any:
        """The observation that answers `action`. rest: fields that every observation has."""
        if self.service.takes_calls:
            return CallToolObservation(tool_name=action.tool_name, result=fields["text"], **rest)
        return self.service.observation_type(**fields, **rest)
