"""Histograms of a sample of changes, and their entropies, as compiled loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.kernels import (
    CODE_ESCAPE,
    ESCAPE_WIDE,
    ZIGZAG_DOWN,
    ZIGZAG_UP,
    SampleRow,
)
from weightstore.codec.lanes import Units
from weightstore.codec.numba_compile import compiled

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_BYTE = np.uint64(8)
_LAST_BIT = np.uint64(63)
_LOW_BYTE = np.uint64(255)
_WIDE = np.uint64(ESCAPE_WIDE)
_UP = np.uint64(ZIGZAG_UP)
_DOWN = np.uint64(ZIGZAG_DOWN)
_ESCAPE = np.uint64(CODE_ESCAPE)
_CODES = np.uint64(SampleRow.CODES)
_ESCAPES = np.uint64(SampleRow.ESCAPES)
_WIDE_BYTES = np.uint64(SampleRow.WIDE_BYTES)
_PLANES = np.uint64(SampleRow.PLANES)


@compiled
def sample_changes(
    old_bits: Units, new_bits: Units, step: np.uint64, histograms: NDArray[np.int64]
) -> None:
    """See `Kernels.sample_changes`."""
    width = np.uint64(new_bits.itemsize)
    sign_shift = width * _BYTE - _ONE
    width_mask = ~_ZERO >> (_LAST_BIT - sign_shift)
    for index in range(_ZERO, np.uint64(new_bits.size), step):
        new = np.uint64(new_bits[index])
        old = np.uint64(old_bits[index])
        difference = (new - old) & width_mask
        zigzag = ((difference << _ONE) ^ (_ZERO - (difference >> sign_shift))) & width_mask
        code = _TWO - _TWO * np.uint64(zigzag == _UP) - np.uint64(zigzag == _DOWN)
        histograms[_CODES, code] += 1
        if code == _ESCAPE:
            histograms[_ESCAPES, min(zigzag, _WIDE)] += 1
        for plane in range(width):
            shift = plane * _BYTE
            if zigzag >= _WIDE:
                histograms[_WIDE_BYTES, (difference >> shift) & _LOW_BYTE] += 1
            row = _PLANES + plane
            histograms[row, ((new ^ old) >> shift) & _LOW_BYTE] += 1
            histograms[row + width, (new >> shift) & _LOW_BYTE] += 1
            histograms[row + width + width, (zigzag >> shift) & _LOW_BYTE] += 1


@compiled
def row_entropies(
    histograms: NDArray[np.int64], count_bits: NDArray[np.int64], entropies: NDArray[np.int64]
) -> None:
    """See `Kernels.row_entropies`."""
    for row in range(np.uint64(histograms.shape[0])):
        size = 0
        bits = 0
        symbol_count = 0
        for symbol in range(np.uint64(histograms.shape[1])):
            count = histograms[row, symbol]
            if count:
                size += count
                bits += count_bits[np.uint64(count)]
                symbol_count += 1
        entropies[row, 0] = count_bits[np.uint64(size)] - bits
        entropies[row, 1] = size
        entropies[row, 2] = symbol_count
