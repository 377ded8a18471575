"""Live memory as flat unsigned units: the seam between a change and where the weights are.

No float ever passes through here, so a NaN keeps its payload; no tensor is made or moved, so
no pointer changes.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.kernels import kernels_for
from weightstore.codec.lanes import NO_LANES, Lanes, Units, add_lanes
from weightstore.codec.live_kernels import LiveKernels, live_kernels_for
from weightstore.codec.sparse import SparseChange
from weightstore.receiver.live_extents import Extent

PART_UNIT_COUNT = 4 * 1024 * 1024
"""Units that are looked at or written at once, so that temporaries stay bounded."""


class ScatterCounts(NamedTuple):
    """What one scatter has done.

    Attributes:
        written_count: Units that were written.
        strange_count: Units among them that held something unexpected.
    """

    written_count: int
    strange_count: int


class LiveStorage(Protocol):
    """One flat memory of units of one width. It is never moved, grown or freed from here."""

    @property
    def width_bytes(self) -> int:
        """Bytes of a unit: 1, 2, 4 or 8."""
        ...

    @property
    def unit_count(self) -> int:
        """Units of the memory."""
        ...

    @property
    def is_host(self) -> bool:
        """Whether the processor reads it directly."""
        ...

    def gather(self, places: NDArray[np.int64], /) -> Units:
        """The bits of the units at places, in an array of their own."""
        ...

    def scatter(self, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
        """Write new bits and compare what they overwrite.

        After a crash: each unit of the change holds its old or its new bits.

        Args:
            change: What to write.
            redo: New bits may be there already.
        """
        ...

    def lanes(self, extent: Extent, /) -> Lanes:
        """The digest lanes of a part, each unit counted at its canonical index."""
        ...

    def write(self, extent: Extent, units: Units, /) -> None:
        """Overwrite a part with units in canonical order.

        After a crash: each unit holds what it did before or what was given.
        """
        ...

    def read(self, extent: Extent, /) -> Units:
        """The units of a part in canonical order, in an array of their own."""
        ...


class HostStorage:
    """Memory that NumPy sees.

    Args:
        units: All of it; one dimension, contiguous, writable. Aligned or not.
        kernels: The loops to use; None takes what suits the size.
    """

    is_host = True

    def __init__(self, units: Units, kernels: LiveKernels | None = None) -> None:
        self._units = units
        self._kernels = kernels or live_kernels_for(units.size)

    @property
    def width_bytes(self) -> int:
        """See `LiveStorage`."""
        return self._units.itemsize

    @property
    def unit_count(self) -> int:
        """See `LiveStorage`."""
        return self._units.size

    def gather(self, places: NDArray[np.int64], /) -> Units:
        """See `LiveStorage`."""
        bits: Units = np.empty(places.size, self._units.dtype)
        self._kernels.gather(self._units, places, bits)
        return bits

    def follow(self, first: int, change: SparseChange, /) -> BlockedChange:
        """What a change would do to a run of this memory. Writes nothing there.

        Args:
            first: The unit that is position 0 of the change; all positions lie within the
                memory.
            change: Of units of this width.
        """
        return self._kernels.follow(self._units, first, change)

    def scatter(self, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
        """See `LiveStorage`."""
        strange_count = self._kernels.scatter_compare(self._units, change, redo=redo)
        return ScatterCounts(change.count, strange_count)

    def lanes(self, extent: Extent, /) -> Lanes:
        """See `LiveStorage`."""
        total = NO_LANES
        for part in extent.parts(PART_UNIT_COUNT):
            units = np.ascontiguousarray(self._view(part)).reshape(-1)
            total = add_lanes(total, lanes_of_part(part, units))
        return total

    def write(self, extent: Extent, units: Units, /) -> None:
        """See `LiveStorage`."""
        if extent.unit_count:
            self._view(extent)[...] = units.reshape(extent.sizes)

    def read(self, extent: Extent, /) -> Units:
        """See `LiveStorage`."""
        found: Units = np.array(self._view(extent), order="C").reshape(-1)
        return found

    def _view(self, extent: Extent) -> Units:
        strides = tuple(stride * self.width_bytes for stride in extent.strides)
        return as_strided(self._units[extent.base :], extent.sizes, strides)


def lanes_of_part(part: Extent, units: Units) -> Lanes:
    """The digest lanes of units that are a part, in canonical order."""
    firsts, length = part.run_indices()
    starts = np.arange(firsts.size + 1, dtype=np.int64) * length
    sums = np.empty((firsts.size, 2), np.uint64)
    offsets = (firsts - starts[:-1]).view(np.uint64)
    kernels_for(units.size).lane_sums(units, starts, offsets, sums)
    first, second = sums.sum(axis=0, dtype=np.uint64).tolist()
    return first, second
