"""Which value coding a piece gets: the one whose estimated size is smallest."""

from __future__ import annotations

import numpy as np

from weightstore.codec.kernels import CODES_PER_BYTE, Kernels, SampleRow
from weightstore.codec.lanes import Units
from weightstore.codec.piece import ValueCoding

SAMPLE_COUNT = 2048
DENSE_RATIO = 2
"""Dense coding is looked at when more than one unit in so many changes."""
BIT = 1 << 16
"""One bit in the fixed point of all sums here: integers add up alike in any order."""
_BYTE = 8 * BIT
_TABLE_ENTRY = 4 * BIT
"""What a Huffman table says about each symbol that occurs."""
_COUNTS = np.arange(1, SAMPLE_COUNT * 8 + 1)
_COUNT_BITS = np.concatenate([[0], np.rint(_COUNTS * np.log2(_COUNTS) * BIT)]).astype(np.int64)
"""`n log2 n` for every count that a histogram can hold: eight bytes a change at most."""


def choose_coding(
    kernels: Kernels, old_bits: Units, new_bits: Units, unit_count: int, gaps_size_bytes: int
) -> ValueCoding:
    """Choose by estimated size over an even sample of the changes; `ulp` on a tie.

    Args:
        kernels: The loops to use.
        old_bits: Bits of the changed units before; at least one.
        new_bits: The same after.
        unit_count: Units of the piece, changed or not.
        gaps_size_bytes: Size of the gap frame, which a dense coding saves.
    """
    width = new_bits.itemsize
    step = -(-new_bits.size // SAMPLE_COUNT)
    count = -(-new_bits.size // step)
    histograms = np.zeros((SampleRow.PLANES + 3 * width, 256), dtype=np.int64)
    kernels.sample_changes(old_bits, new_bits, step, histograms)
    is_dense = new_bits.size * DENSE_RATIO > unit_count
    if is_dense:
        rest = unit_count * count // new_bits.size - count
        histograms[-width:, 0] += rest
    entropies = np.empty((len(histograms), 3), dtype=np.int64)
    kernels.row_entropies(histograms, _COUNT_BITS, entropies)
    rows = [_stream_cost(*row) for row in entropies.tolist()]
    gaps = gaps_size_bytes * _BYTE * count // new_bits.size
    planes = rows[SampleRow.PLANES :]
    costs = {
        ValueCoding.ULP: gaps + _ulp_cost(entropies[SampleRow.CODES].tolist(), rows),
        ValueCoding.XOR: gaps + sum(planes[:width]),
        ValueCoding.OVERWRITE: gaps + sum(planes[width : 2 * width]),
    }
    if is_dense:
        costs[ValueCoding.DENSE_ULP] = sum(planes[2 * width :])
    return min(costs, key=costs.__getitem__)


def _ulp_cost(codes: tuple[int, int, int], rows: list[int]) -> int:
    """Estimate codes, escapes and wide words."""
    entropy, size, _symbol_count = codes
    # Four codes share a byte, and no symbol of a Huffman table is shorter than a bit.
    cost = max(entropy, size * BIT // CODES_PER_BYTE) if entropy else 0
    return cost + rows[SampleRow.ESCAPES] + rows[SampleRow.WIDE_BYTES]


def _stream_cost(entropy: int, size: int, symbol_count: int) -> int:
    """Estimate a stream: its entropy, its table, and what zstd loses on few symbols.

    At about a bit per byte Huffman codes are too long, and the short matches that zstd finds
    cost more than they save: measured, 0.6 bits per byte, and nothing from two bits on.
    """
    if entropy == 0:
        # A stream of one symbol is next to nothing.
        return 0
    mean = entropy // size
    loss = max(0, min(6 * mean // 5, (23 * BIT - 11 * mean) // 20))
    return min(entropy + loss * size + _TABLE_ENTRY * symbol_count, _BYTE * size)
