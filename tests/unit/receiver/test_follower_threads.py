"""Followers that run in threads of their own, beside readers and other writers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from weightstore.clock import SystemClock
from weightstore.errors import InputRefusedError, NotReadyError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.follower import Follower
from weightstore.receiver.live_state import VersionRef, Way
from weightstore.receiver.reports import RefitReport, Report
from weightstore.testing.faults import Call, Method
from weightstore.testing.fleet_lab import ACTIVE, LATEST, FleetLab, Rollout
from weightstore.testing.receiver_lab import ReceiverLab
from weightstore.testing.waiting import WAIT_S, wait_until

SCHEMA = Schema.build(
    [TensorSpec("bias", DType.F32, (7,)), TensorSpec("w", DType.BF16, (300, 240))]
)
QUICK = replace(ACTIVE, poll_s=0.002, max_staleness_s=20.0, stage_hold_s=0.0, launch_size_bytes=1)


@pytest.fixture
def fleet() -> FleetLab:
    return FleetLab(ReceiverLab.with_versions(SCHEMA, 4))


class Arrivals:
    """Waits until a receiver has reported a version."""

    def __init__(self, rollout: Rollout) -> None:
        self._changed = threading.Condition()
        self._targets: list[int] = []
        rollout.receiver.on_report(self._note)

    def wait_for(self, version: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._targets[-1:] == [version], WAIT_S)

    def _note(self, report: Report) -> None:
        if isinstance(report, RefitReport):
            with self._changed:
                self._targets.append(report.target)
                self._changed.notify_all()


def in_thread(action: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=action, daemon=True)  # a failed test leaves it behind
    thread.start()
    return thread


def test_a_reader_that_hashes_everything_in_a_loop_sees_activated_versions_in_their_order(
    fleet: FleetLab,
) -> None:
    """Under the gate, while a follower stages and applies. (K4)"""
    rollout = fleet.rollout(QUICK, clock=SystemClock())
    arrivals, stop = Arrivals(rollout), threading.Event()
    served: list[int] = []
    wrong: list[int] = []

    def read() -> None:
        while not stop.is_set():
            try:
                with rollout.receiver.serving() as version:
                    is_right = fleet.lab.is_at(rollout.arrays, version)
            except NotReadyError:
                continue
            if not is_right:
                wrong.append(version)
            elif served[-1:] != [version]:
                served.append(version)

    def is_served(version: int) -> bool:
        return served[-1:] == [version]

    activations = [2, 4, 1, 3, 2, 4, 3, 1, 4]
    reader = in_thread(read)
    try:
        with rollout.follower:
            for version in activations:
                fleet.activate(version)
                arrivals.wait_for(version)
                wait_until(partial(is_served, version))
    finally:
        stop.set()
    reader.join(WAIT_S)
    assert not wrong
    assert served == activations
    assert fleet.member(rollout) is None, "it has left"


def test_a_follower_in_the_foreground_ends_with_its_event(fleet: FleetLab) -> None:
    rollout = fleet.rollout(replace(LATEST, poll_s=0.002), clock=SystemClock())
    arrivals, stop = Arrivals(rollout), threading.Event()
    thread = in_thread(lambda: rollout.follower.run(stop))
    arrivals.wait_for(4)
    fleet.lab.put(fleet.lab.weights[2])
    arrivals.wait_for(5)
    assert rollout.served() == 5
    stop.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert fleet.member(rollout) is None


def test_a_follower_that_another_thread_closes_ends(fleet: FleetLab) -> None:
    rollout = fleet.rollout(replace(LATEST, poll_s=0.002), clock=SystemClock())
    arrivals, stop = Arrivals(rollout), threading.Event()
    thread = in_thread(lambda: rollout.follower.run(stop))
    arrivals.wait_for(4)
    rollout.follower.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert stop.is_set()
    assert fleet.member(rollout) is None


def test_a_look_is_taken_while_a_version_takes_long_to_stage(fleet: FleetLab) -> None:
    """The gate stays fresh, and what became active meanwhile is known at once."""
    fleet.activate(2)
    rollout = fleet.rollout(QUICK, clock=SystemClock())
    rollout.steps()
    staging, go_on = threading.Event(), threading.Event()

    def slowly(_: int | str = "latest") -> object:
        staging.set()
        assert go_on.wait(WAIT_S)
        return None

    rollout.receiver.stage = slowly  # type: ignore[assignment, method-assign]
    with rollout.follower:
        assert staging.wait(WAIT_S)
        slot = fleet.activate(3)
        try:
            wait_until(lambda: rollout.receiver.status().activate_slot == slot)
            assert rollout.served() is None
        finally:
            go_on.set()


class SlowMember:
    """Keeps each write of a receiver's own object waiting, until it is let go."""

    def __init__(self, rollout: Rollout) -> None:
        self.is_waiting, self.go_on = threading.Event(), threading.Event()
        rollout.blobs.before = self._wait

    def _wait(self, call: Call) -> None:
        if call.method is Method.OVERWRITE:
            self.is_waiting.set()
            assert self.go_on.wait(WAIT_S)


def test_a_look_is_taken_while_the_member_object_takes_long_to_write(fleet: FleetLab) -> None:
    """It is for liveness alone: what is active is seen, brought in and served meanwhile."""
    fleet.activate(2)
    rollout = fleet.rollout(QUICK, clock=SystemClock())
    receiver, slow = rollout.receiver, SlowMember(rollout)

    def looked_at_s() -> float:
        return receiver.view.read_at_s if receiver.view is not None else 0.0

    with rollout.follower:
        try:
            assert slow.is_waiting.wait(WAIT_S)
            wait_until(lambda: rollout.served() == 2)
            wait_until(lambda: receiver.status().staged is not None)
            before_s = looked_at_s()
            wait_until(lambda: looked_at_s() > before_s)
            fleet.activate(4)
            wait_until(lambda: rollout.served() == 4)
            assert fleet.lab.is_at(rollout.arrays, 4)
            assert fleet.member(rollout) is None, "still waiting"
        finally:
            slow.go_on.set()
        wait_until(lambda: fleet.member(rollout) is not None)
    assert fleet.member(rollout) is None


def test_a_version_that_nobody_was_told_of_gives_way_without_a_wait(fleet: FleetLab) -> None:
    """What was staged while the object is written is not claimed yet, so nobody waits for it."""
    fleet.activate(2)
    rollout = fleet.rollout(QUICK, clock=SystemClock())
    slow = SlowMember(rollout)

    def staged() -> int | None:
        found = rollout.receiver.status().staged
        return found.version if found else None

    with rollout.follower:
        try:
            assert slow.is_waiting.wait(WAIT_S)
            wait_until(lambda: rollout.served() == 2)
            wait_until(lambda: staged() == 4)
            fleet.activate(3)
            wait_until(lambda: rollout.served() == 3)
            assert fleet.member(rollout) is None, "still waiting"
        finally:
            slow.go_on.set()


def test_each_new_version_comes_in_while_the_member_object_takes_long_to_write(
    fleet: FleetLab,
) -> None:
    rollout = fleet.rollout(replace(LATEST, poll_s=0.002), clock=SystemClock())
    arrivals, slow = Arrivals(rollout), SlowMember(rollout)
    with rollout.follower:
        try:
            assert slow.is_waiting.wait(WAIT_S)
            arrivals.wait_for(4)
            fleet.lab.put(fleet.lab.weights[2])
            arrivals.wait_for(5)
        finally:
            slow.go_on.set()


def test_what_happens_while_the_member_object_is_written_is_told_right_after(
    fleet: FleetLab,
) -> None:
    """And not with the next sign of life, which is far away."""
    rollout = fleet.rollout(replace(LATEST, poll_s=10.0 * WAIT_S), clock=SystemClock())
    arrivals, slow = Arrivals(rollout), SlowMember(rollout)

    def told() -> int | None:
        member = fleet.member(rollout)
        return member.live.version if member and member.live else None

    with rollout.follower as follower:
        try:
            assert slow.is_waiting.wait(WAIT_S)
            arrivals.wait_for(4)
            wait_until(follower._to_tell.is_set)
        finally:
            slow.go_on.set()
        wait_until(lambda: told() == 4)
    assert not {"weightstore-look", "weightstore-tell", "weightstore-follow"} & {
        each.name for each in threading.enumerate()
    }


def test_a_follower_that_is_closed_while_the_member_object_is_written_leaves_nothing(
    fleet: FleetLab,
) -> None:
    rollout = fleet.rollout(replace(LATEST, poll_s=10.0 * WAIT_S), clock=SystemClock())
    slow, stop = SlowMember(rollout), threading.Event()
    follows = in_thread(lambda: rollout.follower.run(stop))
    assert slow.is_waiting.wait(WAIT_S)
    closes = in_thread(rollout.follower.close)
    wait_until(lambda: rollout.follower._is_closed)
    slow.go_on.set()
    for each in (closes, follows):
        each.join(WAIT_S)
        assert not each.is_alive()
    assert stop.is_set()
    assert fleet.member(rollout) is None


def test_an_idle_refit_waits_for_the_requests_that_are_open(fleet: FleetLab) -> None:
    receiver = fleet.rollout(replace(ACTIVE, mode="controller")).receiver
    receiver.refit(1)
    inside, leave = threading.Event(), threading.Event()
    versions: list[int] = []

    def request() -> None:
        with receiver.admitted() as sample:
            for token in range(2):
                with receiver.serving(exact=1) as version:
                    sample.add(version, token)
                inside.set()
                assert leave.wait(WAIT_S)
            versions.extend(each.version for each in sample.served)

    reader = in_thread(request)
    assert inside.wait(WAIT_S)
    writer = in_thread(lambda: receiver.refit(2, at="idle"))

    def admits() -> bool:
        try:
            with receiver.admitted():
                return True
        except NotReadyError:
            return False

    wait_until(lambda: not admits())
    assert receiver.version == 1
    leave.set()
    reader.join(WAIT_S)
    writer.join(WAIT_S)
    assert versions == [1]
    assert receiver.version == 2
    with receiver.admitted(exact=2):
        pass


def test_a_refit_between_steps_leaves_requests_open_with_two_versions(fleet: FleetLab) -> None:
    receiver = fleet.rollout(replace(ACTIVE, mode="controller")).receiver
    receiver.refit(1)
    with receiver.admitted(min=1) as sample:
        for token, version in enumerate([1, 1, 2, 3]):
            receiver.refit(version, at="step")
            with receiver.serving() as served:
                sample.add(served, token)
    assert [(each.version, each.first_token) for each in sample.served] == [(1, 0), (2, 2), (3, 3)]
    with pytest.raises(InputRefusedError):
        receiver.refit(2, at="now")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mode", "active", "first", "second", "end"),
    [
        ("controller", None, 4, 2, 4),
        ("controller", None, 2, 4, 4),
        ("active", 2, 2, 4, 2),
        ("active", 2, 4, 2, 2),
        ("active", 3, 4, 2, 4),
        ("latest", 2, 4, 2, 4),
    ],
)
def test_of_two_refits_at_once_the_newer_wins_or_the_one_that_is_active(
    fleet: FleetLab, mode: str, active: int | None, first: int, second: int, end: int
) -> None:
    """K3: one thread comes while the other one applies."""
    if active is not None:
        fleet.activate(active)
    rollout = fleet.rollout(replace(ACTIVE, mode=mode))  # type: ignore[arg-type]
    receiver = rollout.receiver
    receiver.refit(1)
    inside, go_on = threading.Event(), threading.Event()

    def callback(_: VersionRef) -> None:
        inside.set()
        assert go_on.wait(WAIT_S)

    receiver.on_applied(callback)
    reports: dict[int, RefitReport] = {}

    def refit(version: int) -> None:
        reports[version] = receiver.refit(version)

    before = in_thread(lambda: refit(first))
    assert inside.wait(WAIT_S)
    lock = receiver._refits.lock
    waits = threading.Event()

    class Watched:
        def __enter__(self) -> bool:
            waits.set()
            return lock.__enter__()

        def __exit__(self, *_: object) -> None:
            lock.release()

    receiver._refits.lock = Watched()  # type: ignore[assignment]
    after = in_thread(lambda: refit(second))
    assert waits.wait(WAIT_S)
    go_on.set()
    before.join(WAIT_S)
    after.join(WAIT_S)
    assert receiver.version == end
    assert fleet.lab.is_at(rollout.arrays, end)
    if end == first:
        assert (reports[second].way, reports[second].superseded_by) == (Way.NOTHING, first)


def test_a_follower_runs_once(fleet: FleetLab) -> None:
    rollout = fleet.rollout(QUICK, clock=SystemClock())
    with rollout.follower as follower:
        assert isinstance(follower, Follower)
        with pytest.raises(InputRefusedError, match="runs already"), follower:
            raise AssertionError
    with pytest.raises(InputRefusedError, match="closed"), follower:
        raise AssertionError
