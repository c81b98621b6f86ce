"""kill -9 at random moments until a command gets through, and the files that it leaves."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path


def run_with_kills(arguments: list[str], folder: Path, seed: int, kills: int, earliest_s: float, latest_s: float) -> None:
    """`reflectkit ARGUMENTS` in `folder`, killed `kills` times after random times, then left to end; it must end well."""
    chance = random.Random(seed)
    killed = 0
    while True:
        command = [sys.executable, "-m", "reflectkit", *arguments]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            process.wait(timeout=chance.uniform(earliest_s, latest_s) if killed < kills else 600)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
            continue
        break
    assert process.returncode == 0, process.stderr.read() if process.stderr else ""
    assert killed > 0


def hashes(folder: Path) -> dict[str, str]:
    """Digest of each file below `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
