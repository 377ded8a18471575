"""What a receiver says about itself: true when it is written, and taken back in time."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from weightstore.errors import (
    BlobOutcomeUnknownError,
    StorageFailedError,
    StoreClosedError,
    StoreReadOnlyError,
    WeightStoreError,
)
from weightstore.format.keys import RECEIVERS_PREFIX
from weightstore.format.member import Member
from weightstore.history.members import list_members
from weightstore.ids import Sha256, Slot, VersionId
from weightstore.receiver import membership
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.membership import (
    LEAVE_PAUSES_S,
    LEAVE_TIMEOUT_S,
    Membership,
    Standing,
)
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Method
from weightstore.testing.fleet_lab import MoodyBlobs
from weightstore.testing.virtual_time import SeededEntropy, VirtualClock
from weightstore.testing.waiting import WAIT_S

STANDING = Standing("active", "whole", None, None, None, None)


def ref(version: int) -> VersionRef:
    return VersionRef(VersionId(version), Sha256(f"{version:064x}"))


class Story:
    """One member and its storage."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.blobs = MoodyBlobs(MemoryBlobStore(), self.clock)
        self.standing = STANDING
        self.member = self.start(1)

    def start(self, seed: int) -> Membership:
        return Membership(
            self.blobs,
            self.clock,
            SeededEntropy(seed),
            lambda: self.standing,
            name="rollout-3",
            heartbeat_s=2.0,
            rank_count=4,
        )

    def said(self) -> Member | None:
        listed = list_members(self.blobs.inner, Limits())
        assert not listed.unreadable
        assert len(listed.members) < 2
        return listed.members[0] if listed.members else None

    def deletes(self) -> int:
        """How often it was tried to remove the object."""
        return sum(call.method is Method.DELETE for call in self.blobs.calls)

    def staged(self) -> int | None:
        said = self.said()
        return said.staged.version if said and said.staged else None


def test_everything_that_is_known_is_said() -> None:
    story = Story()
    story.standing = Standing(
        "active", "whole", ref(4), ref(5), Slot(30), Slot(30), "stage", 3, 100, 50, 7
    )
    assert story.member.publish()
    said = story.said()
    assert said is not None
    assert (said.name, said.rank_count, said.mode, said.state) == (
        "rollout-3",
        4,
        "active",
        "whole",
    )
    assert said.live is not None
    assert said.staged is not None
    assert (said.live.version, said.live.digest) == (4, ref(4).digest)
    assert (said.staged.version, said.staged.digest) == (5, ref(5).digest)
    assert (said.activate_slot, said.applied_slot, said.phase) == (30, 30, "stage")
    assert (said.refit_count, said.wire_bytes, said.applied_bytes) == (3, 100, 50)
    assert (said.last_pause_us, said.counter) == (7, 1)
    assert said.host
    assert said.written_unix_ms == story.clock.unix_ms()


def test_each_start_has_an_id_of_its_own() -> None:
    story = Story()
    assert story.start(2).member_id != story.member.member_id


def test_only_news_and_signs_of_life_are_written() -> None:
    story = Story()
    assert story.member.publish()
    story.clock.sleep(1.9)
    assert not story.member.publish()
    story.clock.sleep(0.1)
    assert story.member.publish()
    story.standing = replace(STANDING, live=ref(1))
    assert story.member.publish()
    said = story.said()
    assert said is not None
    assert said.counter == 3


def test_what_is_withdrawn_is_not_said_again_until_it_is_staged_anew() -> None:
    story = Story()
    story.standing = replace(STANDING, staged=ref(5))
    story.member.publish()
    assert story.staged() == 5
    story.member.withdraw()
    assert story.staged() is None
    # A sign of life between the withdrawal and the drop, when the version is still there.
    story.clock.sleep(10)
    assert story.member.publish()
    assert story.staged() is None
    story.member.stand_by()
    story.clock.sleep(10)
    story.member.publish()
    assert story.staged() == 5


def test_who_has_claimed_nothing_has_nothing_to_withdraw() -> None:
    story = Story()
    story.blobs.break_down()
    story.member.withdraw()
    story.blobs.mend()
    story.member.publish()
    story.blobs.break_down()
    story.member.withdraw()


def test_a_withdrawal_that_fails_is_told_and_the_claim_stays_true() -> None:
    story = Story()
    story.standing = replace(STANDING, staged=ref(5))
    story.member.publish()
    story.blobs.break_down()
    with pytest.raises(StorageFailedError):
        story.member.withdraw()
    story.blobs.mend()
    story.clock.sleep(10)
    story.member.publish()
    assert story.staged() == 5


def test_where_nothing_can_be_written_the_object_is_removed() -> None:
    """A full disk takes no bytes and lets go of some."""
    story = Story()
    story.standing = replace(STANDING, staged=ref(5))
    story.member.publish()
    story.blobs.refuse_writes(Method.OVERWRITE)
    story.member.withdraw()
    assert story.said() is None
    story.blobs.mend()
    story.member.publish()
    assert story.said() is not None
    assert story.staged() is None


def test_a_claim_whose_answer_was_lost_is_withdrawn_too() -> None:
    story = Story()
    story.standing = replace(STANDING, staged=ref(5))
    story.blobs.loses = lambda call: call.method is Method.OVERWRITE
    with pytest.raises(BlobOutcomeUnknownError):
        story.member.publish()
    assert story.staged() == 5
    story.blobs.loses = lambda _: False
    story.member.withdraw()
    assert story.staged() is None


def test_who_may_not_write_claims_nothing() -> None:
    story = Story()
    story.standing = replace(STANDING, staged=ref(5))

    def refuse(_: object) -> None:
        raise StoreReadOnlyError("read-only")

    story.blobs.before = refuse
    with pytest.raises(StoreReadOnlyError):
        story.member.publish()
    story.member.withdraw()
    story.member.leave()


def test_a_loss_that_nobody_can_be_told_of_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    story = Story()
    story.standing = replace(STANDING, staged=ref(5))
    story.member.publish()
    story.blobs.break_down()
    story.member.withdraw_gone()
    assert "take back" in caplog.text
    # The version is gone; the next word that gets through says so.
    story.standing = STANDING
    story.blobs.mend()
    story.member.publish()
    assert story.staged() is None


def test_who_has_left_is_not_there_and_does_not_come_back() -> None:
    story = Story()
    story.member.publish()
    story.member.leave()
    assert story.said() is None
    story.clock.sleep(10)
    assert not story.member.publish()
    assert not list(story.blobs.list(RECEIVERS_PREFIX))


def test_a_leave_that_failed_can_be_repeated() -> None:
    story = Story()
    story.member.publish()
    story.blobs.break_down()
    with pytest.raises(StorageFailedError):
        story.member.leave()
    story.blobs.mend()
    story.member.leave()
    assert story.said() is None


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("failures", range(len(LEAVE_PAUSES_S) + 1))
def test_a_leave_that_fails_is_tried_again(failures: int, *, is_lost: bool) -> None:
    """Nobody else takes the object of who has left away."""
    story = Story()
    story.member.publish()

    def fails(call: Call) -> bool:
        return call.method is Method.DELETE and story.deletes() <= failures

    if is_lost:
        story.blobs.loses = fails
    else:
        story.blobs.fails = fails
    story.member.leave()
    assert story.said() is None
    assert story.deletes() == failures + 1
    assert story.clock.slept_s == sum(LEAVE_PAUSES_S[:failures])


def test_a_leave_that_fails_for_ever_ends() -> None:
    story = Story()
    story.member.publish()
    story.blobs.break_down()
    with pytest.raises(StorageFailedError):
        story.member.leave()
    assert story.deletes() == len(LEAVE_PAUSES_S) + 1


@pytest.mark.parametrize(("latency_s", "count"), [(4.5, 3), (9.7, 2), (9.95, 1), (60.0, 1)])
def test_no_try_to_leave_is_begun_too_late(latency_s: float, count: int) -> None:
    story = Story()
    story.member.publish()
    begun_s = story.clock.monotonic_s()
    tried_s: list[float] = []

    def slowly(call: Call) -> bool:
        tried_s.append(story.clock.monotonic_s() - begun_s)
        story.clock.sleep(latency_s)
        return call.method is Method.DELETE

    story.blobs.fails = slowly
    with pytest.raises(StorageFailedError):
        story.member.leave()
    assert len(tried_s) == count
    assert max(tried_s) <= LEAVE_TIMEOUT_S


@pytest.mark.parametrize("kind", [StoreClosedError, StoreReadOnlyError])
def test_a_store_that_is_closed_is_left_without_another_try(kind: type[WeightStoreError]) -> None:
    story = Story()
    story.member.publish()

    def refuse(_: Call) -> None:
        raise kind("no")

    story.blobs.before = refuse
    with pytest.raises(kind):
        story.member.leave()
    assert story.deletes() == 1
    assert not story.clock.slept_s


def test_who_perhaps_was_there_takes_the_object_away() -> None:
    story = Story()
    story.blobs.loses = lambda call: call.method is Method.OVERWRITE
    with pytest.raises(BlobOutcomeUnknownError):
        story.member.publish()
    assert story.said() is not None
    story.member.leave()
    assert story.said() is None


def test_what_is_staged_while_the_object_is_written_is_said_next_and_not_before() -> None:
    """The write takes long, and what it said of an older version is not true any more."""
    story = Story()
    story.standing = replace(STANDING, staged=ref(5))
    story.member.publish()
    story.member.withdraw()

    def stand() -> Standing:
        found = story.standing
        # Between the look and the write the old version goes and a new one is staged.
        story.standing = replace(STANDING, staged=ref(6), refit_count=1)
        story.member.stand_by()
        return found

    story.member._stand = stand
    story.clock.sleep(10)
    story.member.publish()
    assert story.staged() is None
    story.member.publish()
    assert story.staged() == 6


def test_a_name_of_any_form_is_cut_to_what_an_object_holds() -> None:
    story = Story()
    member = Membership(
        story.blobs, story.clock, SeededEntropy(9), lambda: STANDING, name="\ud800" + "x" * 400
    )
    member.publish()
    said = story.said()
    assert said is not None
    assert len(said.name) == 256


def test_a_leave_waits_only_so_long_for_a_write_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "LEAVE_TIMEOUT_S", 0.05)
    story, is_inside, go_on = Story(), threading.Event(), threading.Event()

    def hang(call: Call) -> None:
        if call.method is Method.OVERWRITE:
            is_inside.set()
            assert go_on.wait(WAIT_S)

    story.blobs.before = hang
    writes = threading.Thread(target=story.member.publish, daemon=True)
    writes.start()
    assert is_inside.wait(WAIT_S)
    with pytest.raises(StorageFailedError, match="is being written"):
        story.member.leave()
    go_on.set()
    writes.join(WAIT_S)
    assert story.said() is not None
    assert not story.member.publish(), "it has left"
    story.member.leave()
    assert story.said() is None
