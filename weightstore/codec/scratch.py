"""Arrays that a worker uses again for every piece, so that pages are faulted in once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Scratch:
    """Named buffers that grow and are never given back. One thread at a time."""

    def __init__(self) -> None:
        self._buffers: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Give an array of `count` entries, with whatever was in it before.

        Two arrays of one name share memory: the second ends the use of the first.
        """
        size_bytes = count * np.dtype(dtype).itemsize
        buffer = self._buffers.get(name)
        if buffer is None or buffer.size < size_bytes:
            buffer = np.empty(1 << max(12, (size_bytes - 1).bit_length()), dtype=np.uint8)
            self._buffers[name] = buffer
        return buffer[:size_bytes].view(dtype)
