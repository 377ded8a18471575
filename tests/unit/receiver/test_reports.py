"""Reports: each second in one phase, each byte counted."""

from __future__ import annotations

import pytest

from weightstore.receiver.live_state import Way
from weightstore.receiver.reports import ByteCounts, Phase, Tally
from weightstore.testing.virtual_time import VirtualClock


def test_seconds_of_an_inner_phase_are_its_own() -> None:
    clock = VirtualClock()
    tally = Tally(clock)
    with tally.phase(Phase.VERIFY):
        clock.sleep(1)
        for _ in range(2):
            with tally.phase(Phase.FETCH):
                clock.sleep(10)
        clock.sleep(2)
    assert tally.seconds == {Phase.FETCH: 20, Phase.VERIFY: 3}


def test_the_pause_holds_what_happens_in_it() -> None:
    clock = VirtualClock()
    tally = Tally(clock)
    with tally.phase(Phase.PAUSE):
        with tally.phase(Phase.APPLY):
            clock.sleep(3)
        clock.sleep(1)
    report = tally.report(1, 2, Way.CHANGE, full_bytes=7, is_redo=False)
    assert (report.pause_s, report.seconds[Phase.APPLY]) == (4, 3)


def test_a_phase_that_fails_is_counted() -> None:
    clock = VirtualClock()
    tally = Tally(clock)
    with pytest.raises(RuntimeError), tally.phase(Phase.APPLY):  # noqa: PT012 -- the clock moves inside
        clock.sleep(2)
        raise RuntimeError
    assert tally.seconds == {Phase.APPLY: 2}


def test_launches_add_up() -> None:
    tally = Tally(VirtualClock())
    tally.wrote(10, 20)
    tally.wrote(1, 8)
    report = tally.report(None, 2, Way.FULL, full_bytes=99, is_redo=True)
    assert (report.applied_count, report.launch_count, report.is_redo) == (11, 2, True)
    assert report.size_bytes == ByteCounts(applied=28, full=99)
    assert report.pause_s == 0
