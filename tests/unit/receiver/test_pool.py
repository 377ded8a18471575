"""The pool: bounded, aligned, and given back all at once."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.receiver.pool import SLACK_BYTES, Pool, PoolFullError


def test_arrays_lie_apart_and_aligned() -> None:
    pool = Pool.of_size(1000)
    arrays = [pool.take(3, np.uint16), pool.take(5, np.int64), pool.take(1, np.uint8)]
    for number, array in enumerate(arrays):
        assert array.ctypes.data % SLACK_BYTES == 0
        array[:] = number + 1
    assert [array.tolist() for array in arrays] == [[1] * 3, [2] * 5, [3]]


def test_exactly_its_size_fits() -> None:
    for size_bytes in (0, 1, 63, 64, 100):
        pool = Pool.of_size(size_bytes)
        assert pool.size_bytes == size_bytes
        assert pool.take(size_bytes, np.uint8).size == size_bytes
        pool.clear()
        with pytest.raises(PoolFullError):
            pool.take(size_bytes + 1, np.uint8)
        assert pool.used_bytes == 0


def test_what_was_taken_comes_back() -> None:
    pool = Pool.of_size(128)
    first = pool.take(128, np.uint8)
    with pytest.raises(PoolFullError):
        pool.take(1, np.uint8)
    pool.clear()
    assert np.shares_memory(pool.take(10, np.uint8), first)
