"""One call to a chat model: openai's client, with a deadline, a size limit and redaction. Importing
it imports openai.

openai retries what may pass, respecting `Retry-After`. An error in the body of a 200 counts as its
own status. A body that is not a chat completion becomes an answer that says so and has the tokens
of its bill. Keys are removed from all text that comes back.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar
from urllib.parse import urlsplit

import httpx2
import openai
from typing_extensions import override

from reflectkit.chat.config import (
    AT_OPENAI,
    LOCAL,
    OPENAI,
    RESUMES,
    ApiError,
    Endpoint,
    NoAccessError,
    NoAnswerError,
    key_of,
)
from reflectkit.chat.journal import MALFORMED, ChatAnswer
from reflectkit.errors import ConfigError
from reflectkit.keys import (
    PLAIN,
    check_address,
    encoding_fault,
    header_text,
    masked,
    read_body,
    redacted,
)
from reflectkit.text import count_tokens
from reflectkit.types import Message

LONGEST_BODY = 16 * 2**20  # bytes
CHARACTERS_A_TOKEN = 32  # at most, on average over an answer
MOST_TOKENS = 10_000_000  # on a bill; more is an error of it
RETRIES = 6  # of one call, after errors
MOST_TIMEOUTS = 3  # of one call
FINISHED = ("stop", "length", "content_filter")
LIMITS = ("max_tokens", "max_completion_tokens")
"""Names of the limit of an answer: that of most servers, and OpenAI's newer one."""
TOO_LONG = re.compile(r"context|too (?:large|long|big)|at most|maximum|exceed", re.IGNORECASE)
"""In errors about a limit that is too high for the model."""
NO_SYSTEM = re.compile(r"\bsystem\b|\broles?\b", re.IGNORECASE)
"""In errors about a message whose role the model's template does not know."""
NETWORK = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


class LimitedClient(openai.DefaultAsyncHttpxClient):
    """HTTP client that reads each response in `timeout_s` seconds and `LONGEST_BODY` bytes before
    openai sees it.

    on_error_bill: called with the request's body and the (prompt, completion) tokens of each error
    that reports usage. Responses hold the body's JSON object, {} if it is none, as extension
    "value", and why it cannot be used as "fault".
    """

    def __init__(
        self,
        timeout_s: float,
        on_error_bill: Callable[[bytes, int, int], None],
    ) -> None:
        super().__init__(follow_redirects=False)  # a key is for the address that was given
        self.timeout_s, self.on_error_bill = timeout_s, on_error_bill

    @override
    async def send(
        self,
        request: httpx2.Request,
        *,
        stream: bool = False,
        **options: Any,
    ) -> httpx2.Response:
        """The whole response. Raises TimeoutError and NoAccessError, which openai does not retry."""
        # 1. Its bytes, in time
        async with asyncio.timeout(self.timeout_s):
            received = await super().send(request, stream=True, **options)
            try:
                body, fault = await read_body(received, LONGEST_BODY)
            finally:
                await received.aclose()
        # 2. Its JSON object
        value: Any = None
        if not fault:
            try:
                value = json.loads(body.decode("utf-8-sig", "replace"))
                body.decode()
            except UnicodeDecodeError:
                fault = "the server's answer is not UTF-8"
            except (ValueError, RecursionError):
                fault = "the server's answer is not JSON"
        value = value if isinstance(value, dict) else {}
        # 3. Its status, which may be that of an error in the body
        status = received.status_code
        error = _error_in(value) if received.is_success else None
        if error:
            code = error.get("code") if isinstance(error, dict) else None
            status = code if isinstance(code, int) and 400 <= code < 600 else 500
            body = json.dumps({"error": error}).encode()
        elif received.is_success:
            reason = encoding_fault(received.headers)
            if reason:
                raise NoAccessError(reason)
        # 4. Few servers charge for errors
        if not 200 <= status < 300:
            # In the names of chat completions, or of decisions
            prompt_tokens = billed(value, "prompt_tokens") or billed(value, "input_tokens") or 0
            completion_tokens = (
                billed(value, "completion_tokens") or billed(value, "output_tokens") or 0
            )
            if prompt_tokens or completion_tokens:
                self.on_error_bill(request.content, prompt_tokens, completion_tokens)
        headers = {}
        for name in ("retry-after", "retry-after-ms"):
            if name in received.headers:
                headers[name] = received.headers[name]
        return httpx2.Response(
            status,
            headers=headers,
            content=body,
            request=request,
            extensions={"value": value, "fault": fault},
        )


@dataclass(frozen=True)
class _Form:
    """What a server takes. temperature: whether one is sent. limit: the name of the limit. system:
    whether the rules are a system message; otherwise they begin the first user message. room:
    whether the limit has room for reasoning.
    """

    temperature: bool
    limit: str
    system: bool = True
    room: bool = True

    def body(
        self,
        model: str,
        messages: Sequence[Message],
        temperature: float,
        limit: int,
        least: int,
    ) -> dict[str, Any]:
        """The body of a request."""
        if not self.system:
            messages = without_system(messages)
        entries = []
        for message in messages:
            entries.append({"role": message.role, "content": _encodable(message.content)})
        body = {"model": model, "messages": entries, self.limit: limit if self.room else least}
        if self.temperature:
            body["temperature"] = temperature
        return body

    def change_after(
        self,
        error: openai.APIStatusError,
        body: Mapping[str, Any],
        least: int,
    ) -> dict[str, Any]:
        """The fields to change after the server refused `body`; none if that would not help."""
        message, is_invalid = _message(error), error.status_code in (400, 422)
        too_long = TOO_LONG.search(message) is not None
        has_system = any(each["role"] == "system" for each in body["messages"])
        if is_invalid and self.temperature and _names(error, "temperature"):
            return {"temperature": False}
        if is_invalid and too_long and body[self.limit] > least:
            return {"room": False}
        if is_invalid and not too_long and _names(error, self.limit):
            return {"limit": LIMITS[1 - LIMITS.index(self.limit)]}
        if (is_invalid or error.status_code == 500) and has_system and NO_SYSTEM.search(message):
            return {"system": False}
        return {}


def without_system(messages: Sequence[Message]) -> list[Message]:
    """`messages` with the texts of system messages at the beginning of the first user message.

    >>> without_system([Message("system", "Rules."), Message("user", "Hi")])[0].content
    'Rules.\\n\\nHi'
    """
    rules = [message.content for message in messages if message.role == "system"]
    others = [message for message in messages if message.role != "system"]
    if not rules or not others or others[0].role != "user":
        return [Message("user", "\n\n".join(rules)), *others] if rules else others
    return [Message("user", "\n\n".join([*rules, others[0].content])), *others[1:]]


class Caller:
    """Calls one endpoint over persistent connections, which belong to one event loop.

    timeout_s: for a whole response, from connecting to its last byte. on_error_bill: see
    `LimitedClient`.

    Raises
    ------
    ConfigError: a key or an address is missing, or the environment's proxy or
    certificates cannot be used; ApiError: no local server listens.
    """

    addresses: ClassVar[Mapping[str, str]] = {"openai": OPENAI}
    """The address of each kind of endpoint that does not say its own."""

    def __init__(
        self,
        endpoint: Endpoint,
        temperature: float,
        timeout_s: float,
        on_error_bill: Callable[[bytes, int, int], None],
    ) -> None:
        self.endpoint, self.temperature, self.timeout_s = endpoint, temperature, timeout_s
        # 1. The client of HTTP
        limit_name = LIMITS[0] if endpoint.kind == "local" else LIMITS[1]
        self._form = _Form(not endpoint.thinks, limit_name)
        key, address = key_of(endpoint), endpoint.base_url
        try:
            http_client = LimitedClient(timeout_s, on_error_bill)
        except (ImportError, ValueError, httpx2.InvalidURL, OSError) as error:
            names = []
            for name in NETWORK:
                if name in os.environ or name.lower() in os.environ:
                    names.append(name)
            raise ConfigError(
                f"the environment's {' and '.join(names)} cannot be used to connect ({type(error).__name__});"
                " correct or unset it"
            ) from None
        # 2. OpenAI's client at the endpoint's address
        options: dict[str, Any] = {
            "api_key": key or "none",
            "max_retries": RETRIES,
            "timeout": None,
            "http_client": http_client,
            "default_headers": PLAIN,
        }
        self._client: openai.AsyncOpenAI
        if endpoint.kind == "azure":
            source = "--base-url" if address else "AZURE_OPENAI_ENDPOINT"
            address = address or os.environ.get(source, "")
            if not address:
                raise ConfigError(
                    f"{endpoint} needs an address: export {source}=https://….openai.azure.com, or"
                    " give --base-url"
                )
            check_address(source, address, endpoint.key_name, LOCAL)
            version = os.environ.get("OPENAI_API_VERSION", "2024-10-21")
            self._client = openai.AsyncAzureOpenAI(
                azure_endpoint=address,
                api_version=version,
                **options,
            )
        else:
            if endpoint.kind == "local" or (endpoint.decides and address):
                _check_listening(str(address))
            self._client = openai.AsyncOpenAI(
                base_url=address or self.addresses[endpoint.kind], **options
            )
        # 3. The account, which is of no concern to other servers
        self._client.organization = self._client.project = None
        if endpoint.kind in AT_OPENAI:
            self._client.organization = header_text("OPENAI_ORG_ID") or None
            self._client.project = header_text("OPENAI_PROJECT_ID") or None

    async def call(
        self,
        messages: Sequence[Message],
        limit: int,
        prompt_tokens: int,
        least: int | None = None,
    ) -> ChatAnswer:
        """The server's answer to `messages`, of at most `limit` tokens, or of `least` where the
        server's context holds no more. What the server refuses in a request is left out of this one
        and later ones, if they can do without.

        prompt_tokens: our count, used if the response has no usage.

        Raises
        ------
        NoAnswerError: this call got no answer. NoAccessError: no call will.
        """
        refused: set[_Form] = set()
        while True:
            form = self._form
            body = form.body(self.endpoint.model, messages, self.temperature, limit, least or limit)
            create = partial(self._client.chat.completions.with_raw_response.create, **body)
            try:
                response = await self._send(create)
                return self._answer(response.http_response, limit, prompt_tokens)
            except openai.APIStatusError as error:
                # Ask in another form, unless that was refused before
                refused.add(form)
                change = form.change_after(error, body, least or limit)
                if not change or replace(form, **change) in refused:
                    return self._refusal(error)
                self._form = replace(self._form, **change)

    async def _send(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """The response to what `send` sends. Raises openai.APIStatusError, NoAnswerError,
        NoAccessError.
        """
        timeouts = 0
        while True:
            try:
                return await send()
            except TimeoutError:
                timeouts += 1
                if timeouts == MOST_TIMEOUTS:
                    reason = f"{self.endpoint} does not answer within {self.timeout_s:g} s"
                    raise NoAnswerError(
                        reason, f"{reason}; raise --timeout-s, or {RESUMES}"
                    ) from None
            except NoAccessError as error:
                raise NoAccessError(f"{self.endpoint}: {error}") from None
            except openai.APIStatusError:
                raise
            except (
                openai.APIConnectionError,
                httpx2.HTTPError,
                httpx2.InvalidURL,
                OSError,
            ) as error:
                cause = error.__cause__ or error
                reason = (
                    f"{self.endpoint} cannot be reached"
                    f" ({redacted(str(cause) or type(cause).__name__)})"
                )
                raise NoAnswerError(reason, f"{reason}; {RESUMES}") from None

    @property
    def notes(self) -> list[str]:
        """What this server is asked otherwise than others, where that matters to people."""
        texts = []
        if not self._form.system:
            texts.append("takes no system message, so the rules begin its first user message")
        if not self._form.room:
            texts.append(
                "has too short a context for reasoning, so its answers get no more tokens than they"
                " need"
            )
        return [f"{self.endpoint} {text}" for text in texts]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def _answer(self, response: Any, limit: int, prompt_tokens: int) -> ChatAnswer:
        """The answer in a success; a malformed body becomes an answer whose `refusal` says what is
        wrong.
        """
        # 1. Its text, or what is wrong with it
        value, fault = response.extensions["value"], response.extensions["fault"]
        text, refusal, finish = "", "", "stop"
        if not fault:
            try:
                text, refusal, finish = _choice(value)
                if len(text) > limit * CHARACTERS_A_TOKEN:
                    fault = f"the answer is longer than {limit} tokens can be"
            except ValueError as error:
                fault = str(error)
        if fault:
            text, refusal, finish = redacted(response.text), fault, MALFORMED
        # 2. Its bill, or our count where it has none; a model that thinks may have used it all
        read = billed(value, "prompt_tokens")
        if read is None:
            read = prompt_tokens
        count = billed(value, "completion_tokens")
        if count is None:
            count = limit if self.endpoint.thinks else min(limit, count_tokens(text))
        # 3. Without halves of surrogate pairs, and without keys
        text, refusal = _encodable(text), _encodable(refusal)
        return ChatAnswer(masked(text), finish, redacted(refusal), read, count)

    def _refusal(self, error: openai.APIStatusError) -> ChatAnswer:
        """The answer for an error that openai gave up on. Raises NoAnswerError, NoAccessError."""
        status, message = error.status_code, redacted(_message(error))
        # 1. What may pass, though all retries failed
        if status in (408, 409, 429) or status >= 500:
            reason = f"{self.endpoint} keeps answering {status}: {message}"
            raise NoAnswerError(reason, f"{reason}; {RESUMES}")
        if status == 400 and "content_filter" in f"{error.code} {_message(error)}":
            return ChatAnswer("", "content_filter", "", 0, 0)
        # 2. What the user must put right, and what is wrong with this request alone
        reasons = {
            401: f"does not accept the key in {self.endpoint.key_name}; set the right one",
            402: f"asks for payment: {message}; add credit, then {RESUMES}",
            403: f"is not allowed with this key: {message}",
            404: f"has no such model or address: {message}",
        }
        if status in reasons:
            raise NoAccessError(f"{self.endpoint} {reasons[status]}")
        if status < 400:
            message = "it redirects to another address; give that as --base-url"
        raise NoAnswerError(
            message,
            f"{self.endpoint} refuses every request: {message}",
            refused=True,
        )


def _message(error: openai.APIStatusError) -> str:
    """What the error says, in full and with keys."""
    body = error.body
    message = body.get("message") if isinstance(body, Mapping) else body
    return str(message or body or error.response.extensions["fault"])


def _names(error: openai.APIStatusError, parameter: str) -> bool:
    """Whether the error is about this parameter of the request."""
    return error.param == parameter or re.search(rf"\b{parameter}\b", _message(error)) is not None


def _error_in(value: Mapping[str, Any]) -> Any:
    """The error in the body of a success, instead of choices or in the first choice: gateways
    promise success before the model begins.
    """
    choices = value.get("choices")
    holder = choices[0] if isinstance(choices, list) and choices else value
    return holder.get("error") if isinstance(holder, dict) else None


def billed(value: Mapping[str, Any], name: str) -> int | None:
    """The number of tokens `name` on the bill; None if there is no possible number."""
    usage = value.get("usage")
    count = usage.get(name) if isinstance(usage, dict) else None
    if isinstance(count, bool) or not isinstance(count, int | float):
        return None
    return round(count) if 0 <= count <= MOST_TOKENS else None


def _choice(value: Mapping[str, Any]) -> tuple[str, str, str]:
    """(text, refusal, finish_reason) of the first choice. Raises ValueError if it is not as it must
    be.
    """
    try:
        choice = value["choices"][0]
        content, refusal = choice["message"].get("content"), choice["message"].get("refusal")
        finish = choice.get("finish_reason")
        # Parts, of which those with reasoning have other types
        if isinstance(content, list):
            parts = [part for part in content if part["type"] in ("text", "output_text")]
            content = "".join(part["text"] for part in parts)
    except (LookupError, TypeError, AttributeError):
        raise ValueError("the server's answer holds no message") from None
    if not all(isinstance(field, str | None) for field in (content, refusal, finish)):
        raise ValueError("the server's answer has a message that is not text")
    finish = str(finish).lower()
    finish = "length" if finish == "max_tokens" else finish
    return content or "", refusal or "", finish if finish in FINISHED else "stop"


def _check_listening(base_url: str) -> None:
    """Raises ApiError at once if no server listens, instead of after all the retries."""
    parts = urlsplit(base_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), timeout=10).close()
    except OSError as error:
        raise ApiError(
            f"nothing listens at {base_url} ({error.strerror or error}); start the server, or give"
            " --base-url"
        ) from None


def _encodable(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair, which cannot be sent."""
    return text.encode("utf-8", "replace").decode("utf-8")
