"""Whether a learner learns: small games of many kinds, their optimum, and a score for every player."""

from __future__ import annotations

import sys
from collections.abc import Callable

from reflectkit.errors import ReflectkitError


def run_command(main: Callable[[], int]) -> None:
    """Exit with what `main` returns; Ctrl-C and errors of reflectkit end it with one line."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; the same command resumes")
    except ReflectkitError as error:
        sys.exit(str(error))
