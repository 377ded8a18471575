"""Activation when an object that may be a receiver's cannot be read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weightstore.errors import CorruptObjectError, NotStagedError, StorageFailedError
from weightstore.format.keys import RECEIVERS_PREFIX, member_key
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobInfo, BlobStore
from weightstore.testing.activation_lab import POLL_S, STALENESS_S, TIMEOUT_S, WaitedFleet
from weightstore.testing.faults import RecordingBlobs


@pytest.fixture
def fleet() -> WaitedFleet:
    return WaitedFleet()


class Unreadable(RecordingBlobs):
    """Does not give the objects of some members."""

    def __init__(self, inner: BlobStore, keys: set[str]) -> None:
        super().__init__(inner)
        self.keys = keys

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        if key in self.keys:
            raise StorageFailedError("input/output error")
        return super().get(key, max_size_bytes=max_size_bytes)


def test_with_all_required_nobody_is_passed_over_who_could_not_be_asked(
    fleet: WaitedFleet,
) -> None:
    for receiver in fleet.receivers[:2]:
        receiver.stage(fleet.records[3])
    key = member_key(fleet.receivers[1].member.member_id)
    blobs = Unreadable(fleet.inner, {key})
    store = fleet.handle("deaf", blobs)
    with pytest.raises(NotStagedError, match=f"not read: {key}") as caught:
        fleet.activate(4, store=store, require_staged=True)
    assert caught.value.facts["unread"] == (key,)
    assert fleet.records_in_log() == []
    assert fleet.clock.passed_s == pytest.approx(TIMEOUT_S, abs=POLL_S)
    fleet.clock.at(fleet.clock.passed_s + 3.0, blobs.keys.clear)
    done = fleet.activate(4, store=store, require_staged=True)
    assert (done.listed_count, done.staged_count) == (2, 2)


def test_without_it_who_could_not_be_asked_is_not_waited_for(fleet: WaitedFleet) -> None:
    fleet.receivers[0].stage(fleet.records[3])
    fleet.receivers[1].say()
    keys = {member_key(fleet.receivers[1].member.member_id)}
    done = fleet.activate(4, store=fleet.handle("deaf", Unreadable(fleet.inner, keys)))
    assert (done.listed_count, done.staged_count, done.waited_s) == (1, 1, 0)


def test_more_members_than_the_bound_are_not_all_staged(fleet: WaitedFleet) -> None:
    for receiver in fleet.receivers:
        receiver.stage(fleet.records[3])
    store = fleet.handle("small", limits=Limits(member_count=2))
    with pytest.raises(NotStagedError, match="not read: receivers/"):
        fleet.activate(4, store=store, require_staged=True)


def test_a_wait_for_all_goes_on_while_somebody_could_not_be_asked(fleet: WaitedFleet) -> None:
    activated = fleet.activate(4)
    for receiver in fleet.receivers:
        receiver.apply(fleet.records[3], activated.slot)
    key = member_key(fleet.receivers[1].member.member_id)
    blobs = Unreadable(fleet.inner, {key})
    fleet.store = fleet.handle("deaf", blobs)
    applied = fleet.wait(activated)
    assert (applied.listed_count, applied.missing, applied.unread) == (2, (), (key,))
    assert applied.waited_s == pytest.approx(STALENESS_S, abs=POLL_S)
    blobs.keys.clear()
    applied = fleet.wait(activated)
    assert (applied.listed_count, applied.unread, applied.waited_s) == (3, (), 0)


class Unlisted(RecordingBlobs):
    """Has something else where the folder of the members should be."""

    def list(self, prefix: str, /) -> Iterator[BlobInfo]:
        if prefix == RECEIVERS_PREFIX:
            raise CorruptObjectError("receivers is no folder")
        return super().list(prefix)


def test_where_nobody_can_be_listed_not_all_are_staged(fleet: WaitedFleet) -> None:
    store = fleet.handle("deaf", Unlisted(fleet.inner))
    with pytest.raises(NotStagedError, match="not read: receivers/"):
        fleet.activate(4, store=store, require_staged=True)
    assert fleet.records_in_log() == []
    activated = fleet.activate(4, store=store)
    fleet.store = store
    assert fleet.wait(activated).unread == (RECEIVERS_PREFIX,)
