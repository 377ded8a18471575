"""A mixture that a cut change left, brought to the version that was on its way.

The staged change is lost, but what it began is known: every unit outside it is as in its
base, every unit of it holds bits of one version or of the other. Most tensors are wholly one
of them, since a change is written one memory after the other: those that have arrived are
left alone, those that were not begun follow the deltas from their own bits, and only what is
mixed is made from a full form. All of it is compared with digests before and after.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.codec import PieceCodec
from weightstore.codec.lanes import NO_LANES, Units, add_lanes
from weightstore.errors import CorruptError, NotFoundError
from weightstore.format.records import VersionRecord
from weightstore.history.delta_path import DeltaPath, NoDeltaPath, VersionRef
from weightstore.history.overwrite_set import OverwriteSet
from weightstore.history.tensor_bits import Group, VersionBits
from weightstore.ids import VersionId
from weightstore.receiver.delta_work import LiveTables
from weightstore.receiver.full_form import parts_of
from weightstore.receiver.live_state import Way
from weightstore.receiver.live_storage import lanes_of_part
from weightstore.receiver.live_writes import check_lanes
from weightstore.receiver.placement import Placement
from weightstore.receiver.reports import Phase, Tally
from weightstore.receiver.rolling_scan import scan
from weightstore.receiver.version_source import VersionSource

Table = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """What a cut change left, where it is known what was there before.

    Attributes:
        base: The version that was wholly there.
        target: The version that was on its way.
        before: What was known of the base.
    """

    base: VersionRef
    target: VersionRef
    before: LiveTables


class _State(enum.Enum):
    """What the places of a group hold."""

    DONE = enum.auto()
    """The target."""
    BASE = enum.auto()
    """What they held before the change."""
    MIXED = enum.auto()
    """Some of each, or nobody can tell."""


@dataclass(frozen=True, slots=True, eq=False)
class OverwriteStep:
    """An overwrite set that is written over a mixture.

    Attributes:
        source: The store.
        placement: Where it goes.
        mixture: What is there.
        changes: What to write.
        table: Digest lanes of the target, shape (tensors, 2).
        codec: Kernels to use.
        launch_size_bytes: Written at a time, about.
    """

    source: VersionSource
    placement: Placement
    mixture: Mixture
    changes: OverwriteSet
    table: Table
    codec: PieceCodec
    launch_size_bytes: int
    way = Way.OVERWRITE

    def write(self, tally: Tally, *, is_redo: bool) -> LiveTables:  # noqa: ARG002 -- always one
        """Write what is not there yet, then look at every tensor that the change is about.

        After a crash: still a mixture of the same two versions; do it again.

        Raises:
            CorruptError: something stored is damaged.
            LiveWeightsError: somebody else has written too.
        """
        groups = self.changes.groups()
        numbers = [number for group in groups for number in self._numbers(group)]
        with tally.phase(Phase.VERIFY):
            found = scan(self.placement, numbers, self.source.settings.thread_count)
        held = dict(zip(numbers, found, strict=True))
        lanes = self.mixture.before.lanes.copy()
        live = self._following()
        for group in groups:
            state = self._state(group, held)
            if state is not _State.DONE:
                bits = live if state is _State.BASE else None
                self._overwrite(group, bits, lanes, tally)
            for number in self._numbers(group):
                destination = self.placement.destinations[number]
                if destination.is_whole:
                    lanes[number] = self.table[destination.tensor_index]
        threads = self.source.settings.thread_count
        check_lanes(self.placement, numbers, lanes, threads, tally)
        return LiveTables(self.table, lanes)

    def _numbers(self, group: Group) -> list[int]:
        """The destinations of a group."""
        by_tensor = self.placement.by_tensor
        return [number for member in group.members for number, _ in by_tensor.get(member, ())]

    def _state(self, group: Group, held: dict[int, Table]) -> _State:
        numbers = self._numbers(group)
        destinations = [self.placement.destinations[number] for number in numbers]
        if not numbers:
            return _State.DONE
        if not all(each.is_whole for each in destinations):
            # What a part of a tensor holds in the target is only known from its bits.
            return _State.MIXED
        pairs = list(zip(numbers, destinations, strict=True))
        if all(np.array_equal(held[n], self.table[each.tensor_index]) for n, each in pairs):
            return _State.DONE
        before = self.mixture.before.lanes
        is_all_here = len({each.tensor_index for each in destinations}) == len(group.members)
        if is_all_here and all(np.array_equal(held[n], before[n]) for n in numbers):
            return _State.BASE
        return _State.MIXED

    def _following(self) -> VersionBits | None:
        """The target's bits from those that are live; None where no deltas lead forward."""
        if self.changes.is_whole or self.mixture.target.version < self.mixture.base.version:
            return None
        below = _LiveBits(self.placement, self.mixture.base.version)
        return VersionBits(
            below,
            self.changes.deltas,
            schema=self.placement.schema,
            table=self.table,
            codec=self.codec,
        )

    def _overwrite(
        self, group: Group, live: VersionBits | None, lanes: Table, tally: Tally
    ) -> None:
        with tally.phase(Phase.DECODE):
            positions = self.changes.positions(group)
            units = self._stored(group, tally) if live is None else live.group(group)
            tally.decoded_bytes += positions.nbytes + positions.size * units.itemsize
        bounds = np.searchsorted(positions, group.starts).tolist()
        for number, member in enumerate(group.members):
            start = int(group.starts[number])
            inside = positions[bounds[number] : bounds[number + 1]]
            tensor = units[start : int(group.starts[number + 1])]
            self._write_tensor(member, inside - start, tensor, lanes, tally)

    def _stored(self, group: Group, tally: Tally) -> Units:
        read_bytes = self.changes.read_size_bytes
        try:
            with tally.phase(Phase.FETCH):
                return self.changes.bits(group)
        finally:
            tally.wire_bytes += self.changes.read_size_bytes - read_bytes

    def _write_tensor(
        self, member: int, indices: NDArray[np.int64], units: Units, lanes: Table, tally: Tally
    ) -> None:
        for number, destination in self.placement.by_tensor.get(member, ()):
            storage = self.placement.storage_of(destination)
            chosen, places = destination.extent.find(indices)
            new_bits = units[indices[chosen]]
            old_bits = storage.gather(places)
            differs = np.flatnonzero(old_bits != new_bits)
            # Rising as a change must be, however the memory is strided.
            order = differs[np.argsort(places[differs], kind="stable")]
            if order.size:
                change = BlockedChange.of(places[order], old_bits[order], new_bits[order])
                for part in change.cut(self.launch_size_bytes):
                    counts = storage.scatter(part, redo=True)
                    size_bytes = counts.written_count * storage.width_bytes
                    tally.wrote(counts.written_count, size_bytes)
            if not destination.is_whole:
                total = NO_LANES
                for extent, part_units in parts_of(units, destination):
                    total = add_lanes(total, lanes_of_part(extent, part_units))
                lanes[number] = total


class _LiveBits:
    """The bits of groups that are wholly live, as something that deltas can follow."""

    def __init__(self, placement: Placement, version: VersionId) -> None:
        self.version = version
        self._placement = placement

    def group(self, group: Group, /) -> Units:
        """See `Bits`."""
        found = []
        for member in group.members:
            _, destination = self._placement.by_tensor[member][0]
            found.append(self._placement.storage_of(destination).read(destination.extent))
        return found[0] if len(found) == 1 else np.concatenate(found)


def make_overwrite_step(
    source: VersionSource,
    placement: Placement,
    mixture: Mixture,
    codec: PieceCodec,
    launch_size_bytes: int,
    tally: Tally,
) -> OverwriteStep | None:
    """Make ready what heals a mixture; None, with the reason in the tally, where nothing does.

    Writes no live memory.

    Raises:
        UnavailableError: the store cannot be read now.
    """
    try:
        with tally.phase(Phase.DISCOVER):
            record = _record_of(source, mixture.target)
            plan = source.plan(record)
            path = _path(source, record, mixture.base)
        with tally.phase(Phase.FETCH), source.gone_if_retired(record):
            limits = source.settings.limits
            changes = OverwriteSet(
                source.blobs, plan, mixture.base, path, limits=limits, codec=codec
            )
    except (CorruptError, NotFoundError) as error:
        tally.reason = f"no overwrite set from {mixture.base}: {error.message}"
        return None
    if changes.is_whole or changes.schema != placement.schema:
        tally.reason = f"no overwrite set from {mixture.base}: {changes.reason or 'another schema'}"
        return None
    tally.wire_bytes += changes.read_size_bytes
    return OverwriteStep(
        source, placement, mixture, changes, plan.last_table, codec, launch_size_bytes
    )


def _record_of(source: VersionSource, ref: VersionRef) -> VersionRecord:
    """The record of a version that was read before; its digest is compared again."""
    record = source.find(ref.version)
    if VersionRef.of(record) != ref:
        raise CorruptError(f"the log says that {ref} is {VersionRef.of(record)}")
    return record


def _path(
    source: VersionSource, record: VersionRecord, base: VersionRef
) -> DeltaPath | NoDeltaPath:
    """The deltas between base and target; of a rollback that was cut the base is the later."""
    if base.version < record.version:
        return source.path(record, base)
    return source.path(_record_of(source, base), VersionRef.of(record))
