"""Each bound of a walk, a cache or a retry is the one that `Limits` names."""

from __future__ import annotations

import pytest

from weightstore.errors import (
    BlobOutcomeUnknownError,
    CorruptLogError,
    RetireRefusedError,
    StorageFailedError,
)
from weightstore.format.keys import HEAD_KEY, log_key
from weightstore.format.rules import Prefix
from weightstore.history.log import Log
from weightstore.history.retire import Keep, retire, unless_retired_meanwhile
from weightstore.history.sweep import sweep
from weightstore.ids import Slot
from weightstore.settings import Limits, Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Fault, LossyBlobs, Method, RecordingBlobs
from weightstore.testing.toy_store import ToyStore, write_versions


def without_parents(record_count: int, lie_count: int) -> MemoryBlobStore:
    """A log whose last records do not fit each other."""
    blobs = MemoryBlobStore()
    write_versions(blobs, record_count - 2)
    for slot in range(record_count - lie_count, record_count):
        key = log_key(Slot(slot))
        data = blobs.get(key, max_size_bytes=1 << 16)
        blobs.delete(key)
        at = data.index(b'"parent_sha256":"') + len(b'"parent_sha256":"')
        blobs.put_if_absent(key, data[:at] + b"0" * 64 + data[at + 64 :])
    return blobs


def test_a_reader_walks_back_as_far_as_the_limit_says() -> None:
    blobs = without_parents(20, 5)
    with pytest.raises(CorruptLogError, match="the 3 records before slot 20"):
        Log(blobs, Limits(walk_back_count=3)).tail()
    assert Log(blobs, Limits(walk_back_count=5)).tail().next_slot == 20


@pytest.mark.parametrize(("tail_step_count", "is_sought"), [(8, False), (2, True)])
def test_a_reader_takes_so_many_records_one_by_one(
    tail_step_count: int, *, is_sought: bool
) -> None:
    inner = MemoryBlobStore()
    store = ToyStore(inner, "writer")
    store.create()
    trainer = store.trainer()
    blobs = RecordingBlobs(inner)
    log = Log(blobs, Limits(tail_step_count=tail_step_count))
    log.tail()
    for step in range(6):
        trainer.put(step)
    blobs.calls.clear()
    assert log.tail() == store.log.tail()
    assert any(call.method is Method.SIZE for call in blobs.calls) == is_sought


@pytest.mark.parametrize(("cached_record_count", "read_count"), [(2, 2), (1, 3)])
def test_a_handle_keeps_so_many_parsed_records(cached_record_count: int, read_count: int) -> None:
    inner = MemoryBlobStore()
    write_versions(inner, 4)
    blobs = RecordingBlobs(inner)
    log = Log(blobs, Limits(cached_record_count=cached_record_count))
    for slot in (0, 1, 0):
        log.read(Slot(slot))
    assert len(blobs.calls) == read_count


@pytest.mark.parametrize(("hint_size_bytes", "is_used"), [(2, True), (1, False)])
def test_a_hint_above_its_bound_is_none(hint_size_bytes: int, *, is_used: bool) -> None:
    inner = MemoryBlobStore()
    expected = write_versions(inner, 18)
    inner.overwrite(HEAD_KEY, b"19")
    blobs = RecordingBlobs(inner)
    assert Log(blobs, Limits(hint_size_bytes=hint_size_bytes)).tail() == expected
    first_sized = next(call.key for call in blobs.calls if call.method is Method.SIZE)
    assert (first_sized == log_key(Slot(19))) == is_used


def test_a_deletion_is_tried_as_often_as_the_limit_says() -> None:
    inner = MemoryBlobStore()
    store = ToyStore(inner, "lab", Settings(limits=Limits(delete_try_count=2)))
    store.create()
    trainer = store.trainer()
    trainer.put(1, full=True)
    trainer.put(2, full=True)
    retire(store.writer(), inner, Keep(), chain_of=store.chain_of, objects_of=store.objects_of)

    def lose(call: Call) -> Fault | None:
        return Fault.LOST_ANSWER if call.method is Method.DELETE else None

    lossy = LossyBlobs(inner, lose)
    with pytest.raises(BlobOutcomeUnknownError):
        sweep(lossy, store.log, objects_of=store.objects_of)
    assert sum(call.method is Method.DELETE for call in lossy.calls) == 2


def test_a_record_is_sent_to_a_failing_storage_as_often_as_the_limit_says() -> None:
    inner = MemoryBlobStore()
    ToyStore(inner, "maker").create()
    lossy = LossyBlobs(inner, lambda call: Fault.UNAVAILABLE if call.method is Method.PUT else None)
    store = ToyStore(lossy, "lab", Settings(limits=Limits(failed_send_count=2)))
    with pytest.raises(StorageFailedError):
        store.trainer()
    assert sum(call.method is Method.PUT for call in lossy.calls) == 2


def test_a_plan_is_made_anew_as_often_as_the_limit_says() -> None:
    blobs = MemoryBlobStore()
    store = ToyStore(blobs, "lab", Settings(limits=Limits(replan_count=2)))
    store.create()
    trainer = store.trainer()
    tries: list[Prefix] = []

    def overtaken(prefix: Prefix) -> None:
        tries.append(prefix)
        for step in (2 * len(tries), 2 * len(tries) + 1):
            trainer.put(step, full=True)
        retire(store.writer(), blobs, Keep(), chain_of=store.chain_of, objects_of=store.objects_of)
        raise RetireRefusedError("an object is missing")

    with pytest.raises(RetireRefusedError):
        unless_retired_meanwhile(store.log, overtaken)
    assert len(tries) == 2 + 1
