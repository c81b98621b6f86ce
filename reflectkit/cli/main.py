"""`reflectkit`: runs the command line. `cli/app.py`, which has the commands, is imported only once
Ctrl-C is handled.

Exit codes: 0 success, 1 internal error, 2 an error that the user can fix, 141 closed pipe; stopped
by Ctrl-C 130, by SIGTERM, which clusters send before they kill, 143, and by a closed terminal
(SIGHUP) 129.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

STOPPED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from reflectkit.cli.app import run

        return run(command_line)
    except KeyboardInterrupt:  # during imports
        print("reflectkit: stopped", file=sys.stderr)
        return STOPPED


def entry() -> None:
    """The console script."""
    received: list[int] = []
    try:
        _stop_as_with_ctrl_c(received)
        code = main()
        # From here on Ctrl-C ends the process without a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:  # pressed again
        code = STOPPED
    sys.exit(128 + received[0] if received and code in (0, STOPPED) else code)


def _stop_as_with_ctrl_c(received: list[int]) -> None:
    """From now on, SIGTERM and SIGHUP stop the command as Ctrl-C does, and are added to `received`;
    a second one ends it at once. One that is ignored (nohup) stays so. A process of torchrun may
    wait for others and ends at once.
    """

    def stop(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        received.append(number)
        raise KeyboardInterrupt

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if (
            number is not None
            and signal.getsignal(number) is signal.SIG_DFL
            and "RANK" not in os.environ
        ):
            signal.signal(number, stop)
