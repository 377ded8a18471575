"""Buffers that are used again."""

from __future__ import annotations

import numpy as np

from weightstore.codec.scratch import Scratch


def test_an_array_has_the_size_and_dtype_asked_for() -> None:
    scratch = Scratch()
    for count in (0, 1, 4096, 5000, 3):
        for dtype in (np.uint8, np.uint16, np.uint64):
            taken = scratch.take("a", count, dtype)
            assert taken.shape == (count,)
            assert taken.dtype == dtype
            assert taken.flags.aligned


def test_one_name_is_one_memory_and_two_names_are_two() -> None:
    scratch = Scratch()
    first, again, other = (scratch.take(name, 10, np.uint8) for name in ("a", "a", "b"))
    assert np.shares_memory(first, again)
    assert not np.shares_memory(first, other)


def test_a_smaller_array_does_not_give_memory_up() -> None:
    scratch = Scratch()
    large = scratch.take("a", 100_000, np.uint8)
    scratch.take("a", 1, np.uint8)
    assert np.shares_memory(large, scratch.take("a", 100_000, np.uint8))
