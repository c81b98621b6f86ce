"""serve-env: serve an environment by the OpenEnv protocol, so that other libraries can train in it.

Each session has its own environment. `reset` takes `seed`, and optionally `level`, and `task` (an
id) or `index`; the levels are the splits of OpenEnv's task API. Without a token, in
OPENENV_API_KEY, it listens only to this machine.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import create_model
from typing_extensions import override

from reflectkit.config import Config, Rule, option
from reflectkit.console import Progress, Report
from reflectkit.data.problems import Problems, read_records
from reflectkit.env import rules_of
from reflectkit.envs import SPLITS
from reflectkit.envs.setup import HORIZON_HELP, EnvConfig, EnvSetup, at_level, check_level
from reflectkit.errors import ConfigError, IllegalActionError, unknown_name
from reflectkit.eventloop import shared_result_of
from reflectkit.keys import header_text
from reflectkit.runs.run import RunConfig, open_run
from reflectkit.seeding import derive, generator
from reflectkit.tools import PLAIN, PLAIN_RULES, check_call, parse, tools_text, use_of
from reflectkit.types import Observation, Task, ToolCall, ToolSpec, ToolUse

EXAMPLES = (
    "reflectkit serve-env --env taxi",
    "reflectkit serve-env --env support --level returns --port 8001",
)
KEY = "OPENENV_API_KEY"
REPLY = ToolSpec(
    "reply",
    "Say something to the user.",
    {"properties": {"text": {"type": "string"}}, "required": ["text"]},
)


class ServeEnvConfig(Config):
    """Settings of serve-env."""

    env: EnvConfig
    level: str = option(
        "",
        help="The only level to serve; default: all, and the last for a reset without one.",
        essential=True,
    )
    task_file: Path | None = option(
        None, help="Problems; default: the env's own, or one per seed.", essential=True
    )
    horizon: int = option(0, help=HORIZON_HELP, ge=0)
    host: str = option(
        "127.0.0.1",
        help=f"Address to listen on; one of another machine's needs {KEY}.",
        essential=True,
    )
    port: int = option(8000, help="Port; 0: any that is free.", ge=0, le=65535, essential=True)
    sessions: int = option(64, help="Maximum number of sessions at a time.", ge=1, essential=True)
    run: RunConfig = RunConfig()

    @property
    def setup(self) -> EnvSetup:
        """The environment."""
        return EnvSetup.of(self.env, self.run, self.horizon)

    @override
    def contradictions(self) -> Iterator[Rule]:
        if self.level:
            check_level(self.env.name, self.level)
        is_open = not is_loopback(self.host) and not header_text(KEY)
        advice = f"set {KEY} to a token that clients must send"
        yield is_open, f"--host {self.host} lets other machines in: {advice}"


CONFIG = ServeEnvConfig


def run(config: ServeEnvConfig, progress: Progress) -> Report:
    """Serve until Ctrl-C. Raises ConfigError, DataError."""
    import uvicorn

    from reflectkit.envs.adapters.endpoint import listening

    try:
        app = app_of(
            config.setup, tasks_of(config), config.sessions, header_text(KEY), config.run.seed
        )
    except ImportError as error:
        raise ConfigError(
            f"serve-env needs {error.name}; run pip install 'reflectkit[openenv]'"
        ) from None
    with (
        open_run("serve-env", config, [], again=True) as current,
        listening(config.host, config.port) as listener,
    ):
        host, port = listener.getsockname()[:2]
        progress.news(f"{config.env.name} is at http://{host}:{port}; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
        return current.finish({}, [])


def tasks_of(config: ServeEnvConfig) -> dict[str, list[Task]]:
    """The problems by level, in the env's order of levels. Raises ConfigError, DataError."""
    name, kind = config.env.name, config.env.kind
    # From the environment's own list or seeds
    levels = [config.level] if config.level else list(kind.levels)
    if config.task_file is None:
        problems = Problems(config.setup)
        list_of = partial(problems.seeds, SPLITS[0]) if problems.by_seed else config.setup.listed
        return {level: list_of(level) for level in levels}
    # From a file, which need not have problems of all levels
    tasks = [record.task for record in read_records(config.task_file, kind.name)]
    levels = (
        [config.level]
        if config.level
        else [one for one in levels if one in {task.level for task in tasks}]
    )
    return {level: at_level(name, tasks, level, config.task_file) for level in levels}


def app_of(
    setup: EnvSetup,
    tasks: Mapping[str, Sequence[Task]],
    sessions: int,
    token: str = "",
    seed: int = 0,
) -> Any:
    """The ASGI app of a server. tasks: by level. token: what clients must send, if anything. seed:
    of the first reset that names none; those after it get the next ones.

    Raises ImportError without the package openenv, and what the env raises for its first problem.
    """
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
    from openenv.core.env_server.types import Observation as Seen

    from reflectkit.envs.adapters.endpoint import TokenGuard

    # 1. What the environment offers, by its first problem
    kind, last = setup.kind, list(tasks)[-1]
    probe = setup.make(setup.horizon_at(last))
    first = shared_result_of(probe.reset(tasks[last][0], 0))
    rules = rules_of(probe)
    probe.close()
    calls = bool(first.tools and first.replies)
    fixed: Any = tuple(getattr(kind, "choices", ())) if first.choices else ()
    choice_type = Literal[fixed] if fixed else str

    # 2. The types of its actions and observations in OpenEnv
    action_type: Any = CallToolAction
    if not calls:
        field: Any = {"choice": (choice_type, ...)} if first.choices else {"text": (str, ...)}
        action_type = create_model("ServedAction", __base__=Action, **field)
    fields: Any = {"text": (str, "")} | (
        {} if calls or fixed or not first.choices else {"choices": (list[str], [])}
    )
    text_type: Any = create_model("ServedObservation", __base__=Seen, **fields)

    # 3. The environment of a session
    numbers = itertools.count(seed)

    class Served(Environment):  # type: ignore[misc, unused-ignore]
        """One session's environment."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.env: Any = None
            self.level, self.observation, self.over, self.now = "", first, True, State()

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
            # The problem by id, by index, or drawn
            level, number = level or split or last, next(numbers) if seed is None else seed
            if level not in tasks:
                raise unknown_name("level", level, tasks)
            names = [each.id for each in tasks[level]]
            if task is not None and task not in names:
                raise unknown_name("task", task, names)
            place = names.index(task) if task is not None else index
            problem = (
                generator(number, "problem").choice(tasks[level])
                if place is None
                else tasks[level][place]
            )
            # An environment of another level has another horizon
            if level != self.level:
                self.close()
                self.env, self.level = setup.make(setup.horizon_at(level)), level
            self.observation = Observation(())
            observation = shared_result_of(self.env.reset(problem, derive(number, "env")))
            self.over = False
            self.now = State(episode_id=episode_id, step_count=0, task=problem.id, level=level)
            return text_type(**self._news(observation))

        def step(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
            """Act. What is not legal costs no step: the observation says what is wrong."""
            # Whoever lists the tools takes no step
            if isinstance(action, ListToolsAction):
                tools = (*self.observation.tools, REPLY)
                specs = [
                    Tool(name=one.name, description=one.description, input_schema=one.parameters)
                    for one in tools
                ]
                return ListToolsObservation(tools=specs)
            if self.over:
                return self._answer(action, {"text": "The episode is over."}, done=True, reward=0.0)
            try:
                result = shared_result_of(self.env.step(self._read(action)))
            except IllegalActionError as error:
                return self._answer(
                    action, {"text": str(error)}, reward=0.0, metadata={"refused": 1}
                )
            self.now.step_count += 1
            self.over = result.terminated or result.truncated
            metadata = result.info | ({"truncated": True} if result.truncated else {})
            return self._answer(
                action,
                self._news(result.observation),
                done=self.over,
                reward=result.reward,
                metadata=metadata,
            )

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
            return EnvironmentMetadata(name=setup.env_name, description=rules)

        def list_splits(self) -> list[str]:
            """The levels."""
            return list(tasks)

        def list_tasks(self, split: str) -> list[dict[str, str]]:
            """The problems of a level."""
            return [{"id": task.id, "group": task.group} for task in tasks.get(split, ())]

        def num_tasks(self, split: str) -> int:
            """Their number."""
            return len(tasks.get(split, ()))

        def get_task(self, split: str, index: int) -> dict[str, str]:
            """One of them."""
            return self.list_tasks(split)[index]

        def get_task_range(
            self, split: str, start: int | None = None, stop: int | None = None
        ) -> list[dict[str, str]]:
            """Some of them."""
            return self.list_tasks(split)[start:stop]

        def _read(self, action: Any) -> int | str | ToolUse:
            """The action as the env takes it. Raises IllegalActionError for an unknown choice."""
            observation = self.observation
            if first.choices:
                if action.choice not in observation.choices:
                    raise IllegalActionError(
                        f"no choice {action.choice!r:.80}; there are: {', '.join(observation.choices)}"
                    )
                return observation.choices.index(action.choice)
            if not calls:
                return (
                    parse(action.text, observation.tools, PLAIN)
                    if observation.tools
                    else str(action.text)
                )
            if action.tool_name == REPLY.name:
                return ToolUse(str(action.arguments.get("text", "")))
            call = ToolCall(action.tool_name, action.arguments)
            wrong = check_call(call, observation.tools)
            return (
                ToolUse(f"{call.name} {json.dumps(call.arguments)}", errors=(wrong,))
                if wrong
                else use_of([call])
            )

        def _news(self, observation: Observation) -> dict[str, Any]:
            """What `observation` shows that the client has not read."""
            before, self.observation = self.observation, observation
            if not observation.replies:
                offer = (
                    f"{tools_text(observation.tools)}\n{PLAIN_RULES}\n\n"
                    if observation.tools
                    else ""
                )
                return {"text": offer + observation.text} | (
                    {"choices": list(observation.choices)} if "choices" in fields else {}
                )
            new = observation.messages[len(before.messages) :]
            return {
                "text": "\n".join(message.content for message in new if message.role != "assistant")
            }

        def _answer(self, action: Any, text_fields: Mapping[str, Any], **rest: Any) -> Any:
            if calls:
                return CallToolObservation(
                    tool_name=action.tool_name, result=text_fields["text"], **rest
                )
            return text_type(**text_fields, **rest)

    if any(tool.name == REPLY.name for tool in first.tools):
        raise ConfigError(
            f"env '{setup.env}' has a tool called {REPLY.name}, which serve-env adds to answer"
            " the user"
        )
    app = create_fastapi_app(
        Served, action_type, CallToolObservation if calls else text_type, sessions, env_name=setup.env_name,
        reset_observation_cls=text_type, mode="simulation",
    )  # fmt: skip
    app.add_middleware(TokenGuard, token=token)
    return app


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
