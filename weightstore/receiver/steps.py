"""What is staged, as something that can be written: a change, a stream, or a whole version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weightstore.codec.codec import PieceCodec
from weightstore.errors import CorruptObjectError, DigestMismatchError, ObjectMissingError
from weightstore.format.records import VersionRecord
from weightstore.history.chain import CheckoutPlan
from weightstore.history.checkout import verify_plan
from weightstore.history.delta_path import DeltaPath, NoDeltaPath, VersionRef
from weightstore.layout.schema import Schema
from weightstore.receiver.change import StagedChange
from weightstore.receiver.delta_work import DeltaWork, LiveTables
from weightstore.receiver.full_form import FullVersion
from weightstore.receiver.live_state import Way
from weightstore.receiver.live_writes import check_lanes, write_change
from weightstore.receiver.overwrite_step import Mixture, OverwriteStep, make_overwrite_step
from weightstore.receiver.piece_feed import PieceFeed
from weightstore.receiver.placement import Placement
from weightstore.receiver.pool import Pool, PoolFullError
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.reports import Phase, Tally
from weightstore.receiver.rolling_scan import RollingScan
from weightstore.receiver.version_source import VersionSource


@dataclass(frozen=True, slots=True, eq=False)
class ChangeStep:
    """A change that waits in the pool.

    Attributes:
        placement: Where it goes.
        change: What it is.
        before: What is known before it.
        launch_size_bytes: Written at a time, about.
    """

    placement: Placement
    change: StagedChange
    before: LiveTables
    launch_size_bytes: int
    way = Way.CHANGE

    def write(self, tally: Tally, *, is_redo: bool) -> LiveTables:
        """Scatter it.

        After a crash: each unit holds its old or its new bits; write it again as a redo.

        Raises:
            LiveWeightsError: live memory did not hold what it should, or not every unit of
                the change was written.
        """
        write_change(self.placement, self.change, self.launch_size_bytes, tally, is_redo=is_redo)
        return self.after

    def reversed(self) -> ChangeStep:
        """The way back; shares the pool's arrays."""
        change = self.change.reversed(self.before.table, self.before.lanes)
        return ChangeStep(self.placement, change, self.after, self.launch_size_bytes)

    @property
    def after(self) -> LiveTables:
        """What is known after it."""
        return LiveTables(self.change.table, self.change.lanes)


@dataclass(frozen=True, slots=True, eq=False)
class StreamStep:
    """A path that is written piece by piece, since its change does not fit the pool.

    Attributes:
        work: Writes it.
        placement: Where it goes.
        path: What it is.
        before: What is known before it.
        thread_count: Threads for the scan at the end.
    """

    work: DeltaWork
    placement: Placement
    path: DeltaPath
    before: LiveTables
    thread_count: int
    way = Way.STREAMED

    def write(self, tally: Tally, *, is_redo: bool) -> LiveTables:
        """Stream it, and look at every tensor that it changed.

        After a crash: bits of several versions; an overwrite set heals them.

        Raises:
            WrongBaseError, LiveWeightsError, CorruptError: it went wrong on the way.
        """
        assert not is_redo, "a stream that was cut has lost its base"
        after = self.work.stream(self.path, self.before, tally)
        changed = np.flatnonzero(np.any(after.table != self.before.table, axis=1)).tolist()
        numbers = [
            number for index in changed for number, _ in self.placement.by_tensor.get(index, ())
        ]
        check_lanes(self.placement, numbers, after.lanes, self.thread_count, tally)
        return after


@dataclass(frozen=True, slots=True, eq=False)
class FullStep:
    """A version that is written whole.

    Attributes:
        source: The store.
        plan: Where it comes from.
        placement: Where it goes; another one than before if the schema is another.
        codec: Kernels to use.
    """

    source: VersionSource
    plan: CheckoutPlan
    placement: Placement
    codec: PieceCodec
    way = Way.FULL

    def write(self, tally: Tally, *, is_redo: bool) -> LiveTables:  # noqa: ARG002 -- always one
        """Write every element, then look at every element.

        After a crash: old and new bits mixed; write it again.

        Raises:
            CorruptError: something stored is damaged, or what has landed is not the version.
        """
        source, placement = self.source, self.placement
        with source.gone_if_retired(self.plan.record):
            limits = source.settings.limits
            with tally.phase(Phase.FETCH):
                version = FullVersion.of(source.blobs, self.plan, self.codec, limits)
            tally.wire_bytes += self.plan.full_size_bytes + self.plan.delta_size_bytes
            lanes = version.write(placement, tally)
        numbers = list(range(len(placement.destinations)))
        check_lanes(placement, numbers, lanes, source.settings.thread_count, tally)
        return LiveTables(self.plan.last_table, lanes)


Step = ChangeStep | StreamStep | OverwriteStep | FullStep


class StepMaker:
    """Decides how a version gets into place, and makes it ready. Not for several threads.

    Args:
        source: The store.
        place: Plans where the tensors of a schema live.
        settings: Of the receiver.
        make_pool: Takes the memory for staged changes.
        codec: Kernels to use; None makes one.
        feed: Where packs of deltas come from; None reads and decodes them here.
    """

    def __init__(
        self,
        source: VersionSource,
        place: Callable[[Schema], Placement],
        settings: ReceiverSettings,
        make_pool: Callable[[int], Pool],
        codec: PieceCodec | None,
        feed: PieceFeed | None = None,
    ) -> None:
        self._source = source
        self._feed = feed
        self._place = place
        self._settings = settings
        self._codec = codec or PieceCodec(limits=source.settings.limits)
        self.seat(place(source.schema(source.find("latest"))))
        self._pool = make_pool(self._pool_size_bytes())

    def seat(self, placement: Placement) -> None:
        """Take a placement for the one that weights are written to.

        Raises:
            SchemaMismatchError: it lacks a tensor.
        """
        placement.check_complete()
        self.placement = placement
        self.rolling = RollingScan(placement, self._settings.scan_refit_count)
        self._work = DeltaWork(self._source, placement, self._codec, self._feed)

    def seat_once(self, placement: Placement) -> None:
        """Take the placement that holds what is live now, unless it is taken already."""
        if placement is not self.placement:
            self.seat(placement)

    def way(
        self, record: VersionRecord, held: VersionRef | None, tally: Tally
    ) -> DeltaPath | NoDeltaPath | None:
        """The deltas to a version, or why there are none; None where nothing is held.

        Raises:
            WrongBaseError: the log knows what is held by another digest. (P8 b)
            CorruptError, VersionGoneError: of the version.
        """
        if held is None:
            return None
        with tally.phase(Phase.DISCOVER):
            return self._source.path(record, held)

    def make(
        self,
        record: VersionRecord,
        way: DeltaPath | NoDeltaPath | None,
        live: LiveTables | None,
        tally: Tally,
    ) -> Step:
        """Make a version ready. Writes no live memory.

        Args:
            record: Of the version.
            way: How to get there.
            live: What is known of the version that is wholly live, if one is.
            tally: Counts.

        Raises:
            WrongBaseError: a delta does not fit the bits that are live. (P8 c)
            LiveWeightsError: live memory is not what is known of it.
            SchemaMismatchError: the version has other tensors than live here.
            CorruptError, VersionGoneError: of the version.
        """
        if way is None or live is None:
            return self._full(record, tally, is_serving=False)
        if isinstance(way, NoDeltaPath):
            tally.reason = str(way)
            return self._full(record, tally, is_serving=True)
        shortcut = self._shortcut(record, way, tally)
        if shortcut is not None:
            return shortcut
        try:
            return self._delta(way, live, tally)
        except _BROKEN as error:
            # Only the way is broken: a full form may be there, and what is live is untouched.
            tally.reason = f"the deltas cannot be used: {error.message}"
            return self._full(record, tally, is_serving=True)

    def overwrite(self, mixture: Mixture, tally: Tally) -> OverwriteStep | None:
        """What brings a mixture to the version that was on its way; None where nothing does.

        Raises:
            UnavailableError: the store cannot be read now.
        """
        launch_size_bytes = self._settings.launch_size_bytes
        return make_overwrite_step(
            self._source, self.placement, mixture, self._codec, launch_size_bytes, tally
        )

    def expected(self, record: VersionRecord) -> tuple[Placement, LiveTables]:
        """Where a version's tensors live, and what these places must hold to be it.

        Raises:
            SchemaMismatchError: the version has other tensors than live here.
            CorruptError, VersionGoneError: of the version.
        """
        plan = self._source.plan(record)
        placement = self._placement_for(plan.schema)
        lanes = np.array(
            [plan.last_table[each.tensor_index] for each in placement.destinations], np.uint64
        ).reshape(-1, 2)
        if not all(each.is_whole for each in placement.destinations):
            with self._source.gone_if_retired(record):
                limits = self._source.settings.limits
                version = FullVersion.of(self._source.blobs, plan, self._codec, limits)
                lanes = version.expected_lanes(placement)
        return placement, LiveTables(plan.last_table, lanes)

    def _shortcut(self, record: VersionRecord, path: DeltaPath, tally: Tally) -> FullStep | None:
        """A full form on the way that is cheaper than all deltas; None where none is."""
        if path.size_bytes <= FULL_READ_COUNT * path.schema.size_bytes:
            return None
        try:
            with tally.phase(Phase.DISCOVER):
                plan = self._source.plan(record)
            full_bytes = FULL_READ_COUNT * (plan.full_size_bytes + plan.delta_size_bytes)
            if path.size_bytes <= full_bytes:
                return None
            step = self._full(record, tally, is_serving=True)
        except _BROKEN:
            # The deltas may still be whole.
            return None
        tally.reason = (
            f"{len(path.deltas)} deltas of {path.size_bytes} bytes are more than the {full_bytes} "
            "bytes that a full form takes"
        )
        return step

    def _delta(self, path: DeltaPath, live: LiveTables, tally: Tally) -> Step:
        placement = self.placement
        try:
            change = self._work.stage(path, live, self._pool, tally)
        except PoolFullError:
            self._pool.clear()
            tally.reason = f"the change does not fit a pool of {self._pool.size_bytes} bytes"
            self._work.check_first(path, live, tally)
            threads = self._source.settings.thread_count
            return StreamStep(self._work, placement, path, live, threads)
        return ChangeStep(placement, change, live, self._settings.launch_size_bytes)

    def _full(self, record: VersionRecord, tally: Tally, *, is_serving: bool) -> FullStep:
        with tally.phase(Phase.DISCOVER):
            plan = self._source.plan(record)
        placement = self._placement_for(plan.schema)
        if is_serving:
            # What is served now is given up only for a version that is known to be good.
            with tally.phase(Phase.FETCH), self._source.gone_if_retired(record):
                source = self._source
                tally.wire_bytes += plan.full_size_bytes + plan.delta_size_bytes
                verify_plan(source.blobs, plan, source.settings, codec=self._codec)
        return FullStep(self._source, plan, placement, self._codec)

    def _placement_for(self, schema: Schema) -> Placement:
        if schema == self.placement.schema:
            return self.placement
        placement = self._place(schema)
        placement.check_complete()
        return placement

    def _pool_size_bytes(self) -> int:
        if self._settings.pool_size_bytes is not None:
            return self._settings.pool_size_bytes
        placement = self.placement
        units_bytes = sum(
            each.extent.unit_count * (2 + 2 * placement.storage_of(each).width_bytes)
            for each in placement.destinations
        )
        return int(units_bytes * self._settings.pool_ratio) + POOL_SIZE_BYTES_MIN


_BROKEN = (ObjectMissingError, CorruptObjectError, DigestMismatchError)
"""What says that one way to a version cannot be used; another one may be."""
FULL_READ_COUNT = 2
"""A full form is verified while the version before it serves, and read again to be written."""
POOL_SIZE_BYTES_MIN = 1 << 20
"""A small model has room for any change of it."""
