"""Followers whose storage is slow or gone, that die anywhere, or whose callbacks fail."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

from weightstore.errors import FencedError, StorageFailedError, UnavailableError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.live_state import Dirty, VersionRef
from weightstore.receiver.membership import LEAVE_TIMEOUT_S
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.reports import RefitFailure, RefitReport, Report
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Method, PowerCut
from weightstore.testing.fleet_lab import ACTIVE, LATEST, FleetLab, Rollout
from weightstore.testing.receiver_lab import Bits, Cut, ReceiverLab
from weightstore.testing.store_lab import LAB_SETTINGS, other_weights, store_on

SCHEMA = Schema.build(
    [TensorSpec("bias", DType.F32, (7,)), TensorSpec("w", DType.BF16, (300, 240))]
)
STALENESS_S = ACTIVE.max_staleness_s


@pytest.fixture
def fleet() -> FleetLab:
    return FleetLab(ReceiverLab.with_versions(SCHEMA, 4))


def active_at(fleet: FleetLab, version: int) -> Rollout:
    """A receiver that serves an active version, and has looked just now."""
    fleet.activate(version)
    rollout = fleet.rollout()
    rollout.steps()
    rollout.follower.look()
    assert rollout.served() == version
    return rollout


def test_an_outage_stops_the_mode_active_alone_and_only_after_its_staleness(
    fleet: FleetLab,
) -> None:
    rollouts = [active_at(fleet, 4), fleet.rollout(LATEST), fleet.rollout(ReceiverSettings())]
    rollouts[1].steps()
    rollouts[2].receiver.refit(4)
    for rollout in rollouts:
        rollout.blobs.break_down()
    fleet.clock.sleep(STALENESS_S)
    for rollout in rollouts:
        rollout.steps()
    assert [rollout.served() for rollout in rollouts] == [4, 4, 4]
    fleet.clock.sleep(0.001)
    for rollout in rollouts:
        rollout.steps()
    assert [rollout.served() for rollout in rollouts] == [None, 4, 4]
    fleet.clock.sleep(1000)
    assert [rollout.served() for rollout in rollouts] == [None, 4, 4]
    for rollout in rollouts:
        rollout.blobs.mend()
        rollout.steps()
    assert [rollout.served() for rollout in rollouts] == [4, 4, 4]


def test_nobody_serves_another_version_for_longer_than_the_staleness(fleet: FleetLab) -> None:
    """Listed, late, joining or cut off: whoever has not read it stops in time."""
    listed, cut_off = active_at(fleet, 2), active_at(fleet, 2)
    fleet.clock.sleep(0.5)
    fleet.activate(4)
    activated_s = fleet.clock.monotonic_s()
    joining = fleet.rollout()
    cut_off.blobs.break_down()
    for _ in range(10):
        for rollout in (listed, cut_off, joining):
            rollout.steps()
        fleet.clock.sleep(0.3)
        if fleet.clock.monotonic_s() - activated_s > STALENESS_S:
            assert [each.served() for each in (listed, cut_off, joining)] == [4, None, 4]


def test_the_age_of_a_look_counts_from_before_it_was_begun(fleet: FleetLab) -> None:
    """A slow answer says how things were when it was asked for, not when it came."""
    rollout = active_at(fleet, 2)
    rollout.blobs.latency_s = 0.7
    asked_s = fleet.clock.monotonic_s()
    rollout.receiver.poll()
    answered_s = fleet.clock.monotonic_s()
    assert answered_s > asked_s
    fleet.clock.sleep(asked_s + STALENESS_S - answered_s)
    assert rollout.served() == 2
    fleet.clock.sleep(0.001)
    assert rollout.served() is None


def test_a_look_that_took_too_long_opens_nothing(fleet: FleetLab) -> None:
    rollout = active_at(fleet, 2)
    rollout.blobs.latency_s = STALENESS_S + 1
    rollout.follower.look()
    assert rollout.served() is None


def test_a_restarted_receiver_is_empty_and_loads_what_is_active(fleet: FleetLab) -> None:
    before = active_at(fleet, 2)
    before.steps()
    again = fleet.rollout(arrays=before.arrays)
    assert again.receiver.version is None
    assert again.served() is None
    again.follower.look()
    assert again.served() is None
    again.follower.work()
    assert again.served() == 2
    members = [fleet.member(each) for each in (before, again)]
    assert all(members)
    assert before.follower.membership.member_id != again.follower.membership.member_id


def test_what_is_staged_is_applied_while_the_store_is_gone(fleet: FleetLab) -> None:
    rollout = active_at(fleet, 2)
    rollout.steps()
    fleet.activate(4)
    rollout.follower.look()
    rollout.blobs.break_down()
    rollout.follower.work()
    assert rollout.served() == 4
    assert rollout.follower.status.member is not None


def test_nothing_is_dropped_whose_claim_cannot_be_taken_back(fleet: FleetLab) -> None:
    rollout = active_at(fleet, 2)
    rollout.steps()
    staged = rollout.receiver.staged
    rollout.blobs.refuse_writes(Method.OVERWRITE, Method.DELETE)
    with pytest.raises(StorageFailedError):
        rollout.receiver.stage(3)
    assert rollout.receiver.staged is staged
    assert fleet.staged_of(rollout) == 4


def test_what_was_claimed_and_applied_is_not_left_before_the_claim_is_taken_back(
    fleet: FleetLab,
) -> None:
    """The object goes on to say that version 4 is staged, and whoever activates it counts that."""
    rollout = active_at(fleet, 2)
    rollout.steps()
    assert fleet.staged_of(rollout) == 4
    rollout.blobs.refuse_writes(Method.OVERWRITE, Method.DELETE)
    rollout.receiver.apply()
    for leaves in (rollout.receiver.stage, rollout.receiver.refit):
        with pytest.raises(StorageFailedError):
            leaves(3)
    assert rollout.receiver.version == 4
    rollout.blobs.mend()
    rollout.receiver.refit(3)
    assert rollout.receiver.version == 3
    assert fleet.staged_of(rollout) is None


def test_who_cannot_write_is_not_listed_and_follows_all_the_same(fleet: FleetLab) -> None:
    fleet.activate(2)
    rollout = fleet.rollout()
    rollout.blobs.refuse_writes(Method.OVERWRITE)
    rollout.steps(2)
    assert rollout.served() == 2
    assert fleet.member(rollout) is None
    trouble = rollout.follower.status.member
    assert trouble is not None
    assert isinstance(trouble.error, UnavailableError)
    fleet.activate(4)
    rollout.steps()
    assert rollout.served() == 4
    # No time has passed: it was tried once and not at each of these steps.
    rollout.steps(5)
    tried = [call for call in rollout.blobs.calls if call.method is Method.OVERWRITE]
    assert len(tried) == 1
    rollout.blobs.mend()
    fleet.clock.sleep(ACTIVE.retry_max_s)
    rollout.steps()
    assert fleet.member(rollout) is not None


def test_a_follower_that_ends_in_a_short_outage_is_not_listed_for_ever(fleet: FleetLab) -> None:
    rollout = active_at(fleet, 2)
    mended_s = fleet.clock.monotonic_s() + 0.3
    rollout.blobs.fails = lambda _: fleet.clock.monotonic_s() < mended_s
    rollout.follower.close()
    assert fleet.member(rollout) is None
    assert rollout.follower.status.member is None


def test_a_follower_that_cannot_leave_ends_all_the_same(fleet: FleetLab) -> None:
    rollout = active_at(fleet, 2)
    rollout.blobs.break_down()
    begun_s = fleet.clock.monotonic_s()
    rollout.follower.close()
    assert rollout.follower.status.member is not None
    assert fleet.clock.monotonic_s() - begun_s < LEAVE_TIMEOUT_S
    again = rollout.receiver.follow()
    rollout.blobs.mend()
    again.step()
    assert rollout.served() == 2


def test_what_fails_is_tried_again_later_each_time_within_a_bound(
    fleet: FleetLab, caplog: pytest.LogCaptureFixture
) -> None:
    rollout = active_at(fleet, 2)
    rollout.blobs.break_down()
    with caplog.at_level(logging.WARNING):
        delays = [rollout.follower.look() for _ in range(6)]
    assert delays == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    trouble = rollout.follower.status.look
    assert trouble is not None
    assert trouble.count == 6
    assert caplog.text.count("following fails (look)") == 1
    rollout.blobs.mend()
    assert rollout.follower.look() == ACTIVE.poll_s
    assert rollout.follower.status.look is None


def works(rollout: Rollout) -> bool:
    return rollout.follower.status.work is None


def test_a_version_that_cannot_be_staged_leaves_the_active_one_served(fleet: FleetLab) -> None:
    rollout = active_at(fleet, 2)
    rollout.blobs.fails = lambda call: call.key.startswith("packs/")
    for _ in range(3):
        rollout.steps()
    assert rollout.served() == 2
    assert not works(rollout)
    rollout.blobs.mend()
    rollout.steps()
    assert works(rollout)
    assert fleet.staged_of(rollout) == 4


@pytest.mark.parametrize("left", range(3))
def test_an_apply_that_is_cut_is_healed_by_the_next_step(fleet: FleetLab, left: int) -> None:
    rollout = active_at(fleet, 2)
    rollout.steps()
    fleet.activate(4)
    rollout.follower.look()
    fleet.lab.fuse.set(left)
    try:
        rollout.follower.work()
    except Cut:
        assert isinstance(rollout.receiver.live, Dirty)
        assert rollout.served() is None
    fleet.lab.fuse.set(None)
    rollout.steps()
    assert rollout.served() == 4
    assert fleet.lab.is_at(rollout.arrays, 4)


def test_a_callback_that_fails_makes_dirty_and_is_called_again(fleet: FleetLab) -> None:
    rollout = active_at(fleet, 2)
    told: list[int] = []

    def callback(ref: VersionRef) -> None:
        told.append(ref.version)
        if len(told) == 1:
            raise RuntimeError("the cache is busy")

    rollout.receiver.on_applied(callback)
    fleet.activate(4)
    rollout.steps()
    assert rollout.served() is None
    assert rollout.follower.status.work is not None
    rollout.steps()
    assert rollout.served() == 4
    assert told[0] == told[-1] == 4


def test_reports_tell_of_each_refit_done_or_failed_and_their_failures_stop_nothing(
    fleet: FleetLab, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.activate(2)
    rollout = fleet.rollout()
    reports: list[Report] = []

    def broken(_: Report) -> None:
        raise RuntimeError("mine")

    rollout.receiver.on_report(broken)
    rollout.receiver.on_report(reports.append)
    rollout.blobs.fails = lambda call: call.key.startswith("anchors/")
    with caplog.at_level(logging.INFO):
        rollout.steps()
        rollout.blobs.mend()
        rollout.steps()
    failed, done = reports
    assert isinstance(failed, RefitFailure)
    assert (failed.base, failed.target, failed.error_code) == (None, 2, "WS-6003")
    assert isinstance(done, RefitReport)
    assert done.target == 2
    totals = rollout.receiver.status().totals
    assert (totals.refit_count, totals.failed_count) == (1, 1)
    assert totals.applied_bytes == sum(each.size_bytes.applied for each in reports)
    assert caplog.text.count("a callback of refit reports failed") == 2
    assert "version None -> 2 by full" in caplog.text


def test_the_report_of_a_refit_holds_what_its_staging_has_counted(fleet: FleetLab) -> None:
    rollout = active_at(fleet, 2)
    rollout.steps()
    fleet.activate(4)
    rollout.steps()
    report = rollout.receiver.status().last_report
    assert isinstance(report, RefitReport)
    assert (report.base, report.target) == (2, 4)
    assert report.size_bytes.wire > 0
    assert {"discover", "fetch", "decode", "stage", "wait", "pause"} <= {
        phase.value for phase in report.seconds
    }


def die_at(rollout: Rollout, number: int) -> None:
    """Cut the power at a storage call; the dead process makes no other."""

    def before(call: Call) -> None:
        if call.index >= number:
            raise PowerCut

    rollout.blobs.before = before


def test_a_receiver_that_dies_at_any_storage_call_is_replaced_by_one_that_is_right(
    fleet: FleetLab,
) -> None:
    """Whatever the dead one has left in memory and in its object, the next start heals it."""
    fleet.activate(1)

    def life(rollout: Rollout, arrays: Bits) -> None:
        for version in (2, 3):
            rollout.steps(2)
            fleet.activate(version)
            rollout.follower.look()
            fleet.clock.sleep(ACTIVE.stage_hold_s)
            rollout.follower.work()
            served = rollout.served()
            assert served is None or fleet.lab.is_at(arrays, served)

    number = 0
    while True:
        fleet.activate(1)
        rollout = fleet.rollout()
        die_at(rollout, number)
        try:
            life(rollout, rollout.arrays)
        except PowerCut:
            assert rollout.served() is None or fleet.lab.versions_of(rollout.arrays)
        else:
            break
        again = fleet.rollout(arrays=rollout.arrays)
        assert again.served() is None
        again.steps()
        active = again.receiver.status().active
        assert again.served() == active
        assert active is not None
        assert fleet.lab.is_at(again.arrays, active)
        number += 1
    assert number > 30


def test_nothing_of_a_trainer_that_was_fenced_reaches_a_receiver() -> None:
    """A zombie wakes up after its successor has committed. (C7)"""
    blobs = MemoryBlobStore()
    first, second = (store_on(blobs, seed=seed, settings=LAB_SETTINGS) for seed in (1, 2))
    zombie = first.trainer("run")
    zombie.put_step(0, other_weights(0)).result()
    units = np.zeros(8, np.uint32)
    receiver = second.receiver({"w": units}, settings=replace(LATEST, name="rollout"))
    follower = receiver.follow()
    follower.step()
    successor = second.trainer("run", take_over=True)
    successor.put_step(1, other_weights(7)).result()
    with pytest.raises(FencedError):
        zombie.put_step(1, other_weights(1)).result()
    for _ in range(3):
        follower.step()
    with receiver.serving() as version:
        assert version == 2
        assert np.array_equal(units.view(np.float32), other_weights(7)["w"])
