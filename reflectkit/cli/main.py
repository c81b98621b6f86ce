"""`reflectkit`: runs the command line. `cli/app.py`, which has the commands, is imported only once Ctrl-C is handled.

Exit codes: 0 success, 1 internal error, 2 an error that the user can fix, 130 stopped by Ctrl-C, 141 closed pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from reflectkit.cli.app import run

        return run(command_line)
    except KeyboardInterrupt:  # during imports
        print("reflectkit: stopped", file=sys.stderr)
        return 130


def entry() -> None:
    """The console script."""
    try:
        code = main()
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)  # from here on Ctrl-C ends the process without a traceback
    except KeyboardInterrupt:  # pressed again
        code = 130
    sys.exit(code)
