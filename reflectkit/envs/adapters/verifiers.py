"""The tasks of a taskset of verifiers (version 1): `--env verifiers:ID`, or `ID?KEY=VALUE&…` for
its configuration.

The policy takes the place of verifiers' harness: it reads the task's prompt, calls the task's
tools, which run in this process, and ends the episode with an answer that calls none. The task then
scores the whole trace.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Awaitable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from typing_extensions import override

from reflectkit.env import Action, Env, StepResult, check_task
from reflectkit.envs.adapters import env_type
from reflectkit.envs.adapters.rewards import guessed_success
from reflectkit.envs.conversation import LONGEST_RESULT, cut, spoken
from reflectkit.errors import ConfigError, DataError, EnvironmentFailure
from reflectkit.registry import code_files
from reflectkit.tools import read_use
from reflectkit.types import Message, Observation, Task, ToolSpec, ToolUse

MOST_TASKS = 1000
"""Problems of a taskset without an end."""


class Verifiers(Env):
    """A taskset of verifiers; `env_of` makes a subclass for each."""

    name = "verifiers"
    acts = "tools"
    id: ClassVar[str]

    @classmethod
    def tasks(cls, level: str) -> list[Task]:
        """The taskset's tasks, by their place in it. Raises ConfigError."""
        tasks = []
        for place, task in enumerate(taskset_of(cls.id)[1]):
            tasks.append(Task(f"task-{place}", cls.name, level, task.key, {"index": place}))
        return tasks

    @classmethod
    @override
    def own_files(cls, settings: Any) -> list[Path]:
        """The modules of the taskset and its tasks."""
        taskset, tasks = taskset_of(cls.id)
        modules = dict.fromkeys(type(task).__module__ for task in tasks)
        return code_files([type(taskset).__module__, *modules])

    def reset(self, task: Task, seed: int) -> Awaitable[Observation]:
        """Begin a task. Raises ConfigError for one that cannot be played here, DataError for one
        that is not there.
        """
        check_task(task, self.name, self.levels)
        tasks, place = taskset_of(self.id)[1], task.data.get("index")
        if not isinstance(place, int) or not 0 <= place < len(tasks):
            raise DataError(
                task.id,
                f"{self.id} has {len(tasks)} tasks, and no task {place!r}",
                field="data.index",
            )
        self._steps, self._task = 0, tasks[place]
        return self._begin()

    def step(self, action: Action) -> Awaitable[StepResult]:
        """Carry out the calls, or take the words as the answer."""
        return self._act(read_use(action, self._tools, self.name))

    async def _begin(self) -> Observation:
        import verifiers.v1 as vf

        # 1. An empty trace
        data = self._task.data
        self._trace: Any = vf.Trace(
            task=vf.TraceTask(type=type(self._task).__name__, data=data, key=self._task.key),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            state=vf.state.state_cls(type(self._task))(),
        )
        self._messages: list[Message] = []
        self._servers: dict[str, tuple[Any, str]] = {}
        # 2. The tools, by their names
        tools: list[ToolSpec] = []
        taskset, _ = taskset_of(self.id)
        for toolset in [*taskset.toolsets(taskset.config), *self._task.toolsets(self._task.config)]:
            server = await self._serve(toolset)
            prefix = f"{toolset.server_name}_" if toolset.server_name else ""
            for tool in await server.list_tools():
                name = prefix + tool.name
                if name in self._servers:
                    raise ConfigError(f"{self.id}: two of its tools are called {name}")
                self._servers[name] = (server, tool.name)
                schema = {"properties": {}} | tool.input_schema
                tools.append(ToolSpec(name, tool.description or "", schema))
        self._tools = tuple(tools)
        # 3. The prompt
        if data.system_prompt:
            self._add(vf.SystemMessage(content=data.system_prompt))
        if isinstance(data.prompt, str):
            self._add(vf.UserMessage(content=data.prompt))
        else:
            for message in data.prompt or []:
                self._add(message)
        return self._observe()

    async def _act(self, use: ToolUse) -> StepResult:
        from verifiers.v1 import types

        # 1. The agent's message
        self._steps += 1
        call_ids = [f"call-{self._steps}-{number}" for number in range(len(use.calls))]
        calls = []
        for call_id, call in zip(call_ids, use.calls, strict=True):
            arguments = json.dumps(call.arguments)
            calls.append(types.ToolCall(id=call_id, name=call.name, arguments=arguments))
        self._add(types.AssistantMessage(content=spoken(use.text), tool_calls=calls or None), use)
        for line in use.errors:
            self._messages.append(Message("tool", line))
        # 2. The results of its calls
        for call_id, call in zip(call_ids, use.calls, strict=True):
            server, name = self._servers[call.name]
            try:
                result = await server.call_tool(name, call.arguments)
                parts = getattr(result, "content", result)
                text = "\n".join(part.text for part in parts if part.type == "text")
            except Exception as error:  # as a server tells a model that a tool failed
                text = f"error: {error}"
            self._add(
                types.ToolMessage(tool_call_id=call_id, content=cut(text, LONGEST_RESULT)),
                name=call.name,
            )
        # 3. The score, at the end
        over = not use.calls and not use.errors
        info: dict[str, Any] = {"refused": len(use.errors)} if use.errors else {}
        reward = 0.0
        if over or self._steps == self.horizon:
            try:
                await self._task.score(self._trace)
            except Exception as error:
                raise EnvironmentFailure(
                    f"{self.id} could not score: {type(error).__name__}: {error}"
                ) from None
            reward = float(self._trace.reward)
            figures = {}
            for name, value in self._trace.rewards.items():
                if value is not None:
                    figures[f"verifiers_{name}"] = float(value.value)
            for name, value in self._trace.metrics.items():
                if value is not None:
                    figures[f"verifiers_{name}"] = float(value)
            info |= {"success": guessed_success(False, reward, over=True), "figures": figures}
        return StepResult(self._observe(), reward, over, info=info)

    async def _serve(self, toolset: Any) -> Any:
        """The toolset's tools behind MCP's own server, in this process, with the trace's state."""
        from mcp.server.mcpserver import MCPServer

        async def state() -> Any:
            return self._trace.state

        async def keep(before: bytes) -> None:
            pass

        toolset._pull_state, toolset._push_state = state, keep
        await toolset.setup()
        await toolset.setup_task(self._task.data)
        server = MCPServer(toolset.server_name or type(toolset).__name__)
        toolset.register(server)
        return server

    def _add(
        self,
        message: Any,
        use: ToolUse | None = None,
        name: str = "",
    ) -> None:
        """Add to the trace, and to what the policy sees."""
        from verifiers.v1.graph import MessageNode
        from verifiers.v1.types import content_text

        nodes = self._trace.nodes
        nodes.append(
            MessageNode(
                parent=len(nodes) - 1 if nodes else None,
                message=message,
                sampled=use is not None,
            )
        )
        text, calls = (use.text, use.calls) if use else (content_text(message.content), ())
        self._messages.append(Message(message.role, text, calls, name))

    def _observe(self) -> Observation:
        return Observation(tuple(self._messages), tools=self._tools, replies=True)


@cache
def taskset_of(name: str) -> tuple[Any, list[Any]]:
    """A taskset and its tasks, at most MOST_TASKS where it has no end. Raises ConfigError."""
    identifier, _, query = name.partition("?")
    try:
        import verifiers.v1 as vf
        from verifiers.v1.utils import loaders
    except ImportError as error:
        raise ConfigError(
            f"--env verifiers:{name} needs {error.name}; run pip install verifiers"
        ) from None
    try:
        environment = loaders.environment_class(identifier)
        config = loaders.taskset_config_type(identifier)(id=identifier, **dict(parse_qsl(query)))
        taskset = loaders.load_taskset(config)
        tasks = list(taskset if taskset.bounded else itertools.islice(taskset, MOST_TASKS))
    except Exception as error:  # a package of someone else's may fail in any way
        raise ConfigError(f"--env verifiers:{name}: {' '.join(str(error).split())[:300]}") from None
    if not tasks:
        raise ConfigError(f"--env verifiers:{name}: the taskset is empty")
    # What only verifiers' own harness can run
    task = tasks[0]
    needs = []
    for part in ("reward", "metric"):
        needs += [hook.__name__ for hook in task.hooks(part) if needs_runtime(hook)]
    for part in ("setup", "finalize"):
        if getattr(type(task), part) is not getattr(vf.Task, part):
            needs.append(part)
    has_loop = environment is not vf.SingleAgentEnv
    if has_loop or task.NEEDS_CONTAINER or needs:
        what = ", ".join(needs) or "its container"
        if has_loop:
            what = f"{environment.__name__}.run"
        raise ConfigError(
            f"--env verifiers:{name}: {what} needs verifiers' own harness and runtime"
        )
    return taskset, tasks


def needs_runtime(hook: Any) -> bool:
    """Whether a scoring function cannot run without verifiers' runtime."""
    runtime = inspect.signature(hook).parameters.get("runtime")
    return runtime is not None and runtime.default is inspect.Parameter.empty


@cache
def env_of(name: str) -> type[Env]:
    """The env of a taskset."""
    return env_type(Verifiers, f"verifiers-{name}", id=name)
