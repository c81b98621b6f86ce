"""Keys of servers: they come from the environment and go into a header."""

from __future__ import annotations

import os

from reflectkit.core.errors import ConfigError


def header_text(name: str) -> str:
    """The environment variable `name`, which is sent in a header; "" where it is not set. Raises ConfigError."""
    text = os.environ.get(name, "")
    if not (text.isascii() and text.isprintable() and text == text.strip()):
        raise ConfigError(f"{name} holds spaces around it, or characters that it cannot have; set it again")
    return text
