"""An endpoint in the form of OpenAI's chat completions: requests become observations, and actions become answers.

A program repeats what it was answered with each request. `Conversations` gives such a copy its exact text back, so that
a prompt begins with the tokens of the one before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import math
import socket
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import uvicorn
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from reflectkit.envs.conversation import spoken
from reflectkit.errors import ConfigError
from reflectkit.prompts import one_line
from reflectkit.tools import NAME, check_tool
from reflectkit.types import Decision, Message, Observation, ToolCall, ToolSpec, ToolUse, Turn

LOOPBACK = ("127.0.0.1", "localhost")
LARGEST_BODY = 4 << 20
"""Bytes of a request."""
IDLE_S = 300
"""Seconds after which an unused connection is closed: later than clients do it, which would lose a request."""
REMEMBERED = 4096
"""Answers of a conversation, or of all conversations of a server, whose exact text is kept; the oldest go first."""
ALIKE = 64
"""Of those, how many that look the same to a program."""


class RequestError(Exception):
    """A request that is not answered. status: HTTP's."""

    def __init__(self, message: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class _Function(BaseModel):
    name: str
    arguments: str = "{}"


class _Call(BaseModel):
    id: str
    function: _Function


class _Text(BaseModel):
    type: Literal["text"]
    text: str


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Text] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""

    @property
    def text(self) -> str:
        """Its content."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class _Described(BaseModel):
    name: str = Field(pattern=rf"^{NAME}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(BaseModel):
    type: Literal["function"]
    function: _Described


class _ToolName(BaseModel):
    name: str


class _ChosenTool(BaseModel):
    type: Literal["function"]
    function: _ToolName


class _Request(BaseModel):
    model: str
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | _ChosenTool | None = None
    n: int | None = None
    logprobs: bool | None = None
    functions: list[Any] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = Field(None, ge=0)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    response_format: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request. turns: the earlier answers that it repeats, with their observations and comments. unmatched: number of
    the assistant's messages that were not answered here. temperature, max_tokens: as the program wants them, or None.
    stop: texts before which the answer ends, as the program sees it.
    """

    observation: Observation
    turns: tuple[Turn, ...]
    unmatched: int
    model: str
    temperature: float | None
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    usage: bool


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """What a request is answered. comment: the reflection that the policy read. tokens: (of the prompt, of the answer);
    limit: the most of the latter.
    """

    action: ToolUse
    comment: str | None = None
    tokens: tuple[int, int] = (0, 0)
    limit: int = 0


class Session(Protocol):
    """Who answers the requests of one program, or of all."""

    conversations: Conversations

    async def answer(self, request: ChatRequest) -> EndpointAnswer:
        """The answer. Raises RequestError."""
        ...

    def reward(self, value: float) -> None:
        """The program reports a reward. Raises RequestError."""
        ...


class Conversations:
    """The answers that programs may repeat: what they show of them → their exact text."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Any, deque[tuple[int, EndpointAnswer]]] = OrderedDict()
        self._calls = 0

    def _find(self, message: _Message, before: Sequence[Message]) -> EndpointAnswer | None:
        """The answer that `message` repeats; of several that look the same, the one to the messages `before` it, or
        else the newest.
        """
        same = self._answers.get(_key(message.text, message.tool_calls or ()), ())
        here = (answer for messages, answer in same if messages == _digest(before))
        return next(here, same[-1][1] if same else None)

    def read(self, body: bytes) -> ChatRequest:
        """The request in `body`. Raises RequestError."""
        try:
            asked = _Request.model_validate_json(body)
        except ValidationError as error:
            wrong = max(error.errors(include_url=False), key=lambda wrong: len(wrong["loc"]))  # of a union, the nearest
            place = ".".join(map(str, wrong["loc"]))
            raise RequestError(f"{place}: {wrong['msg']}" if place else wrong["msg"]) from None
        if (asked.n or 1) > 1:
            raise RequestError(f"n: {asked.n} answers are wanted, but each request gets one")
        if asked.logprobs:
            raise RequestError("logprobs: none are sent; leave it out")
        if asked.functions:
            raise RequestError("functions: describe them as tools")
        if asked.response_format and asked.response_format.get("type") != "text":
            raise RequestError("response_format: only text is written; describe a tool instead")
        messages: list[Message] = []
        turns, unmatched, names = [], 0, dict[str, str]()
        tools = _tools(asked)
        for message in asked.messages:
            calls = tuple(_call(call) for call in message.tool_calls or ())
            names |= {call.id: call.function.name for call in message.tool_calls or ()}
            answer = None
            if message.role == "assistant":
                answer = self._find(message, messages)
                unmatched += answer is None
            if answer is not None:
                turns.append(Turn(Observation(tuple(messages)), Decision(answer.action, answer.comment), 0.0))
                messages.append(Message("assistant", answer.action.text, answer.action.calls))
            elif message.role == "tool":
                messages.append(Message("tool", message.text, name=names.get(message.tool_call_id, "")))
            else:
                role: Any = "system" if message.role == "developer" else message.role
                messages.append(Message(role, message.text, calls))
        stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        return ChatRequest(
            Observation(tuple(messages), tools=tools, replies=True),
            tuple(turns),
            unmatched,
            asked.model,
            asked.temperature,
            asked.max_completion_tokens or asked.max_tokens,
            tuple(filter(None, stop)),
            bool(asked.stream),
            bool((asked.stream_options or {}).get("include_usage")),
        )

    def message(self, request: ChatRequest, answer: EndpointAnswer) -> dict[str, Any]:
        """The answer as the program sees it; kept, so that it is known when the program repeats it."""
        text, calls = spoken(answer.action.text), []
        for call in answer.action.calls:
            self._calls += 1
            function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
            calls.append({"id": f"call_{self._calls}", "type": "function", "function": function})
        for end in request.stop:
            text = text.partition(end)[0]
        shown = {"role": "assistant", "content": None if calls else text}
        if calls:
            shown["tool_calls"] = calls  # type: ignore[assignment]
        key = _key("" if calls else text, [_Call.model_validate(call) for call in calls])
        self._answers.setdefault(key, deque(maxlen=ALIKE)).append((_digest(request.observation.messages), answer))
        self._answers.move_to_end(key)
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return shown


def _key(text: str, calls: Sequence[_Call]) -> Any:
    return text, tuple((call.id, call.function.name, call.function.arguments) for call in calls)


def _digest(messages: Sequence[Message]) -> int:
    return hash(repr(tuple(messages)))


def _call(call: _Call) -> ToolCall:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"tool_calls: the arguments of {call.function.name} are no JSON object")
    return ToolCall(call.function.name, arguments)


def _tools(asked: _Request) -> tuple[ToolSpec, ...]:
    """The tools that the model may call now."""
    if asked.tool_choice == "none":
        return ()
    specs = []
    for tool in asked.tools or ():
        described = tool.function
        spec = ToolSpec(described.name, described.description or "", described.parameters or {"type": "object"})
        try:
            check_tool(spec)
        except ConfigError as error:
            raise RequestError(f"tools: {error}") from None
        specs.append(spec)
    if len({spec.name for spec in specs}) < len(specs):
        raise RequestError("tools: two have the same name")
    if isinstance(asked.tool_choice, _ChosenTool):
        wanted = asked.tool_choice.function.name
        specs = [spec for spec in specs if spec.name == wanted]
        if not specs:
            raise RequestError(f"tool_choice: no tool is named {wanted!r:.80}")
    return tuple(specs)


def _completion(request: ChatRequest, answer: EndpointAnswer, message: dict[str, Any], number: int) -> dict[str, Any]:
    prompt, written = answer.tokens
    full = answer.limit and written >= answer.limit
    finish = "tool_calls" if message.get("tool_calls") else "length" if full else "stop"
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written},
    }


async def _chunks(completion: dict[str, Any], *, usage: bool) -> AsyncIterator[str]:
    """The events of a stream. An answer is streamed when it is complete, as its calls are read from all of it."""
    choice = completion["choices"][0]
    delta = dict(choice["message"])
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index} | call for index, call in enumerate(calls)]
    common = {key: completion[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for part, finish in ((delta, None), ({}, choice["finish_reason"])):
        chunk = common | {"choices": [{"index": 0, "delta": part, "finish_reason": finish}]}
        yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    if usage:
        yield f"data: {json.dumps(common | {'choices': [], 'usage': completion['usage']})}\n\n"
    yield "data: [DONE]\n\n"


def application(
    find: Callable[[str], Session | None], model: str, *, hosts: Sequence[str], token: str = ""
) -> Starlette:
    """The web application.

    find: the session by its name in the path, "" for none. model: its name in the list of models. hosts: the names
    under which it may be reached. token: what each request must bring, if any.
    """
    numbers = iter(range(1, 1 << 62))

    def session_of(request: Request) -> Session:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token and not hmac.compare_digest(given.encode(), token.encode()):
            raise RequestError("the API key is not the server's token", 401, "invalid_api_key")
        session = find(request.path_params.get("session", ""))
        if session is None:
            raise RequestError("no such session, or it has ended", 404)
        return session

    async def complete(request: Request) -> Response:
        session = session_of(request)
        asked = session.conversations.read(await _body(request))
        answer = await _unless_gone(request, session.answer(asked))
        completion = _completion(asked, answer, session.conversations.message(asked, answer), next(numbers))
        if asked.stream:
            return StreamingResponse(_chunks(completion, usage=asked.usage), media_type="text/event-stream")
        return JSONResponse(completion)

    async def models(request: Request) -> Response:
        session_of(request)
        return JSONResponse({"object": "list", "data": [{"id": model, "object": "model", "owned_by": "reflectkit"}]})

    async def reward(request: Request) -> Response:
        session = session_of(request)
        try:
            value = json.loads(await _body(request))["reward"]
        except (ValueError, TypeError, KeyError):
            raise RequestError('send {"reward": NUMBER}') from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RequestError(f"reward: {value!r:.60} is no finite number")
        session.reward(float(value))
        return JSONResponse({"reward": value})

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):  # of the router
            error = RequestError("only chat completions are served: POST …/v1/chat/completions", error.status_code)
        status, code = (error.status, error.code) if isinstance(error, RequestError) else (500, None)
        return JSONResponse(
            {"error": {"message": one_line(str(error)), "type": "invalid_request_error", "code": code}}, status
        )

    routes = [
        Route(f"{prefix}{path}", handler, methods=[method])
        for prefix in ("", "/s/{session}")
        for path, handler, method in (
            ("/v1/chat/completions", complete, "POST"),
            ("/v1/models", models, "GET"),
            ("/reward", reward, "POST"),
        )
    ]
    return Starlette(
        routes=routes,
        exception_handlers={HTTPException: refused, RequestError: refused, Exception: refused},
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[*hosts])],
    )


async def _body(request: Request) -> bytes:
    body, size = bytearray(), 0
    async for piece in request.stream():  # all of it, as a client that still sends would not read why
        size += len(piece)
        if size <= LARGEST_BODY:
            body += piece
        else:
            body.clear()
    if size > LARGEST_BODY:
        raise RequestError(f"a request has at most {LARGEST_BODY:,} bytes", 413)
    return bytes(body)


async def _unless_gone(request: Request, work: Any) -> Any:
    """The result of `work`, which is cancelled if the program closes the connection."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(gone())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise RequestError("the connection was closed", 499)
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises ConfigError if the address cannot be used."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}); choose another --port") from None
    return listener


@contextlib.asynccontextmanager
async def serving(app: Starlette, host: str, port: int) -> AsyncIterator[int]:
    """Serve `app` inside the context; the port, also if it was 0. The process may then open as many files as the system
    allows. Raises ConfigError if the address cannot be used.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows; systems that allow fewer than they say
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = listening(host, port)
    config = uvicorn.Config(
        app, log_level="critical", lifespan="off", timeout_keep_alive=IDLE_S, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait([running])
        listener.close()
