"""The oracle of the loops over live memory: a line of NumPy each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.codec.sparse import SparseChange


class NumpyLiveKernels:
    """`LiveKernels` in NumPy."""

    name = "numpy"

    def gather(self, units: Units, places: NDArray[np.int64], bits: Units) -> None:
        """See `LiveKernels`."""
        bits[:] = units[places]

    def follow(self, units: Units, first: int, change: SparseChange) -> BlockedChange:
        """See `LiveKernels`."""
        places = change.positions.astype(np.int64) + first
        old_bits = units[places]
        return BlockedChange.of(places, old_bits, change.after(old_bits).copy())

    def scatter_compare(self, units: Units, change: BlockedChange, *, redo: bool) -> int:
        """See `LiveKernels`."""
        places = change.places()
        held = units[places]
        strange = (held != change.old_bits) & ~(redo & (held == change.new_bits))
        units[places] = change.new_bits
        return int(np.count_nonzero(strange))
