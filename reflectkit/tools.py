"""Tool calls as text, in several forms; a parser that never fails; and descriptions of tools.

"plain" is our own, for models without a chat template: one call per line, `name {"argument":
value}`, or `none`. "hermes" is `<tool_call>` around JSON (NousResearch Hermes 2 Pro, Qwen 2.5 and
3). "llama" is bare JSON with "parameters" (Llama 3.1). The others are in `models/call_forms.py`. A
call in another form than the model's own is an error, so that words alone end an episode. An error
becomes a line for the model, so it is short, has no control characters, and names the fix.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from reflectkit.errors import ConfigError, IllegalActionError
from reflectkit.text import headed
from reflectkit.types import Message, ToolCall, ToolSpec, ToolUse

PLAIN: Literal["plain"] = "plain"
HERMES: Literal["hermes"] = "hermes"
LLAMA: Literal["llama"] = "llama"

OPENED, CLOSED = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
THOUGHT = ("<think>", "</think>")
"""Tags around reasoning."""
NO_CALLS = "none"
TURN_RULES = 'Write one tool call, as name {"argument": value}, or your reply to the user.'
PLAIN_RULES = 'Write one tool call per line, as name {"argument": value}, or none to call no tool.'

MAX_CALLS = 64  # read from one text, including invalid ones
MAX_CALL = 200_000  # characters of a call in a family's form
MAX_ERROR = 300  # characters
MAX_REASON = 80  # characters, of why a call in a family's form cannot be read
MAX_DEPTH = 32  # nesting of the arguments
TOO_DEEP = f"the JSON is nested more than {MAX_DEPTH} deep"
MAX_NAME = 80  # characters of an unknown name that are compared with known ones
MAX_PROBLEMS = 20  # reported for one call

SPACE = re.compile(r"\s*")
PYTHON_MARKS = (PYTHON_TAG, "<|python_start|>", "<|python_end|>")  # the last two are Llama 4's
PYTHON_MARK = re.compile("|".join(map(re.escape, PYTHON_MARKS)))
BETWEEN_LLAMA = re.compile(rf"(?:[\s;]|{PYTHON_MARK.pattern})*")
NEXT_LLAMA = re.compile(rf"[;\n][ \t]{{0,8}}(?=[{{\[])|{PYTHON_MARK.pattern}")
NAME = r"[\w.-](?:[\w.:-]{0,78}[\w.-])?"
"""A tool's name, perhaps after that of its server and a colon."""
CALL_START = re.compile(rf"\s*{NAME}\s?\{{")
MARKS = re.compile(r"<(?=/?tool_call>|\|)")
CALL_OPENERS = re.compile(
    "|".join(
        (
            # Qwen, GLM, LFM2, Gemma, Kimi, Phi-4-mini
            r"<\|?tool_calls?(?:_section)?(?:_begin|_start)?\|?>",
            r"<function=|<arg_key>|<(?:\w+:|\uff5c\w+\uff5c)?invoke name=|\bto=functions\.",
            PYTHON_MARK.pattern,
            r"\[TOOL_CALLS\]|<TOOLCALL>|\bfunctools\[",  # Mistral, Nemotron, Phi-4
            r"<\uff5ctool\u2581calls?\u2581begin\uff5c>",  # DeepSeek
            r"```tool_c(?:ode|all)\b",  # Gemma 2 and 3
        )
    )
)
"""How a call begins in some form."""
CALL_SIGNS = "|".join(
    (
        # The rest of one without its opener
        r"</tool_call>|</function>|<parameter=|<tool_call\|>|<\|tool_call_end\|>",
        # Harmony
        r"<\|constrain\|>|\bto=(?!(?:self|user)\b)[\w.:-]+[^<]{0,20}<\|(?:channel|message)\|>",
        r"[\"'](?:name|function|tool|tool_name)[\"']\s*:\s*[\"'][\w.:-]+[\"']\s*,"
        r"\s*[\"'](?:arguments|parameters|args|input)[\"']\s*:",  # JSON
        r"[\"'](?:tool_calls|function_call)[\"']\s*:|[\"']function[\"']\s*:\s*\{",
        r"^Action:[^\n]+\n\s*Action Input:",  # ReAct
    )
)
"""More signs of a call. They count in a text that calls nothing, since they may also repeat in
words what is called.
"""
ANY_TYPE = "any"
CONSTANTS = {"True": "true", "False": "false"}
NULLS = ("null", "None")
PYTHON_TYPES = {
    "string": "string", "str": "string", "integer": "integer", "int": "integer", "number": "number", "float": "number",
    "double": "number", "boolean": "boolean", "bool": "boolean", "object": "object", "dict": "object",
    "array": "array", "list": "array", "tuple": "array", "set": "array", "null": "null", "none": "null",
    "any": ANY_TYPE, "union": ANY_TYPE, "optional": ANY_TYPE, "callable": ANY_TYPE,
}  # fmt: skip
"""JSON's types by what data sets call them."""
VALUES = ("default", "const", "enum", "example", "examples")
"""Keywords of a schema that hold values, and no schemas."""
OPEN_ENDED = {
    *str.split(
        "additionalProperties patternProperties unevaluatedProperties $ref allOf anyOf oneOf if"
    )
}
"""Keywords of a schema that decides itself about further arguments."""
SCHEMA_WORDS = {"type", "properties", "required", "$defs", "items", "enum", "not", *OPEN_ENDED}
"""Words in the parameters of a tool that are no names of arguments."""


@dataclass(frozen=True)
class CallForm:
    """The form of calls of one family of models; `models/call_forms.py` has them.

    sign: a pattern of what only its templates show, given a tool and a call. begins: a pattern of
    how a call begins. write: (a call's name, arguments, number in the turn) → its text. between,
    around: texts between and around calls. read: a piece of text that begins as a call → its calls
    (name, arguments), and where they end; raises ValueError. typed: a text says which type an
    argument has; otherwise its schema does. marks: what the assistant writes with. thought: marks
    around reasoning. headers: a pattern of what is neither a thought, nor words, nor a call. stops:
    tokens that end a turn. parts: the template wants an assistant's message in parts, and not as it
    was written. results_need_calls: it rejects or drops the result of what was no call.
    """

    name: str
    sign: str
    begins: str
    write: Callable[[str, dict[str, Any], int], str]
    read: Callable[[str], tuple[list[tuple[str, dict[str, Any]]], int]]
    marks: tuple[str, ...] = ()
    thought: tuple[str, str] = THOUGHT
    headers: str = ""
    stops: tuple[str, ...] = ()
    between: str = ""
    around: tuple[str, str] = ("", "")
    typed: bool = False
    parts: bool = True
    results_need_calls: bool = False

    @property
    def own_marks(self) -> set[str]:
        """The marks in what the assistant writes."""
        return {*self.marks, *self.thought}

    def text(self, calls: Sequence[ToolCall]) -> str:
        """`calls` as a model writes them; "" without any."""
        before, behind = self.around
        texts = []
        for number, call in enumerate(calls):
            texts.append(self.write(call.name, call.arguments, number))
        return before + self.between.join(texts) + behind if calls else ""

    def words(self, text: str) -> str:
        """What is said in `text`, which is without a thought: neither a call nor a header."""
        said = re.split(self.begins, text, maxsplit=1)[0]
        return (re.sub(self.headers, "", said) if self.headers else said).strip()


Form = Literal["plain", "hermes", "llama"] | CallForm


def parse(text: str, tools: Sequence[ToolSpec], form: Form, *, replies: bool = False) -> ToolUse:
    """The calls in `text`, which may be anything: the valid ones, and a line about each of the
    others.

    In the llama form, a text that does not begin with JSON (or contain the python tag) has no
    calls; in the plain form, every line must be a call, unless words may be a reply to a user
    (`replies`) and none of them tries to call. In the others, text around the calls is ignored,
    unless it looks like a call itself. Reasoning at the start is ignored in all forms.

    Raises ConfigError: a tool's own schema is not a valid JSON schema.
    """
    by_name, untyped = (
        {tool.name: tool for tool in tools},
        isinstance(form, CallForm) and not form.typed,
    )
    rest = after_thought(text, form)
    is_reply = replies and form == PLAIN and not _calls_in_words(rest, by_name)

    # 1. Tell the calls from the words around them.
    pieces: list[_Call | _Wrong] = []
    words: list[str] = []
    too_many = False
    for piece in [rest] if is_reply else _pieces(rest, form):
        if isinstance(piece, str):
            words.append(piece)
        elif len(pieces) < MAX_CALLS:
            pieces.append(piece)
        else:
            too_many = True
            break
    said = "\n".join(words)
    # A thought with a brace, which may have been part of a call, is still there
    if not isinstance(form, CallForm):
        said = said.rpartition(THOUGHT[1])[2]
    if tools and (attempt := _attempt(said, tuple(by_name), alone=not pieces)):
        pieces.append(
            _Wrong(f"{_quote(attempt)} is no call; write {form_text([EXAMPLE], form).strip()}")
        )

    # 2. Check each call.
    calls: list[ToolCall] = []
    errors: list[str] = []
    for number, piece in enumerate(pieces, start=1):
        try:
            calls.append(_call(piece, by_name, untyped=untyped))
        except _Wrong as wrong:
            errors.append(_error_line(f"call {number}: {wrong}"))
    if too_many:
        errors.append(f"more than {MAX_CALLS} calls at once; the rest was not read")
    return ToolUse(text, tuple(calls), tuple(errors))


def read_use(
    action: object, tools: Sequence[ToolSpec], env: str, *, replies: bool = True
) -> ToolUse:
    """`action` as calls and words; text is read in the plain form. env: its name. Raises
    IllegalActionError for a choice.
    """
    use = parse(action, tools, PLAIN, replies=replies) if isinstance(action, str) else action
    if not isinstance(use, ToolUse):
        raise IllegalActionError(
            f"{env}: no action {action!r:.80}; it takes calls of its"
            f" tools{' and replies' * replies}"
        )
    return use


def reads_as_calls(text: str, form: Form) -> bool:
    """Whether `text` contains a call in `form`, legal or not, or only the word for no calls."""
    # A text of calls without end is not read to its end
    pieces = itertools.islice(_pieces(after_thought(text, form), form), MAX_CALLS)
    calls = [piece for piece in pieces if not isinstance(piece, str)]
    return not calls or not all(isinstance(piece, _Wrong) for piece in calls)


def tools_of_calls(text: str, form: Form) -> list[ToolSpec]:
    """Tools of the names that `text` calls in `form`, with any arguments."""
    pieces = itertools.islice(_pieces(after_thought(text, form), form), MAX_CALLS)
    names = dict.fromkeys(piece[0] for piece in pieces if isinstance(piece, tuple))
    return [ToolSpec(name, "", {"type": "object", "additionalProperties": True}) for name in names]


def looks_like_call(text: str, tools: Sequence[ToolSpec]) -> bool:
    """Whether `text` looks like a call in some form, of one of `tools`; without tools, only if it
    begins like one.
    """
    return bool(_attempt(text, tuple(tool.name for tool in tools), alone=bool(tools)))


def _calls_in_words(text: str, names: Container[str]) -> bool:
    """Whether a text that may be a reply tries to call: it begins with any name and a brace, or
    with a tool's name that is no plain word, or it is only a tool's name, or a later line is a
    tool's name and a brace.
    """
    # 1. The first line
    first, *others = text.strip().split("\n")
    name, *rest = first.split(maxsplit=1) or [""]
    if CALL_START.match(first) is not None or (
        name in names and (not rest or "_" in name or ":" in name)
    ):
        return True

    # 2. The others, which must begin with a tool's name
    return any("{" in line and line.partition("{")[0].strip() in names for line in others)


def _attempt(words: str, names: tuple[str, ...], *, alone: bool) -> str:
    """The part of `words` that looks like a call in another form, or ""; alone: there is no call
    besides.
    """
    match = (_call_signs(names) if alone else CALL_OPENERS).search(words)
    return words[match.start() :].strip() if match else ""


def words_before_any_call(text: str, names: Sequence[str]) -> str:
    """What is said in `text` before its calls of the tools `names`, in whatever form they are.

    >>> words_before_any_call('I look.\\n<tool_call>\\n{"name": "look", "arguments": {}}\\n</tool_call>', ["look"])
    'I look.'
    """
    match = _call_signs(tuple(names)).search(text)
    return re.sub(r"(?:```\w*)?[\s{\[]*$", "", text[: match.start()]) if match else text


@lru_cache(maxsize=256)
def _call_signs(names: tuple[str, ...]) -> re.Pattern[str]:
    """Matches where a text looks like a call, perhaps of one of the tools `names`: in JSON, Python,
    a tag, or plain.
    """
    alternatives = "|".join(map(re.escape, names))
    of_tool = (
        rf"[\"'](?:name|function|function_name|tool|tool_name|recipient_name|action)[\"']\s*:"
        rf"\s*[\"'](?:functions\.)?(?:{alternatives})[\"']"
        rf"|\{{\s*[\"'](?:{alternatives})[\"']\s*:\s*\{{"
        rf"|^[ \t]*\[?(?:\w+ ?= ?)?(?:await )?(?:print\()?(?:call:|\w+\.)?(?:{alternatives})(?:\(| ?\{{)"
        rf"|\A\s*`(?:{alternatives})\([^`\n]*\)`\s*\Z"
        rf"|\bto=(?:{alternatives})\b|^Action:[ \t]*(?:{alternatives})\b|</?(?:{alternatives})>"
        rf"|<\w*(?:tool|function|action|call|name)\w*>\s*(?:{alternatives})(?:\(|\s*</)"
    )
    return re.compile(f"{CALL_OPENERS.pattern}|{CALL_SIGNS}|{of_tool}", re.MULTILINE)


def plain_text(calls: Sequence[ToolCall]) -> str:
    """`calls` in the plain form."""
    return "\n".join(f"{call.name} {_dump(call.arguments)}" for call in calls) or NO_CALLS


def written_message(words: str, calls: Sequence[ToolCall]) -> Message:
    """What an assistant elsewhere said and called, with its calls in the plain form, as its text
    holds them here.
    """
    # The words, and the calls below them
    text = "\n".join(filter(None, (words.strip(), plain_text(calls)))) if calls else words
    return Message("assistant", text, tuple(calls))


def words_beside_calls(message: Message) -> str:
    """The words of a `written_message`; otherwise all of the message's text."""
    if message.calls and message.content.endswith(plain := plain_text(message.calls)):
        return message.content.removesuffix(plain).rstrip()
    return message.content


def use_of(calls: Sequence[ToolCall]) -> ToolUse:
    """What a player that needs no model does: `calls`, written in the plain form."""
    return ToolUse(plain_text(calls), tuple(calls))


def form_text(calls: Sequence[ToolCall], form: Form) -> str:
    """`calls` as a model writes them. Markers and special tokens inside an argument are
    JSON-escaped where the form is JSON.
    """
    if form == PLAIN:
        return plain_text(calls)
    if isinstance(form, CallForm):
        return form.text(calls)
    # Both forms are JSON, under another key for the arguments
    key = "arguments" if form == HERMES else "parameters"
    bodies = [
        MARKS.sub(r"\\u003c", _dump({"name": call.name, key: call.arguments})) for call in calls
    ]
    return (
        "\n".join(f"{OPENED}\n{body}\n{CLOSED}" for body in bodies)
        if form == HERMES
        else "; ".join(bodies)
    )


def tools_text(tools: Sequence[ToolSpec]) -> str:
    """The tools, each with its arguments and its description.

    >>> properties = {"title": {"type": "string"}, "copies": {"type": "integer"}}
    >>> tools_text([ToolSpec("add", "Adds a book.", {"properties": properties, "required": ["title"]})])
    'add(title: string, copies?: integer): Adds a book.'
    """
    lines = []
    for tool in tools:
        required, properties = (
            tool.parameters.get("required", []),
            tool.parameters.get("properties", {}),
        )
        arguments = [
            f"{name}{'' if name in required else '?'}: {_type_text(of)}"
            for name, of in properties.items()
        ]
        signature = f"{tool.name}({', '.join(arguments)})"
        lines.append(
            headed(f"{signature}:", tool.description) if tool.description.strip() else signature
        )
    return "\n".join(lines)


EXAMPLE = ToolCall("name", {"argument": "value"})


class _Wrong(Exception):
    """What is wrong with a call."""


_Call = tuple[str, object]
"""A call's name and arguments as written."""
_Piece = _Call | _Wrong | str
"""A call, what is wrong with it, or words around calls."""


def after_thought(text: str, form: Form = PLAIN) -> str:
    """`text` after the reasoning at its start, whose opening tag may be part of the prompt."""
    opening, closing = thought_marks(form)
    # The opening mark may be part of the prompt
    thought, end, rest = text.partition(closing)
    prompted = opening == THOUGHT[0] and (isinstance(form, CallForm) or "{" not in thought)
    return rest if end and (prompted or thought.lstrip().startswith(opening)) else text


def thought_marks(form: Form) -> tuple[str, str]:
    """The marks around reasoning."""
    return form.thought if isinstance(form, CallForm) else THOUGHT


def _plain(text: str) -> Iterator[_Piece]:
    if text.strip() in ("", NO_CALLS):
        return
    # A call a line
    for line in filter(None, map(str.strip, text.split("\n"))):
        name, brace, _ = line.partition("{")
        if not brace or not name.strip():
            yield _Wrong(
                f"{_quote(line)} is not a call; write one call per line, as name {{…}}, or"
                f" only {NO_CALLS}"
            )
            continue
        try:
            arguments, end = _decode(line, len(name))
            if end < len(line):
                raise _Wrong(
                    f"{_quote(line[end:])} comes after the arguments; write one call per line"
                )
            yield name.strip(), arguments
        except _Wrong as wrong:
            yield _Wrong(f"{_quote(name.strip())}: {wrong}")


def _hermes(text: str) -> Iterator[_Piece]:
    position = 0

    # 1. The words before it, and its JSON
    while (start := text.find(OPENED, position)) >= 0:
        yield text[position:start]
        end = start = start + len(OPENED)
        piece: _Call | _Wrong
        try:
            value, end = _decode(text, start)
            piece = _named(value)
        except _Wrong as wrong:
            piece = wrong

        # 2. Its end; without one, a later call may still be read
        closing, opening = text.find(CLOSED, end), text.find(OPENED, end)
        if closing < 0 or 0 <= opening < closing:
            also = f", and {piece}" if isinstance(piece, _Wrong) else ""
            piece = _Wrong(f"unclosed {OPENED}: write {CLOSED} after the JSON{also}")
            position = opening if opening >= 0 else len(text)
        else:
            if closing > end and not isinstance(piece, _Wrong):
                piece = _Wrong(f"{_quote(text[end:closing])} comes between the JSON and {CLOSED}")
            position = closing + len(CLOSED)
        yield piece
    yield text[position:]


def _llama(text: str) -> Iterator[_Piece]:
    # Words come before the python tag, or are all there is
    if not text.lstrip().startswith(("{", "[")):
        mark = PYTHON_MARK.search(text)
        yield text[: mark.start()] if mark else text
        text = text[mark.end() :] if mark else ""
    position = 0
    while (position := _skip(BETWEEN_LLAMA, text, position)) < len(text):
        try:
            value, position = _decode(text, position)
            yield from map(_named, value if isinstance(value, list) else [value])
        except _Wrong as wrong:
            yield wrong
            again = NEXT_LLAMA.search(text, position)
            position = again.end() if again else len(text)


def _of_family(text: str, form: CallForm) -> Iterator[_Piece]:
    """Each call is read alone, so that one that is malformed costs no other."""
    starts = [match.start() for match in re.finditer(form.begins, text)]
    yield text[: starts[0]] if starts else text
    for start, end in itertools.pairwise([*starts, len(text)]):
        piece = text[start:end]
        # Some families also write calls as Hermes does
        if piece.startswith(OPENED) and piece[len(OPENED) :].lstrip().startswith("{"):
            yield from _hermes(piece)
            continue
        try:
            if len(piece) > MAX_CALL:
                raise ValueError(f"it is longer than {MAX_CALL:,} characters")
            calls, length = form.read(piece)
            whole_calls = [(name, _checked(arguments)) for name, arguments in calls]
        except (ValueError, RecursionError, _Wrong) as error:
            reason = str(error).partition("\n")[0][:MAX_REASON]
            yield _Wrong(
                f"{_quote(piece)} is no call ({reason}); write {form.text([EXAMPLE]).strip()}"
            )
            continue
        yield from whole_calls
        yield piece[length:]


def _pieces(text: str, form: Form) -> Iterator[_Piece]:
    if isinstance(form, CallForm):
        return _of_family(text, form)
    return {PLAIN: _plain, HERMES: _hermes, LLAMA: _llama}[form](text)


def _named(value: object) -> _Call | _Wrong:
    """The name and the arguments in a call's JSON."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return _Wrong(
            f"{_quote(_dump(value))} is no call; expected a JSON object with the tool's"
            ' "name" and its arguments'
        )
    if "arguments" not in value and "parameters" not in value:
        return _Wrong(
            f"{_quote(value['name'])} is called without arguments; write an empty object"
            " where it needs none"
        )
    return value["name"], value["arguments"] if "arguments" in value else value["parameters"]


def _call(
    piece: _Call | _Wrong, by_name: dict[str, ToolSpec], *, untyped: bool = False
) -> ToolCall:
    """The call, checked. untyped: its arguments are text, whose type the schema tells. Raises
    _Wrong.
    """
    if isinstance(piece, _Wrong):
        raise piece
    name, arguments = piece

    # 1. The tool
    if name not in by_name:
        near = difflib.get_close_matches(name[:MAX_NAME], by_name, n=3, cutoff=0.5)
        advice = (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"there are: {', '.join(by_name) or 'none'}"
        )
        raise _Wrong(f"no tool named {_quote(name)}; {advice}")

    # 2. The arguments, with the types that the schema says
    if not isinstance(arguments, dict):
        raise _Wrong(
            f"{name}: expected the arguments as a JSON object, found {_described(arguments)}"
        )
    if untyped:
        arguments = _typed(by_name[name], arguments)
    from referencing.exceptions import Unresolvable

    # References to the network are never resolved
    validator = _validator(name, _schema(by_name[name]))
    try:
        wrong = list(
            map(_problem, itertools.islice(validator.iter_errors(arguments), MAX_PROBLEMS))
        )
    except Unresolvable as error:
        wrong = [f"its schema refers to {_quote(str(error.ref))}, which is not in it"]
    except RecursionError:
        wrong = ["its schema refers to itself without an end"]
    if wrong:
        raise _Wrong(f"{name}: {'; '.join(dict.fromkeys(wrong))}")
    return ToolCall(name, arguments)


def check_tool(tool: ToolSpec) -> None:
    """Raises ConfigError if its parameters are no JSON schema of an object."""
    _validator(tool.name, _schema(tool))


def json_schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema that is meant by a tool's `parameters` as data sets have them: null for what
    is absent, types as Python names them, or the properties alone.

    >>> json_schema({"city": {"type": "str, optional", "enum": None}})
    {'type': 'object', 'properties': {'city': {'type': 'string'}}}
    """
    schema: dict[str, Any] = _normal_schema(parameters)
    if (
        schema
        and not SCHEMA_WORDS & set(schema)
        and all(isinstance(inner, dict) for inner in schema.values())
    ):
        return {"type": "object", "properties": schema}
    return schema


def _normal_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_normal_schema(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    normal: dict[str, Any] = {}
    for key, inner in schema.items():
        if inner is None:
            continue
        if key in ("properties", "$defs") and isinstance(inner, dict):
            normal[key] = {
                name: _normal_schema(schema) for name, schema in inner.items() if schema is not None
            }
        elif key == "type" and isinstance(inner, str):
            normal[key] = PYTHON_TYPES.get(re.split(r"\W", inner.lower(), maxsplit=1)[0], inner)
        else:
            normal[key] = inner if key in VALUES else _normal_schema(inner)
    if normal.get("type") == ANY_TYPE:
        del normal["type"]
    return normal


def drop_foreign_nulls(call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCall:
    """`call` without the nulls that its tool's schema does not know: whoever stores calls of
    several tools in columns has the arguments of all of them in each.
    """
    schemas = {tool.name: tool.parameters for tool in tools}
    if call.name not in schemas:
        return call
    validator = _validator(call.name, _dump(schemas[call.name]))
    return ToolCall(call.name, _without_foreign_nulls(call.arguments, validator.schema, validator))


def _without_foreign_nulls(value: Any, schema: Any, validator: Any) -> Any:
    """`value`, an argument with this schema or all of them, without the nulls in it that
    `drop_foreign_nulls` drops.
    """
    from referencing.exceptions import Unresolvable

    schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, list):
        return [_without_foreign_nulls(inner, schema.get("items"), validator) for inner in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    open_ended = not properties or bool(OPEN_ENDED & set(schema))
    rest: dict[str, Any] = {}
    for key, inner in value.items():
        if inner is not None:
            rest[key] = _without_foreign_nulls(inner, properties.get(key), validator)
        elif key in properties:
            with contextlib.suppress(Unresolvable, RecursionError):
                rest |= (
                    {key: None} if validator.evolve(schema=properties[key]).is_valid(None) else {}
                )
        elif schema.get("additionalProperties", open_ended) is not False:
            rest[key] = None
    return rest


def check_call(call: ToolCall, tools: Sequence[ToolSpec]) -> str | None:
    """What is wrong with a call that was not parsed here, in one line; None if it is valid."""
    try:
        _call((call.name, call.arguments), {tool.name: tool for tool in tools})
    except _Wrong as wrong:
        return _error_line(str(wrong))
    return None


def _typed(tool: ToolSpec, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments from text: null where it says so and may be, a string where one may be, and else
    JSON.
    """
    from referencing.exceptions import Unresolvable

    def refused(values: dict[str, Any]) -> set[Any]:
        try:
            return {
                error.absolute_path[0]
                for error in validator.iter_errors(values)
                if error.absolute_path
            }
        except (Unresolvable, RecursionError):
            return set()

    validator = _validator(tool.name, _schema(tool))
    nulls = dict.fromkeys(key for key, value in arguments.items() if value in NULLS)
    arguments = arguments | dict.fromkeys(nulls.keys() - refused(arguments | nulls))
    texts = {key for key, value in arguments.items() if isinstance(value, str)}  # JSON has others
    for key in refused(arguments) & texts:
        text = CONSTANTS.get(arguments[key], arguments[key])
        with contextlib.suppress(_Wrong):
            value, end = _decode(text, 0)
            arguments[key] = value if end == len(text) else arguments[key]
    return arguments


def _schema(tool: ToolSpec) -> str:
    """The parameters of `tool` as JSON. Raises ConfigError if they are none."""
    try:
        return _dump(tool.parameters)
    except RecursionError:
        reason = "they are nested too deep"
    except (TypeError, ValueError) as error:  # a Python object, NaN or infinity
        reason = str(error)
    raise ConfigError(f"tool {tool.name!r}: its parameters are no JSON: {_error_line(reason)}")


@lru_cache(maxsize=1024)
def _validator(name: str, schema_json: str) -> Any:
    """The validator of a tool's arguments. A schema that does not mention additional arguments
    allows none.
    """
    from jsonschema import Draft202012Validator, validators
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    schema = json.loads(schema_json)
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise ConfigError(
            f"tool {name!r}: its parameters must be a JSON schema of type object, not"
            f" {schema_json:.80}"
        )
    schema = (
        {"type": "object"}
        | ({} if OPEN_ENDED & set(schema) else {"additionalProperties": False})
        | schema
    )
    schema.pop("$schema", None)
    try:
        # with its formats, of which regular expressions are one
        Draft202012Validator.check_schema(
            schema, format_checker=Draft202012Validator.FORMAT_CHECKER
        )
    except SchemaError as error:
        raise ConfigError(
            f"tool {name!r}: its parameters are no JSON schema: {_error_line(error.message)}"
        ) from None
    except RecursionError:
        raise ConfigError(f"tool {name!r}: its parameters are nested too deep") from None
    kind = validators.extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, {"uniqueItems": _unique_items}
    )
    return kind(schema, registry=Registry())


def _unique_items(validator: Any, is_unique: bool, instance: Any, _schema: object) -> Iterator[Any]:
    """The error of an array with equal items. jsonschema compares each item with each other one,
    which takes minutes for thousands of them.
    """
    from jsonschema.exceptions import ValidationError

    if not is_unique or not validator.is_type(instance, "array"):
        return
    seen = set()
    for item in instance:
        # 1.0 is 1 in a JSON schema, and true is not
        item_json = json.dumps(item)
        same = json.loads(item_json, parse_float=_number)
        seen.add(json.dumps(same, sort_keys=True))
    if len(seen) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _number(text: str) -> float | int:
    """A JSON number; an int where it has no fraction."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _problem(error: Any) -> str:
    """A jsonschema error in our words: which argument, and what is expected."""
    path = [str(part) for part in error.absolute_path]
    place = f"argument {_quote('.'.join(path))}" if path else "the arguments"
    properties = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        parameters = [
            f"{_quote('.'.join([*path, name]))} ({_type_text(properties.get(name))})"
            for name in missing
        ]
        return f"missing argument {', '.join(parameters)}"
    closed = error.validator == "additionalProperties" and error.validator_value is False
    if closed and "patternProperties" not in error.schema:
        extra = [
            _quote(".".join([*path, name])) for name in error.instance if name not in properties
        ]
        return (
            f"unknown argument {', '.join(extra[:MAX_PROBLEMS])}; expected"
            f" {', '.join(properties) or 'none'}"
        )
    if error.validator in ("type", "enum", "const"):
        expected = _type_text({error.validator: error.validator_value})
        return f"{place}: expected {expected}, found {_described(error.instance)}"
    return f"{place}: {error.message[:MAX_ERROR]}"


def _decode(text: str, start: int) -> tuple[Any, int]:
    """(the JSON value at `start`, the position after it and the white space). Raises _Wrong."""
    start = _skip(SPACE, text, start)
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        line = text.count("\n", start, error.pos) + 1
        column = error.pos - max(start, text.rfind("\n", start, error.pos) + 1) + 1
        near = _quote(text[error.pos :])
        raise _Wrong(
            f"invalid JSON at its line {line}, column {column}: {error.msg}; near {near}"
        ) from None
    except RecursionError:
        raise _Wrong(TOO_DEEP) from None
    except ValueError as error:
        raise _Wrong(f"invalid JSON: {error}") from None
    return _checked(value), _skip(SPACE, text, end)


def _checked(value: Any) -> Any:
    """`value`, which can be written as JSON. Raises _Wrong."""
    try:
        _dump(value).encode()  # no NaN, and no half of a surrogate pair
    except RecursionError:
        raise _Wrong(TOO_DEEP) from None
    except ValueError as error:
        raise _Wrong(f"invalid JSON: {error}") from None
    if _depth(value) > MAX_DEPTH + 1:
        raise _Wrong(TOO_DEEP)
    return value


def _depth(value: object) -> int:
    """How deep lists and objects are nested in `value`, with itself."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _skip(pattern: re.Pattern[str], text: str, position: int) -> int:
    """The position after the match of `pattern` at `position`."""
    match = pattern.match(text, position)
    return match.end() if match else position


def _type_text(schema: Any) -> str:
    """What a JSON schema allows, in short."""
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema or "const" in schema:
        return " | ".join(_dump(value) for value in schema.get("enum", [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(map(_type_text, schema[key]))
    kinds = schema.get("type", "any")
    if kinds == "array" and "items" in schema:
        return f"array of {_type_text(schema['items'])}"
    return kinds if isinstance(kinds, str) else " | ".join(kinds)


def _described(value: object) -> str:
    """The type and text of a JSON value."""
    names = {
        bool: "boolean",
        int: "integer",
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
    }
    return "null" if value is None else f"{names[type(value)]} {_quote(_dump(value), mark='')}"


def _quote(text: str, mark: str = "'", limit: int = 60) -> str:
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return f"{mark}{short}{mark}"


def _error_line(text: str) -> str:
    """`text` on one line of at most MAX_ERROR characters, all of them printable."""
    short = text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 1] + "…"
    return "".join(character if character.isprintable() else " " for character in short)


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
