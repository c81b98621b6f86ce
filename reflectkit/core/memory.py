"""Running out of memory, as an error that says what to lower. No torch is imported: its errors are known by name and
text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from reflectkit.core.errors import ReflectkitError

NO_MEMORY = ("can't allocate memory", "not enough memory", "size calculation overflowed", "CUBLAS_STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a CPU or a GPU has no memory left, or could never have as much as was asked for."""
    if isinstance(error, RuntimeError):
        return type(error).__name__ == "OutOfMemoryError" or any(words in str(error) for words in NO_MEMORY)
    return isinstance(error, MemoryError)


@contextlib.contextmanager
def memory_explained(advice: str) -> Iterator[None]:
    """Raises ReflectkitError, with `advice`, where memory runs out inside."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise ReflectkitError(f"out of memory; {advice}") from None
