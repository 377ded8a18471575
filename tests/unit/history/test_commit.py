"""One way to commit: whatever the storage answers, a record lands once or is said not to have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typing_extensions import Buffer

from weightstore.errors import (
    BlobOutcomeUnknownError,
    CommitUnknownError,
    ConflictError,
    LimitError,
    RecordRefusedError,
    StorageFailedError,
    StorageFullError,
    StoreClosedError,
    StoreReadOnlyError,
    UnavailableError,
    UpgradeRequiredError,
    WeightStoreError,
)
from weightstore.format.canonical import encode_json
from weightstore.format.keys import LOG_PREFIX, log_key
from weightstore.format.records import Record, TagRecord
from weightstore.format.rules import EMPTY_PREFIX, Prefix
from weightstore.history.commit import LogWriter
from weightstore.history.log import Log
from weightstore.ids import Slot, TagName, VersionId
from weightstore.settings import Limits, Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore

Fault = Callable[[str, Buffer], None]


class FaultyBlobs(MemoryBlobStore):
    """Runs a fault around the next writes to the log; one entry of `faults` per write."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.sent: list[bytes] = []
        self.confirm_count = 0
        self.is_dead = False

    def land(self, key: str, data: Buffer) -> None:
        """What the write would have done."""
        super().put_if_absent(key, data)

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        self._check()
        if key.startswith(LOG_PREFIX):
            self.sent.append(bytes(data))
            if self.faults:
                self.faults.pop(0)(key, data)
        super().put_if_absent(key, data, durable=durable)

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        self._check()
        return super().get(key, max_size_bytes=max_size_bytes)

    def confirm_durable(self, prefix: str, /) -> None:
        self._check()
        self.confirm_count += 1
        super().confirm_durable(prefix)

    def _check(self) -> None:
        if self.is_dead:
            raise StoreClosedError("this handle is dead")


@pytest.fixture
def blobs() -> FaultyBlobs:
    return FaultyBlobs()


@pytest.fixture
def store(blobs: FaultyBlobs) -> ToyStore:
    """A store with one version; nothing sent yet."""
    made = ToyStore(blobs, "one")
    made.create()
    made.trainer().put(1)
    blobs.sent.clear()
    return made


def lost_answer(blobs: FaultyBlobs) -> Fault:
    def fault(key: str, data: Buffer) -> None:
        blobs.land(key, data)
        raise BlobOutcomeUnknownError("no answer")

    return fault


def lost_request(_key: str, _data: Buffer) -> None:
    raise BlobOutcomeUnknownError("no answer")


def delayed(late: list[tuple[str, bytes]]) -> Fault:
    def fault(key: str, data: Buffer) -> None:
        late.append((key, bytes(data)))
        raise BlobOutcomeUnknownError("no answer")

    return fault


def raising(error: WeightStoreError) -> Fault:
    def fault(_key: str, _data: Buffer) -> None:
        raise error

    return fault


def somebody_else_first(blobs: FaultyBlobs, name: str) -> Fault:
    def fault(_key: str, _data: Buffer) -> None:
        other = ToyStore(blobs, f"other-{name}")
        other.writer().put(tagging(other.writer(), name))

    return fault


def tagging(writer: LogWriter, name: str = "x", owner: str = "me") -> Callable[[Prefix], Record]:
    commit_id = writer.new_commit_id()

    def build(prefix: Prefix) -> Record:
        return TagRecord(
            **writer.header(prefix, commit_id),
            epoch=prefix.now.epoch,
            run=None,
            name=TagName(name),
            version=VersionId(1),
            owner=owner,
        )

    return build


def tags_in_log(blobs: MemoryBlobStore) -> list[str]:
    log = Log(blobs, Limits())
    steps = log.steps(EMPTY_PREFIX)
    return [step.stored.record.name for step in steps if isinstance(step.stored.record, TagRecord)]


def test_a_clean_answer_is_success_and_leaves_a_hint(blobs: FaultyBlobs, store: ToyStore) -> None:
    writer = store.writer()
    stored = writer.put(tagging(writer))
    assert stored == Log(blobs, Limits()).read(stored.record.slot)
    assert blobs.get("head", max_size_bytes=20) == str(stored.record.slot).encode()
    assert tags_in_log(blobs) == ["x"]


def test_a_lost_answer_is_found_in_the_log_and_counts_once(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    blobs.faults = [lost_answer(blobs)]
    confirm_count = blobs.confirm_count
    writer = store.writer()
    stored = writer.put(tagging(writer))
    assert stored == Log(blobs, Limits()).read(stored.record.slot)
    assert (len(blobs.sent), tags_in_log(blobs)) == (1, ["x"])
    assert blobs.confirm_count == confirm_count + 1, "found, so it needs an fsync of its own"
    assert store.clock.slept_s == 0


def test_a_lost_request_is_sent_again_with_the_same_bytes(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    blobs.faults = [lost_request, lost_request, raising(StorageFailedError("503"))]
    writer = store.writer()
    writer.put(tagging(writer))
    assert len(blobs.sent) == 4
    assert len(set(blobs.sent)) == 1
    assert tags_in_log(blobs) == ["x"]


def test_pauses_grow_are_bounded_and_differ_between_writers(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    slept = []
    for name in ("a", "b"):
        blobs.faults = [lost_request] * 12
        before_s = store.clock.slept_s
        writer = store.writer()
        writer.put(tagging(writer, name))
        slept.append(store.clock.slept_s - before_s)
    assert slept[0] != slept[1]
    assert all(5 < each_s < 24 for each_s in slept)


def test_a_request_that_lands_after_its_successor_was_sent_counts_once(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    late: list[tuple[str, bytes]] = []

    def land_late(_key: str, _data: Buffer) -> None:
        blobs.land(*late[0])

    blobs.faults = [delayed(late), land_late]
    writer = store.writer()
    writer.put(tagging(writer))
    assert tags_in_log(blobs) == ["x"]


def test_on_a_taken_slot_the_record_moves_and_keeps_its_commit_id(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    blobs.faults = [somebody_else_first(blobs, "theirs")]
    writer = store.writer()
    stored = writer.put(tagging(writer, "ours"))
    assert tags_in_log(blobs) == ["theirs", "ours"]
    assert blobs.sent[0] != blobs.sent[-1]
    for body in (blobs.sent[0], blobs.sent[-1]):
        assert stored.record.commit_id.encode() in body


def test_a_lost_request_overtaken_by_another_writer_moves_too(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    def overtaken(key: str, data: Buffer) -> None:
        somebody_else_first(blobs, "theirs")(key, data)
        raise BlobOutcomeUnknownError("no answer")

    blobs.faults = [overtaken]
    writer = store.writer()
    writer.put(tagging(writer, "ours"))
    assert tags_in_log(blobs) == ["theirs", "ours"]


def test_at_the_deadline_the_outcome_is_unknown_and_it_may_still_land(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    late: list[tuple[str, bytes]] = []
    blobs.faults = [delayed(late)] * 10_000
    writer = store.writer()
    started_s = store.clock.monotonic_s()
    with pytest.raises(CommitUnknownError) as caught:
        writer.put(tagging(writer))
    assert store.clock.monotonic_s() - started_s <= store.settings.commit_timeout_s
    assert caught.value.facts["slot"] == 3
    assert tags_in_log(blobs) == []
    blobs.faults = []
    blobs.land(*late[-1])
    assert tags_in_log(blobs) == ["x"]


def test_an_own_record_that_is_found_unconfirmed_is_not_reported_as_done(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    def landed_then_dead(key: str, data: Buffer) -> None:
        blobs.land(key, data)
        blobs.is_dead = True
        raise BlobOutcomeUnknownError("fsync failed")

    blobs.faults = [landed_then_dead]
    writer = store.writer()
    with pytest.raises(CommitUnknownError):
        writer.put(tagging(writer))
    assert store.clock.slept_s == 0, "a dead handle does not come back by waiting"
    blobs.is_dead = False
    assert tags_in_log(blobs) == ["x"], "a reopened store decides"


@pytest.mark.parametrize("kind", [StorageFullError, StoreReadOnlyError, StoreClosedError])
def test_a_refusal_of_the_storage_is_that_error_at_once(
    blobs: FaultyBlobs, store: ToyStore, kind: type[UnavailableError]
) -> None:
    blobs.faults = [raising(kind("no"))]
    writer = store.writer()
    with pytest.raises(kind):
        writer.put(tagging(writer))
    assert (len(blobs.sent), tags_in_log(blobs)) == (1, [])
    writer.put(tagging(writer))
    assert tags_in_log(blobs) == ["x"], "works again once the storage does"


def test_a_refusal_after_a_lost_request_stays_unknown(blobs: FaultyBlobs, store: ToyStore) -> None:
    blobs.faults = [lost_request, raising(StorageFullError("no"))]
    writer = store.writer()
    with pytest.raises(CommitUnknownError):
        writer.put(tagging(writer))


def test_a_storage_that_fails_and_takes_nothing_says_so_after_a_few_tries(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    blobs.faults = [raising(StorageFailedError("503"))] * 10_000
    writer = store.writer()
    with pytest.raises(StorageFailedError):
        writer.put(tagging(writer))
    assert len(blobs.sent) == store.settings.limits.failed_send_count
    assert store.clock.slept_s < 2


def test_a_storage_that_fails_after_a_lost_request_is_asked_until_the_deadline(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    blobs.faults = [lost_request, *[raising(StorageFailedError("503"))] * 10_000]
    writer = store.writer()
    with pytest.raises(CommitUnknownError):
        writer.put(tagging(writer))
    assert 0.9 * store.settings.commit_timeout_s < store.clock.slept_s
    assert store.clock.slept_s <= store.settings.commit_timeout_s


def test_a_first_failure_is_the_one_that_is_told(blobs: FaultyBlobs, store: ToyStore) -> None:
    def failed_sync(_key: str, _data: Buffer) -> None:
        blobs.is_dead = True
        raise StorageFailedError("sync failed")

    blobs.faults = [failed_sync]
    writer = store.writer()
    with pytest.raises(StorageFailedError, match="sync failed"):
        writer.put(tagging(writer))


def test_a_record_that_the_rules_refuse_is_never_sent(blobs: FaultyBlobs, store: ToyStore) -> None:
    writer = store.writer()
    commit_id = writer.new_commit_id()

    def build(prefix: Prefix) -> Record:
        return TagRecord(
            **writer.header(prefix, commit_id),
            epoch=prefix.now.epoch,
            run=None,
            name=TagName("x"),
            version=VersionId(2),
            owner="me",
        )

    with pytest.raises(RecordRefusedError) as caught:
        writer.put(build)
    assert caught.value.facts["rule"] == "kept"
    assert blobs.sent == []


def test_a_record_that_is_too_large_is_never_sent(blobs: FaultyBlobs) -> None:
    ToyStore(blobs, "one").create()
    blobs.sent.clear()
    small = ToyStore(blobs, "two", Settings(limits=Limits(record_size_bytes=550)))
    with pytest.raises(LimitError):
        small.trainer()
    assert blobs.sent == []


def test_a_stored_record_that_says_it_already_is_returned_and_nothing_is_sent(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    first = store.log.stored_at(Slot(0))
    assert store.writer().put(lambda _prefix: first) == first
    assert blobs.sent == []


def test_other_writers_cannot_hold_a_put_beyond_its_deadline(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    count = 0

    def always_first(key: str, data: Buffer) -> None:
        nonlocal count
        count += 1
        store.clock.sleep(7)
        somebody_else_first(blobs, f"t{count}")(key, data)

    # The other's own write takes one entry of the list, so every second one is ours.
    blobs.faults = [f for _ in range(50) for f in (always_first, lambda _k, _d: None)]
    writer = store.writer()
    with pytest.raises(ConflictError):
        writer.put(tagging(writer, "ours"))
    assert count == 9
    assert "ours" not in tags_in_log(blobs)


def test_a_record_of_the_future_in_the_way_stops_the_writer(
    blobs: FaultyBlobs, store: ToyStore
) -> None:
    def future(key: str, _data: Buffer) -> None:
        blobs.land(key, encode_json({"kind": "fold", "slot": 3}))

    blobs.faults = [future]
    writer = store.writer()
    with pytest.raises(UpgradeRequiredError):
        writer.put(tagging(writer))
    assert blobs.size(log_key(Slot(3))) > 0


def test_a_hint_that_cannot_be_written_changes_nothing(
    blobs: FaultyBlobs, store: ToyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_key: str, _data: Buffer) -> None:
        raise StoreReadOnlyError("no")

    monkeypatch.setattr(blobs, "overwrite", refuse)
    writer = store.writer()
    writer.put(tagging(writer))
    assert tags_in_log(blobs) == ["x"]
