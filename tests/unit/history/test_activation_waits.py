"""After an activation: until all listed receivers serve it, or nobody can serve another one."""

from __future__ import annotations

import pytest

from weightstore.history.activation import has_applied
from weightstore.ids import Slot
from weightstore.testing.activation_lab import STALENESS_S, WaitedFleet
from weightstore.testing.members import version_of


@pytest.fixture
def fleet() -> WaitedFleet:
    return WaitedFleet()


def test_waiting_ends_when_all_serve_the_version(fleet: WaitedFleet) -> None:
    for receiver in fleet.receivers:
        receiver.stage(fleet.records[3])
    done = fleet.activate(4)
    for number, receiver in enumerate(fleet.receivers):
        fleet.clock.at(
            float(number),
            lambda each=receiver: each.apply(fleet.records[3], done.slot),  # type: ignore[misc]
        )
    applied = fleet.wait(done)
    assert (applied.listed_count, applied.applied_count, applied.waited_s) == (3, 3, 2)
    assert applied.missing == ()


def test_waiting_ends_when_nobody_can_serve_another_version(fleet: WaitedFleet) -> None:
    fleet.receivers[0].stage(fleet.records[3])
    done = fleet.activate(4)
    fleet.receivers[1].apply(fleet.records[3], done.slot)
    applied = fleet.wait(done)
    assert (applied.listed_count, applied.applied_count) == (2, 1)
    assert applied.waited_s == STALENESS_S
    assert [each.name for each in applied.missing] == ["rollout-1"]


def test_who_serves_by_an_older_record_has_not_applied(fleet: WaitedFleet) -> None:
    """Live since the activation before the one that led back and forth."""
    wanted = version_of(fleet.records[3])
    member = fleet.receivers[0].apply(fleet.records[3], 7)
    assert has_applied(member, wanted, Slot(7))
    assert not has_applied(member, wanted, Slot(8))
    # It has gone on to a later activation: that one is not waited for here.
    assert has_applied(fleet.receivers[0].apply(fleet.records[2], 9), wanted, Slot(8))
    dirty = fleet.receivers[0].say(state="dirty", live=None, applied_slot=Slot(8))
    assert not has_applied(dirty, wanted, Slot(8))
