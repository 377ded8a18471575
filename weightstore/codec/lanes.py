"""The arithmetic below the state digest: two 64-bit sums that care about no order.

A lane of a tensor is the sum modulo 2^64, over all its elements, of

    mix(bits ^ mix(index * FACTOR + OFFSET))

where `mix` is the finaliser of splitmix64. It is a bijection of 64 bits, so any single
change of an element changes the lane; two lanes with constants of their own make the pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Lanes = tuple[int, int]
"""The two sums of a tensor, or the difference of two such pairs, each modulo 2^64."""
Units = NDArray[np.unsignedinteger[Any]]
"""Bit patterns: one dimension, unsigned, 1, 2, 4 or 8 bytes wide."""

LANE_COUNT = 2
LANE_FACTORS = (0x9E3779B97F4A7C15, 0xD1342543DE82EF95)
LANE_OFFSETS = (0x243F6A8885A308D3, 0x13198A2E03707344)
MIX_FACTOR_1 = 0xBF58476D1CE4E5B9
MIX_FACTOR_2 = 0x94D049BB133111EB
MASK_64 = (1 << 64) - 1

NO_LANES: Lanes = (0, 0)


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64 to every word.

    Args:
        words: Any shape.

    Returns:
        A new array of the same shape.
    """
    mixed = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(MIX_FACTOR_1)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(MIX_FACTOR_2)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def index_words(indices: NDArray[np.uint64], lane: int) -> NDArray[np.uint64]:
    """Compute what one lane mixes into the bits of each element: `mix(index * C + K)`."""
    return mix(indices * np.uint64(LANE_FACTORS[lane]) + np.uint64(LANE_OFFSETS[lane]))


def add_lanes(left: Lanes, right: Lanes) -> Lanes:
    """Add two pairs, modulo 2^64."""
    return ((left[0] + right[0]) & MASK_64, (left[1] + right[1]) & MASK_64)


def subtract_lanes(left: Lanes, right: Lanes) -> Lanes:
    """Subtract the second pair from the first, modulo 2^64."""
    return ((left[0] - right[0]) & MASK_64, (left[1] - right[1]) & MASK_64)
