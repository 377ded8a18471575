"""Stores whose versions are short texts: all of the log and its rules, none of the codec."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from weightstore.errors import (
    BlobExistsError,
    BlobNotFoundError,
    BlobOutcomeUnknownError,
    ObjectMissingError,
)
from weightstore.format.canonical import decode_json, encode_json
from weightstore.format.keys import anchor_key, manifest_key, pack_key, trainer_anchor_id
from weightstore.format.records import (
    EMPTY_NOW,
    FORMAT_NUMBER,
    Base,
    ClaimRecord,
    InitRecord,
    Record,
    VersionRecord,
    encode_record,
)
from weightstore.format.rules import EMPTY_PREFIX, Prefix, accept, next_version
from weightstore.history.claim import Claim, Owner, close_claim, open_claim
from weightstore.history.commit import LogWriter
from weightstore.history.log import Log, sha256_of
from weightstore.history.publish import Publication, commit_version, committed_step
from weightstore.history.store_format import create_store
from weightstore.ids import (
    Attempt,
    CommitId,
    Epoch,
    RunId,
    SessionId,
    Sha256,
    Slot,
    Step,
    StoreId,
    VersionId,
)
from weightstore.settings import MIB, Settings
from weightstore.storage.blobs import BlobInfo, BlobStore
from weightstore.testing.virtual_time import SeededEntropy, VirtualClock

PUT_TRY_COUNT = 3
OWNER = Owner(host="toy", process=1, boot_id="b" * 32)


class ToyStore:
    """One process's view of a store: its own log reader, clock and names.

    Args:
        blobs: The store below.
        seed: Names differ between seeds; a "restarted process" takes a new one.
        settings: Of this process.
    """

    def __init__(
        self, blobs: BlobStore, seed: int | str = 0, settings: Settings | None = None
    ) -> None:
        self.blobs = blobs
        self.settings = settings or Settings()
        self.clock = VirtualClock()
        self.entropy = SeededEntropy(seed)
        self.log = Log(blobs, self.settings.limits)

    def create(self) -> StoreId:
        """Make the store, or find it made.

        After a crash: as `create_store`.
        """
        return create_store(
            self.blobs,
            self.log,
            clock=self.clock,
            entropy=self.entropy,
            settings=self.settings,
        )

    def writer(self, session: str | None = None) -> LogWriter:
        """A writer of a session of its own, or of a given one."""
        return LogWriter(
            self.blobs,
            self.log,
            clock=self.clock,
            entropy=self.entropy,
            settings=self.settings,
            session=SessionId(session or self.entropy.hex128()),
        )

    def trainer(
        self,
        run: str = "grpo",
        *,
        session: str | None = None,
        take_over: bool = False,
        rewind_to: int | None = None,
    ) -> ToyTrainer:
        """Claim the store.

        After a crash: as `open_claim`.
        """
        writer = self.writer(session)
        claim = open_claim(
            writer,
            run=RunId(run),
            owner=OWNER,
            take_over=take_over,
            rewind_to=None if rewind_to is None else Step(rewind_to),
        )
        return ToyTrainer(self, writer, claim)

    def chain_of(self, record: VersionRecord) -> Iterator[VersionId]:
        """Versions from this one down to the nearest full one."""
        while True:
            yield record.version
            if record.base is None or self._parts(record)[0]:
                return
            assert record.now.newest is not None
            below = self.log.stored_at(record.now.newest.slot).record
            assert isinstance(below, VersionRecord)
            record = below

    def objects_of(self, record: VersionRecord) -> list[BlobInfo]:
        """The manifest of a version and what it names."""
        return self._parts(record)[1]

    def read(self, record: VersionRecord) -> bytes:
        """The text of a version, proved against its record.

        Raises:
            ObjectMissingError: its manifest or an object is not there.
        """
        text = b""
        for info in self.objects_of(record)[1:]:
            text = self._get(info.key)
        assert sha256_of(text) == record.digest
        return text

    def _parts(self, record: VersionRecord) -> tuple[bool, list[BlobInfo]]:
        assert record.run is not None
        key = manifest_key(record.run, record.epoch, record.version, record.commit_id)
        value = decode_json(self._get(key), what=key)
        assert isinstance(value, dict)
        objects = value["objects"]
        assert isinstance(objects, list)
        infos = [BlobInfo(key, record.manifest_size_bytes)]
        for pair in objects:
            assert isinstance(pair, list)
            infos.append(BlobInfo(str(pair[0]), int(str(pair[1]))))
        return bool(value["full"]), infos

    def _get(self, key: str) -> bytes:
        try:
            return self.blobs.get(key, max_size_bytes=MIB)
        except BlobNotFoundError as error:
            raise ObjectMissingError(f"{key} is not there", facts={"key": key}) from error


class ToyTrainer:
    """The owner of a store, as one process."""

    def __init__(self, store: ToyStore, writer: LogWriter, claim: Claim) -> None:
        self.store = store
        self.writer = writer
        self.claim = claim

    def put(self, step: int, text: bytes = b"", *, full: bool = False) -> VersionRecord:
        """Store a text as the version of a step.

        After a crash: no version, or the whole version; putting it again finds it.
        """
        digest = sha256_of(text)
        prefix = self.store.log.tail()
        done = committed_step(self.store.log, prefix, self.claim, Step(step), digest)
        return done or commit_version(
            self.writer, self.claim, self.draft(prefix, step, text, full=full)
        )

    def draft(
        self, prefix: Prefix, step: int, text: bytes = b"", *, full: bool = False
    ) -> Publication:
        """Store the objects of an attempt, without its record.

        After a crash: objects that no record names.
        """
        now, run, epoch = prefix.now, self.claim.run, self.claim.epoch
        version, attempt = next_version(now), now.lowest_open_attempt
        commit_id = self.writer.new_commit_id()
        key = pack_key(run, epoch, version, attempt, 0, self.store.entropy.hex128())
        keys = [key]
        if full or now.newest is None:
            # A real trainer voids an attempt before it begins another; here any number of
            # drafts may share an attempt, so their files must not share a name.
            name = f"{self.store.entropy.hex128()}.txt"
            keys.append(anchor_key(trainer_anchor_id(run, epoch, version, attempt), name))
        for each in keys:
            self._put(each, text)
        manifest = encode_json(
            {"full": len(keys) > 1, "objects": [[each, len(text)] for each in keys]}
        )
        self._put(manifest_key(run, epoch, version, commit_id), manifest)
        newest = now.newest
        return Publication(
            commit_id=commit_id,
            version=version,
            attempt=attempt,
            step=Step(step),
            base=Base(version=newest.version, digest=newest.digest) if newest else None,
            schema_id=Sha256("5" * 64),
            digest=sha256_of(text),
            manifest_size_bytes=len(manifest),
            manifest_sha256=sha256_of(manifest),
            world_size=1,
        )

    def close(self) -> None:
        """Give the store up.

        After a crash: as `close_claim`.
        """
        close_claim(self.writer, self.claim, owner=OWNER)

    def _put(self, key: str, data: bytes) -> None:
        # After a lost answer the object may be there already, by this very call.
        for _ in range(PUT_TRY_COUNT):
            with suppress(BlobExistsError, BlobOutcomeUnknownError):
                self.store.blobs.put_if_absent(key, data)
                return


def write_versions(blobs: BlobStore, version_count: int, *, run: str = "grpo") -> Prefix:
    """Write a log of one run's versions record by record, without objects; fast.

    After a crash: a shorter log.
    """
    prefix = EMPTY_PREFIX
    for slot in range(version_count + 2):
        record = _toy_record(prefix, slot, RunId(run))
        body = encode_record(record)
        blobs.put_if_absent(f"log/{slot:020d}", body)
        prefix = accept(prefix, record, sha256_of(body))
    return prefix


def _toy_record(prefix: Prefix, slot: int, run: RunId) -> Record:
    session, commit_id = SessionId("5" * 32), CommitId(f"{slot:032x}")
    if slot == 0:
        return InitRecord(
            slot=Slot(0),
            parent_sha256=prefix.tail_sha256,
            epoch=Epoch(0),
            run=None,
            session=session,
            commit_id=commit_id,
            written_unix_ms=0,
            now=EMPTY_NOW,
            store_id=StoreId("a" * 32),
            format=FORMAT_NUMBER,
            features=(),
        )
    if slot == 1:
        return ClaimRecord(
            slot=Slot(1),
            parent_sha256=prefix.tail_sha256,
            epoch=Epoch(1),
            run=run,
            session=session,
            commit_id=commit_id,
            written_unix_ms=0,
            now=prefix.now,
            action="open",
            take_over=False,
            rewind_to=None,
            last_step=None,
            host=OWNER.host,
            process=OWNER.process,
            boot_id=OWNER.boot_id,
        )
    newest = prefix.now.newest
    return VersionRecord(
        slot=prefix.next_slot,
        parent_sha256=prefix.tail_sha256,
        epoch=Epoch(1),
        run=run,
        session=session,
        commit_id=commit_id,
        written_unix_ms=0,
        now=prefix.now,
        version=next_version(prefix.now),
        attempt=Attempt(1),
        step=Step(slot),
        base=Base(version=newest.version, digest=newest.digest) if newest else None,
        schema_id=Sha256("5" * 64),
        digest=Sha256(f"{slot:064x}"),
        manifest_size_bytes=1,
        manifest_sha256=Sha256("6" * 64),
        world_size=1,
    )
