"""What is deleted rests on every record of the log, not on the newest two."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weightstore.errors import CorruptLogError
from weightstore.format.keys import log_key
from weightstore.format.records import Now, TagRecord, encode_record
from weightstore.format.rules import EMPTY_PREFIX
from weightstore.history.audit import audited_tail
from weightstore.history.log import Log, sha256_of
from weightstore.history.retire import Keep, retire
from weightstore.history.sweep import sweep
from weightstore.ids import CommitId, Slot, TagName, VersionId
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Method, RecordingBlobs
from weightstore.testing.toy_store import ToyStore, ToyTrainer, write_versions

Collect = Callable[[ToyStore], object]


def three_versions() -> tuple[ToyStore, ToyTrainer]:
    store = ToyStore(MemoryBlobStore(), "audit")
    store.create()
    trainer = store.trainer()
    for step in (1, 2, 3):
        trainer.put(step, str(step).encode(), full=True)
    return store, trainer


def forge(store: ToyStore, count: int) -> None:
    """Put records that say that the version below them was never made, and agree on it."""
    tail = store.log.tail()
    slot, parent = tail.next_slot, tail.tail_sha256
    now: Now = store.log.stored_at(Slot(slot - 1)).record.now
    assert now.newest is not None
    for _ in range(count):
        record = TagRecord(
            slot=slot,
            parent_sha256=parent,
            epoch=now.epoch,
            run=None,
            session=store.writer().session,
            commit_id=CommitId(f"{slot:032x}"),
            written_unix_ms=1,
            now=now,
            name=TagName("forged"),
            version=VersionId(now.newest.version),
            owner="",
        )
        body = encode_record(record)
        store.blobs.put_if_absent(log_key(slot), body)
        now = now.model_copy(update={"last_slots": {**now.last_slots, "tag": slot}})
        slot, parent = Slot(slot + 1), sha256_of(body)


def do_retire(store: ToyStore) -> object:
    return retire(
        store.writer(), store.blobs, Keep(), chain_of=store.chain_of, objects_of=store.objects_of
    )


def do_sweep(store: ToyStore) -> object:
    return sweep(store.blobs, store.log, objects_of=store.objects_of)


def keys(store: ToyStore) -> list[str]:
    return sorted(info.key for info in store.blobs.list(""))


def test_the_whole_log_is_read_and_is_the_tail_of_a_correct_one() -> None:
    store, _trainer = three_versions()
    log = Log(store.blobs, Limits())
    assert audited_tail(log) == store.log.tail() == log.follow(EMPTY_PREFIX)


def test_what_an_audit_has_proven_is_not_read_again() -> None:
    inner = MemoryBlobStore()
    proven = write_versions(inner, 30)
    blobs = RecordingBlobs(inner)
    log = Log(blobs, Limits(cached_record_count=1))
    assert audited_tail(log, proven=proven) == proven
    old = log_key(Slot(9))
    assert old not in {call.key for call in blobs.calls if call.method is Method.GET}
    assert audited_tail(log) == proven
    assert old in {call.key for call in blobs.calls if call.method is Method.GET}


def test_an_empty_log_is_no_damage() -> None:
    assert audited_tail(Log(MemoryBlobStore(), Limits())) == EMPTY_PREFIX


def test_one_wrong_record_misleads_nobody_and_stops_no_collector() -> None:
    store, _trainer = three_versions()
    forge(store, 1)
    fresh = ToyStore(store.blobs, "fresh")
    newest = fresh.log.tail().now.newest
    assert newest is not None
    assert newest.version == 3
    do_retire(fresh)
    assert [part.last for part in fresh.log.tail().now.kept] == [3]


@pytest.mark.parametrize("collect", [do_retire, do_sweep])
def test_two_wrong_neighbours_stop_every_collector_until_readers_are_put_right(
    collect: Collect,
) -> None:
    store, trainer = three_versions()
    forge(store, 2)
    misled = ToyStore(store.blobs, "fresh").log.tail().now.newest
    assert misled is not None
    assert misled.version == 2, "what readers of the newest records believe"
    before = keys(store)
    for who in (store, ToyStore(store.blobs, "fresh")):
        with pytest.raises(CorruptLogError, match="breaks the rules"):
            collect(who)
    assert keys(store) == before
    trainer.put(4, b"4", full=True)
    trainer.put(5, b"5", full=True)
    fresh = ToyStore(store.blobs, "fresh-2")
    do_retire(fresh)
    do_sweep(fresh)
    newest = Log(store.blobs, Limits()).tail().now.newest
    assert newest is not None
    assert newest.version == 5


def test_a_hole_in_the_log_stops_the_audit_and_is_named() -> None:
    store, _trainer = three_versions()
    store.blobs.delete(log_key(Slot(2)))
    before = keys(store)
    fresh = ToyStore(store.blobs, "fresh")
    with pytest.raises(CorruptLogError, match="log record 2 is missing") as caught:
        do_sweep(fresh)
    assert caught.value.facts["slot"] == 2
    assert keys(store) == before
