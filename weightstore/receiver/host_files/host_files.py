"""`HostFiles`: a checkpoint directory that is kept at a version, in place, whatever is cut."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from weightstore import arguments
from weightstore.clock import Clock, Entropy
from weightstore.codec.blocked import WINDOW_SIZE_BYTES, WINDOW_UNIT_COUNT
from weightstore.codec.codec import PieceCodec
from weightstore.errors import (
    CorruptError,
    LiveWeightsError,
    NotReadyError,
    StoreClosedError,
    WrongBaseError,
)
from weightstore.format.records import VersionRecord
from weightstore.history.delta_path import DeltaPath, NoDeltaPath, VersionRef
from weightstore.history.progress import Progress, no_progress
from weightstore.ids import StoreId, VersionId
from weightstore.receiver.delta_work import DeltaWork, LiveTables
from weightstore.receiver.host_files.disk_steps import DiskSteps
from weightstore.receiver.host_files.whole_files import WholeFiles
from weightstore.receiver.live_state import Way
from weightstore.receiver.placement import Placement
from weightstore.receiver.pool import Pool, PoolFullError
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.reports import Phase, RefitReport, Tally
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.linked_folder import LinkedFolder
from weightstore.storage.machine import process_id, refuse_fork

POOL_RATIO = 0.25
"""A change of more elements is hardly shorter to write in place than the whole version."""
_POOL_SPARE_BYTES = 1 << 20
"""For the ends of arrays; a small model has room for any change of it."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found in a directory, and what was done about it.

    Attributes:
        version: What the files hold, proved by a scan of every element; None if nobody knows.
        is_redo: A change that had been cut was written again.
        reason: Why nobody knows; empty otherwise, and for a directory that is new.
    """

    version: VersionId | None
    is_redo: bool = False
    reason: str = ""


class HostFiles:
    """A checkpoint directory at a version. Use `WeightStore.host_files`.

    The directory is a link. It leads to files that are one whole version, or it is not there:
    it goes before the first byte of a change is written, and comes back after the last one is
    durable. A change is written over the files in place, from a journal that is durable before;
    what has no way in place is written beside them and takes over the link.

    Methods may be called from several threads; one works at a time.

    Args:
        source: The store.
        store_id: Its id.
        held: The link and its place; closed with this.
        clock: For times in reports.
        entropy: Names what is being written.
        settings: Pool and rolling scan.
        codec: Kernels to use; None makes one.

    Attributes:
        settings: As given.
        last_recovery: What was found when the directory was opened, or after a cut.
    """

    def __init__(
        self,
        source: VersionSource,
        store_id: StoreId,
        held: LinkedFolder,
        *,
        clock: Clock,
        entropy: Entropy,
        settings: ReceiverSettings | None = None,
        codec: PieceCodec | None = None,
    ) -> None:
        self.settings = settings or ReceiverSettings(pool_ratio=POOL_RATIO)
        self._source = source
        self._held = held
        self._clock = clock
        self._codec = codec or PieceCodec(limits=source.settings.limits)
        self._steps = DiskSteps(
            source,
            store_id,
            held,
            entropy=entropy,
            codec=self._codec,
            scan_refit_count=self.settings.scan_refit_count,
        )
        self._lock = threading.RLock()
        self._process = process_id()
        self._is_closed = False
        self._whole: WholeFiles | None = None
        self._reason = ""
        self._is_cut = False
        self.last_recovery = self._recover(Tally(clock))

    @property
    def directory(self) -> Path:
        """What an engine is given."""
        return self._held.link

    @property
    def version(self) -> VersionId | None:
        """The version that the directory holds; None while there is none."""
        whole = self._whole
        return whole.mark.version if whole else None

    def close(self) -> None:
        """Let other processes follow into the directory. A second call does nothing."""
        if process_id() != self._process:
            # The hold is the parent's, which goes on with it.
            return
        with self._lock:
            self._is_closed, self._whole = True, None
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def refit(
        self, selector: int | str = "latest", *, progress: Progress = no_progress
    ) -> RefitReport:
        """Bring the directory to a version.

        After a crash or an error: the directory is the old version, or not there; opening it
        again, or the next call, heals it. (P5)

        Args:
            selector: The version.
            progress: Told of bytes where the whole version is written.

        Raises:
            VersionNotFoundError, VersionGoneError, CorruptError: of the version.
            StorageFullError, StorageFailedError, StoreReadOnlyError: of the directory's disk.
            BlobOutcomeUnknownError: power loss may undo a step on that disk; call it again.
        """
        wanted = arguments.selector(selector)
        arguments.function(progress, "progress")
        self._refuse_fork()
        with self._lock:
            self._refuse_closed()
            tally = Tally(self._clock)
            with tally.phase(Phase.DISCOVER):
                record = self._source.find(wanted)
            is_redo = False
            if self._is_cut:
                self.last_recovery = self._recover(tally)
                is_redo = self.last_recovery.is_redo
            base = self.version
            way = self._bring(record, tally, progress)
            assert self._whole is not None
            size_bytes = self._whole.files.placement.size_bytes
            return tally.report(base, record.version, way, full_bytes=size_bytes, is_redo=is_redo)

    def verify(self) -> VersionRef:
        """Look at every byte of the files, headers and configuration too.

        Returns:
            The version that is wholly there.

        Raises:
            NotReadyError: there is none.
            LiveWeightsError: somebody else has changed the files; the link is gone, and the
                next refit writes the whole version.
        """
        self._refuse_fork()
        with self._lock:
            self._refuse_closed()
            whole = self._whole
            if whole is None:
                why = self._reason or "nothing was written yet"
                raise NotReadyError(f"{self.directory} holds no version: {why}", do="Refit it.")
            found = whole.changed_by_others()
            if found:
                self._soil(found)
                raise LiveWeightsError(
                    f"the files of {self.directory} are not those of {whole.mark.ref}: {found}",
                    facts={"version": whole.mark.version},
                )
            return whole.mark.ref

    def _bring(self, record: VersionRecord, tally: Tally, progress: Progress) -> Way:
        target = VersionRef.of(record)
        if self._whole is not None and self._whole.mark.ref == target:
            return Way.NOTHING
        if self._whole is not None:
            with tally.phase(Phase.SCAN):
                found = self._whole.changed_in_share()
            if found:
                self._soil(found)
        tally.reason = self._reason or "the directory is new"
        if self._whole is not None:
            way = self._source.path(record, self._whole.mark.ref)
            tally.reason = ""
            if isinstance(way, NoDeltaPath):
                tally.reason = str(way)
            elif self._change(self._whole, way, tally):
                return Way.CHANGE
        exported = self._steps.export(record, tally, progress)
        try:
            self._steps.switch(exported.mark)
        except BaseException as error:
            self._cut(f"the change to a whole version was cut: {error}")
            raise
        self._know(exported)
        return Way.FULL

    def _change(self, whole: WholeFiles, path: DeltaPath, tally: Tally) -> bool:
        """Write a change in place; False, with the reason noted, if it is to be written whole."""
        placement, spans = whole.files.placement, whole.files.spans
        pool = Pool.of_size(self._pool_size_bytes(placement, path))
        try:
            work = DeltaWork(self._source, placement, self._codec)
            change = work.stage(path, whole.tables, pool, tally)
        except PoolFullError:
            tally.reason = "so much changes that the whole version is written"
            return False
        except (LiveWeightsError, WrongBaseError) as error:
            # What is stored was checked by itself, so it is the files that are wrong.
            self._soil(error.message)
            tally.reason = error.message
            return False
        except CorruptError as error:
            # Only the way is broken: a full form may be there, and nothing was written.
            tally.reason = f"the deltas cannot be used: {error.message}"
            return False
        parts = tuple(spans[each.storage_index].part(each.change) for each in change.parts)
        mark = self._steps.write_journal(whole.mark, path.target, parts, tally)
        try:
            self._steps.change(mark, parts, tally)
        except LiveWeightsError as error:
            self._soil(error.message)
            tally.reason = error.message
            return False
        except BaseException as error:
            self._cut(f"a change was cut: {error}")
            raise
        self._whole = whole.moved(mark, LiveTables(change.table, change.lanes))
        return True

    def _recover(self, tally: Tally) -> Recovery:
        self._cut("it could not be looked at")
        try:
            found = self._steps.recover(tally)
        except LiveWeightsError as error:
            self._soil(error.message)
            return Recovery(None, reason=error.message)
        if found is None:
            self._soil("")
            return Recovery(None)
        whole, is_redo = found
        self._know(whole)
        return Recovery(whole.mark.version, is_redo=is_redo)

    def _know(self, whole: WholeFiles) -> None:
        self._whole, self._reason, self._is_cut = whole, "", False

    def _soil(self, reason: str) -> None:
        """Give up what is known: nobody may load it any more."""
        self._cut(reason)
        self._steps.hide()
        self._is_cut = False

    def _cut(self, reason: str) -> None:
        """Note that only the disk knows what is there; the next call finds out."""
        self._whole, self._reason, self._is_cut = None, reason, True

    def _pool_size_bytes(self, placement: Placement, path: DeltaPath) -> int:
        """Room for what the deltas say they change, up to the bound of the settings."""
        if self.settings.pool_size_bytes is not None:
            return self.settings.pool_size_bytes
        width = max((each.width_bytes for each in placement.storages), default=1)
        place_count = max((len(each) for each in placement.by_tensor.values()), default=1)
        count = path.changed_count * place_count
        window_count = placement.schema.unit_count * place_count // WINDOW_UNIT_COUNT
        window_count = min(count, window_count + len(placement.destinations))
        wanted = count * (2 + 2 * width) + window_count * WINDOW_SIZE_BYTES
        # A change of a bf16 unit takes six bytes: three for each of its own.
        bound = int(3 * placement.size_bytes * self.settings.pool_ratio)
        return min(wanted, bound) + _POOL_SPARE_BYTES

    def _refuse_fork(self) -> None:
        """A forked child has the lock of the directory with its parent, not against it."""
        do = "Follow from the process that opened it."
        refuse_fork(self._process, f"the hold on {self.directory}", do)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise StoreClosedError(
                f"{self.directory} is no longer followed", do="Open it again: `host_files`."
            )
