"""What every `LiveStorage` must do, whatever memory it writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import LANE_COUNT, MASK_64, Lanes, Units, index_words, mix
from weightstore.layout.boxes import Box
from weightstore.receiver.live_extents import Extent, extent_of
from weightstore.receiver.live_storage import LiveStorage

WIDTHS = (1, 2, 4, 8)
MakeStorage = Callable[[Units], LiveStorage]


def random_units(width: int, count: int, seed: int = 0) -> Units:
    """Uniform bits."""
    top = 256**width
    rng = np.random.default_rng(seed)
    units: Units = rng.integers(0, top, count, np.dtype(f"u{width}"))
    return units


def plain_lanes(extent: Extent, memory: Units) -> Lanes:
    """The lanes of a part by the definition, unit by unit."""
    places = np.array([extent.base])
    indices = np.array([extent.first_index])
    for size, stride, index_stride in zip(
        extent.sizes, extent.strides, extent.index_strides, strict=True
    ):
        steps = np.arange(size)
        places = (places[:, None] + steps * stride).reshape(-1)
        indices = (indices[:, None] + steps * index_stride).reshape(-1)
    bits = memory[places].astype(np.uint64)
    sums = [
        int(np.sum(mix(bits ^ index_words(indices.astype(np.uint64), lane)), dtype=np.uint64))
        for lane in range(LANE_COUNT)
    ]
    return sums[0] & MASK_64, sums[1] & MASK_64


EXTENTS = {
    "all": extent_of((6, 10), Box.whole((6, 10)), 0, (10, 1)),
    "transposed": extent_of((10, 6), Box.whole((10, 6)), 0, (1, 10)),
    "every other": extent_of((3, 10), Box.whole((3, 10)), 10, (20, 1)),
    "columns": extent_of((6, 40), Box((0, 7), (6, 10)), 0, (10, 1)),
    "one column": extent_of((6, 40), Box((0, 7), (6, 1)), 3, (10, 1)),
    "a scalar": extent_of((), Box((), ()), 17, ()),
    "nothing": extent_of((0, 4), Box((0, 0), (0, 4)), 0, (4, 1)),
    "three dims": extent_of((2, 3, 5), Box((0, 1, 0), (2, 2, 5)), 1, (5, 20, 1)),
}


class LiveStorageContract:
    """Subclass, and give a fixture `make`: from bits to a storage that holds a copy of them."""

    @pytest.fixture
    def make(self) -> MakeStorage:
        """A function from bits to a storage that holds them."""
        raise NotImplementedError

    @pytest.mark.parametrize("width", WIDTHS)
    def test_it_says_how_large_it_is(self, make: MakeStorage, width: int) -> None:
        """Width and count are those of the bits."""
        storage = make(random_units(width, 60))
        assert (storage.width_bytes, storage.unit_count) == (width, 60)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_gather_reads_places_in_any_order(self, make: MakeStorage, width: int) -> None:
        """Also twice the same place, and none at all."""
        memory = random_units(width, 60)
        storage = make(memory)
        for places in ([3, 1, 59, 3], []):
            found = storage.gather(np.array(places, np.int64))
            assert found.dtype == memory.dtype
            assert np.array_equal(found, memory[np.array(places, np.int64)])

    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("redo", [False, True])
    def test_scatter_writes_and_counts_what_was_not_expected(
        self,
        make: MakeStorage,
        width: int,
        redo: bool,  # noqa: FBT001 -- a parameter of the test
    ) -> None:
        """Old bits are expected; new ones in a redo alone; anything else never."""
        memory = random_units(width, 200_000, 1)
        places = np.array([0, 7, 65_535, 65_536, 131_072, 199_999])
        old_bits, new_bits = memory[places].copy(), memory[places] ^ memory.dtype.type(5)
        memory[places[1]] = new_bits[1]
        memory[places[3]] ^= memory.dtype.type(2)
        storage = make(memory)
        change = BlockedChange.of(places, old_bits, new_bits)
        counts = storage.scatter(change, redo=redo)
        assert counts == (places.size, 1 if redo else 2)
        assert np.array_equal(storage.gather(places), new_bits)
        untouched = np.setdiff1d(np.arange(memory.size), places)
        assert np.array_equal(storage.gather(untouched), memory[untouched])

    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("name", EXTENTS)
    def test_lanes_count_each_unit_at_its_canonical_index(
        self, make: MakeStorage, width: int, name: str
    ) -> None:
        """In any layout the sum is that of the definition."""
        memory = random_units(width, 60, 2)
        extent = EXTENTS[name]
        assert make(memory).lanes(extent) == plain_lanes(extent, memory)

    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("name", EXTENTS)
    def test_what_was_written_is_read(self, make: MakeStorage, width: int, name: str) -> None:
        """And nothing else changes."""
        memory = random_units(width, 60, 3)
        extent = EXTENTS[name]
        storage = make(memory)
        units = random_units(width, extent.unit_count, 4)
        storage.write(extent, units)
        assert np.array_equal(storage.read(extent), units)
        _, places = extent.find(_all_indices(extent))
        rest = np.setdiff1d(np.arange(60), places)
        assert np.array_equal(storage.gather(rest), memory[rest])
        assert np.array_equal(storage.gather(places), units)

    @pytest.mark.parametrize("width", [2, 4])
    def test_no_bit_pattern_is_touched(self, make: MakeStorage, width: int) -> None:
        """NaNs of every payload, subnormals and both zeros arrive as they are."""
        patterns = (
            np.arange(65_536, dtype=np.uint16) if width == WIDTHS[1] else random_units(4, 65_536)
        )
        storage = make(np.zeros_like(patterns))
        places = np.arange(65_536)
        storage.scatter(BlockedChange.of(places, np.zeros_like(patterns), patterns), redo=False)
        assert np.array_equal(storage.gather(places), patterns)

    def test_arrays_that_may_not_be_written_are_read(self, make: MakeStorage) -> None:
        """A change in a read-only mapping is as good as any."""
        memory = random_units(2, 60)
        places = np.array([5, 6])
        arrays: list[NDArray[Any]] = [places, memory[places], memory[places] + np.uint16(1)]
        change = BlockedChange.of(arrays[0], arrays[1], arrays[2])
        for array in (change.block_starts, change.offsets, change.old_bits, change.new_bits):
            array.flags.writeable = False
        assert make(memory).scatter(change, redo=False) == (2, 0)


def _all_indices(extent: Extent) -> NDArray[np.int64]:
    firsts, length = extent.run_indices()
    return (firsts[:, None] + np.arange(length)).reshape(-1)
