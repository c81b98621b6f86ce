"""Turns out-of-memory errors into one that says what to reduce. Recognises torch's errors by name and text, so that
torch is not imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from reflectkit.core.errors import ReflectkitError

NO_MEMORY = ("can't allocate memory", "not enough memory", "size calculation overflowed", "CUBLAS_STATUS_ALLOC_FAILED")


def out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that a CPU or GPU has too little memory left, or in total, for a request."""
    if isinstance(error, RuntimeError):
        return type(error).__name__ == "OutOfMemoryError" or any(words in str(error) for words in NO_MEMORY)
    return isinstance(error, MemoryError)


@contextlib.contextmanager
def memory_explained(advice: str) -> Iterator[None]:
    """Raises ReflectkitError, with `advice`, if memory runs out inside the context."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise ReflectkitError(f"out of memory; {advice}") from None
