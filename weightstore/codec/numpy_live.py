"""The oracle of the loops over live memory: a line of NumPy each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units


class NumpyLiveKernels:
    """`LiveKernels` in NumPy."""

    name = "numpy"

    def gather(self, units: Units, places: NDArray[np.int64], bits: Units) -> None:
        """See `LiveKernels`."""
        bits[:] = units[places]

    def scatter_compare(self, units: Units, change: BlockedChange, *, redo: bool) -> int:
        """See `LiveKernels`."""
        places = change.places()
        held = units[places]
        strange = (held != change.old_bits) & ~(redo & (held == change.new_bits))
        units[places] = change.new_bits
        return int(np.count_nonzero(strange))
