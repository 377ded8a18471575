"""The oracle: every kernel in NumPy, written to be read against the format page."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.floats import FloatCast, cast_floats
from weightstore.codec.kernels import (
    CODE_DOWN,
    CODE_ESCAPE,
    CODE_RESERVED,
    CODE_UP,
    CODES_PER_BYTE,
    ESCAPE_WIDE,
    GAP_BYTE_SKIP,
    GAP_WORD_SKIP,
    ZIGZAG_DOWN,
    ZIGZAG_UP,
    UlpFault,
)
from weightstore.codec.lanes import LANE_COUNT, Units, index_words, mix

_BLOCK_UNIT_COUNT = 1 << 16
"""Units worked on at once, so that temporaries stay in the cache."""
_CODE_SHIFTS = np.arange(0, 8, 2, dtype=np.uint8)


class NumpyKernels:
    """`Kernels` in NumPy."""

    name = "numpy"

    def find_changes(
        self,
        old: Units,
        new: Units,
        positions: NDArray[np.uint32],
        old_bits: Units,
        new_bits: Units,
    ) -> int:
        """See `Kernels`."""
        count = 0
        for start in range(0, old.size, _BLOCK_UNIT_COUNT):
            old_block = old[start : start + _BLOCK_UNIT_COUNT]
            new_block = new[start : start + _BLOCK_UNIT_COUNT]
            found = _differing(old_block, new_block)
            end = count + found.size
            positions[count:end] = found + start
            old_bits[count:end] = old_block[found]
            new_bits[count:end] = new_block[found]
            count = end
        return count

    def pack_gap_bytes(self, positions: NDArray[np.uint32], gaps: NDArray[np.uint8]) -> int:
        """See `Kernels`."""
        return _pack_gaps(positions, gaps, GAP_BYTE_SKIP)

    def pack_gap_words(self, positions: NDArray[np.uint32], gaps: NDArray[np.uint16]) -> int:
        """See `Kernels`."""
        return _pack_gaps(positions, gaps, GAP_WORD_SKIP)

    def unpack_gap_bytes(
        self, gaps: NDArray[np.uint8], positions: NDArray[np.uint32]
    ) -> tuple[int, int]:
        """See `Kernels`."""
        return _unpack_gaps(gaps, positions, GAP_BYTE_SKIP)

    def unpack_gap_words(
        self, gaps: NDArray[np.uint16], positions: NDArray[np.uint32]
    ) -> tuple[int, int]:
        """See `Kernels`."""
        return _unpack_gaps(gaps, positions, GAP_WORD_SKIP)

    def pack_ulp(
        self,
        old_bits: Units,
        new_bits: Units,
        codes: NDArray[np.uint8],
        escapes: NDArray[np.uint8],
        wide: Units,
    ) -> tuple[int, int]:
        """See `Kernels`."""
        differences = new_bits - old_bits
        zigzag = _zigzag(differences)
        symbols = _symbols(zigzag)
        padded = np.zeros((-(-symbols.size // CODES_PER_BYTE), CODES_PER_BYTE), dtype=np.uint8)
        padded.reshape(-1)[: symbols.size] = symbols
        codes[: len(padded)] = np.bitwise_or.reduce(padded << _CODE_SHIFTS, axis=1)
        escaped = symbols == CODE_ESCAPE
        small = np.minimum(zigzag[escaped], zigzag.dtype.type(ESCAPE_WIDE))
        escapes[: small.size] = small
        large = differences[escaped][small == ESCAPE_WIDE]
        wide[: large.size] = large
        return small.size, large.size

    def unpack_ulp(
        self,
        codes: NDArray[np.uint8],
        escapes: NDArray[np.uint8],
        wide: Units,
        differences: Units,
    ) -> UlpFault:
        """See `Kernels`."""
        symbols = ((codes[:, None] >> _CODE_SHIFTS) & np.uint8(CODE_RESERVED)).reshape(-1)
        if np.any(symbols[differences.size :]):
            return UlpFault.PADDING
        symbols = symbols[: differences.size]
        escaped = np.flatnonzero(symbols == CODE_ESCAPE)
        fault = _ulp_fault(symbols, escapes, wide)
        if fault is not UlpFault.NONE:
            return fault
        dtype = differences.dtype
        minus_one = dtype.type(np.iinfo(dtype).max)
        differences[:] = np.where(symbols == CODE_UP, dtype.type(1), minus_one)
        small = _unzigzag(escapes.astype(dtype))
        small[escapes == ESCAPE_WIDE] = wide
        differences[escaped] = small
        return UlpFault.NONE

    def split_planes(self, words: Units, planes: NDArray[np.uint8]) -> None:
        """See `Kernels`."""
        width = words.itemsize
        planes.reshape(width, -1)[:] = words.view(np.uint8).reshape(-1, width).T

    def join_planes(self, planes: NDArray[np.uint8], words: Units) -> None:
        """See `Kernels`."""
        width = words.itemsize
        words.view(np.uint8).reshape(-1, width)[:] = planes.reshape(width, -1).T

    def sample_changes(
        self, old_bits: Units, new_bits: Units, step: int, histograms: NDArray[np.int64]
    ) -> None:
        """See `Kernels`."""
        old, new = old_bits[::step], new_bits[::step]
        zigzag = _zigzag(new - old)
        clipped = np.minimum(zigzag, zigzag.dtype.type(ESCAPE_WIDE)).astype(np.uint8)
        codes = _symbols(zigzag)
        wide = (new - old)[clipped == ESCAPE_WIDE]
        rows = [codes, clipped[codes == CODE_ESCAPE], wide.view(np.uint8)]
        for words in (old ^ new, np.ascontiguousarray(new), zigzag):
            rows.extend(words.view(np.uint8).reshape(-1, words.itemsize).T)
        for histogram, row in zip(histograms, rows, strict=True):
            histogram[:] = np.bincount(row, minlength=histogram.size)

    def row_entropies(
        self,
        histograms: NDArray[np.int64],
        count_bits: NDArray[np.int64],
        entropies: NDArray[np.int64],
    ) -> None:
        """See `Kernels`."""
        sizes = histograms.sum(axis=1)
        entropies[:, 0] = count_bits[sizes] - count_bits[histograms].sum(axis=1)
        entropies[:, 1] = sizes
        entropies[:, 2] = np.count_nonzero(histograms, axis=1)

    def pack_zigzag(self, old: Units, new: Units, words: Units) -> None:
        """See `Kernels`."""
        words[:] = _zigzag(new - old)

    def unpack_zigzag(self, words: Units) -> None:
        """See `Kernels`."""
        words[:] = _unzigzag(words)

    def gather(self, target: Units, positions: NDArray[np.uint32], bits: Units) -> None:
        """See `Kernels`."""
        bits[:] = target[positions]

    def scatter(self, target: Units, positions: NDArray[np.uint32], bits: Units) -> None:
        """See `Kernels`."""
        target[positions] = bits

    def lane_sums(
        self,
        units: Units,
        starts: NDArray[np.int64],
        offsets: NDArray[np.uint64],
        sums: NDArray[np.uint64],
    ) -> None:
        """See `Kernels`."""
        sums[:] = 0
        for member, (first, last) in enumerate(pairwise(starts.tolist())):
            for start in range(first, last, _BLOCK_UNIT_COUNT):
                end = min(start + _BLOCK_UNIT_COUNT, last)
                indices = np.arange(start, end, dtype=np.uint64) + offsets[member]
                bits = units[start:end].astype(np.uint64)
                for lane in range(LANE_COUNT):
                    words = index_words(indices, lane)
                    sums[member, lane : lane + 1] += np.sum(mix(bits ^ words), keepdims=True)

    def lane_deltas(
        self,
        changes: tuple[NDArray[np.uint32], Units, Units],
        starts: NDArray[np.int64],
        offsets: NDArray[np.uint64],
        sums: NDArray[np.uint64],
    ) -> None:
        """See `Kernels`."""
        positions, old_bits, new_bits = changes
        sums[:] = 0
        counts = np.diff(starts)
        filled = np.flatnonzero(counts)
        if filled.size == 0:
            return
        indices = positions.astype(np.uint64) + np.repeat(offsets, counts)
        before, after = old_bits.astype(np.uint64), new_bits.astype(np.uint64)
        for lane in range(LANE_COUNT):
            words = index_words(indices, lane)
            terms = mix(after ^ words) - mix(before ^ words)
            sums[filled, lane] = np.add.reduceat(terms, starts[filled])

    def cast_floats(self, source: Units, cast: FloatCast, target: Units) -> None:
        """See `Kernels`."""
        for start in range(0, source.size, _BLOCK_UNIT_COUNT):
            end = start + _BLOCK_UNIT_COUNT
            cast_floats(source[start:end], cast, target[start:end])


def _differing(old: Units, new: Units) -> NDArray[np.int64]:
    """Find where two blocks differ, eight bytes at a time."""
    per_word = 8 // old.itemsize
    whole_count = old.size // per_word * per_word
    unequal = old[:whole_count].view(np.uint64) != new[:whole_count].view(np.uint64)
    words = np.flatnonzero(unequal)
    candidates = (words[:, None] * per_word + np.arange(per_word)).reshape(-1)
    candidates = np.concatenate([candidates, np.arange(whole_count, old.size)])
    found: NDArray[np.int64] = candidates[old[candidates] != new[candidates]]
    return found


def _pack_gaps(
    positions: NDArray[np.uint32], gaps: NDArray[np.uint8] | NDArray[np.uint16], skip: int
) -> int:
    """Write gaps; a gap of `skip` or more is preceded by as many skips as it holds."""
    distances = np.diff(positions.astype(np.int64), prepend=-1) - 1
    skips, rests = np.divmod(distances, skip)
    places = np.cumsum(skips + 1) - 1
    size = int(places[-1]) + 1 if places.size else 0
    gaps[:size] = skip
    gaps[places] = rests
    return size


def _unpack_gaps(
    gaps: NDArray[np.uint8] | NDArray[np.uint16], positions: NDArray[np.uint32], skip: int
) -> tuple[int, int]:
    """Write positions and give their number and the end."""
    is_element = gaps != skip
    ends = np.cumsum(gaps + is_element, dtype=np.int64)
    found = ends[is_element] - 1
    # An end beyond 32 bits is refused by the caller, who looks at the end before the positions.
    positions[: found.size] = found.astype(np.uint32)
    return found.size, int(ends[-1]) if ends.size else 0


def _symbols(zigzag: Units) -> NDArray[np.uint8]:
    """Give the two-bit code of each difference."""
    symbols = np.full(zigzag.size, CODE_ESCAPE, dtype=np.uint8)
    symbols[zigzag == ZIGZAG_UP] = CODE_UP
    symbols[zigzag == ZIGZAG_DOWN] = CODE_DOWN
    return symbols


def _ulp_fault(
    symbols: NDArray[np.uint8],
    escapes: NDArray[np.uint8],
    wide: Units,
) -> UlpFault:
    """Check the value streams of a `ulp` piece against each other."""
    checks = (
        (bool(np.any(symbols == CODE_RESERVED)), UlpFault.RESERVED_CODE),
        (np.count_nonzero(symbols == CODE_ESCAPE) != escapes.size, UlpFault.ESCAPE_COUNT),
        (np.count_nonzero(escapes == ESCAPE_WIDE) != wide.size, UlpFault.WIDE_COUNT),
        (bool(np.any(escapes <= ZIGZAG_UP)), UlpFault.SMALL_ESCAPE),
        (bool(np.any(_zigzag(wide) < ESCAPE_WIDE)), UlpFault.SMALL_WIDE),
    )
    return next((fault for failed, fault in checks if failed), UlpFault.NONE)


def _zigzag(differences: Units) -> Units:
    """Map 0, -1, +1, -2, +2, ... to 0, 1, 2, 3, 4, ... within the width."""
    one = differences.dtype.type(1)
    sign_shift = differences.dtype.type(differences.itemsize * 8 - 1)
    return (differences << one) ^ (~(differences >> sign_shift) + one)


def _unzigzag(words: Units) -> Units:
    """Undo `_zigzag`."""
    one = words.dtype.type(1)
    return (words >> one) ^ (~(words & one) + one)
