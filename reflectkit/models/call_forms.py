"""Forms of calls that belong to one family of models each: written here, read by the parser of transformers, which also
describes functions as tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from reflectkit import tools
from reflectkit.tools import CallForm
from reflectkit.types import ToolSpec


def tool_of(function: Callable[..., Any]) -> ToolSpec:
    """A function as a tool, from its type hints and docstring. Raises ValueError where these do not describe it."""
    from transformers.utils import get_json_schema

    try:
        schema = get_json_schema(function)["function"]
    except Exception as error:  # there is one for each part of a docstring
        raise ValueError(f"{' '.join(str(error).split()):.200}") from None
    return ToolSpec(schema["name"], schema["description"], schema["parameters"])


def _tagged(begin: str, key: str, end: str) -> Callable[[str], list[tuple[str, dict[str, Any]]]]:
    """Reads a call whose arguments are tags with text. begin: of the call. key, end: around a value, which does
    not contain how a key begins.
    """
    value = rf"(?P<value>(?:(?!{key.split('(')[0]}).)*?)"
    arguments = {"content": "xml-inline", "content_args": {"tag_pattern": f"{key}{value}{end}"}}
    return _reader({"open_pattern": begin, "transform": CALL, **arguments})


CALL = {"name": "{name}", "arguments": "{content}"}
NAME = rf"(?P<name>{tools.NAME})"


def _reader(call: dict[str, Any]) -> Callable[[str], list[tuple[str, dict[str, Any]]]]:
    """Reads with the parser of transformers. call: a field of its response templates."""

    def read(text: str) -> list[tuple[str, dict[str, Any]]]:
        from transformers.utils.chat_parsing import parse_response

        template = {"start_anchor": "\0", "fields": {"calls": call}}
        calls = parse_response(text, template, prefix="").get("calls", [])
        return [(one["name"], one["arguments"]) for one in (calls if isinstance(calls, list) else [calls])]

    return read


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _text(value: object) -> str:
    """An argument in a tag, where a string has no quotes."""
    return value if isinstance(value, str) else _json(value)


def _python_text(value: object) -> str:
    """The same, as Jinja writes it: True, None."""
    return str(value) if value is None or isinstance(value, bool) else _text(value)


def _function(name: str, arguments: dict[str, Any], number: int) -> str:
    tags = "".join(f"<parameter={key}>\n{_python_text(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"


def _arg_key(name: str, arguments: dict[str, Any], number: int) -> str:
    pairs = arguments.items()
    tags = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n" for key, value in pairs)
    return f"<tool_call>{name}\n{tags}</tool_call>"


def _python(name: str, arguments: dict[str, Any], number: int) -> str:
    def literal(value: object) -> str:
        if isinstance(value, str):
            return "'" + _json(value)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
        return _json(value) if isinstance(value, dict | list) else str(value)

    return f"{name}({', '.join(f'{key}={literal(value)}' for key, value in arguments.items())})"


def _gemma(name: str, arguments: dict[str, Any], number: int) -> str:
    def literal(value: object) -> str:
        if isinstance(value, str):
            return f'<|"|>{value}<|"|>'
        if isinstance(value, dict):
            pairs = sorted(value.items(), key=lambda pair: pair[0].lower())
            return "{" + ",".join(f"{key}:{literal(inner)}" for key, inner in pairs) + "}"
        return f"[{','.join(map(literal, value))}]" if isinstance(value, list) else _json(value)

    return f"<|tool_call>call:{name}{literal(arguments)}<tool_call|>"


def _harmony(name: str, arguments: dict[str, Any], number: int) -> str:
    header = "<|start|>assistant" if number else ""
    return f"{header} to=functions.{name}<|channel|>commentary json<|message|>{_json(arguments)}<|call|>"


def _atem(name: str, arguments: dict[str, Any], number: int) -> str:
    header = "<|eom|><|start|>assistant" if number else ""
    tags = "".join(
        f'<atem:parameter name="{key}">{_text(value)}</atem:parameter>\n' for key, value in arguments.items()
    )
    invoked = f'<atem:invoke name="{name}">\n{tags}</atem:invoke>'
    return f"{header} to={name}<|message|><atem:function_calls>\n{invoked}\n</atem:function_calls>"


CALL_FORMS = (
    CallForm(  # Qwen3.5 to 3.8, Nemotron 3
        name="function",
        sign=r"<function=",
        begins=r"<tool_call>",
        ends="</tool_call>",
        write=_function,
        between="\n",
        read=_tagged(rf"<tool_call>\s*<function={NAME}>", r"<parameter=(?P<key>[^>\n]+)>\n?", r"\n?</parameter>"),
        marks=("<tool_call>", "</function>", "</parameter>"),
    ),
    CallForm(  # GLM
        name="arg_key",
        sign=r"<arg_key>",
        begins=r"<tool_call>",
        ends="</tool_call>",
        write=_arg_key,
        between="\n",
        read=_tagged(rf"<tool_call>\s*{NAME}", r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>", "</arg_value>"),
        marks=("<tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        stops=("<|user|>", "<|observation|>"),
    ),
    CallForm(  # LFM2 and 2.5; the first template of LFM2 shows no calls in parts
        name="python",
        sign=r"<\|tool_(?:list|call)_start\|>",
        begins=r"<\|tool_call_start\|>",
        ends="<|tool_call_end|>",
        write=_python,
        between=", ",
        around=("<|tool_call_start|>[", "]<|tool_call_end|>"),
        read=_reader({"open": "<|tool_call_start|>", "close": "<|tool_call_end|>", "content": "python-call-list"}),
        marks=("<|tool_call_start|>",),
        typed=True,
        parts=False,
    ),
    CallForm(  # Gemma 4
        name="gemma",
        sign=r"<\|tool_call>call:",
        begins=r"<\|tool_call>",
        ends="<tool_call|>",
        write=_gemma,
        read=_reader(
            {
                "open_pattern": rf"<\|tool_call>call:{NAME}",
                "close": "<tool_call|>",
                "content": "json",
                "content_args": {"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
                "transform": CALL,
            }
        ),
        marks=("<|tool_call>", '<|"|>'),
        thought=("<|channel>thought", "<channel|>"),
        stops=("<turn|>", "<|tool_response>"),
        typed=True,
        results_need_calls=True,
    ),
    CallForm(  # GPT-OSS
        name="harmony",
        sign=r"to=functions\.",
        begins=r"(?:<\|channel\|>commentary)?\s*to=functions\.",
        ends="}",
        write=_harmony,
        read=_reader(
            {
                "open_pattern": rf"to=functions\.{NAME}\s*(?:<\|channel\|>commentary)?[^{{}}]{{0,40}}<\|message\|>",
                "close_pattern": r"<\|(?:call|end)\|>",
                "content": "json",
                "transform": CALL,
            }
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
        ends="</atem:invoke>",
        write=_atem,
        read=_tagged(rf'<atem:invoke name="{NAME}">', r'<atem:parameter name="(?P<key>[^"\n]+)">', "</atem:parameter>"),
        marks=(
            "<|start|>",
            "<|message|>",
            "<|eom|>",
            "<atem:function_calls>",
            "</atem:function_calls>",
            "</atem:parameter>",
        ),
        thought=("to=self<|message|>", "<|eom|>"),
        headers=r"(?:<\|start\|>assistant)?\s*to=[\w.:-]+<\|message\|>|<\|start\|>assistant|<\|eom\|>|<atem:function_calls>",
        stops=("<|eot|>",),
        results_need_calls=True,
    ),
)
