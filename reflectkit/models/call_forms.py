"""Forms of calls that belong to one family of models each: written here, and read here where
arguments are tags, else by the parser of transformers, which also describes functions as tools.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from reflectkit import tools
from reflectkit.tools import CallForm
from reflectkit.types import ToolSpec


def tool_of(function: Callable[..., Any]) -> ToolSpec:
    """A function as a tool, from its type hints and docstring. Raises ValueError where these do not
    describe it.
    """
    from transformers.utils import chat_template_utils

    @functools.wraps(function)
    def described(*arguments: Any, **keywords: Any) -> Any:
        """Without the type of what it returns, which only type checkers may know."""

    described.__annotations__ = {
        name: hint for name, hint in function.__annotations__.items() if name != "return"
    }
    try:
        with _torch_unneeded(chat_template_utils):
            schema = chat_template_utils.get_json_schema(described)["function"]
    except Exception as error:  # there is one for each part of a docstring
        # The library's own advice follows, in long sentences
        reason = re.split(r", likely|\. Supported", " ".join(str(error).split()))[0]
        raise ValueError(f"{reason:.200}") from None
    return ToolSpec(schema["name"], schema["description"], schema["parameters"])


@contextlib.contextmanager
def _torch_unneeded(module: Any) -> Iterator[None]:
    """In the block, `module` of transformers imports torch only if it is loaded already: it would
    import it, for seconds, to see whether a type hint is a tensor.
    """
    available = module.is_torch_available
    module.is_torch_available = lambda: "torch" in sys.modules
    try:
        yield
    finally:
        module.is_torch_available = available


Calls = tuple[list[tuple[str, dict[str, Any]]], int]
"""The name and the arguments of each call at the beginning of a text, and where they end."""

CALL = {"name": "{name}", "arguments": "{content}"}
NAME = rf"(?P<name>{tools.NAME})"


def _tagged(
    opener: str,
    head: str,
    key: str,
    end: str,
    tail: str,
    closer: str,
) -> Callable[[str], Calls]:
    """Reads calls whose arguments are tags with text, and nothing else.

    opener, closer: around the calls. head, tail: around the arguments of each. key, end: around a
    value, which does not contain how a key begins.
    """
    value = rf"(?P<value>(?:(?!{key.split('(')[0]}).)*?)"
    opens, begins, ends, closes = map(
        re.compile, (opener, rf"\s*{head}", rf"\s*{tail}", rf"\s*{closer}")
    )
    argument = re.compile(rf"\s*{key}{value}{end}", re.DOTALL)

    def past(
        pattern: re.Pattern[str],
        text: str,
        position: int,
    ) -> int:
        if end := pattern.match(text, position):
            return end.end()
        rest = text[position:].strip()
        raise ValueError(f"{rest[:20]!r} in the wrong place" if rest else "it has no end")

    def read(text: str) -> Calls:
        # Each call: its name, then tags until its tail
        calls = []
        position = past(opens, text, 0)
        while name := begins.match(text, position):
            arguments: dict[str, Any] = {}
            position = name.end()
            while tag := argument.match(text, position):
                if tag["key"] in arguments:
                    raise ValueError(f"{tag['key']} is given twice")
                arguments[tag["key"]] = tag["value"]
                position = tag.end()
            position = past(ends, text, position)
            calls.append((name["name"], arguments))
        return calls, past(closes if calls else begins, text, position)

    return read


def _reader(call: dict[str, Any], end: str) -> Callable[[str], Calls]:
    """Reads with the parser of transformers. call: a field of its response templates. end: where it
    ends.
    """
    closes = re.compile(end)

    def read(text: str) -> Calls:
        from transformers.utils.chat_parsing import parse_response

        closed = closes.search(text)
        if closed is None:
            raise ValueError("it has no end")
        template = {"start_anchor": "\0", "fields": {"calls": call}}
        calls = parse_response(text[: closed.end()], template, prefix="").get("calls", [])
        if not calls:
            raise ValueError("its beginning is not as it must be")
        listed = calls if isinstance(calls, list) else [calls]
        return [(each["name"], each["arguments"]) for each in listed], closed.end()

    return read


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _text(value: object) -> str:
    """An argument in a tag, where a string has no quotes."""
    return value if isinstance(value, str) else _json(value)


def _python_text(value: object) -> str:
    """The same, as Jinja writes it: True, None."""
    return str(value) if value is None or isinstance(value, bool) else _text(value)


def _function(
    name: str,
    arguments: dict[str, Any],
    number: int,
) -> str:
    tags = "".join(
        f"<parameter={key}>\n{_python_text(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"


def _arg_key(
    name: str,
    arguments: dict[str, Any],
    number: int,
) -> str:
    pairs = arguments.items()
    tags = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n" for key, value in pairs
    )
    return f"<tool_call>{name}\n{tags}</tool_call>"


def _python(
    name: str,
    arguments: dict[str, Any],
    number: int,
) -> str:
    def literal(value: object) -> str:
        if isinstance(value, str):
            return "'" + _json(value)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
        return _json(value) if isinstance(value, dict | list) else str(value)

    return f"{name}({', '.join(f'{key}={literal(value)}' for key, value in arguments.items())})"


def _gemma(
    name: str,
    arguments: dict[str, Any],
    number: int,
) -> str:
    def literal(value: object) -> str:
        if isinstance(value, str):
            return f'<|"|>{value}<|"|>'
        if isinstance(value, dict):
            pairs = sorted(value.items(), key=lambda pair: pair[0].lower())
            return "{" + ",".join(f"{key}:{literal(inner)}" for key, inner in pairs) + "}"
        return f"[{','.join(map(literal, value))}]" if isinstance(value, list) else _json(value)

    return f"<|tool_call>call:{name}{literal(arguments)}<tool_call|>"


def _harmony(
    name: str,
    arguments: dict[str, Any],
    number: int,
) -> str:
    header = "<|start|>assistant" if number else ""
    return (
        f"{header} to=functions.{name}<|channel|>commentary"
        f" json<|message|>{_json(arguments)}<|call|>"
    )


def _atem(
    name: str,
    arguments: dict[str, Any],
    number: int,
) -> str:
    header = "<|eom|><|start|>assistant" if number else ""
    tags = "".join(
        f'<atem:parameter name="{key}">{_text(value)}</atem:parameter>\n'
        for key, value in arguments.items()
    )
    invoked = f'<atem:invoke name="{name}">\n{tags}</atem:invoke>'
    return f"{header} to={name}<|message|><atem:function_calls>\n{invoked}\n</atem:function_calls>"


CALL_FORMS = (
    CallForm(  # Qwen3.5 to 3.8, Nemotron 3
        name="function",
        sign=r"<function=",
        begins=r"<tool_call>",
        write=_function,
        between="\n",
        read=_tagged(
            opener="<tool_call>",
            head=rf"<function={NAME}>",
            key=r"<parameter=(?P<key>[^>\n]+)>\n?",
            end=r"\n?</parameter>",
            tail="(?:</function>)?",
            closer="</tool_call>",
        ),
        marks=("<tool_call>", "</tool_call>", "</function>", "</parameter>"),
    ),
    CallForm(  # GLM
        name="arg_key",
        sign=r"<arg_key>",
        begins=r"<tool_call>",
        write=_arg_key,
        between="\n",
        read=_tagged(
            opener="<tool_call>",
            head=rf"{NAME}(?=\s*<)",
            key=r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>",
            end="</arg_value>",
            tail="",
            closer="</tool_call>",
        ),
        marks=(
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ),
        stops=("<|user|>", "<|observation|>"),
    ),
    CallForm(  # LFM2 and 2.5; the first template of LFM2 shows no calls in parts
        name="python",
        sign=r"<\|tool_(?:list|call)_start\|>",
        begins=r"<\|tool_call_start\|>",
        write=_python,
        between=", ",
        around=("<|tool_call_start|>[", "]<|tool_call_end|>"),
        read=_reader(
            {
                "open": "<|tool_call_start|>",
                "close": "<|tool_call_end|>",
                "content": "python-call-list",
            },
            end=r"<\|tool_call_end\|>",
        ),
        marks=("<|tool_call_start|>", "<|tool_call_end|>"),
        typed=True,
        parts=False,
    ),
    CallForm(  # Gemma 4
        name="gemma",
        sign=r"<\|tool_call>call:",
        begins=r"<\|tool_call>",
        write=_gemma,
        read=_reader(
            {
                "open_pattern": rf"<\|tool_call>call:{NAME}",
                "close": "<tool_call|>",
                "content": "json",
                "content_args": {"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
                "transform": CALL,
            },
            end=r"<tool_call\|>",
        ),
        marks=("<|tool_call>", "<tool_call|>", '<|"|>'),
        thought=("<|channel>thought", "<channel|>"),
        stops=("<turn|>", "<|tool_response>"),
        typed=True,
        results_need_calls=True,
    ),
    CallForm(  # GPT-OSS
        name="harmony",
        sign=r"to=functions\.",
        begins=r"(?:<\|channel\|>commentary)?\s*to=functions\.",
        write=_harmony,
        read=_reader(
            {
                "open_pattern": rf"to=functions\.{NAME}\s*(?:<\|channel\|>commentary)?[^{{}}]{{0,40}}<\|message\|>",
                "close_pattern": r"<\|(?:call|end)\|>",
                "content": "json",
                "transform": CALL,
            },
            end=r"<\|(?:call|end)\|>|\Z",
        ),
        marks=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>"),
        thought=("<|channel|>analysis<|message|>", "<|end|>"),
        headers=r"<\|start\|>assistant|<\|channel\|>\w+|<\|message\|>|<\|end\|>",
        stops=("<|call|>", "<|return|>"),
        typed=True,
        results_need_calls=True,
    ),
    CallForm(  # Muse Glimmer
        name="atem",
        sign=r"<atem:invoke ",
        begins=r"<atem:invoke ",
        write=_atem,
        read=_tagged(
            opener="",
            head=rf'<atem:invoke name="{NAME}">',
            key=r'<atem:parameter name="(?P<key>[^"\n]+)">',
            end="</atem:parameter>",
            tail="</atem:invoke>",
            closer="",
        ),
        marks=(
            "<|start|>",
            "<|message|>",
            "<|eom|>",
            "<atem:function_calls>",
            "</atem:function_calls>",
            "</atem:parameter>",
            "</atem:invoke>",
        ),
        thought=("to=self<|message|>", "<|eom|>"),
        headers=r"(?:<\|start\|>assistant)?\s*to=[\w.:-]+<\|message\|>|<\|start\|>assistant|<\|eom\|>|<atem:function_calls>",
        stops=("<|eot|>",),
        results_need_calls=True,
    ),
)
