"""Buffers as bytes, whatever their items and dims."""

from __future__ import annotations

import array

import numpy as np
import pytest

from weightstore.storage.buffers import byte_view


def test_every_contiguous_buffer_is_its_bytes() -> None:
    for array_ in (np.arange(6, dtype=np.uint16).reshape(2, 3), np.zeros((), np.uint32)):
        assert bytes(byte_view(array_.data)) == array_.tobytes()
    for shape in ((0,), (0, 3), (3, 0)):
        assert byte_view(np.zeros(shape, np.uint64).data).nbytes == 0
    assert byte_view(b"").nbytes == 0
    assert bytes(byte_view(array.array("q", [1, -1]))) == array.array("q", [1, -1]).tobytes()


def test_the_view_shares_the_memory() -> None:
    target = np.zeros(4, np.uint32)
    byte_view(target.data)[4] = 7
    assert target.tolist() == [0, 7, 0, 0]


def test_a_buffer_with_holes_is_refused() -> None:
    with pytest.raises((TypeError, BufferError)):
        byte_view(memoryview(bytes(10))[::2])
