"""A sweep deletes what nobody can need, and on any doubt nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from weightstore.errors import (
    BlobOutcomeUnknownError,
    CorruptLogError,
    CorruptObjectError,
    ObjectMissingError,
    RetireRefusedError,
    StorageFailedError,
    UpgradeRequiredError,
    WeightStoreError,
)
from weightstore.format.canonical import encode_json
from weightstore.format.kept import of_versions
from weightstore.format.keys import layout_key, log_key, manifest_key, receipt_key
from weightstore.format.records import (
    VersionRecord,
)
from weightstore.history.log import Log
from weightstore.history.retire import Keep, retire
from weightstore.history.sweep import SweepReport, sweep
from weightstore.history.versions import record_of_version
from weightstore.ids import Attempt, CommitId, Epoch, SessionId, Slot, VersionId
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobInfo
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore

DATA_FOLDERS = ("manifests/", "packs/", "anchors/", "layouts/", "receipts/")


def _nothing() -> None:
    """Nobody else acts."""


class WatchedBlobs(MemoryBlobStore):
    """Writes deletions down, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.deleted: list[str] = []
        self.lost_answer_count = 0
        self.broken_listing = "none"
        self.before_listing: dict[str, Callable[[], None]] = {}
        self.cannot_confirm = False

    def confirm_durable(self, prefix: str, /) -> None:
        if self.cannot_confirm:
            raise BlobOutcomeUnknownError("fsync failed")
        super().confirm_durable(prefix)

    def delete(self, key: str, /) -> None:
        self.deleted.append(key)
        super().delete(key)
        if self.lost_answer_count:
            self.lost_answer_count -= 1
            raise BlobOutcomeUnknownError("no answer")

    def list(self, prefix: str, /) -> Iterator[BlobInfo]:
        self.before_listing.pop(prefix, _nothing)()
        yield from super().list(prefix)
        if prefix == self.broken_listing:
            raise StorageFailedError("the listing broke off")


@pytest.fixture
def blobs() -> WatchedBlobs:
    return WatchedBlobs()


@pytest.fixture
def store(blobs: WatchedBlobs) -> ToyStore:
    """Versions 1 to 6 in two epochs, full: 1, 4; versions 1 to 3 are retired."""
    made = ToyStore(blobs, "lab")
    made.create()
    for first in (1, 4):
        trainer = made.trainer()
        for step in range(first, first + 3):
            trainer.put(step, b"x" * step, full=step == first)
        trainer.close()
    retire(made.writer(), blobs, Keep(), chain_of=made.chain_of, objects_of=made.objects_of)
    return made


def do(store: ToyStore, *, dry_run: bool = False) -> SweepReport:
    return sweep(store.blobs, store.log, objects_of=store.objects_of, dry_run=dry_run)


def keys(blobs: MemoryBlobStore) -> set[str]:
    return {info.key for folder in DATA_FOLDERS for info in blobs.list(folder)}


def needed(store: ToyStore, versions: range) -> set[str]:
    log = Log(store.blobs, Limits())
    prefix = log.tail()
    records = [record_of_version(log, prefix, version) for version in versions]
    return {info.key for record in records for info in store.objects_of(record)}


def test_retired_versions_lose_their_objects_and_kept_ones_none(
    blobs: WatchedBlobs, store: ToyStore
) -> None:
    kept, all_keys = needed(store, range(4, 7)), keys(blobs)
    dry = do(store, dry_run=True)
    assert keys(blobs) == all_keys, "a dry run deletes nothing"
    report = do(store)
    assert report == dry
    assert keys(blobs) == kept
    assert (report.deleted_count, report.left_count) == (7, 7)
    assert report.deleted_size_bytes > 1 + 2 + 3 + 1
    assert do(store) == SweepReport(0, 0, 7, 0)
    log = Log(blobs, Limits())
    prefix = log.tail()
    for version in (4, 5, 6):
        assert store.read(record_of_version(log, prefix, version)) == b"x" * version


def test_manifests_go_before_what_they_name(blobs: WatchedBlobs, store: ToyStore) -> None:
    do(store)
    folders = [key.partition("/")[0] for key in blobs.deleted]
    assert folders == ["manifests"] * 3 + ["packs"] * 3 + ["anchors"]


def test_nothing_of_an_attempt_that_may_still_commit_is_touched(
    blobs: WatchedBlobs, store: ToyStore
) -> None:
    trainer = store.trainer()
    trainer.put(7, b"7")
    before = keys(blobs)
    trainer.draft(store.log.tail(), 8, b"8", full=True)
    in_flight = keys(blobs) - before
    do(store)
    assert keys(blobs) == needed(store, range(4, 8)) | in_flight
    trainer.put(9, b"9")
    do(store)
    assert keys(blobs) == needed(store, range(4, 9)), "version 8 is made by another attempt"


def test_what_a_fenced_trainer_left_goes_with_the_next_claim(
    blobs: WatchedBlobs, store: ToyStore
) -> None:
    zombie = store.trainer()
    zombie.draft(store.log.tail(), 7, b"7", full=True)
    kept = needed(store, range(4, 7))
    do(store)
    assert keys(blobs) > kept
    ToyStore(blobs, "two").trainer(take_over=True)
    do(store)
    assert keys(blobs) == kept


def test_receipts_and_layouts_go_with_their_epoch_or_version(
    blobs: WatchedBlobs, store: ToyStore
) -> None:
    trainer = store.trainer()
    run, epoch = trainer.claim.run, trainer.claim.epoch
    session = SessionId("c" * 32)
    old = [
        layout_key(run, Epoch(epoch - 1), session),
        receipt_key(run, Epoch(epoch - 1), session, VersionId(99), Attempt(1), 0),
        receipt_key(run, epoch, session, VersionId(6), Attempt(1), None),
    ]
    live = [
        layout_key(run, epoch, session),
        receipt_key(run, epoch, session, VersionId(7), Attempt(1), None),
        receipt_key(run, Epoch(epoch + 1), session, VersionId(1), Attempt(1), 3),
        manifest_key(run, Epoch(epoch + 1), VersionId(1), CommitId("d" * 32)),
    ]
    for key in (*old, *live):
        blobs.put_if_absent(key, b"r")
    do(store)
    assert keys(blobs) == needed(store, range(4, 7)) | set(live)


def test_names_that_are_not_understood_are_left_alone_and_counted(
    blobs: WatchedBlobs, store: ToyStore
) -> None:
    strange = {
        "manifests/readme",
        "manifests/grpo-1/1-short",
        "packs/grpo-1/1-1-0-x.safetensors",
        "packs/GRPO-1/1-1-0-" + "a" * 32 + ".safetensors",
        "anchors/c-" + "a" * 32 + "/model.safetensors",
        "anchors/grpo-1-1-1/deeper/model.safetensors",
        "layouts/notes",
        "receipts/grpo-1/open",
    }
    for key in strange:
        blobs.put_if_absent(key, b"?")
    blobs.put_if_absent("receivers/one", b"r")
    report = do(store)
    assert report.unknown_count == len(strange)
    assert keys(blobs) == needed(store, range(4, 7)) | strange
    assert blobs.size("receivers/one") == 1


def test_a_sweep_that_is_overtaken_by_another_retire_and_sweep_looks_again(
    blobs: WatchedBlobs, store: ToyStore
) -> None:
    trainer = store.trainer()
    trainer.put(7, b"7", full=True)
    other = ToyStore(blobs, "other")
    raced: list[int] = []

    def objects_of(record: VersionRecord) -> list[BlobInfo]:
        if not raced:
            raced.append(record.version)
            retire(
                other.writer(),
                blobs,
                Keep(),
                chain_of=other.chain_of,
                objects_of=other.objects_of,
            )
            do(other)
        return store.objects_of(record)

    report = sweep(blobs, store.log, objects_of=objects_of)
    assert (report.deleted_count, report.left_count) == (0, 3)
    assert keys(blobs) == needed(store, range(7, 8))


def unreadable_manifest(store: ToyStore) -> None:
    _replace(store, 5, 0, b"{")


def missing_manifest(store: ToyStore) -> None:
    store.blobs.delete(_object(store, 5, 0))


def missing_pack(store: ToyStore) -> None:
    store.blobs.delete(_object(store, 5, 1))


def short_pack(store: ToyStore) -> None:
    _replace(store, 5, 1, b"")


def unreadable_record(store: ToyStore) -> None:
    store.blobs.put_if_absent(log_key(store.log.tail().next_slot), b"{")


def record_of_the_future(store: ToyStore) -> None:
    slot = store.log.tail().next_slot
    store.blobs.put_if_absent(log_key(slot), encode_json({"kind": "fold", "slot": slot}))


def missing_record(store: ToyStore) -> None:
    log = Log(store.blobs, Limits())
    store.blobs.delete(log_key(Slot(record_of_version(log, log.tail(), 5).slot)))


def _object(store: ToyStore, version: int, index: int) -> str:
    log = Log(store.blobs, Limits())
    return store.objects_of(record_of_version(log, log.tail(), version))[index].key


def _replace(store: ToyStore, version: int, index: int, data: bytes) -> None:
    key = _object(store, version, index)
    store.blobs.delete(key)
    store.blobs.put_if_absent(key, data)


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (unreadable_manifest, CorruptObjectError),
        (missing_manifest, ObjectMissingError),
        (missing_pack, RetireRefusedError),
        (short_pack, RetireRefusedError),
        (unreadable_record, CorruptLogError),
        (record_of_the_future, UpgradeRequiredError),
        (missing_record, CorruptLogError),
    ],
)
def test_on_any_doubt_nothing_is_deleted(
    blobs: WatchedBlobs,
    store: ToyStore,
    damage: Callable[[ToyStore], None],
    kind: type[WeightStoreError],
) -> None:
    damage(store)
    blobs.deleted.clear()
    fresh = ToyStore(blobs, "fresh")
    with pytest.raises(kind):
        do(fresh)
    assert blobs.deleted == []


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_a_listing_that_breaks_off_deletes_nothing(
    blobs: WatchedBlobs, store: ToyStore, folder: str
) -> None:
    blobs.broken_listing = folder
    with pytest.raises(StorageFailedError):
        do(store)
    assert blobs.deleted == []


@pytest.mark.parametrize("folder", DATA_FOLDERS)
def test_what_is_committed_while_a_sweep_lists_is_left_alone(
    blobs: WatchedBlobs, store: ToyStore, folder: str
) -> None:
    def two_epochs_go_on() -> None:
        for step in (7, 8):
            trainer = ToyStore(blobs, f"later {step}").trainer(take_over=True)
            trainer.put(step, b"later", full=True)

    blobs.before_listing[folder] = two_epochs_go_on
    do(store)
    assert keys(blobs) == needed(store, range(4, 9))


def test_nothing_is_deleted_on_the_word_of_a_record_that_may_vanish(
    blobs: WatchedBlobs, store: ToyStore
) -> None:
    assert store.log.tail().now.kept == of_versions([4, 5, 6])
    fresh = ToyStore(blobs, "fresh")
    blobs.cannot_confirm = True
    with pytest.raises(BlobOutcomeUnknownError):
        do(fresh)
    assert blobs.deleted == []


def test_an_unanswered_deletion_is_done_again_a_bounded_number_of_times(
    blobs: WatchedBlobs, store: ToyStore
) -> None:
    blobs.lost_answer_count = 2
    do(store)
    assert keys(blobs) == needed(store, range(4, 7))
    trainer = store.trainer()
    trainer.draft(store.log.tail(), 7)
    trainer.close()
    store.trainer()
    blobs.lost_answer_count = 99
    with pytest.raises(BlobOutcomeUnknownError):
        do(store)


def test_a_dry_run_can_be_asked_about_another_kept_set(
    blobs: WatchedBlobs, store: ToyStore
) -> None:
    before = keys(blobs)
    report = sweep(
        blobs,
        store.log,
        objects_of=store.objects_of,
        dry_run=True,
        kept=of_versions([4]),
    )
    assert report.left_count == 3
    assert keys(blobs) == before
    with pytest.raises(AssertionError):
        sweep(blobs, store.log, objects_of=store.objects_of, kept=())
