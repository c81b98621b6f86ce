"""An endpoint in the form of OpenAI's chat completions: requests become observations, and actions
become answers. It also takes decisions, in the two forms of `reflectkit.decisions`.

A program repeats what it was answered with each request. `Conversations` gives such a copy its
exact text back, so that a prompt begins with the tokens of the one before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import json
import socket
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import uvicorn
from pydantic import BaseModel, FailFast, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from typing_extensions import TypeAliasType

from reflectkit.decisions.bodies import (
    LONGEST_MESSAGE,
    Body,
    InvalidRequestError,
    fault_of,
    read_body,
    refuse_repeated_keys,
)
from reflectkit.decisions.openai_form import DecisionsRequest
from reflectkit.decisions.systemone import SystemOneRequest
from reflectkit.envs.conversation import spoken
from reflectkit.errors import ConfigError
from reflectkit.jsonl import dumps
from reflectkit.prompts import one_line
from reflectkit.tools import NAME, check_tool, json_schema, written_message
from reflectkit.types import (
    LARGEST,
    Decision,
    Message,
    Observation,
    ToolCall,
    ToolSpec,
    ToolUse,
    Turn,
)

LOOPBACK = ("127.0.0.1", "localhost")
LARGEST_BODY = 4 << 20
"""Bytes of a request."""
IDLE_S = 300
"""Seconds after which an unused connection is closed: later than clients do it, which would lose a
request.
"""
REMEMBERED = 4096
"""Answers of a conversation, or of all conversations of a server, whose exact text is kept; the
oldest go first.
"""
DecisionRequest = SystemOneRequest | DecisionsRequest
ALIKE = 64
"""Of those, how many that look the same to a program."""
MOST_MESSAGES = 4096
"""Messages of a request: each turn that it repeats holds all messages before it."""
MOST_TOOLS = 1024
"""Tools of a request, and calls of a message."""
LONGEST_TOOLS = 1 << 18
"""Characters of the parameters of all tools of a request."""


class RequestError(Exception):
    """A request that is not answered. status: HTTP's. kind: the error's, as System One names it."""

    def __init__(
        self,
        message: str,
        status: int = 400,
        code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.kind = status, code, kind


class _RequestPart(BaseModel):
    """A part of a request, in which null is as good as nothing: whoever stores messages in columns
    has it.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {key: inner for key, inner in value.items() if inner is not None}


class _Function(_RequestPart):
    """A tool, a call of one, or the choice of one."""

    name: str = Field(pattern=rf"^{NAME}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    arguments: str = "{}"

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, arguments: object) -> object:
        """JSON, as OpenAI has it, also where logs have the object itself, as data sets do."""
        if isinstance(arguments, dict):
            return json.dumps(arguments, ensure_ascii=False)
        return arguments


class _Tool(_RequestPart):
    id: str = ""
    type: Literal["function"] = "function"
    function: _Function

    @model_validator(mode="before")
    @classmethod
    def _in_the_open(cls, value: object) -> object:
        """Some leave out the level `function`."""
        return {"function": value} if isinstance(value, dict) and "function" not in value else value


class _ContentPart(_RequestPart):
    type: str
    text: str = ""


# A list ends at its first error: a body has room for millions of wrong items
_Tools = TypeAliasType("_Tools", Annotated[list[_Tool], FailFast(), Field(max_length=MOST_TOOLS)])
_Parts = TypeAliasType("_Parts", Annotated[list[_ContentPart], FailFast()])
_Texts = TypeAliasType("_Texts", Annotated[list[str], FailFast()])


class _Message(_RequestPart):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | _Parts | None = None
    tool_calls: _Tools | None = None
    tool_call_id: str = ""
    name: str = ""
    function_call: Any = None

    @property
    def text(self) -> str:
        """Its content."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class _Request(_RequestPart):
    model: str
    messages: Annotated[list[_Message], FailFast()] = Field(min_length=1, max_length=MOST_MESSAGES)
    tools: _Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | _Tool | None = None
    n: int | None = Field(None, strict=True)
    logprobs: bool | None = None
    functions: Any = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = Field(None, ge=0, strict=True, allow_inf_nan=False)
    max_tokens: int | None = Field(None, ge=-1, strict=True)
    max_completion_tokens: int | None = Field(None, ge=-1, strict=True)
    stop: str | _Texts | None = None
    response_format: dict[str, Any] | None = None

    @property
    def refused(self) -> str:
        """What it asks for and cannot have; empty if it can be answered."""
        has_older_calls = any(message.function_call is not None for message in self.messages)
        has_pictures = False
        for message in self.messages:
            if isinstance(message.content, list):
                has_pictures = has_pictures or any(part.type != "text" for part in message.content)
        has_form = self.response_format not in (None, {"type": "text"})
        reasons = {
            "n: a request has one answer; ask again for another": self.n not in (None, 1),
            "logprobs: they are not told; leave it out": self.logprobs,
            "functions: an older form of tools; give those": self.functions is not None,
            "function_call: an older form of tool_calls; write those": has_older_calls,
            "messages: only text is read; leave out pictures and files": has_pictures,
            "response_format: only text is written; leave it out": has_form,
        }
        return next((reason for reason, applies in reasons.items() if applies), "")


class _Reward(BaseModel):
    reward: float = Field(strict=True, ge=-LARGEST, le=LARGEST)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request. turns: the earlier answers that it repeats, with their observations and comments.
    unmatched: number of the assistant's messages that were not answered here. temperature,
    max_tokens: as the program wants them, or None, also for a limit of 0 or -1. stop: texts before
    which the answer ends, as the program sees it.
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
    """What a request is answered. comment: the reflection that the policy read. tokens: (of the
    prompt, of the answer). cut: whether the answer ended at its maximum length.
    """

    action: ToolUse
    comment: str | None = None
    tokens: tuple[int, int] = (0, 0)
    cut: bool = False


class Conversations:
    """The answers that programs may repeat: what they show of them → their exact text."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Any, deque[tuple[int, EndpointAnswer]]] = OrderedDict()
        self._calls = 0

    def _find(self, message: _Message, before: int) -> EndpointAnswer | None:
        """The answer that `message` repeats; of several that look the same, the one to the messages
        before it, or else the newest.

        before: their digest.
        """
        candidates = self._answers.get(_key(message), ())
        for digest, answer in candidates:
            if digest == before:
                return answer
        return candidates[-1][1] if candidates else None

    def read(self, body: bytes) -> ChatRequest:
        """The request in `body`. Raises RequestError."""
        # 1. Its form
        request = _read(_Request, body)
        if request.refused:
            raise RequestError(request.refused)
        # 2. Its messages, with the exact text of the answers that it repeats
        messages: list[Message] = []
        turns, unmatched, digest = [], 0, 0
        for message, name in _with_tool_names(request.messages):
            # The digest of the messages so far
            if messages:
                digest = _digest(messages[-1:], digest)
            answer = self._find(message, digest) if message.role == "assistant" else None
            if answer is not None:
                observation = Observation(tuple(messages))
                turns.append(Turn(observation, Decision(answer.action, answer.comment), 0.0))
                messages.append(Message("assistant", answer.action.text, answer.action.calls))
                continue
            if message.role == "assistant":
                unmatched += 1
                calls = [_call(call.function) for call in message.tool_calls or ()]
                messages.append(written_message(message.text, calls))
                continue
            role: Any = "system" if message.role == "developer" else message.role
            messages.append(Message(role, message.text, name=name))
        # 3. Its limits; some programs write 0 or -1 for none
        stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
        max_tokens = None
        for limit in (request.max_tokens, request.max_completion_tokens):
            if limit and limit > 0:
                max_tokens = limit
        return ChatRequest(
            Observation(tuple(messages), tools=_tools(request), replies=True),
            tuple(turns),
            unmatched,
            request.model,
            request.temperature,
            max_tokens,
            tuple(filter(None, stop)),
            bool(request.stream),
            bool((request.stream_options or {}).get("include_usage")),
        )

    def message(
        self,
        request: ChatRequest,
        answer: EndpointAnswer,
    ) -> dict[str, Any]:
        """The answer as the program sees it, which is remembered for when the program repeats it."""
        # 1. The message
        text, calls = spoken(answer.action.text), []
        for call in answer.action.calls:
            self._calls += 1
            function = {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False),
            }
            calls.append({"id": f"call_{self._calls}", "type": "function", "function": function})
        for end in request.stop:
            text = text.partition(end)[0]
        message: dict[str, Any] = {"role": "assistant", "content": None if calls else text}
        if calls:
            message["tool_calls"] = calls
        # 2. What it stands for
        key = _key(_Message.model_validate(message))
        digest = _digest(request.observation.messages)
        self._answers.setdefault(key, deque(maxlen=ALIKE)).append((digest, answer))
        self._answers.move_to_end(key)
        if len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return message


def _read(kind: type[Body], body: bytes) -> Body:
    """The request in `body`. Raises RequestError."""
    try:
        request = kind.model_validate_json(body)
        refuse_repeated_keys(body)
    except ValidationError as error:
        raise RequestError(fault_of(error, body)) from None
    except ValueError as error:
        raise RequestError(str(error)) from None
    return request


def _with_tool_names(messages: Sequence[_Message]) -> list[tuple[_Message, str]]:
    """`messages`, each result with the name of its tool. The results of several calls are in the
    order of the calls, by which a reader pairs them.
    """
    pairs: list[tuple[_Message, str]] = []
    names: dict[str, str] = {}
    places: dict[str, int] = {}
    for is_result, group in itertools.groupby(messages, lambda message: message.role == "tool"):
        if is_result:
            # Unknown results come last
            results = sorted(group, key=lambda result: places.get(result.tool_call_id, len(places)))
            for result in results:
                pairs.append((result, names.get(result.tool_call_id) or one_line(result.name)))
            continue
        for message in group:
            calls = [call for call in message.tool_calls or () if call.id]
            names |= {call.id: call.function.name for call in calls}
            places = {call.id: place for place, call in enumerate(calls)}
            pairs.append((message, ""))
    return pairs


def _key(message: _Message) -> Any:
    """What a program shows of an answer: its words and its calls."""
    calls = []
    for call in message.tool_calls or ():
        calls.append((call.id, call.function.name, call.function.arguments))
    return message.text, tuple(calls)


def _digest(messages: Sequence[Message], before: int = 0) -> int:
    """A number that tells apart the messages before an answer.

    before: the digest of those before `messages`.
    """
    for message in messages:
        before = hash((before, repr(message)))
    return before


def _call(function: _Function) -> ToolCall:
    """The call in a message. Raises RequestError."""
    try:
        # This parser allows at most 200 levels
        arguments = from_json(function.arguments or "{}", allow_inf_nan=False)
        dumps(arguments)  # refuses 1e999
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"tool_calls: the arguments of {function.name} are no JSON object")
    return ToolCall(function.name, arguments)


def _tools(request: _Request) -> tuple[ToolSpec, ...]:
    """The tools that the model may call now."""
    if request.tool_choice == "none":
        return ()
    # 1. All that the request describes
    functions = [tool.function for tool in request.tools or ()]
    size = len(json.dumps([function.parameters for function in functions]))
    if size > LONGEST_TOOLS:
        raise RequestError(
            f"tools: their parameters have {size:,} characters; at most {LONGEST_TOOLS:,} are read"
        )
    specs = {}
    for function in functions:
        schema = json_schema(function.parameters or {"type": "object"})
        specs[function.name] = ToolSpec(function.name, function.description or "", schema)
    try:
        for spec in specs.values():
            check_tool(spec)
    except (ConfigError, ValueError) as error:  # NaN in a schema, which is no JSON
        raise RequestError(f"tools: {error}") from None
    if len(specs) < len(functions):
        raise RequestError("tools: two have the same name")
    # 2. The one that it wants called
    choice = request.tool_choice
    if not isinstance(choice, _Tool):
        return tuple(specs.values())
    if choice.function.name not in specs:
        raise RequestError(f"tool_choice: no tool is named {choice.function.name!r:.80}")
    return (specs[choice.function.name],)


async def _chunks(
    completion: dict[str, Any],
    *,
    usage: bool,
) -> AsyncIterator[str]:
    """The events of a stream. An answer is streamed when it is complete, as its calls are read from
    all of it.
    """
    choice = completion["choices"][0]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        calls = enumerate(delta["tool_calls"])
        delta["tool_calls"] = [{"index": index} | call for index, call in calls]
    common = {key: completion[key] for key in ("id", "created", "model")}
    common["object"] = "chat.completion.chunk"
    # The message, the end, and what it took if that is asked for
    for part, finish in ((delta, None), ({}, choice["finish_reason"])):
        chunk = common | {"choices": [{"index": 0, "delta": part, "finish_reason": finish}]}
        yield f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    if usage:
        yield f"data: {json.dumps(common | {'choices': [], 'usage': completion['usage']})}\n\n"
    yield "data: [DONE]\n\n"


def host_names(host: str) -> Sequence[str]:
    """The names under which a server that listens at `host` may be reached: any, unless only this
    machine reaches it.
    """
    return LOOPBACK if host in LOOPBACK else ("*",)


def application(
    find: Callable[[str], Any],
    model: str,
    *,
    hosts: Sequence[str],
    token: str = "",
    any_model: bool = False,
) -> Starlette:
    """The web application.

    find: the session by its name in the path, "" for none: it has `conversations`, answers a
    ChatRequest with an EndpointAnswer in its coroutine `answer`, and takes rewards in `reward`;
    both may raise RequestError. If it has `decide`, this answers a DecisionRequest with a JSON
    value. model: its name in the list of models. hosts: the names under which it may be reached.
    token: what each request must bring, if any. any_model: whether decisions may ask for a model of
    any name, as chats do.
    """
    # 1. What answers each path, which may also be below the name of a session
    handlers = _Handlers(find, model, any_model=any_model)
    paths: list[tuple[str, Any, str]] = [
        ("/v1/chat/completions", handlers.complete, "POST"),
        ("/v1/systemone", partial(handlers.decide, kind=SystemOneRequest), "POST"),
        ("/v1/decisions", partial(handlers.decide, kind=DecisionsRequest), "POST"),
        ("/v1/models", handlers.models, "GET"),
        ("/reward", handlers.reward, "POST"),
    ]
    routes = []
    for prefix in ("", "/s/{session}"):
        for path, handler, method in paths:
            routes.append(Route(f"{prefix}{path}", handler, methods=[method]))

    # 2. Who may ask, and what errors look like
    errors = (HTTPException, RequestError, InvalidRequestError, Exception)
    return Starlette(
        routes=routes,
        exception_handlers=dict.fromkeys(errors, _refuse),
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[*hosts]),
            Middleware(TokenGuard, token=token),
        ],
    )


class _Handlers:
    """Answers HTTP requests by sessions. Arguments: see `application`."""

    def __init__(self, find: Callable[[str], Any], model: str, *, any_model: bool) -> None:
        self.find = find
        self.model = model
        self.any_model = any_model
        self.numbers = itertools.count(1)
        """The numbers of the completions."""
        self.release_date = time.strftime("%Y-%m-%d")

    def session_of(self, request: Request) -> Any:
        """The session that the path names. Raises RequestError if there is none."""
        session = self.find(request.path_params.get("session", ""))
        if session is None:
            raise RequestError("no such session, or it has ended", 404)
        return session

    async def complete(self, request: Request) -> Response:
        """Answer a request for a chat completion."""
        # 1. The answer
        session = self.session_of(request)
        chat = session.conversations.read(await _body(request))
        answer = await _unless_gone(request, session.answer(chat))
        message = session.conversations.message(chat, answer)

        # 2. Its form
        prompt_tokens, answer_tokens = answer.tokens
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": _finish_reason(chat, answer),
            "logprobs": None,
        }
        completion = {
            "id": f"chatcmpl-{next(self.numbers)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": chat.model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": answer_tokens,
                "total_tokens": prompt_tokens + answer_tokens,
            },
        }
        if chat.stream:
            events = _chunks(completion, usage=chat.usage)
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(completion)

    async def models(self, request: Request) -> Response:
        """List the model, in the forms of OpenAI and System One."""
        self.session_of(request)
        openai_model = {"id": self.model, "object": "model", "owned_by": "reflectkit"}
        systemone_model = {
            "name": self.model,
            "description": "served by reflectkit",
            "release_date": self.release_date,
        }
        return JSONResponse({"object": "list", "data": [openai_model], "models": [systemone_model]})

    async def decide(self, request: Request, kind: type[DecisionRequest]) -> Response:
        """Answer a request for decisions. kind: the form in which it is made."""
        # 1. The request
        session = self.session_of(request)
        if not hasattr(session, "decide"):
            raise RequestError("decisions are not answered here", 404)
        decision_request = read_body(kind, await _body(request))
        if not self.any_model and not decision_request.names(self.model):
            name = f"{decision_request.model!r:.80}"
            fault = f"there is no model {name}; ask for {self.model} or jev-latest"
            raise RequestError(fault, 404, kind="not_found")

        # 2. Its answer
        return JSONResponse(await _unless_gone(request, session.decide(decision_request)))

    async def reward(self, request: Request) -> Response:
        """Take a reward for a session."""
        session = self.session_of(request)
        body = await _body(request)
        try:
            value = _read(_Reward, body).reward
        except RequestError as error:
            raise RequestError(f'send {{"reward": NUMBER}}: {error}') from None
        session.reward(value)
        return JSONResponse({"reward": value})


def _finish_reason(chat: ChatRequest, answer: EndpointAnswer) -> str:
    """Why the answer ends, as OpenAI names it."""
    if answer.action.calls:
        return "tool_calls"
    has_stop = any(end in spoken(answer.action.text) for end in chat.stop)
    return "length" if answer.cut and not has_stop else "stop"


async def _refuse(request: Request, error: Exception) -> Response:
    """The answer to a request that raised `error`."""
    if isinstance(error, InvalidRequestError):
        return _refusal(one_line(str(error)), 422, detail=error.detail)
    if isinstance(error, HTTPException):  # of the router
        paths = "POST …/v1/chat/completions, …/v1/decisions and …/v1/systemone, and GET …/v1/models"
        error = RequestError(f"served are {paths}", error.status_code, kind="not_found")
    if isinstance(error, RequestError):
        return _refusal(one_line(str(error)), error.status, error.code, error.kind)
    return _refusal(one_line(str(error)), 500, kind="internal_error")


class TokenGuard:
    """Lets in who sends the token; without a token, who is no web page."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        headers = dict(scope.get("headers", ()))
        # Only web pages send an origin
        is_allowed = b"origin" not in headers
        if self.token:
            authorization = headers.get(b"authorization", b"")
            is_allowed = hmac.compare_digest(authorization, f"Bearer {self.token}".encode())
        if scope["type"] == "lifespan" or is_allowed:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif self.token:
            refusal = _refusal(
                "the API key is not the server's token",
                401,
                "invalid_api_key",
                "authentication_error",
            )
            await refusal(scope, receive, send)
        else:
            refusal = _refusal(
                "a web page may ask only with the server's token",
                403,
                kind="permission_error",
            )
            await refusal(scope, receive, send)


def _refusal(
    message: str,
    status: int,
    code: str | None = None,
    kind: str = "invalid_request_error",
    detail: list[dict[str, Any]] | None = None,
) -> JSONResponse:
    """An error in the forms of both OpenAI and System One. detail: of the latter, for a request
    that is invalid.
    """
    message = f"{message:.{LONGEST_MESSAGE}}"
    error = {"message": message, "type": "invalid_request_error", "code": code}
    return JSONResponse(
        {"error": error, "detail": detail or {"error_type": kind, "message": message}}, status
    )


async def _body(request: Request) -> bytes:
    """The body of a request. Raises RequestError."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError(f"a body in {encoding:.40} is not read; send it uncompressed", 415)
    body, size = bytearray(), 0
    # All of it, even if it is too large: a client that still sends would not read why
    async for piece in request.stream():
        size += len(piece)
        if size <= LARGEST_BODY:
            body += piece
        else:
            body.clear()
    if size > LARGEST_BODY:
        raise RequestError(
            f"a request has at most {LARGEST_BODY:,} bytes",
            413,
            kind="request_too_large",
        )
    return bytes(body)


async def _unless_gone(request: Request, work: Any) -> Any:
    """The result of `work`, which is cancelled if the program closes the connection."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    # The answer, or the end of the connection
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
        raise ConfigError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --port"
        ) from None
    return listener


@contextlib.asynccontextmanager
async def serving(app: Starlette, host: str, port: int) -> AsyncIterator[int]:
    """Serve `app` inside the context; the port, also if it was 0. The process may then open as many
    files as the system allows. Raises ConfigError if the address cannot be used.
    """
    # Windows has no such limits, and some systems allow fewer than they say
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = listening(host, port)
    config = uvicorn.Config(
        app,
        log_level="critical",
        lifespan="off",
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait([running])
        listener.close()
