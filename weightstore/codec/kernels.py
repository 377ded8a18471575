"""The loops of the codec as a seam: NumPy is the oracle, numba the fast twin.

Both give the same bytes. A kernel checks nothing about the caller's arrays: sizes and
dtypes are the codec's care. Unless said otherwise all arrays have one dimension and are
contiguous, `positions` is uint32 and rises strictly, and an output array may be longer
than what is written.
"""

from __future__ import annotations

import enum
import sys
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.floats import FloatCast
from weightstore.codec.lanes import Units

NUMPY_UNIT_COUNT_MAX = 1 << 17
_NUMBA_KERNELS = "weightstore.codec.numba_kernels"
STORE_SLACK_COUNT = 64
"""Entries beyond the last that a kernel may store to before it knows that they are none."""
GAP_BYTE_SKIP = 255
GAP_WORD_SKIP = 65535
ESCAPE_WIDE = 255
CODE_UP, CODE_DOWN, CODE_ESCAPE, CODE_RESERVED = 0, 1, 2, 3
CODES_PER_BYTE = 4
ZIGZAG_DOWN, ZIGZAG_UP = 1, 2


class UlpFault(enum.IntEnum):
    """Why the value streams of a `ulp` piece are refused."""

    NONE = 0
    RESERVED_CODE = 1
    ESCAPE_COUNT = 2
    WIDE_COUNT = 3
    SMALL_ESCAPE = 4
    SMALL_WIDE = 5
    PADDING = 6


class SampleRow(enum.IntEnum):
    """Rows of the histograms of `Kernels.sample_changes`; 256 columns each."""

    CODES = 0
    """Two-bit codes of the differences."""
    ESCAPES = 1
    """Escape bytes."""
    WIDE_BYTES = 2
    """Bytes of wide words."""
    PLANES = 3
    """From here on, a row per byte of the width: `old ^ new`, then new, then zigzag."""


class Kernels(Protocol):
    """The inner loops. Stateless; safe to use from several threads."""

    @property
    def name(self) -> str:
        """`numpy` or `numba`."""
        ...

    def find_changes(
        self,
        old: Units,
        new: Units,
        positions: NDArray[np.uint32],
        old_bits: Units,
        new_bits: Units,
    ) -> int:
        """Find the units that differ; write where, and their bits before and after.

        The three outputs have room for all units and `STORE_SLACK_COUNT` more.

        Returns:
            The number of units that differ.
        """
        ...

    def pack_gap_bytes(self, positions: NDArray[np.uint32], gaps: NDArray[np.uint8]) -> int:
        """Write the gap bytes of positions. Room: positions + last position / 255 + slack.

        Returns:
            The number of bytes written.
        """
        ...

    def pack_gap_words(self, positions: NDArray[np.uint32], gaps: NDArray[np.uint16]) -> int:
        """Write the gap words of positions. Room: positions + last position / 65535 + slack.

        Returns:
            The number of words written.
        """
        ...

    def unpack_gap_bytes(
        self, gaps: NDArray[np.uint8], positions: NDArray[np.uint32]
    ) -> tuple[int, int]:
        """Write the positions that gap bytes say. Room: one more than gap bytes.

        Returns:
            Their number, and the end: units up to and including the last gap byte.
        """
        ...

    def unpack_gap_words(
        self, gaps: NDArray[np.uint16], positions: NDArray[np.uint32]
    ) -> tuple[int, int]:
        """Write the positions that gap words say. Room: one more than gap words.

        Returns:
            Their number, and the end: units up to and including the last gap word.
        """
        ...

    def pack_ulp(
        self,
        old_bits: Units,
        new_bits: Units,
        codes: NDArray[np.uint8],
        escapes: NDArray[np.uint8],
        wide: Units,
    ) -> tuple[int, int]:
        """Write two-bit codes, escapes and wide words of differences that are never 0.

        Room: a quarter of the units (rounded up) for codes; units + slack for the others.

        Returns:
            The number of escapes and of wide words.
        """
        ...

    def unpack_ulp(
        self,
        codes: NDArray[np.uint8],
        escapes: NDArray[np.uint8],
        wide: Units,
        differences: Units,
    ) -> UlpFault:
        """Fill `differences` from the value streams, or say why they are refused.

        `codes` holds exactly a quarter of the differences, rounded up.
        """
        ...

    def split_planes(self, words: Units, planes: NDArray[np.uint8]) -> None:
        """Write all lowest bytes, then all second ones, and so on."""
        ...

    def join_planes(self, planes: NDArray[np.uint8], words: Units) -> None:
        """Undo `split_planes`."""
        ...

    def sample_changes(
        self, old_bits: Units, new_bits: Units, step: int, histograms: NDArray[np.int64]
    ) -> None:
        """Count bytes of every `step`-th change; see `SampleRow`. `histograms` holds zeros."""
        ...

    def row_entropies(
        self,
        histograms: NDArray[np.int64],
        count_bits: NDArray[np.int64],
        entropies: NDArray[np.int64],
    ) -> None:
        """Sum up each row of histograms.

        Args:
            histograms: Shape (rows, 256).
            count_bits: `n log2 n` in fixed point, for n from 0 to the largest count.
            entropies: Shape (rows, 3), written: order-0 entropy of all symbols in the same
                fixed point, their number, and how many different ones occur.
        """
        ...

    def pack_zigzag(self, old: Units, new: Units, words: Units) -> None:
        """Write the zigzag of `new - old` modulo 2^width for every unit."""
        ...

    def unpack_zigzag(self, words: Units) -> None:
        """Turn zigzag words into differences, in place."""
        ...

    def gather(self, target: Units, positions: NDArray[np.uint32], bits: Units) -> None:
        """Read the bits at positions."""
        ...

    def scatter(self, target: Units, positions: NDArray[np.uint32], bits: Units) -> None:
        """Write the bits at positions."""
        ...

    def lane_sums(
        self,
        units: Units,
        starts: NDArray[np.int64],
        offsets: NDArray[np.uint64],
        sums: NDArray[np.uint64],
    ) -> None:
        """Write the lanes of each member.

        Args:
            units: All members, one after the other.
            starts: Shape (members + 1,): where each begins, and the end.
            offsets: Shape (members,): added to a unit's place in `units`, modulo 2^64, to
                give its canonical index.
            sums: Shape (members, 2), written.
        """
        ...

    def lane_deltas(
        self,
        changes: tuple[NDArray[np.uint32], Units, Units],
        starts: NDArray[np.int64],
        offsets: NDArray[np.uint64],
        sums: NDArray[np.uint64],
    ) -> None:
        """Write the lane differences of each member: new minus old over its changes.

        Args:
            changes: Positions, old bits and new bits.
            starts: Shape (members + 1,): the place in `changes` where each member begins.
            offsets: Shape (members,): added to a position, modulo 2^64, to give its index.
            sums: Shape (members, 2), written.
        """
        ...

    def cast_floats(self, source: Units, cast: FloatCast, target: Units) -> None:
        """Round floats to a narrower format; see `codec.cast`."""
        ...


def numpy_kernels() -> Kernels:
    """Give the oracle, which needs nothing but NumPy."""
    from weightstore.codec.numpy_kernels import NumpyKernels  # noqa: PLC0415 -- kept symmetric

    return NumpyKernels()


def load_kernels() -> Kernels:
    """Give the numba kernels, or the NumPy ones where numba cannot be imported.

    The first call in a process imports numba; a kernel is compiled, or read from numba's
    cache, when it first meets a unit width.
    """
    try:
        from weightstore.codec.numba_kernels import (  # noqa: PLC0415 -- numba costs 0.2 s
            NumbaKernels,
        )
    except ImportError:
        return numpy_kernels()
    return NumbaKernels()


def kernels_for(unit_count: int) -> Kernels:
    """Give the kernels that suit so many units.

    NumPy is quick enough for few, and a process that meets no more never pays for importing
    numba. Once that is there it is quicker for few too. The bytes are the same.
    """
    is_worth_it = unit_count > NUMPY_UNIT_COUNT_MAX or _NUMBA_KERNELS in sys.modules
    return load_kernels() if is_worth_it else numpy_kernels()
