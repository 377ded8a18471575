"""The memory that staged changes wait in: taken once, so that no step has to ask for more."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

SLACK_BYTES = 64
"""Every array begins at a multiple of this."""


class PoolFullError(Exception):
    """What is to be staged does not fit; the caller takes another way."""


class Pool:
    """Arrays out of one buffer, given back all at once.

    Pages that were never used cost nothing: the system gives them on the first write.

    Attributes:
        used_bytes: In use now.

    Args:
        buffer: The memory, with `SLACK_BYTES` more than shall fit; pinned where a device
            copies from it.
    """

    def __init__(self, buffer: NDArray[np.uint8]) -> None:
        start = -buffer.ctypes.data % SLACK_BYTES
        self._buffer = buffer[start : start + buffer.size - SLACK_BYTES]
        self.used_bytes = 0

    @classmethod
    def of_size(cls, size_bytes: int) -> Pool:
        """A pool in ordinary memory."""
        return cls(np.empty(size_bytes + SLACK_BYTES, np.uint8))

    @property
    def size_bytes(self) -> int:
        """Bytes that fit."""
        return self._buffer.size

    @property
    def free_bytes(self) -> int:
        """Bytes that still fit."""
        return self._buffer.size - self.used_bytes

    def take(self, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """An array of `count` entries, with whatever was in it before.

        Raises:
            PoolFullError: it does not fit; nothing was taken.
        """
        size_bytes = count * np.dtype(dtype).itemsize
        end = self.used_bytes + size_bytes
        if end > self._buffer.size:
            raise PoolFullError
        found = self._buffer[self.used_bytes : end].view(dtype)
        self.used_bytes = min(end + -end % SLACK_BYTES, self._buffer.size)
        return found

    def clear(self) -> None:
        """Take all arrays back; whoever holds one must not use it any more."""
        self.used_bytes = 0
