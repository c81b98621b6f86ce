"""What is sent to servers and read from them. Keys come from the environment, go into a header, and are removed from
every other text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from reflectkit.errors import ConfigError

MARK = "[key]"
PART = 8
"""Characters from which the beginning or end of a key is removed as well, since something else may have cut it."""


def header_text(name: str) -> str:
    """The environment variable `name`, which is sent in a header; "" where it is not set. Raises ConfigError."""
    text = os.environ.get(name, "")
    if not (text.isascii() and text.isprintable() and text == text.strip()):
        raise ConfigError(f"{name} holds spaces around it, or characters that it cannot have; set it again")
    return text


def check_address(name: str, address: str, key: str, example: str) -> None:
    """Raises ConfigError, without showing a password, if `address`, of flag or variable `name`, is not one of HTTP.

    key: the variable with the server's key. example: an address.
    """
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{name} {address.rpartition('@')[2]!r}: write one like {example}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(f"{name} must not hold a user, key or query; put the key in the environment as {key}")


def secrets() -> list[str]:
    """The keys that are set, of any service, which no text may hold; the longest first."""
    keys = {text for name, text in os.environ.items() if name.endswith("_API_KEY") or name == "HF_TOKEN"}
    return sorted((key for key in keys if len(key) > 3), key=len, reverse=True)


def without_keys(text: str) -> str:
    """An answer with all keys replaced, also one that is cut off at the text's beginning or end."""
    for key in secrets():
        text = text.replace(key, MARK)
        for length in range(len(key) - 1, PART - 1, -1):
            if text.endswith(key[:length]):
                text = text[:-length] + MARK
            if text.startswith(key[-length:]):
                text = MARK + text[length:]
    return text


def masked(text: str) -> str:
    """A message with all keys replaced, and their beginnings and ends anywhere in it. Call it before the message is
    cut.
    """
    for key in secrets():
        text = text.replace(key, MARK)
        if len(key) > PART and (key[:PART] in text or key[-PART:] in text):
            for length in range(len(key) - 1, PART - 1, -1):
                text = text.replace(key[:length], MARK).replace(key[-length:], MARK)
    return text


SHOWN = 300
"""Characters of a message of a server that are shown."""


def redacted(text: str) -> str:
    """The beginning of `text` on one line, without keys."""
    return " ".join(masked(text).split())[:SHOWN]


PLAIN = {"Accept-Encoding": "identity"}
"""The header that asks for a body that is not compressed."""


def encoding_fault(headers: Mapping[str, str]) -> str:
    """What is wrong with the encoding of a response's body, which is then not to be read; "" if nothing is.

    >>> encoding_fault({}), encoding_fault({"content-encoding": "identity"})
    ('', '')
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return ""
    return f"the body is encoded ({masked(encoding):.40}), though none was asked for; switch compression off there"


async def read_body(response: Any, most: int) -> tuple[bytes, str]:
    """(the body of a response of httpx2, why it cannot be used or ""). A compressed one is not read, as a few bytes can
    fill the memory, and of a longer one only the beginning. most: bytes.
    """
    if fault := encoding_fault(response.headers):
        return b"", fault
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk[: most + 1 - len(body)]
        if len(body) > most:
            return bytes(body), f"the server's answer is longer than {most:,} bytes"
    return bytes(body), ""
