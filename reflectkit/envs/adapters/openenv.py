"""The environment of an OpenEnv server (github.com/huggingface/OpenEnv): `--env openenv:URL`.

An episode has a session of the server, which is one WebSocket. The protocol is spoken here, because
the package's own client replaces a lost session by a new one that was never reset. Its answers do
not say what they answer, so each request is followed by a numbered one: a server that answers
twice, or too late, loses the session.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal

from reflectkit.config import Config, option
from reflectkit.env import Action, Env, StepResult, check_choice, check_task
from reflectkit.envs.adapters import env_type
from reflectkit.envs.adapters.rewards import guessed_success
from reflectkit.envs.conversation import LONGEST_RESULT, cut, spoken
from reflectkit.errors import ConfigError, EnvironmentFailure
from reflectkit.eventloop import run_sync
from reflectkit.keys import PLAIN, check_address, header_text, masked, read_body, redacted
from reflectkit.prompts import LABELS
from reflectkit.tools import NAME, check_call, read_use
from reflectkit.types import Message, Observation, Task, ToolCall, ToolSpec

KEY = "OPENENV_API_KEY"
LONGEST_ANSWER = 16 * 2**20  # bytes
INSTALL = "run pip install 'reflectkit[openenv]'"
PROTOCOL = "it does not speak the protocol of OpenEnv 0.10"
POLL_S = 1.0
RESERVED = ("reset", "step", "state", "close")
HIDDEN = ("metadata", "done", "reward")


class OpenEnvSettings(Config):
    """Settings of an OpenEnv server's environment."""

    server_timeout_s: float = option(
        60.0,
        help="Seconds to wait for a server's answer.",
        gt=0,
        identity=False,
    )
    run_hub_code: bool = option(
        False,
        help="Run the code of an environment named by its hub id, in a container on this machine.",
    )


@dataclass(frozen=True)
class Actions:
    """How a server is acted on. field: of the action, which a choice or a text fills. values: one
    for each choice. mcp: whether calls go to MCP tools, instead of being the action.
    """

    kind: Literal["choice", "text", "tools"]
    field: str = ""
    values: tuple[Any, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    mcp: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts of the choices."""
        return tuple(map(as_text, self.values))


def actions_of(schema: Any, where: str) -> Actions | None:
    """How to act by an action's JSON schema; None: by the MCP tools that the server lists. Raises
    ConfigError.
    """
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise ConfigError(
            f"{where}: its action schema is not that of an object: {json.dumps(schema):.80}"
        )
    tool = ToolSpec("act", str(schema.get("description") or ""), {"properties": {}} | schema)
    check_call(ToolCall("act", {}), [tool])  # raises for what is no JSON schema
    # 1. No fields of its own: MCP tools
    fields = dict(tool.parameters["properties"])
    fields.pop("metadata", None)
    if not fields or {"tool_name", "arguments"} <= fields.keys():
        return None
    # 2. One field: a choice of its values, or a text
    if len(fields) == 1:
        ((name, field),) = fields.items()
        field = schema.get("$defs", {}).get(str(field.get("$ref", "")).rpartition("/")[2], field)
        actions = Actions("choice", name, values_of(field))
        if 0 < len(set(actions.choices)) == len(actions.values) <= len(LABELS):
            return actions
        if field.get("type") == "string":
            return Actions("text", name)
    # 3. Several fields: the arguments of a call
    return Actions("tools", tools=(replace(tool, parameters=schema | {"properties": fields}),))


def values_of(field: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of an enumeration, a Boolean or a bounded integer; none for others."""
    if "enum" in field or field.get("type") == "boolean":
        return tuple(field.get("enum", (False, True)))
    # Bounds of an integer
    low = field["exclusiveMinimum"] + 1 if "exclusiveMinimum" in field else field.get("minimum")
    high = field["exclusiveMaximum"] - 1 if "exclusiveMaximum" in field else field.get("maximum")
    if field.get("type") != "integer" or low is None or high is None or high - low >= len(LABELS):
        return ()
    return tuple(range(int(low), int(high) + 1))


def tools_of(listed: Any, where: str) -> Actions:
    """The MCP tools that a server lists. Raises ConfigError for those that cannot be offered."""
    tools: dict[str, ToolSpec] = {}
    for entry in listed if isinstance(listed, list) else []:
        # 1. Its name and its schema
        entry = entry if isinstance(entry, dict) else {"name": entry}
        name, schema = str(entry.get("name")), entry.get("input_schema", entry.get("inputSchema"))
        if not re.fullmatch(NAME, name) or not isinstance(schema, dict):
            raise ConfigError(
                f"{where} lists the tool {name:.80}, but its name or its schema is none:"
                f" {schema!r:.80}"
            )
        if name in RESERVED or name in tools:
            why = "lists it twice" if name in tools else "OpenEnv itself has that name"
            raise ConfigError(
                f"{where} lists the tool {name!r}, but {why}; rename it in the server"
            )
        # 2. The tool
        description = str(entry.get("description") or "")
        tools[name] = ToolSpec(name, description, {"properties": {}} | schema)
        check_call(ToolCall(name, {}), [tools[name]])  # raises for what is no JSON schema
    if not tools:
        raise ConfigError(
            f"{where} lists no tools, and its actions have no fields: there is nothing to do"
        )
    return Actions("tools", tools=tuple(tools.values()), mcp=True)


def observation_text(observation: Mapping[str, Any]) -> str:
    """An observation as text: its only field if that is a text, else a line for each field that is
    not empty.
    """
    # 1. Its fields, or those of its metadata
    fields = {}
    for name, value in observation.items():
        if name not in HIDDEN and not _is_empty(value):
            fields[name] = value
    if not fields:
        for name, value in (observation.get("metadata") or {}).items():
            if not _is_empty(value):
                fields[name] = value
    # 2. The text
    texts = {name: as_text(value) for name, value in fields.items()}
    if len(texts) > 1 or not all(isinstance(value, str) for value in fields.values()):
        texts = {name: f"{name}: {text}" for name, text in texts.items()}
    return cut("\n".join(texts.values()), LONGEST_RESULT)


def _is_empty(value: Any) -> bool:
    return value in (None, "", [], {})


def result_text(observation: Mapping[str, Any]) -> tuple[str, bool]:
    """(what a tool returned, whether it failed)."""
    # 1. An error of the server
    error = observation.get("error")
    if error:
        message = error.get("message", error) if isinstance(error, dict) else error
        return cut(as_text(message), LONGEST_RESULT), True
    # 2. A plain result, or none
    result = observation.get("result")
    if "result" not in observation:
        return observation_text(observation), False
    if not isinstance(result, dict):
        return cut(as_text(result), LONGEST_RESULT), False
    # 3. MCP's form: data, or parts with texts
    text = ""
    parts = result.get("content")
    if result.get("data") is not None:
        text = as_text(result["data"])
    elif isinstance(parts, list):
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        text = "\n".join(filter(None, texts))
    if not text and result.get("data") is None:
        text = as_text(result)
    return cut(text, LONGEST_RESULT), bool(result.get("is_error"))


def as_text(value: Any) -> str:
    """A JSON value as text; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Full(Exception):
    """The server allows no further session now."""


class HungUp(EnvironmentFailure):
    """The server closed the session."""


class Server:
    """A server, what it offers, and the sessions that this process has there. name: its URL, or a
    hub id.
    """

    def __init__(self, name: str) -> None:
        self.name, self.url = name, ""
        self._actions: Actions | None = None
        self._describing, self._changed = threading.Lock(), threading.Condition()
        self._sessions: set[Any] = set()
        self._numbers = itertools.count(1)

    def actions(self, settings: OpenEnvSettings) -> Actions:
        """How it is acted on, asked once. Raises ConfigError for what cannot be played."""
        with self._describing:
            if self._actions is None:
                self.url = self.url or self._start(settings)
                self._actions = actions_of(run_sync(self._schema(settings)), self.url)
                if self._actions is None:
                    session, answer = self.begin("step", {"type": "list_tools"}, settings)
                    self.end(session)
                    self._actions = tools_of(answer["observation"].get("tools"), self.url)
            return self._actions

    def begin(
        self,
        kind: str,
        data: Mapping[str, Any],
        settings: OpenEnvSettings,
        is_over: Callable[[], bool] = lambda: False,
    ) -> tuple[Any, dict[str, Any]]:
        """A new session and the answer to this first request, as soon as the server has room.
        is_over: whether nobody waits for it any longer. Raises EnvironmentFailure where others keep all
        sessions for longer than the timeout.
        """
        others_since = 0.0
        while not is_over():
            session = self._connect(settings)
            try:
                answer = self.ask(session, kind, data, settings)
            except Full as full:
                session.close()
                # Sessions of ours end some time; those of others may not
                with self._changed:
                    others_since = 0.0 if self._sessions else others_since or time.monotonic()
                    if others_since and time.monotonic() - others_since > settings.server_timeout_s:
                        raise EnvironmentFailure(
                            f"{self.url} has no session left: {full}"
                        ) from None
                    self._changed.wait(POLL_S)
            except BaseException:
                session.close()
                raise
            else:
                with self._changed:
                    self._sessions.add(session)
                return session, answer
        raise EnvironmentFailure(f"the episode ended while it waited for a session of {self.url}")

    def ask(
        self,
        session: Any,
        kind: str,
        data: Mapping[str, Any],
        settings: OpenEnvSettings,
    ) -> dict[str, Any]:
        """The server's answer, with `observation`, `reward` and `done`. Raises Full,
        EnvironmentFailure.
        """
        from websockets.exceptions import ConnectionClosed

        # 1. Send the request, and one that no server does anything for but to answer its number
        number = next(self._numbers)
        numbered = {"jsonrpc": "2.0", "method": "ping", "id": number}
        # A server that is full says so before it closes
        with contextlib.suppress(ConnectionClosed):
            session.send(json.dumps({"type": kind, "data": data}))
            session.send(json.dumps({"type": "mcp", "data": numbered}))

        # 2. Read the answer
        answer = self._receive(session, kind, settings)
        answer_type, value = "", None
        if isinstance(answer, dict):
            answer_type, value = answer.get("type", ""), answer.get("data")
        if answer_type == "error" and isinstance(value, dict):
            code = value.get("code")
            message = redacted(f"{value.get('message')} {value.get('errors') or ''}")
            if code == "CAPACITY_REACHED":
                raise Full(message)
            if code != "VALIDATION_ERROR" or kind != "step":
                raise EnvironmentFailure(f"{self.url} failed in a {kind}: {message}")
            # The session is as it was before an invalid action
            value = {"observation": {"error": message}, "reward": 0.0, "done": False}
        else:
            if answer_type != "observation" or not _is_step(value):
                raise EnvironmentFailure(
                    f"{self.url} answered a {kind} with {redacted(str(answer)):.80}: {PROTOCOL}"
                )
        assert isinstance(value, dict)

        # 3. Read the number, which shows that this was the answer to this request, and that there
        # is no other
        #    A server may hang up after its last answer.
        with contextlib.suppress(HungUp):
            after = self._receive(session, kind, settings)
            if not _confirms(after, number):
                raise EnvironmentFailure(
                    f"{self.url} answered a {kind} more than once: {redacted(str(after)):.80}"
                )
        return value

    def _receive(
        self,
        session: Any,
        kind: str,
        settings: OpenEnvSettings,
    ) -> Any:
        """The next message, without keys. Raises EnvironmentFailure."""
        from websockets.exceptions import ConnectionClosed

        try:
            message = session.recv(settings.server_timeout_s)
            text = message if isinstance(message, str) else message.decode()
            return json.loads(masked(text))
        except TimeoutError:
            raise EnvironmentFailure(
                f"{self.url}: no answer to a {kind} in {settings.server_timeout_s:g} s"
            ) from None
        except ConnectionClosed as error:
            raise HungUp(
                f"{self.url}: lost the session during a {kind}: {redacted(str(error))}"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise EnvironmentFailure(
                f"{self.url} answered a {kind} with no JSON: {redacted(str(error))}"
            ) from None

    def end(self, session: Any) -> None:
        """End a session, and with it a request that is under way."""
        session.close()
        with self._changed:
            self._sessions.discard(session)
            self._changed.notify_all()

    def _connect(self, settings: OpenEnvSettings) -> Any:
        try:
            from websockets.exceptions import InvalidStatus, WebSocketException
            from websockets.sync.client import connect
        except ImportError:
            raise ConfigError(
                f"--env openenv:{self.name} needs the package websockets; {INSTALL}"
            ) from None
        limits: Any = {
            "open_timeout": settings.server_timeout_s,
            "max_size": LONGEST_ANSWER,
            "compression": None,
        }
        try:
            return connect(f"ws{self.url[4:]}/ws", additional_headers=headers(), **limits)
        except InvalidStatus as error:
            status = error.response.status_code
            fault = f"{self.url} refused a session (HTTP {status})"
            if status >= 500:
                raise EnvironmentFailure(fault) from None
            raise ConfigError(f"{fault}: set {KEY} to its token, or {PROTOCOL}") from None
        except (OSError, WebSocketException) as error:
            raise EnvironmentFailure(
                f"no session with {self.url}: {redacted(str(error))}"
            ) from None

    async def _schema(self, settings: OpenEnvSettings) -> Any:
        """The JSON schema of its actions. Raises ConfigError."""
        import httpx2

        place, timeout_s = f"{self.url}/schema", settings.server_timeout_s
        try:
            async with (
                asyncio.timeout(timeout_s),
                httpx2.AsyncClient(headers=PLAIN | headers(), timeout=None) as client,
                client.stream("GET", place) as response,
            ):
                body, fault = await read_body(response, LONGEST_ANSWER)
        except TimeoutError:
            raise ConfigError(
                f"{place} was not read in {timeout_s:g} s; raise --server-timeout-s"
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise ConfigError(
                f"no server answers at {self.url}: {redacted(str(error))}; start it first"
            ) from None
        if response.status_code in (401, 403):
            raise ConfigError(
                f"{self.url} wants a token (HTTP {response.status_code}); set {KEY} to it"
            )
        if fault:
            raise ConfigError(f"{place}: {fault}")
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            if response.status_code == 200:
                return json.loads(masked(body.decode()))["action"]
        raise ConfigError(f"{place} (HTTP {response.status_code}) describes no actions: {PROTOCOL}")

    def _start(self, settings: OpenEnvSettings) -> str:
        """The URL of the server, which is started first if a hub id names it."""
        if "://" in self.name:
            return re.sub("^ws", "http", self.name).rstrip("/")
        # Hugging Face's address of a space
        space = re.sub(r"[^a-z0-9]", "-", self.name.lower())
        if not settings.run_hub_code:
            raise ConfigError(
                f"--env openenv:{self.name} runs that hub repository's code on this machine; add"
                " --run-hub-code to allow it, or play where it is hosted: --env"
                f" openenv:https://{space}.hf.space"
            )
        try:
            from openenv.core.containers.runtime import LocalDockerProvider

            docker = LocalDockerProvider()
            atexit.register(docker.stop_container)
            url = str(docker.start_container(f"registry.hf.space/{space}:latest"))
            docker.wait_for_ready(url)
        except ImportError:
            raise ConfigError(f"--run-hub-code needs the package openenv; {INSTALL}") from None
        except Exception as error:  # docker may fail in any way
            raise ConfigError(
                f"cannot run {self.name} in a container: {redacted(str(error))}"
            ) from None
        return url.rstrip("/")


class OpenEnv(Env):
    """The environment of an OpenEnv server; `env_of` makes a subclass for each server."""

    name = "openenv"
    Settings = OpenEnvSettings
    remote = True
    server: ClassVar[Server]
    _session: Any = None
    _over, _closed = True, False

    @classmethod
    def action_kind(cls, settings: Any) -> Literal["choice", "tools", "text"]:
        """What the server's action schema allows: a choice, words, or calls."""
        return cls.server.actions(settings).kind

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin an episode. `task.data` are the arguments of the server's reset; a seed among them
        goes first.

        Raises ConfigError for a server that cannot be played, EnvironmentFailure for a session that
        is lost.
        """
        # 1. A session
        check_task(task, self.name, self.levels)
        self.release()
        self._actions = self.server.actions(self.settings)
        arguments = {"seed": seed % 2**31} | task.data
        self._session, answer = self.server.begin(
            "reset",
            arguments,
            self.settings,
            lambda: self._closed,
        )
        if self._closed or answer["done"]:
            self.release()
            raise EnvironmentFailure(f"{self.server.url} ended the episode before its first step")
        # 2. A reward before the first step is added to that step's
        self._over, self._early = False, float(answer["reward"] or 0)
        self._gained, self._latest = False, self._early
        self._messages = [Message("user", observation_text(answer["observation"]))]
        return self._observe()

    def step(self, action: Action) -> StepResult:
        """One action. Each of several calls in a turn is a step of the server, and their rewards
        are added up.
        """
        actions, self._reward, self._early = self._actions, self._early, 0.0
        # 1. A choice
        if actions.kind == "choice":
            value = actions.values[check_choice(action, actions.choices, self.name)]
            observation = self._act({actions.field: value})
            self._messages = [Message("user", observation_text(observation))]
            return self._result(observation, int("error" in observation))
        # 2. A text
        use = read_use(action, actions.tools, self.name)
        self._messages.append(Message("assistant", use.text, use.calls))
        if actions.kind == "text":
            observation = self._act({actions.field: spoken(use.text)})
            self._messages.append(Message("user", observation_text(observation)))
            return self._result(observation, int("error" in observation))
        # 3. Calls
        errors = use.errors
        if not errors and not use.calls:
            errors = ("no call; call one of the tools",)
        self._messages += [Message("tool", line) for line in errors]
        observation, refused = {}, len(errors)
        for call in use.calls:
            if self._over:
                break
            request = call.arguments
            if actions.mcp:
                request = {"type": "call_tool", "tool_name": call.name, "arguments": request}
            observation = self._act(request)
            text, failed = result_text(observation)
            refused += failed
            self._messages.append(Message("tool", text, name=call.name))
        return self._result(observation, refused)

    def release(self) -> None:
        """End the session: the server may have no other for the next episode."""
        session, self._session, self._over = self._session, None, True
        # In a thread, as a server that hangs would block the other episodes
        if session is not None:
            threading.Thread(target=self.server.end, args=(session,), daemon=True).start()

    def close(self) -> None:
        """End the session, and the wait for one."""
        self._closed = True
        self.release()

    def _act(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """The observation after `action`."""
        answer = self.server.ask(self._session, "step", action, self.settings)
        self._gained = self._gained or self._latest > 0
        self._latest = float(answer["reward"] or 0)
        self._reward += self._latest
        self._over = answer["done"]
        observation: dict[str, Any] = answer["observation"]
        return observation

    def _observe(self) -> Observation:
        actions, messages = self._actions, tuple(self._messages)
        if actions.values:
            return Observation(messages, choices=actions.choices)
        return Observation(messages, tools=actions.tools, replies=True)

    def _result(self, observation: Mapping[str, Any], refused: int) -> StepResult:
        info: dict[str, Any] = {"refused": refused} if refused else {}
        if self._over:
            info["success"] = self._success(observation)
        return StepResult(self._observe(), self._reward, self._over, info=info)

    def _success(self, observation: Mapping[str, Any]) -> bool | None:
        """Whether the last observation says so; otherwise see `guessed_success`."""
        for place in (observation, observation.get("metadata")):
            if isinstance(place, dict) and isinstance(place.get("success"), bool):
                return bool(place["success"])
        return guessed_success(self._gained, self._latest, over=True)


@cache
def env_of(name: str) -> type[Env]:
    """The env of the server at the URL `name`, or of a hub id. Raises ConfigError for anything
    else.
    """
    if not re.match("(http|ws)s?://.", name) and not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise ConfigError(
            f"--env openenv:{name}: write openenv:http://HOST:PORT, or a hub id, openenv:OWNER/NAME"
        )
    if "://" in name:
        check_address(
            "--env openenv:URL",
            re.sub("^ws", "http", name),
            KEY,
            "openenv:http://localhost:8000",
        )
    return env_type(OpenEnv, f"openenv-{name}", server=Server(name))


def _confirms(answer: Any, number: int) -> bool:
    """Whether `answer` is that to the request with `number`. Older servers only say that they do
    not know its type.
    """
    value = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(value, dict):
        return False
    if answer.get("type") == "mcp":
        return bool(value.get("id") == number)
    return bool(value.get("code") == "UNKNOWN_TYPE")


def _is_step(value: Any) -> bool:
    """Whether `value` has the form of an observation with its reward."""
    if not isinstance(value, dict):
        return False
    has_reward = isinstance(value.get("reward"), int | float | None)
    is_observation = isinstance(value.get("observation"), dict)
    return is_observation and has_reward and isinstance(value.get("done"), bool)


def headers() -> dict[str, str]:
    """The header with the server's token, if one is set."""
    key = header_text(KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}
