"""The loops over live memory compiled by numba. Import this module late: it imports numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.codec.numba_compile import compiled

_ZERO = np.uint64(0)
_ONE = np.uint64(1)


class NumbaLiveKernels:
    """`LiveKernels` in numba. Arrays that are only read go in as read-only views."""

    name = "numba"

    def gather(self, units: Units, places: NDArray[np.int64], bits: Units) -> None:
        """See `LiveKernels`."""
        gather(_read(units), _read(places), bits)

    def scatter_compare(self, units: Units, change: BlockedChange, *, redo: bool) -> int:
        """See `LiveKernels`."""
        strange_count = scatter_compare(
            units,
            (_read(change.block_starts), _read(change.block_firsts)),
            _read(change.offsets),
            _read(change.old_bits),
            _read(change.new_bits),
            np.uint64(redo),
        )
        return int(strange_count)


@compiled
def gather(units: Units, places: NDArray[np.int64], bits: Units) -> None:
    """See `LiveKernels.gather`."""
    for index in range(np.uint64(places.size)):
        bits[index] = units[np.uint64(places[index])]


@compiled
def scatter_compare(
    units: Units,
    windows: tuple[NDArray[np.int64], NDArray[np.int64]],
    offsets: NDArray[np.uint16],
    old_bits: Units,
    new_bits: Units,
    redo: np.uint64,
) -> np.uint64:
    """See `LiveKernels.scatter_compare`."""
    block_starts, block_firsts = windows
    strange_count = _ZERO
    for block in range(np.uint64(block_starts.size)):
        start = np.uint64(block_starts[block])
        first = np.uint64(block_firsts[block])
        for index in range(first, np.uint64(block_firsts[block + _ONE])):
            place = start + np.uint64(offsets[index])
            held = units[place]
            is_old = np.uint64(held == old_bits[index])
            is_new = np.uint64(held == new_bits[index]) & redo
            strange_count += _ONE - (is_old | is_new)
            units[place] = new_bits[index]
    return strange_count


def _read(array: NDArray[Any]) -> NDArray[Any]:
    """Give a read-only view."""
    view = array.view()
    view.setflags(write=False)
    return view
