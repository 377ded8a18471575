"""The pass over all units: compare 64 at a time, keep where and what.

A mask of 64 comparisons is one vector instruction or two. The first changes of a mask are
stored without asking whether they exist; the count then advances by the population count, so
that at low density no branch depends on the data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.lanes import Units
from weightstore.codec.numba_bits import MASK_UNIT_COUNT, bit_count, changed_mask, lowest_bit
from weightstore.codec.numba_compile import compiled

_CHUNK_UNIT_COUNT = 8192
"""Units whose bits are still in the cache when the changed ones are gathered."""

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_STEP = np.uint64(MASK_UNIT_COUNT)
_LAST = np.uint64(MASK_UNIT_COUNT - 1)
_CHUNK = np.uint64(_CHUNK_UNIT_COUNT)


@compiled
def find_changes(
    old: Units, new: Units, positions: NDArray[np.uint32], old_bits: Units, new_bits: Units
) -> np.uint64:
    """See `Kernels.find_changes`."""
    unit_count = np.uint64(old.size)
    masked_count = unit_count & ~_LAST
    count = _ZERO
    gathered = _ZERO
    start = _ZERO
    while start < masked_count:
        chunk_end = min(start + _CHUNK, masked_count)
        while start < chunk_end:
            mask = changed_mask(old, new, start)
            next_count = count + bit_count(mask)
            positions[count] = start + lowest_bit(mask)
            mask &= mask - _ONE
            positions[count + _ONE] = start + lowest_bit(mask)
            mask &= mask - _ONE
            place = count + _TWO
            while mask != _ZERO:
                positions[place] = start + lowest_bit(mask)
                mask &= mask - _ONE
                place += _ONE
            count = next_count
            start += _STEP
        for index in range(gathered, count):
            position = positions[index]
            old_bits[index] = old[position]
            new_bits[index] = new[position]
        gathered = count
    for position in range(masked_count, unit_count):
        if old[position] != new[position]:
            positions[count] = position
            old_bits[count] = old[position]
            new_bits[count] = new[position]
            count += _ONE
    return count
