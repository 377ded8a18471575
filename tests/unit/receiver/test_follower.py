"""A follower: what it does next in each mode, who joins how, and what others are told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weightstore.errors import InputRefusedError
from weightstore.ids import Sha256, Slot, VersionId
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.follower import GoTo, Move, Rest, StageAhead, next_move
from weightstore.receiver.live_state import (
    Dirty,
    Empty,
    Live,
    NothingStaged,
    Ready,
    Staged,
    VersionRef,
    Way,
    Whole,
)
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.serve_policy import Mode, TailView
from weightstore.testing.faults import Call
from weightstore.testing.fleet_lab import ACTIVE, LATEST, FleetLab, Rollout
from weightstore.testing.receiver_lab import ReceiverLab

SCHEMA = Schema.build(
    [TensorSpec("bias", DType.F32, (7,)), TensorSpec("w", DType.BF16, (300, 240))]
)


@pytest.fixture
def fleet() -> FleetLab:
    return FleetLab(ReceiverLab.with_versions(SCHEMA, 4))


def ref(version: int) -> VersionRef:
    return VersionRef(VersionId(version), Sha256(f"{version:064x}"))


def view(newest: int | None, active: int | None) -> TailView:
    return TailView(
        None if newest is None else VersionId(newest),
        None if active is None else VersionId(active),
        None if active is None else Slot(30),
        10.0,
    )


NOTHING = NothingStaged()
READY = Ready(ref(2), ref(4), Way.CHANGE)


@pytest.mark.parametrize(
    ("mode", "live", "staged", "seen", "move"),
    [
        (Mode.ACTIVE, Empty(), NOTHING, None, Rest()),
        (Mode.ACTIVE, Empty(), NOTHING, view(None, None), Rest()),
        (Mode.ACTIVE, Empty(), NOTHING, view(4, 2), GoTo(VersionId(2))),
        (Mode.ACTIVE, Empty(), NOTHING, view(4, None), GoTo(VersionId(4))),
        (Mode.ACTIVE, Dirty("cut"), READY, view(4, 2), GoTo(VersionId(2))),
        (Mode.ACTIVE, Whole(ref(3)), NOTHING, view(4, 2), GoTo(VersionId(2))),
        (Mode.ACTIVE, Whole(ref(2)), NOTHING, view(2, 2), Rest()),
        (Mode.ACTIVE, Whole(ref(2)), NOTHING, view(4, 2), StageAhead(VersionId(4))),
        (Mode.ACTIVE, Whole(ref(2)), READY, view(4, 2), Rest()),
        (Mode.ACTIVE, Whole(ref(2)), READY, view(5, 2), StageAhead(VersionId(5))),
        (Mode.ACTIVE, Whole(ref(2)), READY, view(5, 4), GoTo(VersionId(4))),
        (Mode.ACTIVE, Whole(ref(3)), READY, view(4, 3), StageAhead(VersionId(4))),
        (Mode.ACTIVE, Whole(ref(4)), NOTHING, view(4, None), Rest()),
        (Mode.LATEST, Whole(ref(2)), NOTHING, view(4, 2), GoTo(VersionId(4))),
        (Mode.LATEST, Whole(ref(4)), NOTHING, view(4, 2), Rest()),
        (Mode.LATEST, Empty(), NOTHING, view(4, 2), GoTo(VersionId(4))),
        (Mode.CONTROLLER, Empty(), NOTHING, view(4, 2), Rest()),
        (Mode.CONTROLLER, Whole(ref(2)), NOTHING, view(4, 2), Rest()),
    ],
)
def test_the_next_move(
    mode: Mode, live: Live, staged: Staged, seen: TailView | None, move: Move
) -> None:
    assert next_move(mode, live, staged, seen) == move


def test_a_receiver_that_joins_late_loads_what_is_active_and_not_the_newest(
    fleet: FleetLab,
) -> None:
    fleet.activate(2)
    rollout = fleet.rollout()
    assert rollout.served() is None
    rollout.steps()
    assert rollout.served() == 2
    assert fleet.lab.is_at(rollout.arrays, 2)


def test_the_newest_is_staged_while_the_active_one_is_served(fleet: FleetLab) -> None:
    slot = fleet.activate(2)
    rollout = fleet.rollout()
    rollout.steps(2)
    assert (rollout.served(), fleet.staged_of(rollout)) == (2, 4)
    member = fleet.member(rollout)
    assert member is not None
    assert member.live is not None
    assert (member.state, member.live.version) == ("whole", 2)
    assert (member.activate_slot, member.applied_slot) == (slot, slot)
    status = rollout.receiver.status()
    assert (status.newest, status.active, status.activate_slot, status.lag) == (4, 2, slot, 2)
    assert (status.is_ready, status.why_not, status.phase) == (True, "", "")
    assert status.staged is not None
    assert status.staged.version == 4


def test_what_is_staged_is_applied_at_its_activation_without_reading_packs(
    fleet: FleetLab,
) -> None:
    fleet.activate(2)
    rollout = fleet.rollout()
    rollout.steps(2)
    rollout.blobs.fails = lambda call: call.key.startswith(("packs/", "anchors/", "manifests/"))
    slot = fleet.activate(4)
    assert rollout.served() == 2, "not known yet"
    rollout.follower.look()
    assert rollout.served() is None, "known, and not applied yet"
    member = fleet.member(rollout)
    assert member is not None
    assert (member.activate_slot, member.applied_slot) == (slot, None)
    rollout.follower.work()
    assert rollout.served() == 4
    assert fleet.lab.is_at(rollout.arrays, 4)
    member = fleet.member(rollout)
    assert member is not None
    assert (member.applied_slot, member.staged, member.refit_count) == (slot, None, 2)


def test_before_the_first_activation_the_newest_is_there_and_nobody_serves_it(
    fleet: FleetLab,
) -> None:
    rollout = fleet.rollout()
    rollout.steps()
    assert rollout.receiver.version == 4
    assert rollout.served() is None
    assert "no version is active" in rollout.receiver.status().why_not
    fleet.activate(4)
    rollout.follower.look()
    assert rollout.served() == 4
    assert rollout.receiver.status().totals.refit_count == 1


def test_weights_that_are_the_active_version_are_served_at_once(fleet: FleetLab) -> None:
    fleet.activate(3)
    rollout = fleet.rollout()
    for name, units in rollout.arrays.items():
        units[:] = fleet.lab.expected(3, name)
    rollout.receiver.adopt(3)
    assert rollout.served() == 3
    rollout.follower.look()
    member = fleet.member(rollout)
    assert member is not None
    assert member.applied_slot is not None
    assert rollout.receiver.status().totals.refit_count == 0


def test_an_activation_of_an_older_version_takes_the_fleet_back(fleet: FleetLab) -> None:
    fleet.activate(4)
    rollouts = [fleet.rollout() for _ in range(2)]
    for rollout in rollouts:
        rollout.steps()
    fleet.activate(1)
    for rollout in rollouts:
        rollout.steps()
        assert rollout.served() == 1
        assert fleet.lab.is_at(rollout.arrays, 1)


def test_an_activation_that_is_repeated_changes_nothing(fleet: FleetLab) -> None:
    slot = fleet.activate(2)
    rollout = fleet.rollout()
    rollout.steps(2)
    before = rollout.receiver.status()
    assert fleet.activate(2) == slot
    rollout.steps(2)
    after = rollout.receiver.status()
    assert replace(after, tail_age_s=before.tail_age_s) == before


def test_in_the_mode_latest_each_new_version_is_brought_in(fleet: FleetLab) -> None:
    fleet.activate(1)
    rollout = fleet.rollout(LATEST)
    rollout.steps()
    assert rollout.served() == 4
    fleet.lab.put(fleet.lab.weights[2])
    rollout.follower.look()
    assert rollout.served() is None, "version 5 is known"
    rollout.follower.work()
    assert rollout.served() == 5


def test_a_lag_is_served_while_the_next_version_is_on_its_way(fleet: FleetLab) -> None:
    rollout = fleet.rollout(replace(LATEST, max_lag=1))
    rollout.steps()
    fleet.lab.put(fleet.lab.weights[2])
    rollout.follower.look()
    assert rollout.served() == 4
    fleet.lab.put(fleet.lab.weights[3])
    rollout.follower.look()
    assert rollout.served() is None


def test_with_a_controller_it_is_seen_and_moves_nothing(fleet: FleetLab) -> None:
    rollout = fleet.rollout(ReceiverSettings())
    rollout.steps(3)
    assert rollout.receiver.version is None
    member = fleet.member(rollout)
    assert member is not None
    assert (member.mode, member.state, member.live) == ("controller", "empty", None)
    rollout.receiver.refit(2)
    rollout.steps(3)
    assert rollout.served() == 2
    member = fleet.member(rollout)
    assert member is not None
    assert member.live is not None
    assert (member.live.version, member.applied_slot) == (2, None)


def test_a_fresh_receiver_has_no_version_anywhere(fleet: FleetLab) -> None:
    """None, never 0. (A4)"""
    rollout = fleet.rollout()
    rollout.follower.look()
    status, member = rollout.receiver.status(), fleet.member(rollout)
    assert member is not None
    assert (status.state, status.live, status.lag) == ("empty", None, None)
    assert (member.state, member.live, member.staged) == ("empty", None, None)
    assert rollout.receiver.version is None


def test_a_staged_version_is_kept_for_its_activation_before_a_newer_one_takes_its_place(
    fleet: FleetLab,
) -> None:
    fleet.activate(3)
    rollout = fleet.rollout()
    rollout.steps(2)
    assert fleet.staged_of(rollout) == 4
    fleet.lab.put(fleet.lab.weights[1])
    fleet.clock.sleep(3.9)
    rollout.steps()
    assert fleet.staged_of(rollout) == 4
    fleet.activate(4)
    rollout.steps()
    assert rollout.served() == 4
    rollout.steps()
    assert fleet.staged_of(rollout) == 5
    fleet.lab.put(fleet.lab.weights[2])
    fleet.clock.sleep(4.0)
    rollout.steps()
    assert fleet.staged_of(rollout) == 6


def watch_claims(fleet: FleetLab, rollout: Rollout) -> list[str]:
    """Check at every storage call that what is claimed as staged is ready, or live."""
    wrong: list[str] = []

    def check(call: Call) -> None:
        said = fleet.staged_of(rollout)
        staged = rollout.receiver.staged
        is_ready = isinstance(staged, Ready) and staged.target.version == said
        if said is not None and not is_ready and rollout.receiver.version != said:
            wrong.append(f"{said} is claimed at {call.method.value} {call.key}: {staged}")

    rollout.blobs.before = check
    return wrong


def test_a_member_says_staged_only_while_it_is(fleet: FleetLab) -> None:
    fleet.activate(2)
    rollout = fleet.rollout()
    wrong = watch_claims(fleet, rollout)
    rollout.steps(2)
    for _ in range(2):  # a newer one takes the place
        fleet.lab.put(fleet.lab.weights[1])
        fleet.clock.sleep(4)
        rollout.steps(2)
        assert fleet.staged_of(rollout) == max(fleet.lab.weights)
    rollout.receiver.stage(1)  # a person stages another one
    rollout.steps()
    fleet.activate(3)  # one that is not staged is activated
    rollout.steps(2)
    rollout.receiver.invalidate()
    rollout.steps(2)
    assert not wrong
    assert len(rollout.blobs.calls) > 50


def test_what_is_lost_is_taken_back_before_anybody_looks_again(fleet: FleetLab) -> None:
    fleet.activate(2)
    rollout = fleet.rollout()
    rollout.steps(2)
    assert fleet.staged_of(rollout) == 4
    rollout.receiver.invalidate("the engine slept")
    assert fleet.staged_of(rollout) is None
    rollout.steps(2)
    assert (rollout.served(), fleet.staged_of(rollout)) == (2, 4)


def test_damage_is_found_before_staging_and_healed(fleet: FleetLab) -> None:
    fleet.activate(2)
    rollout = fleet.rollout(replace(ACTIVE, scan_refit_count=1))
    rollout.steps()
    rollout.arrays["w"][17] ^= 1
    rollout.follower.work()
    assert rollout.follower.status.work is not None
    assert rollout.served() is None
    rollout.steps()
    assert rollout.served() == 2
    assert fleet.lab.is_at(rollout.arrays, 2)


def test_a_receiver_has_one_follower_at_a_time(fleet: FleetLab) -> None:
    rollout = fleet.rollout()
    with pytest.raises(InputRefusedError, match="followed already"):
        rollout.receiver.follow()
    rollout.steps()
    assert fleet.member(rollout) is not None
    rollout.follower.close()
    rollout.follower.close()
    assert fleet.member(rollout) is None
    with pytest.raises(InputRefusedError, match="closed"):
        rollout.follower.run()
    again = rollout.receiver.follow()
    assert again.membership.member_id != rollout.follower.membership.member_id
    with pytest.raises(InputRefusedError):
        rollout.receiver.follow(at="now")  # type: ignore[arg-type]
