"""Whether a block closes the descriptors that it opens."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def all_files_closed() -> Iterator[None]:
    """Let a block leave as many descriptors open as there were.

    The garbage collector neither helps the block nor closes in the middle of it what other tests
    have left behind.

    Raises:
        AssertionError: there are more, or fewer.
    """
    is_collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    before = _open_count()
    try:
        yield
        assert _open_count() == before, "descriptors are left, or were closed by others"
    finally:
        if is_collecting:
            gc.enable()


def _open_count() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- names alone
