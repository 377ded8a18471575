"""The work of deltas on live memory: staged as one change, or streamed into place."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.errors import CorruptObjectError, LiveWeightsError
from weightstore.format.manifest import Manifest
from weightstore.history.chain import delta_form
from weightstore.history.delta_path import DeltaPath
from weightstore.history.manifests import load_table
from weightstore.history.pack_jobs import PackJob, load_packs
from weightstore.history.workers import Workers
from weightstore.receiver.change import ChangeBuilder, StagedChange, moved_lanes
from weightstore.receiver.evaluation import Evaluator, GroupChange
from weightstore.receiver.piece_feed import OwnFeed, PieceFeed, WrongAnswerError
from weightstore.receiver.piece_groups import (
    PieceGroup,
    PieceRef,
    booked_pieces,
    group_pieces,
    is_here,
)
from weightstore.receiver.placement import Placement
from weightstore.receiver.pool import Pool, PoolFullError
from weightstore.receiver.reports import Phase, Tally
from weightstore.receiver.version_source import VersionSource

Table = NDArray[np.uint64]

_LITTLE_COUNT = 4096
"""Groups with fewer changes on average take longer to hand to threads than to work out."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveTables:
    """What is known of a whole version in place.

    Attributes:
        table: Digest lanes of its tensors, shape (tensors, 2).
        lanes: Digest lanes of the destinations, shape (destinations, 2): moved by own
            writes alone since the last checkout or scan. (P8 a)
    """

    table: Table
    lanes: Table


class DeltaWork:
    """Brings deltas to one placement. Not for several threads.

    Args:
        source: The store.
        placement: Where the tensors live.
        codec: Kernels to use.
        feed: Where packs come from; None reads and decodes them here.
    """

    def __init__(
        self,
        source: VersionSource,
        placement: Placement,
        codec: PieceCodec,
        feed: PieceFeed | None = None,
    ) -> None:
        self._source = source
        self._placement = placement
        self._evaluator = Evaluator(placement, codec)
        self._own = OwnFeed(source.blobs, source.settings.limits)
        self._feed = feed or self._own
        self._load = self._feed.load

    def stage(self, path: DeltaPath, live: LiveTables, pool: Pool, tally: Tally) -> StagedChange:
        """Work out what a path changes, against the bits that are live. Writes nothing live.

        Args:
            path: From the version that is live.
            live: What is known of it.
            pool: Takes the change.
            tally: Counts.

        Raises:
            PoolFullError: the change is larger than the pool.
            WrongBaseError: a piece does not fit the bits that are live (P8 c).
            LiveWeightsError: live memory does not hold what it should.
            CorruptError: something stored is damaged.
        """
        least_bytes = sum(delta_form(each).size_bytes for each in path.deltas)
        if least_bytes > pool.size_bytes:
            raise PoolFullError
        with self._fed(tally):
            try:
                return self._staged(path, live, pool, tally)
            except WrongAnswerError:
                # All of it again: a piece that lives here in part cannot be checked by itself,
                # and it came from the same hand.
                self._give_up_others()
                return self._staged(path, live, pool, tally)

    def _staged(self, path: DeltaPath, live: LiveTables, pool: Pool, tally: Tally) -> StagedChange:
        with Workers(self._source.settings.thread_count) as workers:
            refs: list[PieceRef] = []
            before = live.table
            with closing(self._loaded(path.deltas, path, workers)) as loaded:
                for manifest in path.deltas:
                    after = self._table_of(path, manifest)
                    for found in self._booked(manifest, loaded, (before, after), path, tally):
                        refs += found
                    before = after
            groups = self._here(group_pieces(refs, path.schema), tally)
            builder = ChangeBuilder(self._placement, pool, groups)
            with closing(self._evaluated(groups, workers, tally)) as results:
                for number, change in enumerate(results):
                    with tally.phase(Phase.STAGE):
                        builder.add(number, change)
        with tally.phase(Phase.STAGE):
            parts = builder.finish()
        after_lanes = moved_lanes(self._placement, live.lanes, path.last_table, builder.lane_deltas)
        return StagedChange(parts, path.last_table, after_lanes)

    def check_first(self, path: DeltaPath, live: LiveTables, tally: Tally) -> None:
        """Do every check of the first delta of a path that is to be streamed. Writes nothing.

        Raises:
            WrongBaseError, LiveWeightsError, CorruptError: as `stage`.
        """
        manifest = path.deltas[0]
        with self._fed(tally):
            self._check(path, manifest, (live.table, self._table_of(path, manifest)), tally)

    def stream(self, path: DeltaPath, live: LiveTables, tally: Tally) -> LiveTables:
        """Write a path piece by piece, delta by delta, each checked before its first write.

        After a crash: live memory holds bits of several versions; an overwrite set heals it, or
        the whole version.

        Returns:
            What is there afterwards, if its digests agree.

        Raises:
            WrongBaseError, LiveWeightsError, CorruptError: as `stage`.
            VersionGoneError: the version was retired meanwhile.
        """
        table, lanes = live.table, live.lanes
        with self._source.gone_if_retired(path.target), self._fed(tally):
            for manifest in path.deltas:
                after = self._table_of(path, manifest)
                if manifest is not path.deltas[0]:
                    self._check(path, manifest, (table, after), tally)
                deltas = np.zeros_like(lanes)
                try:
                    for change in self._changes(path, manifest, (table, after), tally):
                        self._write(change, deltas, tally)
                except WrongAnswerError as error:
                    self._give_up_others()
                    raise CorruptObjectError(
                        f"what was right before the first write is wrong now: {error}",
                        do="Refit or recover the receiver: the version is written in place.",
                    ) from error
                table, lanes = after, moved_lanes(self._placement, lanes, after, deltas)
        return LiveTables(table, lanes)

    def _check(
        self, path: DeltaPath, manifest: Manifest, tables: tuple[Table, Table], tally: Tally
    ) -> None:
        """Do every check of one delta without a write."""
        try:
            for _ in self._changes(path, manifest, tables, tally):
                pass
        except WrongAnswerError:
            self._give_up_others()
            for _ in self._changes(path, manifest, tables, tally):
                pass

    @contextmanager
    def _fed(self, tally: Tally) -> Iterator[None]:
        """Give everything back to the feed at the end, and note what it did not give."""
        self._load = self._feed.load
        try:
            yield
        finally:
            self._feed.release_all()
            note = self._feed.take_note()
            if note:
                tally.reason = f"{tally.reason}; {note}" if tally.reason else note

    def _give_up_others(self) -> None:
        """Read and decode the rest here: the next agent may be as wrong as this one."""
        self._feed.distrust()
        self._load = self._own.load

    def _write(self, change: GroupChange, deltas: Table, tally: Tally) -> None:
        for segment in change.segments:
            destination = self._placement.destinations[segment.destination]
            storage = self._placement.storage_of(destination)
            counts = storage.scatter(segment.change, redo=False)
            tally.wrote(counts.written_count, counts.written_count * storage.width_bytes)
            if counts != (segment.change.count, 0):
                name = self._placement.schema.tensors[destination.tensor_index].name
                raise LiveWeightsError(
                    f"tensor {name!r} changed while it was being written",
                    facts={"tensor": name},
                )
            if segment.lane_deltas is not None:
                deltas[segment.destination] += segment.lane_deltas

    def _changes(
        self, path: DeltaPath, manifest: Manifest, tables: tuple[Table, Table], tally: Tally
    ) -> Iterator[GroupChange]:
        """What one delta changes, piece by piece, a pack in memory at a time."""
        with (
            Workers(self._source.settings.thread_count) as workers,
            closing(self._loaded([manifest], path, workers)) as loaded,
        ):
            for refs in self._booked(manifest, loaded, tables, path, tally):
                groups = self._here(group_pieces(refs, path.schema), tally)
                with closing(self._evaluated(groups, workers, tally)) as results:
                    yield from results
                self._feed.release(refs[0].job)

    def _loaded(
        self, manifests: tuple[Manifest, ...] | list[Manifest], path: DeltaPath, workers: Workers
    ) -> Generator[PackJob, None, None]:
        return load_packs(
            self._source.blobs,
            path.schema,
            manifests,
            workers=workers,
            limits=self._source.settings.limits,
            load=self._load,
        )

    def _booked(
        self,
        manifest: Manifest,
        loaded: Generator[PackJob, None, None],
        tables: tuple[Table, Table],
        path: DeltaPath,
        tally: Tally,
    ) -> Iterator[list[PieceRef]]:
        limits = self._source.settings.limits
        packs = booked_pieces(path.schema, manifest, _timed(loaded, tally), tables, limits)
        while True:
            with tally.phase(Phase.VERIFY):
                refs = next(packs, None)
            if refs is None:
                return
            if refs[0].job.decoded is None:
                tally.wire_bytes += refs[0].job.pack.size_bytes
            yield refs

    def _evaluated(
        self, groups: list[PieceGroup], workers: Workers, tally: Tally
    ) -> Generator[GroupChange, None, None]:
        jobs: Iterator[Callable[[], GroupChange]] = (
            partial(self._evaluator.evaluate, group) for group in groups
        )
        # Of little work threads make more: each of its short kernels hands the interpreter over.
        is_little = sum(group.changed_count for group in groups) < _LITTLE_COUNT * len(groups)
        with closing((job() for job in jobs) if is_little else workers.run(jobs)) as results:
            for group in groups:
                with tally.phase(Phase.DECODE):
                    change = next(results)
                tally.decoded_bytes += change.decoded_size_bytes
                self._missed(group, change.missed_count, tally)
                yield change

    def _here(self, groups: list[PieceGroup], tally: Tally) -> list[PieceGroup]:
        """Groups of which something lives here, those of one memory side by side."""
        found: list[tuple[int, PieceGroup]] = []
        for group in groups:
            if is_here(group, self._placement):
                found.append((self._first_storage(group), group))
            else:
                self._missed(group, group.changed_count, tally)
        found.sort(key=lambda each: each[0])
        return [group for _, group in found]

    def _first_storage(self, group: PieceGroup) -> int:
        return next(
            destination.storage_index
            for member in group.members
            for _, destination in self._placement.by_tensor.get(member, ())
        )

    def _missed(self, group: PieceGroup, count: int, tally: Tally) -> None:
        """Count changed units that live nowhere here; only declared parts may leave some out."""
        schema = self._placement.schema
        tally.skipped_bytes += count * schema.tensors[group.members[0]].dtype.unit_size_bytes
        if count and not any(member in self._placement.boxed for member in group.members):
            names = tuple(schema.tensors[member].name for member in group.members[:5])
            raise LiveWeightsError(
                f"the manifest names {count} changed units of {names} that have no place here",
                do="Attach a receiver that is given every tensor, or declare what it lacks.",
                facts={"tensors": names, "missed_count": count},
            )

    def _table_of(self, path: DeltaPath, manifest: Manifest) -> Table:
        if manifest is path.deltas[-1]:
            return path.last_table
        source = self._source
        return load_table(source.blobs, manifest, path.schema, source.settings.limits)


def _timed(loaded: Generator[PackJob, None, None], tally: Tally) -> Generator[PackJob, None, None]:
    while True:
        with tally.phase(Phase.FETCH):
            job = next(loaded, None)
        if job is None:
            return
        yield job
