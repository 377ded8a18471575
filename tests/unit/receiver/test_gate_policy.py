"""The gate's policy, and requests of many blocks: who is let in, and who is told afterwards."""

from __future__ import annotations

import threading

import pytest

from weightstore.errors import InputRefusedError, NotReadyError
from weightstore.ids import Sha256, Slot, VersionId
from weightstore.receiver.gate import SampleVersions, ServingGate, Wanted
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.serve_policy import Mode, ServePolicy, TailView
from weightstore.testing.virtual_time import VirtualClock
from weightstore.testing.waiting import WAIT_S, wait_until

STALENESS_S = 2.0


def ref(version: int) -> VersionRef:
    return VersionRef(VersionId(version), Sha256(f"{version:064x}"))


class Story:
    """A gate in the mode `active` on virtual time; version 5 is live and active."""

    def __init__(self, mode: Mode = Mode.ACTIVE) -> None:
        self.clock = VirtualClock()
        policy = ServePolicy(mode, max_staleness_s=STALENESS_S)
        self.gate = ServingGate(policy, self.clock.monotonic_s)
        self.gate.open(ref(5))
        self.hear(5, 30)

    def hear(self, active: int, slot: int, newest: int = 9) -> None:
        now_s = self.clock.monotonic_s()
        self.gate.hear(TailView(VersionId(newest), VersionId(active), Slot(slot), now_s))

    def serves(self) -> bool:
        try:
            with self.gate.serving():
                return True
        except NotReadyError:
            return False

    def admits(self) -> bool:
        try:
            with self.gate.admitted():
                return True
        except NotReadyError:
            return False


def test_another_version_became_active_and_nothing_is_served_from_then_on() -> None:
    story = Story()
    assert story.serves()
    story.hear(6, 31)
    assert not story.serves()
    assert not story.admits()
    assert "the active version is 6" in story.gate.refusal()
    story.gate.open(ref(6))
    assert story.serves()


def test_an_older_version_can_become_active_again() -> None:
    story = Story()
    story.hear(3, 40)
    assert not story.serves()
    story.gate.open(ref(3))
    assert story.serves()


def test_a_look_that_comes_back_late_does_not_undo_a_newer_one() -> None:
    story = Story()
    late = TailView(VersionId(9), VersionId(5), Slot(30), story.clock.monotonic_s())
    story.clock.sleep(1)
    story.hear(6, 31)
    story.gate.hear(late)
    assert not story.serves()


def test_a_look_counts_to_the_edge_of_its_time() -> None:
    story = Story()
    story.clock.sleep(STALENESS_S)
    assert story.serves()
    story.clock.sleep(0.001)
    assert not story.serves()
    story.hear(5, 30)
    assert story.serves()


def test_other_modes_need_no_fresh_look() -> None:
    for mode in (Mode.CONTROLLER, Mode.LATEST):
        story = Story(mode)
        story.gate.open(ref(9))
        story.clock.sleep(1e9)
        assert story.serves()


def test_what_a_block_asks_for_comes_on_top_of_the_policy() -> None:
    story = Story()
    assert story.gate.refusal(Wanted(exact=5)) == ""
    assert "6 was asked for" in story.gate.refusal(Wanted(exact=6))
    assert "at most 3" in story.gate.refusal(Wanted(max_lag=3))


def test_a_block_that_outlives_its_look_is_told_at_its_end() -> None:
    """As a process that is stopped inside a block, while others go on to another version."""
    story = Story()
    with pytest.raises(NotReadyError, match="outlived the look"), story.gate.serving():
        story.clock.sleep(STALENESS_S + 0.001)


def test_a_long_block_counts_if_a_later_look_says_the_same() -> None:
    story = Story()
    with story.gate.serving():
        story.clock.sleep(STALENESS_S)
        story.hear(5, 30)
        story.clock.sleep(STALENESS_S)


def test_a_block_counts_for_as_long_as_its_own_look_whatever_is_active_by_then() -> None:
    story = Story()
    with story.gate.serving():
        story.clock.sleep(STALENESS_S)
        story.hear(6, 31)
    with pytest.raises(NotReadyError), story.gate.serving():
        raise AssertionError


def test_a_writer_between_steps_does_not_wait_for_requests() -> None:
    story = Story()
    with story.gate.admitted() as sample:
        with story.gate.serving() as version:
            sample.add(version, 0)
        assert story.gate.close("a change", 0)
        story.gate.open(ref(6))
        story.hear(6, 31)
        with story.gate.serving() as version:
            sample.add(version, 7)
    assert [(each.version, each.first_token) for each in sample.served] == [(5, 0), (6, 7)]


def test_a_writer_between_requests_waits_for_them_and_lets_no_new_one_in() -> None:
    story = Story()
    inside, leave = threading.Event(), threading.Event()
    steps: list[bool] = []

    def request() -> None:
        with story.gate.admitted():
            inside.set()
            assert leave.wait(WAIT_S)
            steps.append(story.serves())

    reader = threading.Thread(target=request)
    reader.start()
    assert inside.wait(WAIT_S)
    found: list[bool] = []

    def write() -> None:
        with story.gate.drained("version 6 waits", 10) as all_ended:
            found.append(all_ended)
            assert not story.admits()

    writer = threading.Thread(target=write)
    writer.start()
    wait_until(lambda: not story.admits())
    assert not found
    leave.set()
    writer.join(WAIT_S)
    reader.join(WAIT_S)
    assert found == [True]
    assert steps == [True], "an open request goes on with its steps"
    assert story.admits()


def test_a_request_that_was_not_waited_for_is_told_at_its_end() -> None:
    story = Story()
    with pytest.raises(NotReadyError, match="inside a request"), story.gate.admitted():  # noqa: PT012 -- the end of the request raises
        with story.gate.drained("version 6 waits", 0) as all_ended:
            assert not all_ended
        assert story.admits()
    with story.gate.admitted():
        pass


def test_requests_that_can_take_no_step_are_not_waited_for() -> None:
    """In the mode `active` a request whose version is not active any more could never end."""
    story = Story()
    with pytest.raises(NotReadyError, match="inside a request"), story.gate.admitted():  # noqa: PT012 -- as above
        story.hear(6, 31)
        with story.gate.drained("version 6 waits", 1e6):
            pass


def test_a_request_that_fails_by_itself_says_that() -> None:
    story = Story()
    with pytest.raises(ValueError, match="mine"), story.gate.admitted():
        raise ValueError("mine")
    with story.gate.drained("version 6 waits", 0) as all_ended:
        assert all_ended


def test_readiness_opens_no_block() -> None:
    story = Story()
    assert story.gate.refusal() == ""
    assert story.gate.close("a change", 0)
    assert "a change" in story.gate.refusal()


@pytest.mark.parametrize("token", [6, 7, -1, 1.5, True])
def test_a_sample_is_noted_forwards(token: object) -> None:
    sample = SampleVersions()
    sample.add(VersionId(1), 0)
    sample.add(VersionId(1), 3)
    sample.add(VersionId(2), 7)
    with pytest.raises(InputRefusedError, match="first_token"):
        sample.add(VersionId(3), token)  # type: ignore[arg-type]
    sample.add(VersionId(3), 8)
    assert [(each.version, each.first_token) for each in sample.served] == [(1, 0), (2, 7), (3, 8)]
