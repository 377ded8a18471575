"""A live storage that hands everything on to another one, for those that change one call of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Lanes, Units
from weightstore.receiver.live_extents import Extent
from weightstore.receiver.live_storage import LiveStorage, ScatterCounts


@dataclass(frozen=True)
class WrappedStorage:
    """A live storage around another one.

    Receivers do not take it for host memory that they know, so they go the general way.

    Attributes:
        inner: The memory.
    """

    inner: LiveStorage

    @property
    def width_bytes(self) -> int:
        """Of the memory."""
        return self.inner.width_bytes

    @property
    def unit_count(self) -> int:
        """Of the memory."""
        return self.inner.unit_count

    @property
    def is_host(self) -> bool:
        """Of the memory."""
        return self.inner.is_host

    def gather(self, places: NDArray[np.int64], /) -> Units:
        """Of the memory."""
        return self.inner.gather(places)

    def scatter(self, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
        """Of the memory."""
        return self.inner.scatter(change, redo=redo)

    def scatter_first(self, count: int, change: BlockedChange, *, redo: bool) -> None:
        """Write the first so many units of a change: what a write that was cut has done."""
        part = BlockedChange.of(
            change.places()[:count], change.old_bits[:count], change.new_bits[:count]
        )
        self.inner.scatter(part, redo=redo)

    def lanes(self, extent: Extent, /) -> Lanes:
        """Of the memory."""
        return self.inner.lanes(extent)

    def write(self, extent: Extent, units: Units, /) -> None:
        """Of the memory."""
        self.inner.write(extent, units)

    def write_first(self, count: int, extent: Extent, units: Units) -> None:
        """Write the first so many units of a part: what a write that was cut has done."""
        kept = self.inner.read(extent)
        kept[:count] = units[:count]
        self.inner.write(extent, kept)

    def read(self, extent: Extent, /) -> Units:
        """Of the memory."""
        return self.inner.read(extent)
