"""Changes of one memory in windows: what is packed is what comes out, whole or in parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.codec.blocked import OFFSET_SIZE_BYTES, WINDOW_UNIT_COUNT, BlockedChange

PLACES = st.lists(
    st.integers(0, 5 * WINDOW_UNIT_COUNT)
    | st.sampled_from([65_535, 65_536, 65_537, 131_071, 131_072, 2**32, 2**40 + 7]),
    unique=True,
).map(sorted)


def change_of(places: list[int]) -> BlockedChange:
    bits = np.arange(len(places), dtype=np.uint16)
    return BlockedChange.of(np.array(places, np.int64), bits, bits + np.uint16(1))


@given(PLACES)
def test_places_come_back(places: list[int]) -> None:
    change = change_of(places)
    assert change.places().tolist() == places
    assert change.count == len(places)
    assert change.block_starts.size == len({place // WINDOW_UNIT_COUNT for place in places})
    assert change.block_starts.dtype == change.block_firsts.dtype == np.int64


@given(PLACES, st.integers(1, 400))
def test_parts_are_the_whole_in_order(places: list[int], size_bytes: int) -> None:
    change = change_of(places)
    parts = list(change.cut(size_bytes))
    assert [place for part in parts for place in part.places().tolist()] == places
    for field in ("old_bits", "new_bits"):
        joined = [bit for part in parts for bit in getattr(part, field).tolist()]
        assert joined == getattr(change, field).tolist()
    for part in parts:
        assert part.block_firsts[0] == 0
        is_small = part.count * part.unit_size_bytes <= size_bytes
        assert is_small or part.block_starts.size == 1


def test_a_large_part_takes_everything() -> None:
    change = change_of([1, 70_000, 200_000])
    assert len(list(change.cut(1 << 20))) == 1
    assert not list(change_of([]).cut(1 << 20))


def test_the_way_back_shares_the_arrays() -> None:
    change = change_of([1, 70_000])
    back = change.reversed()
    assert back.old_bits is change.new_bits
    assert back.new_bits is change.old_bits
    assert back.reversed().new_bits is change.new_bits


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_a_change_costs_two_bytes_and_its_bits_twice(width: int) -> None:
    places = np.arange(1000)
    bits = np.zeros(1000, f"u{width}")
    change = BlockedChange.of(places, bits, bits)
    assert change.unit_size_bytes == OFFSET_SIZE_BYTES + 2 * width
    windows_bytes = change.block_starts.nbytes + change.block_firsts.nbytes
    changes_bytes = change.offsets.nbytes + change.old_bits.nbytes + change.new_bits.nbytes
    assert change.size_bytes == windows_bytes + changes_bytes
