"""What the tests' HTTP servers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any


class QuietHandler(BaseHTTPRequestHandler):
    """Keeps connections open, logs nothing, and minds no client that hangs up."""

    protocol_version = "HTTP/1.1"

    def send(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Answer with `content`, as JSON of its own length unless `headers` say otherwise."""
        self.send_response(status)
        usual = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        for name, value in {**usual, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def handle(self) -> None:
        """As the base, until the client hangs up."""
        with suppress(OSError):
            super().handle()
