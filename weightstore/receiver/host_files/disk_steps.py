"""What is done to a followed directory on its disk: each step so that a cut of it heals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weightstore.clock import Entropy
from weightstore.codec.codec import PieceCodec
from weightstore.errors import (
    CorruptObjectError,
    LiveWeightsError,
    NotFoundError,
    SchemaMismatchError,
)
from weightstore.format.records import VersionRecord
from weightstore.history.delta_path import VersionRef
from weightstore.history.export import export_checkpoint
from weightstore.history.progress import Progress
from weightstore.ids import StoreId
from weightstore.layout.schema import Schema
from weightstore.receiver.host_files.file_layout import read_file_header, weight_file_names
from weightstore.receiver.host_files.file_writes import write_parts
from weightstore.receiver.host_files.mark import (
    FOLDER_NAMES,
    MARK_NAME,
    Mark,
    foreign_change,
    mark_file,
    parse_mark,
)
from weightstore.receiver.host_files.redo_journal import (
    JOURNAL_NAME,
    FilePart,
    Journal,
    JournalHead,
    journal_chunks,
    read_journal,
)
from weightstore.receiver.host_files.whole_files import WholeFiles
from weightstore.receiver.reports import Phase, Tally
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.linked_folder import LinkedFolder


class DiskSteps:
    """Changes a directory and its link. Not for several threads.

    Args:
        source: The store.
        store_id: Its id.
        held: The link and its place.
        entropy: Names what is being written.
        codec: Kernels to use.
        scan_refit_count: Refits after which every element was looked at.
    """

    def __init__(
        self,
        source: VersionSource,
        store_id: StoreId,
        held: LinkedFolder,
        *,
        entropy: Entropy,
        codec: PieceCodec,
        scan_refit_count: int,
    ) -> None:
        self._source = source
        self._store_id = store_id
        self._held = held
        self._entropy = entropy
        self._codec = codec
        self._scan_refit_count = scan_refit_count

    def recover(self, tally: Tally) -> tuple[WholeFiles, bool] | None:
        """Find out what is there, and finish a change that was cut. Needs no trainer.

        After a crash: as before, or as after it; do it again. (P5)

        Returns:
            The files, every byte of them proved, and whether a change was written again; None
            for a directory that is new.

        Raises:
            LiveWeightsError: nobody knows what the files are; the link may be there.
            CorruptError, StorageFailedError: the store cannot be read; nothing was changed.
            StorageFullError, StorageFailedError, BlobOutcomeUnknownError: of the disk; it can be
                called again.
        """
        with _live_errors():
            mark = self._read_mark()
        if mark is None:
            if self._held.linked() is None:
                return None
            raise LiveWeightsError("its state is lost")
        schema = self._schema_of(mark)
        journal = self._read_journal()
        is_redo = journal is not None and (journal.head.folder, journal.head.base_ref) == (
            mark.folder,
            mark.ref,
        )
        with _live_errors():
            if journal is not None and is_redo:
                self._check_there(mark)
                mark = mark.at(journal.head.target_ref, self._entropy.hex128())
                self._write(mark, journal.parts, tally, is_redo=True)
            whole = self._proved(mark, schema, tally)
        self._held.link_to(mark.folder)
        self._held.keep_only({mark.folder, MARK_NAME})
        return whole, is_redo

    def write_journal(
        self, base: Mark, ref: VersionRef, parts: Sequence[FilePart], tally: Tally
    ) -> Mark:
        """Make a change durable beside the files, so that it can be written any number of times.

        After a crash: no journal or a whole one; the files are what they were.

        Returns:
            What the files will be.

        Raises:
            StorageFullError, StorageFailedError: of the disk; the link is what it was.
            BlobOutcomeUnknownError: power loss may take the journal; the link is what it was.
        """
        head = JournalHead(
            base=base.version,
            base_digest=base.digest,
            target=ref.version,
            target_digest=ref.digest,
            folder=base.folder,
            parts=tuple(part.head for part in parts),
        )
        with tally.phase(Phase.STAGE):
            self._held.put_file(JOURNAL_NAME, journal_chunks(head, parts))
        return base.at(ref, self._entropy.hex128())

    def change(self, target: Mark, parts: Sequence[FilePart], tally: Tally) -> None:
        """Write in place what the journal holds.

        After a crash: the old version; or no link, and the journal that `recover` finishes; or
        the link over the whole new version.

        Raises:
            LiveWeightsError: the files did not hold what they should; the link is gone.
            StorageFullError, StorageFailedError, BlobOutcomeUnknownError: of the disk; `recover`
                finishes it.
        """
        with tally.phase(Phase.PAUSE):
            self._write(target, parts, tally, is_redo=False)
            self._held.link_to(target.folder)
        self._held.remove_file(JOURNAL_NAME)

    def export(self, record: VersionRecord, tally: Tally, progress: Progress) -> WholeFiles:
        """Write a whole version beside what the link leads to, and prove it.

        After a crash: the link leads where it did.

        Raises:
            CorruptError, VersionGoneError: of the version.
            StorageFullError, StorageFailedError: of the disk.
        """
        held, source = self._held, self._source
        linked = held.linked()
        # What nobody can load any more makes room: of a change that was cut, or of another time.
        held.keep_only({linked, MARK_NAME, JOURNAL_NAME} if linked else set())
        folder = FOLDER_NAMES[linked == FOLDER_NAMES[0]]
        with tally.phase(Phase.FETCH), source.gone_if_retired(record):
            plan = source.plan(record)
            export_checkpoint(
                source.blobs,
                plan,
                held.place / folder,
                entropy=self._entropy,
                settings=source.settings,
                codec=self._codec,
                progress=progress,
            )
        limits = source.settings.limits
        paths = sorted((held.place / folder).iterdir())
        weights = set(weight_file_names(plan, source.settings))
        heads = {
            path.name: read_file_header(path, limits).data_offset
            for path in paths
            if path.name in weights
        }
        mark = Mark(
            change_id=self._entropy.hex128(),
            store_id=self._store_id,
            version=record.version,
            digest=record.digest,
            schema_id=plan.schema.id,
            folder=folder,
            files=tuple(mark_file(path, heads.get(path.name)) for path in paths),
        )
        tally.wire_bytes += plan.full_size_bytes + plan.delta_size_bytes
        tally.wrote(plan.schema.unit_count, sum(each.size_bytes for each in mark.files))
        return self._proved(mark, plan.schema, tally)

    def switch(self, mark: Mark) -> None:
        """Let the link lead to what `export` has written.

        After a crash: the link leads where it did before, or to the whole new version, or is not
        there; `recover` brings it back.

        Raises:
            StorageFullError, StorageFailedError, BlobOutcomeUnknownError: of the disk; `recover`
                says what is there.
        """
        # The mark only ever changes while the link is away: a load that sees the same one before
        # and after it, with the link there, has seen one version.
        self._held.put_file(MARK_NAME, [mark.to_bytes()], unlinked=True)
        self._held.link_to(mark.folder)
        self._held.keep_only({mark.folder, MARK_NAME})

    def hide(self) -> None:
        """Let nobody load the files any more, for good."""
        self._held.unlink()

    def _write(self, mark: Mark, parts: Sequence[FilePart], tally: Tally, *, is_redo: bool) -> None:
        """Write what the journal holds, and say so.

        After a crash: no link, and the journal.
        """
        # Before the first write, for good: a load from here on fails instead of mixing. (P4)
        self._held.unlink()
        fixed = {each.name: each.fixed_size_bytes for each in mark.files}
        with tally.phase(Phase.APPLY):
            write_parts(self._held, mark.folder, parts, fixed, tally, is_redo=is_redo)
        self._held.put_file(MARK_NAME, [mark.to_bytes()])

    def _check_there(self, mark: Mark) -> None:
        """See that the files are where a journal is to be written: gone or swapped, none heals.

        Raises:
            LiveWeightsError: they are not.
        """
        found = foreign_change(self._held.place / mark.folder, mark, sizes_only=True)
        if found:
            raise LiveWeightsError(f"the files are not those of {mark.ref}: {found}")

    def _read_mark(self) -> Mark | None:
        limit_bytes = self._source.settings.limits.manifest_size_bytes
        data = self._held.read_file(MARK_NAME, max_size_bytes=limit_bytes)
        return None if data is None else parse_mark(data)

    def _read_journal(self) -> Journal | None:
        """The journal; None where there is none, or one that was never whole.

        Raises:
            StorageFailedError: it cannot be read now, and may be there.
        """
        try:
            stream = self._held.open_file(JOURNAL_NAME)
            if stream is None:
                return None
            with stream:
                return read_journal(stream, self._source.settings.limits)
        except CorruptObjectError:
            # It gets its name when it is durable, and only then is something written: one that
            # is torn was torn by others. The scan that follows says what the files are.
            return None

    def _schema_of(self, mark: Mark) -> Schema:
        """The schema of what is there, whose version may be retired.

        Raises:
            LiveWeightsError: nobody knows it.
        """
        if mark.store_id != self._store_id:
            raise LiveWeightsError("it held a version of another store")
        for selector in (mark.version, "latest"):
            try:
                record = self._source.find(selector)
            except NotFoundError:
                continue
            if selector == mark.version and record.digest != mark.digest:
                raise LiveWeightsError(f"the store has another version {mark.version}")
            schema = self._source.schema(record)
            if schema.id == mark.schema_id:
                return schema
        raise LiveWeightsError(f"nothing that is kept has the tensors of version {mark.version}")

    def _proved(self, mark: Mark, schema: Schema, tally: Tally) -> WholeFiles:
        folder = self._held.place / mark.folder
        with tally.phase(Phase.SCAN):
            return WholeFiles.prove(
                folder, mark, schema, self._source.settings, self._scan_refit_count
            )


@contextmanager
def _live_errors() -> Iterator[None]:
    """Tell what is wrong with the files of the directory from what is wrong with the store."""
    try:
        yield
    except (CorruptObjectError, SchemaMismatchError) as error:
        raise LiveWeightsError(error.message, do=error.do, facts=error.facts) from error
