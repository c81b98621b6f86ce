"""One call to a decision model, by OpenAI's client, in the form of either protocol. Importing it
imports openai.

The answer's text is the JSON value of the reply's `answers`; whoever asked reads the probabilities
from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import httpx2
import openai
from typing_extensions import override

from reflectkit.chat.calls import Caller, billed
from reflectkit.chat.config import OPENAI, SYSTEM_ONE
from reflectkit.chat.journal import MALFORMED, ChatAnswer
from reflectkit.decisions.bodies import refuse_repeated_keys
from reflectkit.jsonl import dumps
from reflectkit.keys import masked, redacted
from reflectkit.types import Message

LONGEST_ANSWERS = 1_000_000  # characters


class DecisionCaller(Caller):
    """Calls a decision model; see `Caller`."""

    addresses: ClassVar[Mapping[str, str]] = {"decisions": OPENAI, "systemone": SYSTEM_ONE}

    @override
    async def call(
        self,
        messages: Sequence[Message],
        limit: int,
        prompt_tokens: int,
        least: int | None = None,
    ) -> ChatAnswer:
        """The server's answer to the one message, which is the body of the request without the
        model.
        """
        body = {"model": self.endpoint.model, **json.loads(messages[0].content)}
        try:
            if self.endpoint.kind == "decisions":
                create = partial(self._client.decisions.with_raw_response.create, **body)
                response = (await self._send(create)).http_response
            else:
                options: Any = {"security": {"bearer_auth": True}}
                post = partial(
                    self._client.post,
                    "/systemone",
                    body=body,
                    cast_to=httpx2.Response,
                    options=options,
                )
                response = await self._send(post)
        except openai.APIStatusError as error:
            return self._refusal(error)
        return self._answer(response, limit, prompt_tokens)

    @override
    def _answer(self, response: Any, limit: int, prompt_tokens: int) -> ChatAnswer:
        # The answers as text, or what is wrong with them
        value, fault = response.extensions["value"], response.extensions["fault"]
        text, finish = "", "stop"
        if not fault and "answers" not in value:
            fault = "the server's answer holds no answers"
        if not fault:
            # Of two probabilities of one option, neither is right
            try:
                refuse_repeated_keys(response.content)
            except ValueError as error:
                fault = f"the server's answer: {error}"
        if not fault:
            try:
                text = dumps(value["answers"])
            except (ValueError, RecursionError):
                fault = "the server's answer has NaN or an infinite number"
        if len(text) > LONGEST_ANSWERS:
            fault = f"the server's answer has over {LONGEST_ANSWERS:,} characters"
        if fault:
            text, finish = redacted(response.text), MALFORMED
        # The bill, or our count where there is none
        read = billed(value, "input_tokens")
        if read is None:
            read = prompt_tokens
        count = billed(value, "output_tokens") or 0
        text = text.encode("utf-8", "replace").decode()
        return ChatAnswer(masked(text), finish, fault, read, count)
