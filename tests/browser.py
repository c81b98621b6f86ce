"""A headless Chromium for tests, spoken to over its DevTools pipe: no package beyond the browser itself."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 30.0


def find() -> str | None:
    """Where a Chromium is, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page. dialogs: what was alerted; requests: what the page asked for; errors: what its console complains of."""

    def __init__(self, receive: int, send: int) -> None:
        self.receive, self.send, self.held, self.count = receive, send, b"", 0
        self.dialogs: list[str] = []
        self.requests: list[str] = []
        self.errors: list[str] = []
        os.set_blocking(receive, False)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session: str | None = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    session = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser, and hear what happens meanwhile."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        os.write(
            self.send, json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode() + b"\0"
        )
        while True:
            heard = self._next()
            if heard.get("id") == self.count:
                assert "error" not in heard, heard
                return dict(heard["result"])
            self._hear(heard.get("method", ""), heard.get("params", {}))

    def open(self, url: str, dark: bool = False, width: int = 1280) -> int:
        """Open the page; returns how many milliseconds after its request it was ready."""
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=colours)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=860, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url="about:blank")
        self.requests.clear()
        self.errors.clear()
        self.call("Page.navigate", url=url)
        return int(self.wait("document.documentElement?.dataset.ready"))

    def do(self, expression: str) -> Any:
        """What the JavaScript `expression` comes to."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """What `expression` comes to, as soon as that is something."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.do(expression)):
            assert time.monotonic() < deadline, f"{expression} came to {value!r}; {self.errors}"
            time.sleep(0.02)
        return value

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self.held:
            assert time.monotonic() < deadline, "the browser does not answer"
            with contextlib.suppress(BlockingIOError):
                part = os.read(self.receive, 2**16)
                assert part, "the browser is gone"
                self.held += part
                continue
            time.sleep(0.005)
        message, self.held = self.held.split(b"\0", 1)
        return dict(json.loads(message))

    def _hear(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.javascriptDialogOpening":
            self.dialogs.append(told["message"])
            self.count += 1
            message = {"id": self.count, "method": "Page.handleJavaScriptDialog", "params": {"accept": False}}
            os.write(self.send, json.dumps(message | {"sessionId": self.session}).encode() + b"\0")
        elif event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(str(told["exceptionDetails"]))
        elif event == "Log.entryAdded":
            self.errors.append(told["entry"]["text"])


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Browser]:
    """A browser whose settings lie in `profile`, and that is gone when the context ends."""
    theirs_in, send = os.pipe()
    receive, theirs_out = os.pipe()

    def connect() -> None:  # the browser reads from 3 and writes to 4
        os.dup2(theirs_in, 100)
        os.dup2(theirs_out, 101)
        os.dup2(100, 3)
        os.dup2(101, 4)

    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    command = [str(find()), *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4), preexec_fn=connect
    ) as process:
        try:
            os.close(theirs_in)
            os.close(theirs_out)
            yield Browser(receive, send)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            os.close(send)
            os.close(receive)
