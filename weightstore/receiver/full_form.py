"""The whole version into live memory, a few tensors at a time, verified before it is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.codec.lanes import NO_LANES, Units, add_lanes
from weightstore.history.chain import CheckoutPlan
from weightstore.history.tensor_bits import DeltaBits, FullBits, VersionBits, groups_of
from weightstore.receiver.live_extents import Extent
from weightstore.receiver.live_storage import PART_UNIT_COUNT, lanes_of_part
from weightstore.receiver.placement import Destination, Placement
from weightstore.receiver.reports import Phase, Tally
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore


@dataclass(frozen=True, slots=True, eq=False)
class FullVersion:
    """A version as bits that are made a few tensors at a time.

    Attributes:
        plan: Where they come from.
        bits: Gives them, compared with the version's digest table.
    """

    plan: CheckoutPlan
    bits: VersionBits

    @classmethod
    def of(
        cls, blobs: BlobStore, plan: CheckoutPlan, codec: PieceCodec, limits: Limits
    ) -> FullVersion:
        """Open a version; reads headers and packs.

        Raises:
            ObjectMissingError: something that the version names is not there.
            CorruptObjectError: something of it is damaged.
        """
        below = FullBits(blobs, plan.full, plan.schema, limits)
        deltas = [DeltaBits(blobs, each, plan.schema, limits) for each in plan.deltas]
        bits = VersionBits(below, deltas, schema=plan.schema, table=plan.last_table, codec=codec)
        return cls(plan, bits)

    def expected_lanes(self, placement: Placement) -> NDArray[np.uint64]:
        """Digest lanes that every destination of a placement must have.

        Of whole tensors the digest table says them; parts are made and digested.
        """
        found = np.empty((len(placement.destinations), 2), np.uint64)
        for number, destination in enumerate(placement.destinations):
            if destination.is_whole:
                found[number] = self.plan.last_table[destination.tensor_index]
                continue
            lanes = NO_LANES
            for part, units in self._parts(destination):
                lanes = add_lanes(lanes, lanes_of_part(part, units))
            found[number] = lanes
        return found

    def write(self, placement: Placement, tally: Tally) -> NDArray[np.uint64]:
        """Write every destination.

        After a crash: live memory holds old and new bits mixed; write it again.

        Returns:
            The digest lanes that every destination must have now, as `expected_lanes`.

        Raises:
            CorruptError: something stored is damaged; what was written so far is right.
        """
        found = np.empty((len(placement.destinations), 2), np.uint64)
        groups = groups_of(self.plan.schema)
        # The members of a bundle one after the other: they are made together.
        for number, destination in sorted(
            enumerate(placement.destinations), key=lambda each: groups[each[1].tensor_index].key
        ):
            storage = placement.storage_of(destination)
            lanes = NO_LANES
            for part, units in self._parts(destination, tally):
                storage.write(part, units)
                tally.wrote(units.size, units.nbytes)
                if not destination.is_whole:
                    lanes = add_lanes(lanes, lanes_of_part(part, units))
            is_whole = destination.is_whole
            found[number] = self.plan.last_table[destination.tensor_index] if is_whole else lanes
        return found

    def _parts(
        self, destination: Destination, tally: Tally | None = None
    ) -> Iterator[tuple[Extent, Units]]:
        if not destination.extent.unit_count:
            return
        # Reading, decoding and applying deltas are one thing here.
        with nullcontext() if tally is None else tally.phase(Phase.FETCH):
            units = self.bits.tensor(destination.tensor_index)
        yield from parts_of(units, destination)


def parts_of(units: Units, destination: Destination) -> Iterator[tuple[Extent, Units]]:
    """The units of a destination in canonical order, in parts of bounded size.

    Args:
        units: All units of its tensor.
        destination: A place of it.
    """
    for part in destination.extent.parts(PART_UNIT_COUNT):
        strides = tuple(stride * units.itemsize for stride in part.index_strides)
        view = as_strided(units[part.first_index :], part.sizes, strides, writeable=False)
        yield part, np.ascontiguousarray(view).reshape(-1)
