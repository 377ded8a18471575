"""The tail is found in O(log n) reads from any hint, checked, and durable before it is used."""

from __future__ import annotations

import math

import pytest

from weightstore.errors import (
    BlobOutcomeUnknownError,
    CorruptLogError,
    UpgradeRequiredError,
)
from weightstore.format.canonical import encode_json
from weightstore.format.kept import of_versions
from weightstore.format.keys import log_key
from weightstore.format.records import (
    FormatRecord,
    Kind,
    Record,
    RetireRecord,
    TagRecord,
    VersionRecord,
    encode_record,
)
from weightstore.format.rules import EMPTY_PREFIX, Prefix, accept
from weightstore.history.log import Log, sha256_of
from weightstore.ids import CommitId, SessionId, Slot, TagName, VersionId
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore, write_versions


class CountingBlobs(MemoryBlobStore):
    """Counts reads of the log and confirmations; a confirmation can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.read_count = 0
        self.confirmed: list[str] = []
        self.fails = False

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        self.read_count += 1
        return super().get(key, max_size_bytes=max_size_bytes)

    def size(self, key: str, /) -> int:
        self.read_count += 1
        return super().size(key)

    def confirm_durable(self, prefix: str, /) -> None:
        if self.fails:
            raise BlobOutcomeUnknownError("fsync failed")
        self.confirmed.append(prefix)
        super().confirm_durable(prefix)


def new_log(blobs: MemoryBlobStore) -> Log:
    return Log(blobs, Limits())


def append(blobs: MemoryBlobStore, record: Record) -> None:
    blobs.put_if_absent(log_key(record.slot), encode_record(record))


def tag_after(prefix: Prefix, name: str = "x", version: int | None = 1) -> TagRecord:
    return TagRecord(
        slot=prefix.next_slot,
        parent_sha256=prefix.tail_sha256,
        epoch=prefix.now.epoch,
        run=None,
        session=SessionId("7" * 32),
        commit_id=CommitId("8" * 32),
        written_unix_ms=0,
        now=prefix.now,
        name=TagName(name),
        version=None if version is None else VersionId(version),
        owner="me",
    )


def test_an_empty_log_has_the_empty_tail() -> None:
    assert new_log(MemoryBlobStore()).tail() == EMPTY_PREFIX


@pytest.mark.parametrize("record_count", [2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 70])
def test_the_tail_is_the_same_from_every_hint(record_count: int) -> None:
    blobs = MemoryBlobStore()
    expected = write_versions(blobs, record_count - 2)
    last = record_count - 1
    hints = [b"", b"-1", b"01", b"nonsense", b"\xff\x00", b"9" * 18, b"9" * 20, b"9" * 100]
    hints += [str(slot).encode() for slot in range(record_count + 3)]
    assert new_log(blobs).tail() == expected
    assert new_log(blobs).follow(EMPTY_PREFIX) == expected
    for hint in hints:
        blobs.overwrite("head", hint)
        assert new_log(blobs).tail() == expected, (hint, last)


@pytest.mark.parametrize("record_count", [10, 1_000, 10_000])
def test_a_fresh_tail_costs_logarithmically_many_reads(record_count: int) -> None:
    blobs = CountingBlobs()
    expected = write_versions(blobs, record_count - 2)
    blobs.read_count = 0
    assert new_log(blobs).tail() == expected
    assert blobs.read_count <= 2 * math.log2(record_count) + 6
    blobs.overwrite("head", str(record_count - 1).encode())
    blobs.read_count = 0
    assert new_log(blobs).tail() == expected
    assert blobs.read_count <= 6


def test_a_known_tail_costs_one_read_and_no_second_confirmation() -> None:
    blobs = CountingBlobs()
    write_versions(blobs, 20)
    log = new_log(blobs)
    first = log.tail()
    blobs.read_count = 0
    assert log.tail() == first
    assert (blobs.read_count, blobs.confirmed) == (1, ["log/"])
    append(blobs, tag_after(first))
    assert log.tail().next_slot == first.next_slot + 1
    assert blobs.confirmed == ["log/", "log/"]


def test_a_reader_that_was_away_for_long_finds_the_tail_again() -> None:
    blobs = MemoryBlobStore()
    log = new_log(blobs)
    prefix = write_versions(blobs, 3)
    assert log.tail() == prefix
    store = ToyStore(blobs, "writer")
    trainer = store.trainer(take_over=True)
    for step in range(100, 150):
        trainer.put(step)
    assert log.tail() == store.log.tail() == new_log(blobs).follow(EMPTY_PREFIX)


def test_no_tail_is_returned_before_it_is_durable() -> None:
    blobs = CountingBlobs()
    write_versions(blobs, 1)
    blobs.fails = True
    log = new_log(blobs)
    with pytest.raises(BlobOutcomeUnknownError):
        log.tail()
    with pytest.raises(BlobOutcomeUnknownError):
        log.follow(EMPTY_PREFIX)
    blobs.fails = False
    assert log.tail().next_slot == 3


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"{}",
        b"[" * 50_000,
        b'{"kind":3}',
        b"x" * (Limits().record_size_bytes + 1),
    ],
)
def test_a_last_record_that_does_not_parse_stops_readers(body: bytes) -> None:
    blobs = MemoryBlobStore()
    write_versions(blobs, 3)
    blobs.put_if_absent(log_key(Slot(5)), body)
    for read in (new_log(blobs).tail, lambda: new_log(blobs).follow(EMPTY_PREFIX)):
        with pytest.raises(CorruptLogError) as caught:
            read()
        assert caught.value.facts["slot"] == 5


def test_a_record_that_is_canonical_json_but_of_another_slot_stops_readers() -> None:
    blobs = MemoryBlobStore()
    prefix = write_versions(blobs, 3)
    body = encode_record(tag_after(prefix)).replace(b'"slot":5,"v', b'"slot":6,"v')
    assert body != encode_record(tag_after(prefix))
    blobs.put_if_absent(log_key(Slot(5)), body)
    with pytest.raises(CorruptLogError):
        new_log(blobs).tail()


def test_a_record_that_is_not_canonical_stops_readers() -> None:
    blobs = MemoryBlobStore()
    prefix = write_versions(blobs, 3)
    blobs.put_if_absent(log_key(Slot(5)), encode_record(tag_after(prefix)) + b" ")
    with pytest.raises(CorruptLogError):
        new_log(blobs).tail()


def test_a_kind_of_the_future_asks_for_an_upgrade() -> None:
    blobs = MemoryBlobStore()
    write_versions(blobs, 3)
    blobs.put_if_absent(log_key(Slot(5)), encode_json({"kind": "fold", "slot": 5}))
    for read in (new_log(blobs).tail, lambda: new_log(blobs).follow(EMPTY_PREFIX)):
        with pytest.raises(UpgradeRequiredError):
            read()


@pytest.mark.parametrize("later_count", [0, 1, 2, 5])
def test_a_feature_of_the_future_asks_for_an_upgrade_however_old_it_is(later_count: int) -> None:
    blobs = MemoryBlobStore()
    prefix = write_versions(blobs, 3)
    fields = tag_after(prefix).model_dump(exclude={"kind", "name", "version", "owner"})
    append(blobs, FormatRecord(**{**fields, "now": prefix.now}, format=1, features=("new.thing",)))
    for slot in range(6, 6 + later_count):
        # A release of the future writes on, in a form that this one does not parse.
        future = {"kind": "tag", "now": {"features": ["new.thing"], "format": 1}, "slot": slot}
        blobs.put_if_absent(log_key(Slot(slot)), encode_json(future))
    for read in (new_log(blobs).tail, lambda: new_log(blobs).follow(EMPTY_PREFIX)):
        with pytest.raises(UpgradeRequiredError, match=r"new\.thing"):
            read()


def lies(prefix: Prefix) -> list[Record]:
    """Records that parse and are invalid after a prefix, each in its own way."""
    good = tag_after(prefix)
    newest = prefix.now.newest
    assert newest is not None
    bragging = newest.model_copy(update={"version": 999, "step": 999})
    return [
        good.model_copy(update={"parent_sha256": "0" * 64}),
        good.model_copy(update={"now": prefix.now.model_copy(update={"newest": None})}),
        good.model_copy(update={"now": prefix.now.model_copy(update={"newest": bragging})}),
        good.model_copy(update={"now": prefix.now.model_copy(update={"epoch": 77})}),
        good.model_copy(update={"epoch": 77}),
        good.model_copy(update={"version": 999}),
    ]


@pytest.mark.parametrize("lie_count", [1, 2, 5])
@pytest.mark.parametrize("kind", range(6))
def test_an_invalid_record_is_void_for_a_fresh_reader_too(kind: int, lie_count: int) -> None:
    blobs = MemoryBlobStore()
    honest = write_versions(blobs, 6)
    prefix = honest
    for _ in range(lie_count):
        append(blobs, lies(prefix)[kind])
        prefix = new_log(blobs).follow(prefix)
    assert prefix.now == honest.now
    assert prefix.next_slot == honest.next_slot + lie_count
    assert new_log(blobs).tail() == prefix
    # An honest writer goes on after it, and readers who land there agree.
    for name in ("a", "b", "c"):
        append(blobs, tag_after(prefix, name))
        prefix = new_log(blobs).follow(prefix)
        assert new_log(blobs).tail() == prefix == new_log(blobs).follow(EMPTY_PREFIX)
    assert prefix.now.last_slots["tag"] == prefix.next_slot - 1


def test_a_writer_that_ignores_the_rules_is_void_although_it_believes_itself() -> None:
    blobs = MemoryBlobStore()
    honest = write_versions(blobs, 6)
    # It retires the newest version, which no rule allows, and goes on as if that counted.
    fields = tag_after(honest).model_dump(exclude={"kind", "name", "version", "owner"})
    first = RetireRecord(**{**fields, "now": honest.now}, kept=of_versions([1]))
    append(blobs, first)
    append(blobs, tag_after(accept(honest, first, sha256_of(encode_record(first)))))
    audited = new_log(blobs).follow(EMPTY_PREFIX)
    assert audited.now == honest.now
    assert new_log(blobs).tail() == audited


def test_a_prefix_below_any_slot_is_what_an_audit_finds_there() -> None:
    blobs = MemoryBlobStore()
    prefix = write_versions(blobs, 6)
    append(blobs, lies(prefix)[2])
    append(blobs, tag_after(new_log(blobs).follow(EMPTY_PREFIX)))
    expected = [EMPTY_PREFIX]
    expected += [step.after for step in new_log(blobs).steps(EMPTY_PREFIX)]
    assert [new_log(blobs).prefix_at(Slot(slot)) for slot in range(11)] == expected


def test_records_that_contradict_each_other_without_end_are_refused() -> None:
    blobs = MemoryBlobStore()
    write_versions(blobs, 80)
    for slot in range(10, 82):
        key = log_key(Slot(slot))
        data = blobs.get(key, max_size_bytes=1 << 16)
        blobs.delete(key)
        at = data.index(b'"parent_sha256":"') + len(b'"parent_sha256":"')
        blobs.put_if_absent(key, data[:at] + b"0" * 64 + data[at + 64 :])
    with pytest.raises(CorruptLogError, match="contradict"):
        new_log(blobs).tail()
    assert new_log(blobs).follow(EMPTY_PREFIX).now.last_slots["version"] == 9


def test_a_missing_record_below_the_tail_is_named() -> None:
    blobs = MemoryBlobStore()
    prefix = write_versions(blobs, 30)
    blobs.delete(log_key(Slot(20)))
    with pytest.raises(CorruptLogError) as caught:
        list(new_log(blobs).records_of_kind(prefix, "version"))
    assert caught.value.facts["slot"] == 20


def test_links_lead_through_the_valid_records_of_a_kind_newest_first() -> None:
    blobs = MemoryBlobStore()
    prefix = write_versions(blobs, 4)
    for name in ("a", "b"):
        append(blobs, tag_after(prefix, name))
        prefix = new_log(blobs).follow(prefix)
    append(blobs, lies(prefix)[5])
    prefix = new_log(blobs).follow(prefix)
    log = new_log(blobs)
    versions = [stored.record for stored in log.records_of_kind(prefix, "version")]
    assert [r.version for r in versions if isinstance(r, VersionRecord)] == [4, 3, 2, 1]
    assert [r.record.slot for r in log.records_of_kind(prefix, "tag")] == [7, 6]
    assert list(log.records_of_kind(prefix, "void")) == []


def test_links_that_do_not_lead_down_are_refused() -> None:
    blobs = MemoryBlobStore()
    prefix = write_versions(blobs, 4)
    links: list[tuple[Kind, int]] = [("version", 1), ("version", 99), ("claim", 2)]
    for kind, slot in links:
        lying = prefix.now.model_copy(update={"last_slots": {kind: slot}})
        wrong = Prefix(prefix.next_slot, prefix.tail_sha256, lying)
        with pytest.raises(CorruptLogError):
            list(new_log(blobs).records_of_kind(wrong, kind))


def test_links_that_go_round_are_refused() -> None:
    blobs = MemoryBlobStore()
    prefix = write_versions(blobs, 4)
    record = new_log(blobs).stored_at(Slot(5)).record
    for slot in (5, 4):
        now = record.now.model_copy(update={"last_slots": {"version": slot}})
        blobs.delete(log_key(Slot(5)))
        append(blobs, record.model_copy(update={"now": now}))
        if slot == 5:
            with pytest.raises(CorruptLogError, match="linked"):
                list(new_log(blobs).records_of_kind(prefix, "version"))
        else:
            assert len(list(new_log(blobs).records_of_kind(prefix, "version"))) == 4


def test_a_record_is_read_from_the_store_once() -> None:
    blobs = CountingBlobs()
    write_versions(blobs, 4)
    log = new_log(blobs)
    log.follow(EMPTY_PREFIX)
    blobs.read_count = 0
    assert [stored.record.slot for stored in log.iterate(Slot(0), Slot(5))] == [0, 1, 2, 3, 4, 5]
    assert blobs.read_count == 0
