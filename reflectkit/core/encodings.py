"""Bodies of HTTP responses are read only as they are: of a compressed one, a few bytes can fill the memory."""

from __future__ import annotations

from collections.abc import Mapping

from reflectkit.core.keys import masked

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
