"""Changes of one flat memory, packed for one pass over it: windows, offsets, bits before and after.

A position costs two bytes: its offset in a window of 65,536 units. A window that has changes
costs sixteen more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.lanes import Units

WINDOW_UNIT_COUNT = 1 << 16
_OFFSET_BITS = 16
OFFSET_SIZE_BYTES = 2
WINDOW_SIZE_BYTES = 16


@dataclass(frozen=True, slots=True, eq=False)
class BlockedChange:
    """Changes of different units of one memory.

    Attributes:
        block_starts: First unit of each window; int64.
        block_firsts: Where each window's changes begin, and the end; int64, one more.
        offsets: Unit within its window of each change; uint16.
        old_bits: What each unit holds before.
        new_bits: What it holds afterwards.
    """

    block_starts: NDArray[np.int64]
    block_firsts: NDArray[np.int64]
    offsets: NDArray[np.uint16]
    old_bits: Units
    new_bits: Units

    @classmethod
    def of(cls, places: NDArray[np.int64], old_bits: Units, new_bits: Units) -> BlockedChange:
        """Pack changes of the units at `places`, which rise strictly."""
        windows = places >> _OFFSET_BITS
        firsts = np.flatnonzero(np.diff(windows, prepend=-1))
        return cls(
            windows[firsts] << _OFFSET_BITS,
            np.append(firsts, places.size),
            # The low 16 bits: a cast to a narrower integer keeps exactly those.
            places.astype(np.uint16),
            old_bits,
            new_bits,
        )

    @property
    def count(self) -> int:
        """Changed units."""
        return self.offsets.size

    @property
    def size_bytes(self) -> int:
        """Bytes of all five arrays."""
        return self.count * self.unit_size_bytes + WINDOW_SIZE_BYTES * self.block_starts.size + 8

    @property
    def unit_size_bytes(self) -> int:
        """Bytes that one change takes, its window apart."""
        return OFFSET_SIZE_BYTES + 2 * self.new_bits.itemsize

    def places(self) -> NDArray[np.int64]:
        """The unit of each change, in the order of the changes."""
        counts = np.diff(self.block_firsts)
        return np.repeat(self.block_starts, counts) + self.offsets

    def reversed(self) -> BlockedChange:
        """The way back; shares all arrays."""
        return BlockedChange(
            self.block_starts, self.block_firsts, self.offsets, self.new_bits, self.old_bits
        )

    def cut(self, size_bytes: int) -> Iterator[BlockedChange]:
        """Parts of whole windows of about `size_bytes` each, in order; they share the arrays."""
        per_part = max(1, size_bytes // self.unit_size_bytes)
        first, block_count = 0, self.block_starts.size
        while first < block_count:
            reach = int(self.block_firsts[first]) + per_part
            last = int(np.searchsorted(self.block_firsts, reach, side="right")) - 1
            last = min(max(last, first + 1), block_count)
            yield self._part(first, last)
            first = last

    def _part(self, first: int, last: int) -> BlockedChange:
        start, end = int(self.block_firsts[first]), int(self.block_firsts[last])
        return BlockedChange(
            self.block_starts[first:last],
            self.block_firsts[first : last + 1] - start,
            self.offsets[start:end],
            self.old_bits[start:end],
            self.new_bits[start:end],
        )
