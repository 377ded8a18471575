"""What is done to weights, one thing at a time: who is told, and what is taken back."""

from __future__ import annotations

import pytest

from weightstore.errors import InputRefusedError, StorageFailedError, VersionNotFoundError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.refits import Refits
from weightstore.receiver.reports import RefitFailure, Report
from weightstore.testing.fleet_lab import FleetLab, Rollout
from weightstore.testing.receiver_lab import Cut, ReceiverLab

SCHEMA = Schema.build([TensorSpec("w", DType.BF16, (300, 240))])


@pytest.fixture
def fleet() -> FleetLab:
    return FleetLab(ReceiverLab.with_versions(SCHEMA, 4))


@pytest.fixture
def rollout(fleet: FleetLab) -> Rollout:
    """Serves version 2 and has version 4 staged."""
    fleet.activate(2)
    found = fleet.rollout()
    found.steps(2)
    assert fleet.staged_of(found) == 4
    return found


def refits_of(rollout: Rollout) -> Refits:
    return rollout.receiver._refits


def test_a_rollback_takes_back_what_was_staged(fleet: FleetLab, rollout: Rollout) -> None:
    fleet.activate(4)
    rollout.steps()
    assert rollout.receiver.rollback().target == 2
    assert rollout.receiver.version == 2
    rollout.steps()
    assert rollout.served() == 4


def test_a_rollback_that_is_refused_leaves_the_claim(fleet: FleetLab, rollout: Rollout) -> None:
    with pytest.raises(InputRefusedError, match="no bits"):
        rollout.receiver.rollback()
    rollout.steps()
    assert fleet.staged_of(rollout) == 4


def test_a_cut_change_that_is_undone_is_claimed_no_more(fleet: FleetLab, rollout: Rollout) -> None:
    fleet.lab.fuse.set(0)
    with pytest.raises(Cut):
        rollout.receiver.apply()
    fleet.lab.fuse.set(None)
    rollout.follower.look()
    assert fleet.staged_of(rollout) == 4
    rollout.receiver.rollback()
    assert fleet.staged_of(rollout) is None
    assert rollout.served() == 2


def test_a_failure_names_what_was_wanted_and_from_where(rollout: Rollout) -> None:
    told: list[Report] = []
    rollout.receiver.on_report(told.append)
    with pytest.raises(VersionNotFoundError):
        rollout.receiver.stage(9)
    rollout.blobs.fails = lambda call: call.key.startswith("packs/")
    with pytest.raises(StorageFailedError, match="turned away"):
        rollout.receiver.refit(3)
    assert [(type(each), each.base, each.target) for each in told] == [
        (RefitFailure, 2, None),
        (RefitFailure, 2, 3),
    ]


def test_nothing_is_told_of_a_call_that_was_refused(rollout: Rollout) -> None:
    told: list[Report] = []
    rollout.receiver.on_report(told.append)
    rollout.receiver.refit(4)
    with pytest.raises(InputRefusedError):
        rollout.receiver.apply()
    assert [each.target for each in told] == [4]
    assert refits_of(rollout).reporter.totals.failed_count == 0
