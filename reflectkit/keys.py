"""What is sent to servers and read from them. Keys come from the environment, go into a header, and
are removed from every other text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from reflectkit.errors import ConfigError

MARK = "[key]"
PART = 8
"""Characters from which the beginning or end of a key is removed as well, since something else may
have cut it. A part from its middle is removed from twice as many.
"""
KEY_IN_PATH = re.compile(r"/(sk|pk|hf|gsk|xai|key|token|api-?key)[-_=][^/]{8,}", re.IGNORECASE)
"""What looks like a key in the path of an address."""
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "REFLECTKIT_TOKEN")
SECRET = re.compile("key|token|secret|password|credential", re.IGNORECASE)
"""In the names of environment variables that hold keys."""


def header_text(name: str) -> str:
    """The environment variable `name`, which is sent in a header; "" where it is not set. Raises
    ConfigError.
    """
    text = os.environ.get(name, "")
    if not (text.isascii() and text.isprintable() and text == text.strip()):
        raise ConfigError(
            f"{name} holds spaces around it, or characters that it cannot have; set it again"
        )
    return text


def check_address(name: str, address: str, key: str, example: str) -> None:
    """Raises ConfigError, without showing a password, if `address`, of flag or variable `name`, is
    not one of HTTP.

    key: the variable with the server's key. example: an address.
    """
    try:
        parts = urlsplit(address)  # drops line breaks, which a client would not
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        valid = valid and address.isprintable() and " " not in address
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{name} {address.rpartition('@')[2]!r}: write one like {example}")
    in_path = KEY_IN_PATH.search(parts.path) or any(
        len(text) >= 2 * PART and text in parts.path for text in secrets()
    )
    if parts.username or parts.password or parts.query or parts.fragment or in_path:
        raise ConfigError(
            f"{name} must not hold a user, key or query; put the key in the environment as {key}"
        )


def secrets() -> list[str]:
    """The keys that are set, of any service, which no text may hold; the longest first."""
    keys = {
        text for name, text in os.environ.items() if name.endswith("_API_KEY") or name in TOKENS
    }
    return sorted((key for key in keys if len(key) > 3), key=len, reverse=True)


def masked(text: str) -> str:
    """`text` with all keys replaced, and what is left of those that something else has cut. Call it
    before the text is cut.
    """
    for key in secrets():
        text = text.replace(key, MARK)
        starts = [*range(0, len(key) - PART, PART), len(key) - PART]
        for start in starts if len(key) > PART else ():
            text = _without_part(text, key, start)
    return text


def _without_part(text: str, key: str, start: int) -> str:
    """`text` with every part of `key` replaced that has the `PART` characters from `start` on."""
    pieces, end = [], 0
    while (place := text.find(key[start : start + PART], end)) >= 0:
        before = after = 0
        while (
            before < min(start, place - end) and text[place - before - 1] == key[start - before - 1]
        ):
            before += 1
        rest, following = key[start + PART :], text[place + PART : place + len(key)]
        while after < min(len(rest), len(following)) and rest[after] == following[after]:
            after += 1
        pieces += [text[end : place - before], MARK]
        end = place + PART + after
    return "".join([*pieces, text[end:]])


@cache
def hide_environment() -> None:
    """Overwrite the keys in the environment that this process was started with, which programs of
    the same user can read (on Linux in /proc). `os.environ` keeps them.
    """
    names = list(filter(SECRET.search, os.environ))
    if not names or os.name != "posix":
        return
    import ctypes

    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    for name in names:
        value = os.environ[name]
        address = library.getenv(os.fsencode(name))
        if address:
            ctypes.memset(address, ord("x"), len(ctypes.string_at(address)))
        os.environ[name] = value  # a copy elsewhere


MOST_CHARACTERS = 300
"""Characters of a message of a server that are shown."""


def redacted(text: str) -> str:
    """The beginning of `text` on one line, without keys."""
    return " ".join(masked(text).split())[:MOST_CHARACTERS]


PLAIN = {"Accept-Encoding": "identity"}
"""The header that asks for a body that is not compressed."""


def encoding_fault(headers: Mapping[str, str]) -> str:
    """What is wrong with the encoding of a response's body, which is then not to be read; "" if
    nothing is.

    >>> encoding_fault({}), encoding_fault({"content-encoding": "identity"})
    ('', '')
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return ""
    return (
        f"the body is encoded ({masked(encoding):.40}), though none was asked for; switch"
        " compression off there"
    )


async def read_body(response: Any, most: int) -> tuple[bytes, str]:
    """(the body of a response of httpx2, why it cannot be used or ""). A compressed one is not
    read, as a few bytes can fill the memory, and of a longer one only the beginning. most: bytes.
    """
    # A few compressed bytes can fill the memory
    if fault := encoding_fault(response.headers):
        return b"", fault
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk[: most + 1 - len(body)]
        if len(body) > most:
            return bytes(body), f"the server's answer is longer than {most:,} bytes"
    return bytes(body), ""
