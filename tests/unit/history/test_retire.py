"""What must stay stays, whatever is asked; what stays is whole before anything goes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from typing_extensions import Buffer

from weightstore.errors import (
    InputRefusedError,
    ObjectMissingError,
    RetireRefusedError,
    VersionGoneError,
    VersionNotFoundError,
)
from weightstore.format.kept import iterate, of_versions
from weightstore.format.keys import LOG_PREFIX
from weightstore.format.records import ZERO_SHA256, ActivateRecord, RetireRecord, VersionRecord
from weightstore.history.log import Log
from weightstore.history.retire import Keep, RetirePlan, check_objects, plan_retire, retire
from weightstore.history.sweep import sweep
from weightstore.history.tags import put_tag, remove_tag
from weightstore.history.versions import record_of_version, records_of
from weightstore.ids import TagName, VersionId
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobInfo
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore


class PausingBlobs(MemoryBlobStore):
    """Lets somebody else act just before our next write to the log."""

    def __init__(self) -> None:
        super().__init__()
        self.before: object = None

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        before, self.before = self.before, None
        if callable(before) and key.startswith(LOG_PREFIX):
            before()
        else:
            self.before = before
        super().put_if_absent(key, data, durable=durable)


def lab(full: Sequence[int] = (), *, count: int = 12, settings: Settings | None = None) -> ToyStore:
    """Versions 1 to `count`, deltas but the first and those of `full`."""
    store = ToyStore(PausingBlobs(), "lab", settings)
    store.create()
    trainer = store.trainer()
    for step in range(1, count + 1):
        trainer.put(step, str(step).encode(), full=step in full)
    return store


def plan(store: ToyStore, keep: Keep) -> RetirePlan:
    log = Log(store.blobs, store.settings.limits)
    return plan_retire(log, log.tail(), keep, chain_of=store.chain_of)


def do(store: ToyStore, keep: Keep) -> RetirePlan:
    return retire(
        store.writer(),
        store.blobs,
        keep,
        chain_of=store.chain_of,
        objects_of=store.objects_of,
    )


def kept(store: ToyStore) -> list[int]:
    return list(iterate(Log(store.blobs, Limits()).tail().now.kept))


def activate(store: ToyStore, version: int) -> None:
    writer = store.writer()
    commit_id = writer.new_commit_id()
    writer.put(
        lambda prefix: ActivateRecord(
            **writer.header(prefix, commit_id),
            epoch=prefix.now.epoch,
            run=None,
            version=VersionId(version),
            previous_activate_slot=prefix.now.last_slots.get("activate"),
            members_sha256=ZERO_SHA256,
            listed_count=0,
            staged_count=0,
        )
    )


def test_the_newest_stays_with_its_whole_chain() -> None:
    store = lab(full=(4, 9))
    planned = plan(store, Keep())
    assert list(iterate(planned.kept)) == [9, 10, 11, 12]
    assert list(iterate(planned.gone)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert kept(store) == list(range(1, 13)), "a plan changes nothing"
    assert do(store, Keep()) == planned
    assert kept(store) == [9, 10, 11, 12]


def test_a_store_of_one_version_and_an_empty_store_lose_nothing() -> None:
    store = lab(count=1)
    assert do(store, Keep()).gone == ()
    assert store.log.tail().next_slot == 3, "no record was needed"
    empty = ToyStore(MemoryBlobStore())
    empty.create()
    assert do(empty, Keep(newest_count=3)) == RetirePlan((), (), empty.log.tail())


def test_counts_and_versions_that_are_asked_for_stay_with_their_chains() -> None:
    store = lab(full=(4, 9))
    assert list(iterate(plan(store, Keep(newest_count=6)).kept)) == list(range(4, 13))
    three = Keep(versions=of_versions([2, 6]))
    assert list(iterate(plan(store, three).kept)) == [1, 2, 4, 5, 6, 9, 10, 11, 12]
    assert plan(store, Keep(newest_count=99)).gone == ()


def test_counting_goes_over_versions_that_are_still_kept() -> None:
    store = lab(full=range(1, 13))
    do(store, Keep(versions=of_versions([1, 2, 3, 7, 12])))
    assert list(iterate(plan(store, Keep(newest_count=3)).kept)) == [3, 7, 12]


def test_active_and_previous_active_and_tagged_versions_stay() -> None:
    store = lab(full=range(1, 13))
    for version in (2, 5, 3):
        activate(store, version)
    put_tag(store.writer(), TagName("best"), 7, owner="me")
    put_tag(store.writer(), TagName("gone"), 8, owner="me")
    remove_tag(store.writer(), TagName("gone"), owner="me")
    put_tag(store.writer(), TagName("moved"), 9, owner="me")
    put_tag(store.writer(), TagName("moved"), 10, owner="me")
    do(store, Keep())
    assert kept(store) == [3, 5, 7, 10, 12]


def test_asking_for_a_version_that_is_not_there_is_refused() -> None:
    store = lab(full=range(1, 13))
    for versions in ([13], [1, 12, 13], [400]):
        with pytest.raises(VersionNotFoundError):
            plan(store, Keep(versions=of_versions(versions)))
    with pytest.raises(InputRefusedError):
        plan(store, Keep(newest_count=-1))
    do(store, Keep(versions=of_versions([2, 3])))
    with pytest.raises(VersionGoneError):
        plan(store, Keep(versions=of_versions([1, 5])))
    # Of a range the part that is left is kept.
    assert list(iterate(plan(store, Keep(versions=of_versions([1, 2]))).kept)) == [2, 12]


def test_a_tag_that_comes_in_between_is_planned_for() -> None:
    store = lab(full=range(1, 13))
    assert isinstance(store.blobs, PausingBlobs)
    tagger = ToyStore(store.blobs, "tagger").writer()
    store.blobs.before = lambda: put_tag(tagger, TagName("late"), 4, owner="me")
    assert list(iterate(do(store, Keep()).kept)) == [4, 12]
    assert kept(store) == [4, 12]


def test_a_version_that_comes_in_between_is_planned_for() -> None:
    store = lab(full=range(1, 13))
    assert isinstance(store.blobs, PausingBlobs)
    trainer = ToyStore(store.blobs, "next").trainer(take_over=True)
    store.blobs.before = lambda: trainer.put(13, b"13")
    assert list(iterate(do(store, Keep()).kept)) == [12, 13], "13 is a delta from 12"
    assert kept(store) == [12, 13]


def test_two_that_retire_at_once_keep_what_both_keep() -> None:
    store = lab(full=range(1, 13))
    assert isinstance(store.blobs, PausingBlobs)
    other = ToyStore(store.blobs, "other")
    store.blobs.before = lambda: do(other, Keep(versions=of_versions([3, 4])))
    do(store, Keep(versions=of_versions([4, 5, 6]), newest_count=1))
    assert kept(store) == [4, 12]


def test_a_damaged_version_that_must_stay_stops_everything() -> None:
    store = lab(full=(9,))
    log = Log(store.blobs, Limits())
    nine = record_of_version(log, log.tail(), 9)
    pack, anchor = (info.key for info in store.objects_of(nine)[1:])
    data = store.blobs.get(anchor, max_size_bytes=100)
    store.blobs.delete(anchor)
    with pytest.raises(RetireRefusedError, match="missing") as caught:
        do(store, Keep())
    assert caught.value.facts == {"version": 9, "key": anchor}
    store.blobs.put_if_absent(anchor, data + b"!")
    with pytest.raises(RetireRefusedError, match="2 bytes, not 1"):
        do(store, Keep())
    store.blobs.delete(pack)
    store.blobs.delete(store.objects_of(nine)[0].key)
    with pytest.raises(ObjectMissingError):
        do(store, Keep())
    assert kept(store) == list(range(1, 13))


def test_damage_in_what_goes_does_not_matter() -> None:
    store = lab(full=(9,))
    log = Log(store.blobs, Limits())
    store.blobs.delete(store.objects_of(record_of_version(log, log.tail(), 3))[0].key)
    do(store, Keep())
    assert kept(store) == [9, 10, 11, 12]


def test_a_chain_that_lost_a_version_is_refused() -> None:
    store = lab()
    writer = store.writer()
    commit_id = writer.new_commit_id()
    writer.put(
        lambda prefix: RetireRecord(
            **writer.header(prefix, commit_id),
            epoch=prefix.now.epoch,
            run=None,
            kept=of_versions([1, 2, 12]),
        )
    )
    with pytest.raises(RetireRefusedError, match="needs version 3"):
        plan(store, Keep())


def test_more_ranges_than_a_record_may_hold_are_joined_with_their_chains() -> None:
    settings = Settings(limits=Limits(kept_range_count=3))
    store = lab(full=(1, 3, 5, 7, 8, 10), count=12, settings=settings)
    wanted = of_versions([1, 3, 5, 8, 12])
    planned = plan(store, Keep(versions=wanted))
    found = list(iterate(planned.kept))
    assert len(planned.kept) <= 3
    assert set(found) >= {1, 3, 5, 8, 10, 11, 12}
    log = Log(store.blobs, Limits())
    for record in records_of(log, log.tail(), planned.kept):
        assert set(store.chain_of(record)) <= set(found), record.version


def test_two_that_retire_and_sweep_at_once_do_not_take_each_other_for_damage() -> None:
    store = lab(full=range(1, 13))
    other = ToyStore(store.blobs, "other")
    raced: list[int] = []

    def objects_of(record: VersionRecord) -> list[BlobInfo]:
        if not raced:
            raced.append(record.version)
            do(other, Keep(versions=of_versions([3])))
            sweep(other.blobs, other.log, objects_of=other.objects_of)
        return store.objects_of(record)

    keep = Keep(newest_count=2, versions=of_versions([2, 3]))
    retire(store.writer(), store.blobs, keep, chain_of=store.chain_of, objects_of=objects_of)
    assert kept(store) == [3, 12]
    raced.clear()
    put_tag(other.writer(), TagName("x"), 3, owner="me")
    sweep(store.blobs, store.log, objects_of=objects_of)
    assert kept(store) == [3, 12]


def test_checking_objects_gives_every_key_once() -> None:
    store = lab(full=(3,), count=3)
    log = Log(store.blobs, Limits())
    records = list(records_of(log, log.tail(), log.tail().now.kept))
    keys = check_objects(store.blobs, records, store.objects_of)
    expected = {
        info.key
        for folder in ("manifests/", "packs/", "anchors/")
        for info in store.blobs.list(folder)
    }
    assert keys == expected
    assert len(keys) == 3 + 3 + 2
