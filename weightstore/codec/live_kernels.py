"""The loops over live memory as a seam: NumPy is the oracle, numba the fast twin.

A kernel checks nothing: places lie within the memory, and no place is named twice.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.kernels import NUMPY_UNIT_COUNT_MAX
from weightstore.codec.lanes import Units
from weightstore.codec.sparse import SparseChange


class LiveKernels(Protocol):
    """Stateless; safe to use from several threads."""

    @property
    def name(self) -> str:
        """`numpy` or `numba`."""
        ...

    def gather(self, units: Units, places: NDArray[np.int64], bits: Units) -> None:
        """Read the bits at places."""
        ...

    def follow(self, units: Units, first: int, change: SparseChange) -> BlockedChange:
        """What a change would do to a run of the memory. Writes nothing there.

        Args:
            units: The memory.
            first: Unit of the memory that is position 0 of the change.
            change: Has one position at least; they rise strictly.

        Returns:
            In arrays of its own.
        """
        ...

    def scatter_compare(self, units: Units, change: BlockedChange, *, redo: bool) -> int:
        """Write the new bits, and count the units that held something unexpected.

        Args:
            units: The memory.
            change: What to write.
            redo: The new bits may be there already; else only the old ones may.

        Returns:
            The number of units that did not hold their old bits; with `redo`, neither those
            nor their new ones.
        """
        ...


def numpy_live_kernels() -> LiveKernels:
    """Give the oracle, which needs nothing but NumPy."""
    from weightstore.codec.numpy_live import NumpyLiveKernels  # noqa: PLC0415 -- kept symmetric

    return NumpyLiveKernels()


def live_kernels_for(unit_count: int) -> LiveKernels:
    """Give the kernels that suit a memory of so many units; the bits are the same."""
    if unit_count <= NUMPY_UNIT_COUNT_MAX:
        return numpy_live_kernels()
    try:
        from weightstore.codec.numba_live import (  # noqa: PLC0415 -- numba costs 0.2 s
            NumbaLiveKernels,
        )
    except ImportError:
        return numpy_live_kernels()
    return NumbaLiveKernels()
