"""A conversation with tools as rendered by a tokenizer's chat template, and the exact tokens of a
conversation so far.

Contents are data. In messages and tool descriptions, whatever a template or a vocabulary reads as a
mark (`<|im_end|>`, `[INST]`, `</tool_call>`, …) gets a zero-width space after its first character:
it looks the same but is not a mark. This is done first, since templates trim, split and JSON-escape
contents. The assistant's text keeps only the marks of calls and thoughts, and is rendered as it was
written, or in parts where the template puts them together.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from cachetools import LRUCache

from reflectkit.errors import CheckpointError
from reflectkit.models.call_forms import CALL_FORMS
from reflectkit.models.labels import encodable, prompt_ids
from reflectkit.prompts import (
    REFLECTION_MARKER,
    RESULT_MARKER,
    TURN_END,
    UNSEEN,
    action_completion,
    as_data,
    one_line,
    policy_prompt,
)
from reflectkit.tools import (
    CLOSED,
    HERMES,
    LLAMA,
    OPENED,
    PLAIN,
    PLAIN_RULES,
    PYTHON_MARKS,
    THOUGHT,
    TURN_RULES,
    CallForm,
    Form,
    after_thought,
    form_text,
    parse,
    reads_as_calls,
    thought_marks,
    tools_text,
    words_beside_calls,
)
from reflectkit.types import THINKING, Message, Observation, ToolSpec, ToolUse

MEMO_ENTRIES = 2**12
"""How many conversations are remembered at most; what was used least recently goes first."""
MEMO_TOKENS = 2**24
"""How many tokens they have at most."""
MEMO_CHARACTERS = 2**26
"""How many characters their texts have at most."""
LLAMA_STOPS = ("<|eom_id|>",)
"""What Llama 3.1 writes after calls of its built-in tools, where its template writes `<|eot_id|>`.
"""
SWITCH = "enable_thinking"  # the variable with which Qwen3's template and others turn thinking off
LITERAL_MARK = re.compile(r"<[^<>\s'\"{}]{1,40}>|\[/?[A-Z_]{2,40}\]")
PROBE = ToolSpec("probe_tool", "Probes.", {"type": "object", "properties": {}})
MANY_CALLS, ONE_CALL = "one or more functions", "one or no function"
"""What templates offer in a turn, and what reflectkit offers in a conversation with a user."""
DATE = "26 Jul 2024"  # Llama 3's default; its template would insert today's date
NO_CLOCK = (
    "{%- macro strftime_now(format) -%}2024-07-26{%- endmacro -%}"  # others insert it as they are
)


class Dialogue:
    """Renders observations for `tokenizer`.

    plain: do not use its chat template, for a model fine-tuned without it. thinking: "on" leaves it
    to the template whether the model thinks and what it later sees of it; "off" asks the template
    for no thinking; "hidden" shows no earlier thoughts. form: the form of calls (see `tools.py`)
    that the template teaches; "plain" if it has no tools or another form. context: a prompt of more
    tokens is not remembered. stop_ids: an answer ends with any of these: the tokenizer's end token,
    those of the model's generation config, what the template writes after an answer, and those of
    the form of calls.

    Raises CheckpointError if thinking is to be off and the template has no switch for it.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        plain: bool = False,
        thinking: str = THINKING[0],
        context: int = sys.maxsize,
    ) -> None:
        # 1. The template
        self.tokenizer, self.thinking, self.context = tokenizer, thinking, context
        self.template = bool(tokenizer.chat_template) and not plain
        if thinking == "off" and self.template and SWITCH not in str(tokenizer.chat_template):
            raise CheckpointError(
                f"--thinking off: the model's chat template has no {SWITCH}; leave it out"
            )
        # 2. Marks: what text from an env must not contain as it is
        marks = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
        marks |= {OPENED, CLOSED, *THOUGHT}
        marks |= set(LITERAL_MARK.findall(str(tokenizer.chat_template or "")))
        self._marks = _pattern(marks)
        # 3. The form of calls, by what the template writes of a tool
        offer = self._probe([_user("-")], [self._tool(PROBE)]) if self.template else ""
        self.form: Form = self._find_form(offer) if PROBE.name in offer else PLAIN
        self.unknown_form = PROBE.name in offer and self.form == PLAIN
        family = self.form if isinstance(self.form, CallForm) else None
        turn_marks = family.own_marks if family else {OPENED, CLOSED, *PYTHON_MARKS, *THOUGHT}
        self._foreign_marks = _pattern(marks - turn_marks)
        self._family = family if family and family.parts else None
        # 4. What ends an answer, and what the template does to white space and system messages
        self.stop_ids = self._find_stops(family, turn_marks)
        self._strip_right = {
            token for token, details in tokenizer.added_tokens_decoder.items() if details.rstrip
        }
        """Tokens that include the white space after them, such as Phi-3's `<|end|>`."""
        system = {"role": "system", "content": PROBE.name}
        self._takes_system = self.template and PROBE.name in self._probe([system, _user("-")], [])
        # 5. The latest prompts by their tokens, and what was sampled after them
        self._texts: LRUCache[bytes, tuple[str, Observation, str | None]] = LRUCache(
            MEMO_CHARACTERS,
            getsizeof=lambda entry: max(len(entry[0]), MEMO_CHARACTERS // MEMO_ENTRIES),
        )
        self._sampled: LRUCache[tuple[tuple[str, ...], str], array[int]] = LRUCache(
            MEMO_TOKENS,
            getsizeof=lambda ids: max(len(ids), MEMO_TOKENS // MEMO_ENTRIES),
        )

    @property
    def stop_tokens(self) -> tuple[str, ...]:
        """The tokens of `stop_ids`, the tokenizer's end token first."""
        order = sorted(self.stop_ids, key=lambda stop: (stop != self.tokenizer.eos_token_id, stop))
        return tuple(self.words([stop]) for stop in order)

    def text(self, observation: Observation, comment: str | None = None) -> str:
        """The prompt; `comment` is added to the last message that is not the model's own.

        Raises CheckpointError: the template rejects the messages.
        """
        if not self.template:
            prompt = policy_prompt(observation, comment)
            return self.conversation(prompt) if observation.replies else self.harmless(prompt)
        return self._text(observation, comment)

    def harmless(self, text: str) -> str:
        """`text` with its marks neutralised, for use without a template."""
        return _neutral(text, self._marks)

    def conversation(self, prompt: str) -> str:
        """A conversation's policy prompt for use without a template; the agent's messages end with
        the end token.
        """
        return self.harmless(prompt).replace(TURN_END, self.tokenizer.eos_token or "")

    def ids(self, observation: Observation, comment: str | None = None) -> tuple[int, ...]:
        """The tokens of `text`: the remembered beginning as it was sampled, the rest tokenised."""
        text = self.text(observation, comment)
        answers = self._answers(observation)

        # 1. The conversations that were sampled, and begin this one
        beginnings = []
        for key in self._sampled:
            earlier_answers, earlier_text = key
            has_answers = answers[: len(earlier_answers)] == earlier_answers
            if has_answers and text.startswith(earlier_text):
                beginnings.append(key)

        # 2. The tokens of the longest as they were sampled, and the rest tokenised
        if beginnings:
            beginning = max(beginnings, key=lambda key: len(key[1]))
            sampled = self._sampled[beginning]
            rest = text[len(beginning[1]) :]
            if sampled[-1] in self._strip_right:
                rest = rest.lstrip()
            ids = (*sampled, *self._tokenise(rest))
        elif self.template:
            ids = self._tokenise(text)
        else:
            ids = tuple(prompt_ids(self.tokenizer, text))
        if len(ids) <= self.context:
            self._texts[array("I", ids).tobytes()] = (text, observation, comment)
        return ids

    def remember(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> None:
        """Remember that `token_ids` were sampled after a prompt from `ids`, so that a longer prompt
        keeps them.
        """
        entry = self._texts.get(array("I", prompt_ids).tobytes())
        if entry is None or not token_ids:
            return
        text, observation, comment = entry
        cut = len(token_ids) - (token_ids[-1] in self.stop_ids)
        answer, end = self.words(token_ids[:cut]), self.words(token_ids[cut:])
        if self._family:
            text = self._kept(text, observation, comment, answer)
        else:
            text += _neutral(answer, self._foreign_marks)
        if text:
            key = (self._answers(observation, answer), text + end)
            self._sampled[key] = array("I", (*prompt_ids, *token_ids))

    def _answers(self, observation: Observation, *more: str) -> tuple[str, ...]:
        """What the assistant wrote, where the template does not repeat it."""
        said = [message.content for message in observation.messages if message.role == "assistant"]
        return (*said, *more) if self._family else ()

    def _kept(
        self,
        prompt: str,
        observation: Observation,
        comment: str | None,
        answer: str,
    ) -> str:
        """How the template renders `prompt` and the model's `answer`, up to the mark at its end; ""
        unless the prompt and all parts of the answer are there.
        """
        calls = parse(answer, observation.tools, self.form, replies=observation.replies).calls
        message = Message("assistant", answer, calls)
        try:
            text = self._text(observation, comment, message).rstrip()
        except CheckpointError:
            return ""
        ends = [self.words([stop]) for stop in self.stop_ids]
        text = text.removesuffix(next((end for end in ends if text.endswith(end)), ""))
        part = self._message(message)
        thought = _neutral(self._thought(answer), self._marks)
        rest = text[len(prompt) :]
        parts = [thought, part["content"], *(call.name for call in calls)]
        return text if text.startswith(prompt) and all(one in rest for one in parts) else ""

    def words(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids` including special tokens, with which some templates mark calls."""
        return str(
            self.tokenizer.decode(
                list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    def thought_tokens(self, token_ids: Sequence[int]) -> int:
        """Number of an answer's tokens that are reasoning, its marks included."""
        text, (opener, closed) = self.words(token_ids), thought_marks(self.form)
        if after_thought(text, self.form) is text:
            return len(token_ids) if text.lstrip().startswith(opener) else 0
        low, high = 1, len(token_ids)  # the first token with which the closing mark is complete
        while low < high:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if closed in self.words(token_ids[:middle]) else (middle + 1, high)
            )
        return low

    def completion(self, action: int | str | ToolUse) -> str:
        """What the model is trained to write after `text`: the calls in its form, or the words if
        there are none.
        """
        if not isinstance(action, ToolUse):
            answer = action_completion(action)
        else:
            words = (
                form_text((), PLAIN)
                if self.form == PLAIN
                else _neutral(action.text.strip(), self._foreign_marks)
            )
            answer = " " + (form_text(action.calls, self.form) if action.calls else words)
        return answer.removeprefix(" ") if self.template else answer

    def _text(
        self,
        observation: Observation,
        comment: str | None,
        answer: Message | None = None,
    ) -> str:
        """The prompt, or the conversation up to the model's `answer`."""
        # 1. The messages, with the comment at the end of the last one that is not the model's
        messages = _with_notes([self._message(message) for message in observation.messages])
        if comment is not None:
            last = max(
                (i for i, message in enumerate(messages) if message["role"] in ("user", "tool")),
                default=None,
            )
            line = _neutral(f"{REFLECTION_MARKER} {one_line(comment)}", self._marks)
            if last is None:
                messages.append(_user(line))
            else:
                messages[last]["content"] += f"\n{line}"
        # 2. Tools in the template's own form
        if answer is not None:
            messages.append(self._message(answer))
        if self.form != PLAIN:
            if self._family and self._family.results_need_calls:
                messages = _results_of_calls(messages)
            tools = [self._tool(tool) for tool in observation.tools]
            return self._render(
                messages, tools, one_call=observation.replies, answered=answer is not None
            )
        # 3. Tools as text in the system message, where the template has no form for them
        if observation.tools:
            rules = TURN_RULES if observation.replies else PLAIN_RULES
            offer = f"{_neutral(tools_text(observation.tools), self._marks)}\n{rules}"
            first = (
                messages.pop(0)["content"] + "\n\n"
                if messages and messages[0]["role"] == "system"
                else ""
            )
            messages.insert(0, {"role": "system", "content": first + offer})
        return self._render(self._two_sided(messages), [])

    def _message(self, message: Message) -> dict[str, Any]:
        """The message as templates expect it. An assistant's calls are part of its text, or parts
        of the message.
        """
        if message.role != "assistant":
            name = {"name": message.name} if message.name else {}
            content = message.content if message.role == "system" else as_data(message.content)
            return {"role": message.role, "content": _neutral(content, self._marks), **name}
        if self._family:
            return self._parts(message)
        content = message.content
        words = words_beside_calls(message)
        if self.form != PLAIN and words != content:  # not this model's own
            calls = form_text(message.calls, self.form)
            if self.form == LLAMA:  # whose calls have no words
                content = calls
            else:
                content = f"{words}\n{calls}".lstrip() if self.form == HERMES else words + calls
        if self.thinking == "hidden":
            content = after_thought(content, self.form).lstrip()
        return {"role": "assistant", "content": _neutral(content, self._foreign_marks)}

    def _parts(self, message: Message) -> dict[str, Any]:
        """An assistant's message as its thought, words and calls. Words that call, but not validly,
        are words.
        """
        # 1. Thought, words and calls
        assert self._family is not None
        rest = after_thought(words_beside_calls(message), self.form)
        words = (
            self._family.words(rest)
            if message.calls or not reads_as_calls(rest, self.form)
            else rest
        )
        thought = self._thought(message.content) if self.thinking != "hidden" else ""
        calls = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
        # 2. As the template names them
        parts = {
            "content": words if not (thought and calls and self._family.results_need_calls) else ""
        }
        parts |= {"reasoning_content": thought, "thinking": thought} if thought else {}
        return {
            "role": "assistant",
            **_neutral_json(parts | ({"tool_calls": calls} if calls else {}), self._marks),
        }

    def _thought(self, text: str) -> str:
        """The reasoning at the start of `text`, without its marks."""
        thought = text.removesuffix(after_thought(text, self.form)).strip()
        opener, closed = thought_marks(self.form)
        return thought.removesuffix(closed).removeprefix(opener).strip()

    def _tool(self, tool: ToolSpec) -> dict[str, Any]:
        parameters = dict(tool.parameters)
        if "properties" in parameters:
            # templates read a property's type, which the schemas true and false lack
            alike: dict[Any, Any] = {True: {}, False: {"not": {}}}
            parameters["properties"] = {
                name: alike[schema] if isinstance(schema, bool) else schema
                for name, schema in parameters["properties"].items()
            }
        function = {"name": tool.name, "description": tool.description, "parameters": parameters}
        return {"type": "function", "function": _neutral_json(function, self._marks)}

    def _two_sided(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """`messages` for templates without tools: results come from the user, and the roles
        alternate.
        """
        sided: list[dict[str, Any]] = []
        for message in messages:
            role, content = message["role"], message["content"]
            if role == "tool":
                role, content = (
                    "user",
                    f"{RESULT_MARKER} {message.get('name', 'the call')}: {content}",
                )
            if role == "system" and not self._takes_system:
                role = "user"
            if sided and sided[-1]["role"] == role:
                sided[-1]["content"] += f"\n\n{content}"
            else:
                sided.append({"role": role, "content": content})
        return sided

    def _probe(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        *,
        answered: bool = False,
    ) -> str:
        """See `_render`; "" if the template rejects the messages."""
        try:
            return self._render(messages, tools, answered=answered)
        except CheckpointError:
            return ""

    def _find_form(self, offer: str) -> Form:
        """The form of calls that the template asks for in `shown`, with a tool, or in which it
        shows a call.
        """
        if OPENED in offer and '"arguments"' in offer:
            return HERMES
        if "<|start_header_id|>" in offer or "<|header_start|>" in offer:
            return LLAMA
        call = {"type": "function", "function": {"name": PROBE.name, "arguments": {}}}
        said = {"role": "assistant", "content": "", "tool_calls": [call]}
        offer += self._probe([_user("-"), said], [self._tool(PROBE)])
        return next((form for form in CALL_FORMS if re.search(form.sign, offer)), PLAIN)

    def _find_stops(self, family: CallForm | None, own_marks: set[str]) -> frozenset[int]:
        """See `stop_ids`. own_marks: what the assistant writes within a turn, which never ends one.

        Of the tokens in a generation config only special ones count: LlamaConfig lists token 2
        where nobody says otherwise, which may be a letter.
        """
        tokenizer = self.tokenizer
        # 1. Those of the family of templates, and what the template writes after an answer
        tokens = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
        names = (*(LLAMA_STOPS if self.form == LLAMA else ()), *(family.stops if family else ()))
        stops = [stop for stop in names if stop in tokens]
        if self.template:
            stops += self._written_after_answer(tokens - own_marks)
        # 2. Special ones that the generation config lists, and the end token
        special = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
        listed = special.intersection(getattr(tokenizer, "generation_end_ids", ()))
        ids = {tokenizer.eos_token_id, *listed, *map(tokenizer.convert_tokens_to_ids, stops)}
        return frozenset(ids - {None})

    def _written_after_answer(self, tokens: set[str]) -> list[str]:
        """Which of `tokens` the template writes after an assistant's words; if there is none, as in
        GLM's, which it writes before the next message.
        """
        longest_first = sorted(filter(str.strip, tokens), key=len, reverse=True)
        token = re.compile(rf"\s*({'|'.join(map(re.escape, longest_first))})")
        conversation = [_user("-"), {"role": "assistant", "content": PROBE.name}]
        for messages in (conversation, [*conversation, _user("-")]):
            _, answer, after = self._probe(messages, [], answered=True).rpartition(PROBE.name)
            first = token.match(after) if answer and longest_first else None
            if first:
                return [first[1]]
        return []

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        *,
        one_call: bool = False,
        answered: bool = False,
    ) -> str:
        """The prompt, or what there is so far if the last message is the answer. one_call: the
        template, but no message, is changed to offer at most one call in a turn.
        """
        from jinja2 import TemplateError

        settings: dict[str, Any] = {SWITCH: False} if self.thinking == "off" else {}
        template = self.tokenizer.get_chat_template(tools=tools)
        # The template without many calls in a turn, and without the clock: a prompt is reproducible
        if one_call:
            settings["chat_template"] = template.replace(MANY_CALLS, ONE_CALL)
        if "strftime_now(" in template and "date_string" not in template:
            settings["chat_template"] = NO_CLOCK + settings.get("chat_template", template)
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                add_generation_prompt=not answered,
                tokenize=False,
                date_string=DATE,
                **settings,
            )
        except (TemplateError, TypeError, ValueError) as error:
            reason = one_line(str(error))[:200]
            raise CheckpointError(
                f"the model's chat template rejects this conversation ({reason}); use another model"
            ) from None

    def _tokenise(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(encodable(text), add_special_tokens=False)["input_ids"])


def _with_notes(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`messages` with each later system message, a comment, added to the message before it."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system" and merged and merged[-1]["role"] != "system":
            merged[-1]["content"] += f"\n{message['content']}"
        else:
            merged.append(message)
    return merged


def _results_of_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`messages` for templates that know results only behind a call: others come from the user."""
    merged: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != "tool":
            calls = message.get("tool_calls", [])
        elif calls:
            message = {"name": calls[-1]["function"]["name"]} | message
        else:
            message = _user(
                f"{RESULT_MARKER} {message.get('name', 'the call')}: {message['content']}"
            )
        merged.append(message)
    return merged


def _user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _pattern(marks: Iterable[str]) -> re.Pattern[str]:
    """Matches the first character of each of `marks` wherever it occurs, even inside another."""
    longer = sorted(mark for mark in marks if len(mark) > 1 and mark.strip())
    return re.compile(f"(?=(?:{'|'.join(map(re.escape, longer))}))(.)", re.DOTALL)


def _neutral(text: str, marks: re.Pattern[str]) -> str:
    return marks.sub(lambda match: match.group(1) + UNSEEN, text)


def _neutral_json(value: Any, marks: re.Pattern[str]) -> Any:
    """A JSON value with its strings and keys neutralised."""
    if isinstance(value, str):
        return _neutral(value, marks)
    if isinstance(value, dict):
        return {_neutral(key, marks): _neutral_json(inner, marks) for key, inner in value.items()}
    return [_neutral_json(inner, marks) for inner in value] if isinstance(value, list) else value
