"""Activation waits for those who can be waited for, and is one record whatever happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typing_extensions import Buffer

from weightstore.errors import (
    BlobOutcomeUnknownError,
    CommitUnknownError,
    ConflictError,
    InputRefusedError,
    NotStagedError,
    StorageFailedError,
    VersionGoneError,
    VersionNotFoundError,
)
from weightstore.format.keys import RECEIVERS_PREFIX, log_key
from weightstore.format.member import MemberVersion, members_sha256
from weightstore.format.records import ActivateRecord, VersionRecord
from weightstore.history.activation import (
    check_pace,
    has_staged,
)
from weightstore.history.members import SilenceWatch
from weightstore.history.versions import find_version
from weightstore.ids import Sha256, Slot, VersionId
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.activation_lab import POLL_S, SILENT_S, TIMEOUT_S, WaitedFleet
from weightstore.testing.faults import Call, Fault, LossyBlobs, Method, cuts
from weightstore.testing.members import empty_member, version_of
from weightstore.testing.toy_store import ToyStore


@pytest.fixture
def fleet() -> WaitedFleet:
    return WaitedFleet()


def test_when_all_have_staged_it_the_record_comes_at_once(fleet: WaitedFleet) -> None:
    for receiver in fleet.receivers:
        receiver.stage(fleet.records[2])
    done = fleet.activate(3)
    assert (done.version, done.listed_count, done.staged_count) == (3, 3, 3)
    assert (done.waited_s, done.missing, done.repeated) == (0, (), False)
    (record,) = fleet.records_in_log()
    assert (record.slot, record.version, record.previous_activate_slot) == (done.slot, 3, None)
    assert (record.listed_count, record.staged_count) == (3, 3)
    assert record.members_sha256 == members_sha256(each.member for each in fleet.receivers)
    assert find_version(fleet.store.log, fleet.store.log.tail(), "active").version == 3


def test_nobody_listed_is_nobody_to_wait_for(fleet: WaitedFleet) -> None:
    done = fleet.activate(4)
    assert (done.listed_count, done.staged_count, done.waited_s) == (0, 0, 0)


def test_a_version_that_is_live_counts_as_staged(fleet: WaitedFleet) -> None:
    fleet.receivers[0].apply(fleet.records[3], 99)
    assert fleet.activate(4).staged_count == 1


def test_it_waits_until_the_last_one_has_staged_it(fleet: WaitedFleet) -> None:
    fleet.keep_alive(0, 1, 2)
    for number, receiver in enumerate(fleet.receivers):
        fleet.clock.at(4.0 * number + 4, lambda each=receiver: each.stage(fleet.records[3]))  # type: ignore[misc]
    done = fleet.activate(4)
    assert (done.listed_count, done.staged_count, done.waited_s) == (3, 3, 12)
    assert fleet.records_in_log()[0].staged_count == 3


def test_one_that_never_stages_it_is_waited_for_until_the_deadline(fleet: WaitedFleet) -> None:
    fleet.keep_alive(0, 1, 2)
    for receiver in fleet.receivers[:2]:
        fleet.clock.at(1.0, lambda each=receiver: each.stage(fleet.records[3]))  # type: ignore[misc]
    done = fleet.activate(4)
    assert done.waited_s == pytest.approx(TIMEOUT_S, abs=POLL_S)
    assert (done.listed_count, done.staged_count) == (3, 2)
    assert [each.name for each in done.missing] == ["rollout-3"]


def test_one_that_is_silent_is_listed_and_not_waited_for(fleet: WaitedFleet) -> None:
    fleet.keep_alive(0, 1)
    fleet.receivers[0].stage(fleet.records[3])
    fleet.receivers[2].say()
    fleet.clock.at(2.0, lambda: fleet.receivers[1].stage(fleet.records[3]))
    done = fleet.activate(4)
    assert done.waited_s == SILENT_S
    assert (done.listed_count, done.staged_count) == (3, 2)
    assert [each.name for each in done.missing] == ["rollout-3"]


def test_one_that_died_is_waited_for_once(fleet: WaitedFleet) -> None:
    watch = SilenceWatch(fleet.clock, SILENT_S)
    fleet.receivers[0].say()
    assert fleet.activate(2, watch=watch).waited_s == SILENT_S
    assert fleet.activate(3, watch=watch).waited_s == 0
    fleet.receivers[0].say()
    assert fleet.activate(4, watch=watch).waited_s == SILENT_S


def test_one_that_withdraws_while_others_stage_is_not_counted(fleet: WaitedFleet) -> None:
    fleet.keep_alive(1)
    fleet.receivers[0].stage(fleet.records[3])
    fleet.clock.at(2.0, fleet.receivers[0].withdraw)
    fleet.clock.at(3.0, lambda: fleet.receivers[1].stage(fleet.records[3]))
    done = fleet.activate(4)
    assert (done.listed_count, done.staged_count) == (2, 1)
    assert [each.name for each in done.missing] == ["rollout-1"]
    assert fleet.records_in_log()[0].staged_count == 1


def test_receivers_of_other_modes_are_not_listed(fleet: WaitedFleet) -> None:
    fleet.receivers[0].say(mode="controller")
    fleet.receivers[1].say(mode="latest")
    fleet.receivers[2].stage(fleet.records[3])
    done = fleet.activate(4)
    assert (done.listed_count, done.staged_count, done.waited_s) == (1, 1, 0)


def test_other_bytes_under_the_same_number_are_not_staged(fleet: WaitedFleet) -> None:
    wanted = version_of(fleet.records[3])
    wrong = MemberVersion(version=wanted.version, digest=Sha256("0" * 64))
    fleet.receivers[0].say(staged=wrong)
    assert fleet.activate(4, timeout_s=0).staged_count == 0
    member = empty_member()
    assert not has_staged(member.model_copy(update={"state": "dirty", "live": wanted}), wanted)
    assert has_staged(member.model_copy(update={"state": "whole", "live": wanted}), wanted)
    assert has_staged(member.model_copy(update={"state": "dirty", "staged": wanted}), wanted)


@pytest.mark.parametrize("key", ["receivers/" + "0" * 32, "receivers/readme"])
def test_an_object_that_is_no_member_stops_nothing(fleet: WaitedFleet, key: str) -> None:
    fleet.inner.overwrite(key, b"\xff" * 100)
    fleet.receivers[0].stage(fleet.records[3])
    done = fleet.activate(4, require_staged=True)
    assert (done.listed_count, done.staged_count, done.waited_s) == (1, 1, 0)


def test_with_all_required_nothing_is_activated_while_one_is_missing(fleet: WaitedFleet) -> None:
    fleet.receivers[0].stage(fleet.records[3])
    fleet.receivers[1].say()  # and silent from now on
    with pytest.raises(NotStagedError, match="rollout-2") as caught:
        fleet.activate(4, require_staged=True)
    assert caught.value.facts["missing"] == (fleet.receivers[1].member.member_id,)
    assert fleet.clock.passed_s == pytest.approx(TIMEOUT_S, abs=POLL_S)
    assert fleet.records_in_log() == []
    fleet.receivers[1].stage(fleet.records[3])
    assert fleet.activate(4, require_staged=True).staged_count == 2


def test_a_version_that_is_active_is_not_activated_again(fleet: WaitedFleet) -> None:
    first = fleet.activate(4)
    fleet.receivers[0].say()
    again = fleet.activate(4, store=fleet.handle("other"), require_staged=True)
    assert (again.slot, again.repeated, again.waited_s) == (first.slot, True, 0)
    assert (again.listed_count, again.staged_count) == (1, 0)
    assert len(fleet.records_in_log()) == 1


def test_an_older_version_leads_the_fleet_back(fleet: WaitedFleet) -> None:
    first = fleet.activate(4)
    back = fleet.activate(2)
    assert not back.repeated
    newest, older = fleet.records_in_log()
    assert (newest.version, newest.previous_activate_slot) == (2, first.slot)
    assert older.slot == first.slot


def test_versions_that_cannot_be_served_are_refused(fleet: WaitedFleet) -> None:
    for version in (0, 5, -1):
        with pytest.raises(VersionNotFoundError):
            fleet.activate(version)
    fleet.retire_to(2)
    with pytest.raises(VersionGoneError):
        fleet.activate(1)
    assert fleet.records_in_log() == []


def test_a_version_that_is_retired_while_it_is_staged_is_refused(fleet: WaitedFleet) -> None:
    fleet.keep_alive(0)
    fleet.clock.at(3.0, lambda: fleet.retire_to(2))
    with pytest.raises(VersionGoneError):
        fleet.activate(1)
    assert fleet.records_in_log() == []


def test_the_active_version_and_the_one_before_are_not_retired(fleet: WaitedFleet) -> None:
    fleet.activate(1)
    fleet.activate(2)
    fleet.retire_to(1)
    tail = fleet.store.log.tail()
    assert [part.model_dump() for part in tail.now.kept] == [
        {"first": 1, "last": 2},
        {"first": 4, "last": 4},
    ]
    assert fleet.activate(1).version == 1


def test_a_lost_answer_is_resolved_by_the_log(fleet: WaitedFleet) -> None:
    lossy = LossyBlobs(fleet.inner, first_record(Fault.LOST_ANSWER))
    done = fleet.activate(4, store=fleet.handle("lossy", lossy))
    assert not done.repeated
    assert [record.slot for record in fleet.records_in_log()] == [done.slot]


def test_repeating_after_a_lost_answer_ends_in_the_same_slot(fleet: WaitedFleet) -> None:
    """The record lands, every answer is lost until the call gives up; then it is repeated."""

    class Deaf(LossyBlobs):
        is_deaf = False

        def _happen(self, call: Call, effect: Callable[[], object]) -> object:  # type: ignore[override]
            if call.method is Method.PUT and call.key.startswith("log/"):
                self.is_deaf = True
                effect()
                raise BlobOutcomeUnknownError("no answer")
            if self.is_deaf:
                raise StorageFailedError("no answer")
            return effect()

    with pytest.raises(CommitUnknownError):
        fleet.activate(4, store=fleet.handle("deaf", Deaf(fleet.inner, {})))
    (landed,) = fleet.records_in_log()
    done = fleet.activate(4)
    assert (done.slot, done.repeated) == (landed.slot, True)
    assert len(fleet.records_in_log()) == 1


def test_a_cut_at_any_call_is_healed_by_repeating() -> None:
    def prepare() -> MemoryBlobStore:
        fleet = WaitedFleet()
        fleet.receivers[0].stage(fleet.records[3])
        fleets.append(fleet)
        return fleet.inner

    def run(blobs: BlobStore) -> None:
        fleet = fleets[-1]
        fleet.activate(4, store=fleet.handle("cut", blobs))

    fleets: list[WaitedFleet] = []
    for number, cut in enumerate(cuts(prepare, run)):
        fleet = fleets[-1]
        landed = fleet.records_in_log()
        done = fleet.activate(4)
        assert [record.slot for record in fleet.records_in_log()] == [done.slot], cut.call
        assert done.repeated == bool(landed), cut.call
        assert number < 100
    assert {bool(fleet.records_in_log()) for fleet in fleets} == {True}
    assert len(fleets) > 10


def test_two_activators_of_one_version_make_one_record(fleet: WaitedFleet) -> None:
    other = fleet.handle("other")
    slots: list[Slot] = []
    fleet.keep_alive(0)
    fleet.clock.at(1.0, lambda: slots.append(fleet.activate(4, store=other, timeout_s=0).slot))
    done = fleet.activate(4)
    assert [done.slot] == slots
    assert done.repeated
    assert len(fleet.records_in_log()) == 1


def test_one_activator_does_not_lead_the_fleet_back_from_another(fleet: WaitedFleet) -> None:
    other = fleet.handle("other")
    fleet.keep_alive(0)
    fleet.clock.at(1.0, lambda: fleet.activate(4, store=other, timeout_s=0))
    with pytest.raises(ConflictError, match="version 4 was activated while"):
        fleet.activate(3)
    assert [record.version for record in fleet.records_in_log()] == [4]
    assert fleet.activate(3).version == 3


def test_two_activators_race_for_a_slot(fleet: WaitedFleet) -> None:
    """The other one's record takes the slot after this one has decided."""
    other = fleet.handle("other")

    class Raced(LossyBlobs):
        def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
            if key.startswith("log/") and not fleet.records_in_log():
                fleet.activate(4, store=other, timeout_s=0)
            super().put_if_absent(key, data, durable=durable)

    with pytest.raises(ConflictError, match="version 4"):
        fleet.activate(3, store=fleet.handle("raced", Raced(fleet.inner, {})))
    assert [record.version for record in fleet.records_in_log()] == [4]


def test_other_records_between_do_not_matter(fleet: WaitedFleet) -> None:
    fleet.keep_alive(0)
    fleet.clock.at(1.0, lambda: ToyStore(fleet.inner, "late").trainer(take_over=True).put(9))
    assert fleet.activate(4, timeout_s=3).version == 4


def test_a_storage_that_fails_to_list_for_a_while_is_waited_for(fleet: WaitedFleet) -> None:
    failing = LossyBlobs(fleet.inner, listing_fails(4))
    fleet.receivers[0].stage(fleet.records[3])
    done = fleet.activate(4, store=fleet.handle("failing", failing))
    assert (done.staged_count, done.waited_s) == (1, 4 * POLL_S)
    never = LossyBlobs(fleet.inner, listing_fails(1000))
    with pytest.raises(StorageFailedError):
        fleet.activate(3, store=fleet.handle("never", never))
    assert [record.version for record in fleet.records_in_log()] == [4]


@pytest.mark.parametrize("poll_s", [0.0, -1.0, 1e-9, float("nan")])
def test_a_loop_without_a_pause_is_refused(poll_s: float) -> None:
    with pytest.raises(InputRefusedError):
        check_pace(poll_s)


def test_the_error_without_an_active_version_says_what_to_do(fleet: WaitedFleet) -> None:
    with pytest.raises(VersionNotFoundError, match=r"store\.activate"):
        find_version(fleet.store.log, fleet.store.log.tail(), "active")


def first_record(fault: Fault) -> Callable[[Call], Fault | None]:
    """A fault of the first put of a record."""
    seen: list[Call] = []

    def schedule(call: Call) -> Fault | None:
        if call.method is not Method.PUT or not call.key.startswith("log/") or seen:
            return None
        seen.append(call)
        return fault

    return schedule


def listing_fails(count: int) -> Callable[[Call], Fault | None]:
    """The first so many listings of the members fail."""
    left = [count]

    def schedule(call: Call) -> Fault | None:
        if call.method is not Method.LIST or call.key != RECEIVERS_PREFIX or not left[0]:
            return None
        left[0] -= 1
        return Fault.UNAVAILABLE

    return schedule


def test_the_record_is_an_ordinary_one(fleet: WaitedFleet) -> None:
    done = fleet.activate(2)
    record: VersionRecord | ActivateRecord = fleet.records_in_log()[0]
    data = fleet.inner.get(log_key(done.slot), max_size_bytes=Limits().record_size_bytes)
    assert b'"kind":"activate"' in data
    assert record.run is None
    assert record.version == VersionId(2)
