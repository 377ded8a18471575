"""Members are listed within bounds, and what is none never stands in anybody's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from weightstore.errors import StorageFailedError
from weightstore.format.keys import RECEIVERS_PREFIX, member_key, parse_member_key
from weightstore.format.member import encode_member
from weightstore.history.members import (
    MemberList,
    SilenceWatch,
    list_members,
    put_member,
    remove_member,
)
from weightstore.settings import Limits
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Method, RecordingBlobs
from weightstore.testing.members import MemberActor, empty_member, member_id
from weightstore.testing.virtual_time import VirtualClock


@pytest.fixture
def blobs() -> MemoryBlobStore:
    return MemoryBlobStore()


def test_members_are_put_replaced_listed_and_removed(blobs: MemoryBlobStore) -> None:
    assert list_members(blobs, Limits()) == MemberList((), ())
    second, first = MemberActor(blobs, 2), MemberActor(blobs, 1)
    second.say()
    first.say()
    first.say(phase="fetch")
    assert list_members(blobs, Limits()).members == (first.member, second.member)
    assert first.member.counter == 2
    remove_member(blobs, first.member.member_id)
    remove_member(blobs, first.member.member_id)
    assert list_members(blobs, Limits()).members == (second.member,)


def test_keys_of_members_are_ids_and_nothing_else() -> None:
    key = member_key(member_id(7))
    assert key == RECEIVERS_PREFIX + f"{7:032x}"
    assert parse_member_key(key) == member_id(7)
    for other in (key + "\n", key + "/x", key[:-1], key.upper(), "packs/" + key, "receivers/"):
        assert parse_member_key(other) is None


def test_what_is_no_member_is_named_and_passed_over(blobs: MemoryBlobStore) -> None:
    MemberActor(blobs, 1).say()
    good = encode_member(empty_member(2))
    odd = {
        "receivers/readme": good,
        member_key(member_id(3)): b"",
        member_key(member_id(4)): good,
        member_key(member_id(5)): b"[" * 1000,
        member_key(member_id(6)): b" " * (Limits().member_size_bytes + 1),
        member_key(member_id(8)): good[:-1],
    }
    for key, data in odd.items():
        blobs.overwrite(key, data)
    listed = list_members(blobs, Limits())
    assert [each.member_id for each in listed.members] == [member_id(1)]
    assert listed.unreadable == tuple(sorted(odd))


def test_no_more_is_read_of_an_object_than_its_bound() -> None:
    asked: list[int] = []

    class Asking(MemoryBlobStore):
        def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
            asked.append(max_size_bytes)
            return super().get(key, max_size_bytes=max_size_bytes)

    blobs = Asking()
    MemberActor(blobs, 1).say()
    list_members(blobs, Limits(member_size_bytes=100))
    assert asked == [100]


def test_no_more_objects_are_looked_at_than_the_bound(blobs: MemoryBlobStore) -> None:
    for number in range(9):
        MemberActor(blobs, number).say()
    recorded = RecordingBlobs(blobs)
    listed = list_members(recorded, Limits(member_count=4))
    assert [each.member_id for each in listed.members] == [member_id(each) for each in range(4)]
    assert len(recorded.calls) == 5
    assert listed.unread == (member_key(member_id(4)),)
    assert list_members(blobs, Limits(member_count=9)).unread == ()


def test_a_member_that_leaves_while_it_is_listed_is_no_trouble(blobs: MemoryBlobStore) -> None:
    for number in (1, 2):
        MemberActor(blobs, number).say()

    class Leaving(RecordingBlobs):
        def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
            blobs.delete(member_key(member_id(2)))
            return super().get(key, max_size_bytes=max_size_bytes)

    listed = list_members(Leaving(blobs), Limits())
    assert [each.member_id for each in listed.members] == [member_id(1)]
    assert listed.unreadable == ()


def test_one_object_that_the_storage_cannot_read_is_passed_over(blobs: MemoryBlobStore) -> None:
    for number in (1, 2):
        MemberActor(blobs, number).say()

    class Failing(RecordingBlobs):
        def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
            self.calls.append(Call(len(self.calls), Method.GET, key))
            if key == member_key(member_id(1)):
                raise StorageFailedError("input/output error")
            return super().get(key, max_size_bytes=max_size_bytes)

    listed = list_members(Failing(blobs), Limits())
    assert [each.member_id for each in listed.members] == [member_id(2)]
    assert (listed.unreadable, listed.unread) == ((), (member_key(member_id(1)),))


def test_links_and_folders_on_a_disk_are_no_members(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path / "store", create=True)
    outside = tmp_path / "outside"
    outside.write_bytes(encode_member(empty_member(2)))
    MemberActor(blobs, 1).say()
    folder = blobs.root / "receivers"
    (folder / member_id(2)).symlink_to(outside)
    (folder / member_id(3)).mkdir()
    assert [each.member_id for each in list_members(blobs, Limits()).members] == [member_id(1)]
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert list_members(blobs, Limits()) == MemberList((), (), (RECEIVERS_PREFIX,))


def test_a_member_is_silent_when_its_counter_stands_still() -> None:
    clock = VirtualClock()
    watch = SilenceWatch(clock, 5.0)
    still, lively = empty_member(1), empty_member(2)
    assert watch.silent([still, lively]) == frozenset()
    clock.sleep(4.9)
    assert watch.silent([still, lively.model_copy(update={"counter": 1})]) == frozenset()
    clock.sleep(0.1)
    assert watch.silent([still, lively]) == {member_id(1)}
    clock.sleep(4.9)
    # A counter that goes back is no sign of life: the highest one counts.
    assert watch.silent([still, lively]) == {member_id(1), member_id(2)}
    assert watch.silent([still.model_copy(update={"counter": 9}), lively]) == {member_id(2)}


def test_a_member_that_left_is_forgotten_and_new_when_it_comes_back() -> None:
    clock = VirtualClock()
    watch = SilenceWatch(clock, 5.0)
    member = empty_member()
    watch.silent([member])
    clock.sleep(9)
    assert watch.silent([]) == frozenset()
    assert watch.silent([member]) == frozenset()


def test_a_member_is_put_under_its_own_key(blobs: MemoryBlobStore) -> None:
    member = empty_member(7)
    put_member(blobs, member)
    assert blobs.get(member_key(member_id(7)), max_size_bytes=10_000) == encode_member(member)
