"""A record is put on what stands in the store, not on what a handle remembers of it."""

from __future__ import annotations

import pytest

from weightstore.errors import CorruptLogError
from weightstore.format.keys import LOG_PREFIX, log_key
from weightstore.format.records import TagRecord
from weightstore.format.rules import Prefix
from weightstore.history.tags import put_tag
from weightstore.ids import Slot, TagName, VersionId
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Method, RecordingBlobs
from weightstore.testing.toy_store import ToyStore


@pytest.fixture
def store() -> ToyStore:
    made = ToyStore(MemoryBlobStore(), "one")
    made.create()
    made.trainer().put(1)
    return made


def tag(store: ToyStore, name: str) -> None:
    put_tag(store.writer(), TagName(name), VersionId(1), owner="me")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_nothing_is_put_past_a_newest_record_that_is_not_there_any_more(
    store: ToyStore, *, is_replaced: bool
) -> None:
    lost = Slot(store.log.tail().next_slot - 1)
    store.blobs.delete(log_key(lost))
    if is_replaced:
        store.blobs.put_if_absent(log_key(lost), b"{}")
    before = [info.key for info in store.blobs.list(LOG_PREFIX)]
    with pytest.raises(CorruptLogError, match="nothing was put") as caught:
        tag(store, "x")
    assert caught.value.facts["slot"] == lost
    assert [info.key for info in store.blobs.list(LOG_PREFIX)] == before


def test_the_newest_record_is_looked_up_by_one_read_of_a_put() -> None:
    inner = MemoryBlobStore()
    blobs = RecordingBlobs(inner)
    store = ToyStore(blobs, "one")
    store.create()
    store.trainer().put(1)
    tail = store.log.tail()
    blobs.calls.clear()
    tag(store, "x")
    read = [call.key for call in blobs.calls if call.method is Method.GET]
    assert read.count(log_key(Slot(tail.next_slot - 1))) == 1


def test_a_put_after_a_prefix_follows_the_log_from_it(store: ToyStore) -> None:
    before = store.log.tail()
    tag(ToyStore(store.blobs, "other"), "theirs")
    writer = store.writer()
    commit_id = writer.new_commit_id()

    def build(prefix: Prefix) -> TagRecord:
        return TagRecord(
            **writer.header(prefix, commit_id),
            epoch=prefix.now.epoch,
            run=None,
            name=TagName("ours"),
            version=VersionId(1),
            owner="me",
        )

    assert writer.put(build, after=before).record.slot == before.next_slot + 1
