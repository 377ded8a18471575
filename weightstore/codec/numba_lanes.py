"""The two lanes of the state digest as compiled loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.lanes import (
    LANE_FACTORS,
    LANE_OFFSETS,
    MIX_FACTOR_1,
    MIX_FACTOR_2,
    Units,
)
from weightstore.codec.numba_compile import compiled

Words = NDArray[np.uint64]

_FACTOR_0, _FACTOR_1 = (np.uint64(factor) for factor in LANE_FACTORS)
_OFFSET_0, _OFFSET_1 = (np.uint64(offset) for offset in LANE_OFFSETS)
_MIX_1, _MIX_2 = np.uint64(MIX_FACTOR_1), np.uint64(MIX_FACTOR_2)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


@compiled
def _mix(word: np.uint64) -> np.uint64:
    """Apply the finaliser of splitmix64."""
    word = (word ^ (word >> _SHIFT_1)) * _MIX_1
    word = (word ^ (word >> _SHIFT_2)) * _MIX_2
    return word ^ (word >> _SHIFT_3)


@compiled
def lane_sums(units: Units, starts: NDArray[np.int64], offsets: Words, sums: Words) -> None:
    """See `Kernels.lane_sums`."""
    for member in range(np.uint64(offsets.size)):
        offset = offsets[member]
        sum_0 = _ZERO
        sum_1 = _ZERO
        for index in range(np.uint64(starts[member]), np.uint64(starts[member + _ONE])):
            bits = np.uint64(units[index])
            place = index + offset
            sum_0 += _mix(bits ^ _mix(place * _FACTOR_0 + _OFFSET_0))
            sum_1 += _mix(bits ^ _mix(place * _FACTOR_1 + _OFFSET_1))
        sums[member, _ZERO] = sum_0
        sums[member, _ONE] = sum_1


@compiled
def lane_deltas(
    positions: NDArray[np.uint32],
    old_bits: Units,
    new_bits: Units,
    starts: NDArray[np.int64],
    offsets: Words,
    sums: Words,
) -> None:
    """See `Kernels.lane_deltas`."""
    for member in range(np.uint64(offsets.size)):
        offset = offsets[member]
        sum_0 = _ZERO
        sum_1 = _ZERO
        for index in range(np.uint64(starts[member]), np.uint64(starts[member + _ONE])):
            place = np.uint64(positions[index]) + offset
            before = np.uint64(old_bits[index])
            after = np.uint64(new_bits[index])
            word = _mix(place * _FACTOR_0 + _OFFSET_0)
            sum_0 += _mix(after ^ word) - _mix(before ^ word)
            word = _mix(place * _FACTOR_1 + _OFFSET_1)
            sum_1 += _mix(after ^ word) - _mix(before ^ word)
        sums[member, _ZERO] = sum_0
        sums[member, _ONE] = sum_1
