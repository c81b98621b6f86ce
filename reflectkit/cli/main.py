"""`reflectkit`: runs the command line. Nothing is imported here before Ctrl-C is handled; the commands are in
`cli/app.py`.

Exit codes: 0 done, 1 internal error, 2 an error that the user can fix, 130 stopped by Ctrl-C, 141 nobody reads the
output.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from reflectkit.cli.app import run

        return run(given)
    except KeyboardInterrupt:  # while the modules were being imported
        print("reflectkit: stopped", file=sys.stderr)
        return 130


def entry() -> None:
    """The console script."""
    try:
        code = main()
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)  # from here on Ctrl-C ends the process without a traceback
    except KeyboardInterrupt:  # pressed once more
        code = 130
    sys.exit(code)
