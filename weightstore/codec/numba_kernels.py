"""The kernels compiled by numba. Import this module late: it imports numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightstore.codec import numba_cast, numba_detect, numba_lanes, numba_sample, numba_streams
from weightstore.codec.floats import FloatCast
from weightstore.codec.kernels import GAP_BYTE_SKIP, GAP_WORD_SKIP, UlpFault
from weightstore.codec.lanes import Units

_BYTE_SKIP = np.uint64(GAP_BYTE_SKIP)
_WORD_SKIP = np.uint64(GAP_WORD_SKIP)


class NumbaKernels:
    """`Kernels` in numba.

    Arrays that are only read go in as read-only views, so that a caller's read-only mapping
    and a writable array share one compiled kernel.
    """

    name = "numba"

    def find_changes(
        self,
        old: Units,
        new: Units,
        positions: NDArray[np.uint32],
        old_bits: Units,
        new_bits: Units,
    ) -> int:
        """See `Kernels`."""
        count = numba_detect.find_changes(_read(old), _read(new), positions, old_bits, new_bits)
        return int(count)

    def pack_gap_bytes(self, positions: NDArray[np.uint32], gaps: NDArray[np.uint8]) -> int:
        """See `Kernels`."""
        return int(numba_streams.pack_gaps(_read(positions), gaps, _BYTE_SKIP))

    def pack_gap_words(self, positions: NDArray[np.uint32], gaps: NDArray[np.uint16]) -> int:
        """See `Kernels`."""
        return int(numba_streams.pack_gaps(_read(positions), gaps, _WORD_SKIP))

    def unpack_gap_bytes(
        self, gaps: NDArray[np.uint8], positions: NDArray[np.uint32]
    ) -> tuple[int, int]:
        """See `Kernels`."""
        count, end = numba_streams.unpack_gaps(_read(gaps), positions, _BYTE_SKIP)
        return int(count), int(end)

    def unpack_gap_words(
        self, gaps: NDArray[np.uint16], positions: NDArray[np.uint32]
    ) -> tuple[int, int]:
        """See `Kernels`."""
        count, end = numba_streams.unpack_gaps(_read(gaps), positions, _WORD_SKIP)
        return int(count), int(end)

    def pack_ulp(
        self,
        old_bits: Units,
        new_bits: Units,
        codes: NDArray[np.uint8],
        escapes: NDArray[np.uint8],
        wide: Units,
    ) -> tuple[int, int]:
        """See `Kernels`."""
        escape_count, wide_count = numba_streams.pack_ulp(
            _read(old_bits), _read(new_bits), codes, escapes, wide
        )
        return int(escape_count), int(wide_count)

    def unpack_ulp(
        self,
        codes: NDArray[np.uint8],
        escapes: NDArray[np.uint8],
        wide: Units,
        differences: Units,
    ) -> UlpFault:
        """See `Kernels`."""
        return UlpFault(
            numba_streams.unpack_ulp(_read(codes), _read(escapes), _read(wide), differences)
        )

    def split_planes(self, words: Units, planes: NDArray[np.uint8]) -> None:
        """See `Kernels`."""
        numba_streams.split_planes(_read(words), planes)

    def join_planes(self, planes: NDArray[np.uint8], words: Units) -> None:
        """See `Kernels`."""
        numba_streams.join_planes(_read(planes), words)

    def sample_changes(
        self, old_bits: Units, new_bits: Units, step: int, histograms: NDArray[np.int64]
    ) -> None:
        """See `Kernels`."""
        numba_sample.sample_changes(_read(old_bits), _read(new_bits), np.uint64(step), histograms)

    def row_entropies(
        self,
        histograms: NDArray[np.int64],
        count_bits: NDArray[np.int64],
        entropies: NDArray[np.int64],
    ) -> None:
        """See `Kernels`."""
        numba_sample.row_entropies(_read(histograms), _read(count_bits), entropies)

    def pack_zigzag(self, old: Units, new: Units, words: Units) -> None:
        """See `Kernels`."""
        numba_streams.pack_zigzag(_read(old), _read(new), words)

    def unpack_zigzag(self, words: Units) -> None:
        """See `Kernels`."""
        numba_streams.unpack_zigzag(words)

    def gather(self, target: Units, positions: NDArray[np.uint32], bits: Units) -> None:
        """See `Kernels`."""
        numba_streams.gather(_read(target), _read(positions), bits)

    def scatter(self, target: Units, positions: NDArray[np.uint32], bits: Units) -> None:
        """See `Kernels`."""
        numba_streams.scatter(target, _read(positions), _read(bits))

    def lane_sums(
        self,
        units: Units,
        starts: NDArray[np.int64],
        offsets: NDArray[np.uint64],
        sums: NDArray[np.uint64],
    ) -> None:
        """See `Kernels`."""
        numba_lanes.lane_sums(_read(units), _read(starts), _read(offsets), sums)

    def lane_deltas(
        self,
        changes: tuple[NDArray[np.uint32], Units, Units],
        starts: NDArray[np.int64],
        offsets: NDArray[np.uint64],
        sums: NDArray[np.uint64],
    ) -> None:
        """See `Kernels`."""
        positions, old_bits, new_bits = (_read(array) for array in changes)
        numba_lanes.lane_deltas(positions, old_bits, new_bits, _read(starts), _read(offsets), sums)

    def cast_floats(self, source: Units, cast: FloatCast, target: Units) -> None:
        """See `Kernels`."""
        numba_cast.cast_floats(_read(source), cast, target)


def _read(array: NDArray[Any]) -> NDArray[Any]:
    """Give a read-only view."""
    view = array.view()
    view.setflags(write=False)
    return view
