"""What a receiver tells about itself: totals, callbacks, states."""

from __future__ import annotations

import logging

import pytest

from weightstore.ids import Sha256, Slot, VersionId
from weightstore.receiver.live_state import (
    Applying,
    Building,
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
from weightstore.receiver.receiver_status import (
    Reporter,
    Totals,
    make_status,
    staged_ref,
    state_name,
)
from weightstore.receiver.reports import (
    ByteCounts,
    Phase,
    RefitFailure,
    RefitReport,
    Report,
    Tally,
)
from weightstore.receiver.serve_policy import TailView
from weightstore.testing.virtual_time import VirtualClock

REF = VersionRef(VersionId(3), Sha256("3" * 64))
DONE = RefitReport(
    2, 3, Way.CHANGE, seconds={Phase.PAUSE: 0.25}, size_bytes=ByteCounts(wire=10, applied=4)
)
FAILED = RefitFailure(3, 4, "WS-6003", "turned away", size_bytes=ByteCounts(wire=5))


def test_totals_add_up_and_keep_the_last_pause() -> None:
    totals = Totals().with_report(DONE).with_report(FAILED).with_report(DONE)
    assert totals == Totals(
        refit_count=2, failed_count=1, wire_bytes=25, applied_bytes=8, last_pause_s=0.25
    )


def test_each_report_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    reporter = Reporter()
    with caplog.at_level(logging.INFO, "weightstore.receiver"):
        reporter.tell(DONE)
        reporter.tell(FAILED)
    done, failed = (record.getMessage() for record in caplog.records)
    assert done == (
        "version 2 -> 3 by change; ms: pause 250.0; bytes: wire 10, decoded 0, applied 4, "
        "skipped 0, full 0"
    )
    assert failed == (
        "version 3 -> 4 failed with WS-6003: turned away; ms: none; bytes: wire 5, decoded 0, "
        "applied 0, skipped 0, full 0"
    )


def test_what_is_done_is_said_as_closely_as_it_says() -> None:
    reporter, tally = Reporter(), Tally(VirtualClock())
    seen = [reporter.phase]
    with reporter.doing("refit", lambda: tally.now):
        seen.append(reporter.phase)
        with tally.phase(Phase.PAUSE):
            with tally.phase(Phase.APPLY):
                seen.append(reporter.phase)
                with reporter.doing("scan"):
                    seen.append(reporter.phase)
            seen.append(reporter.phase)
        seen.append(reporter.phase)
    seen.append(reporter.phase)
    assert seen == ["", "refit", "apply", "scan", "pause", "refit", ""]


def test_a_callback_that_fails_keeps_no_other_from_being_told() -> None:
    reporter, told = Reporter(), list[Report]()

    def broken(_: Report) -> None:
        raise RuntimeError("mine")

    reporter.add(broken)
    reporter.add(told.append)
    reporter.tell(DONE)
    assert told == [DONE]
    assert reporter.last_report is DONE


def test_what_is_being_done_is_said_while_it_is() -> None:
    reporter = Reporter()
    with reporter.doing("recover"):
        with reporter.doing("refit"):
            assert reporter.phase == "refit"
        assert reporter.phase == "recover"
    assert reporter.phase == ""


def test_states_have_a_word_each() -> None:
    states: list[Live] = [Empty(), Whole(REF), Applying(None, REF), Dirty("cut")]
    assert [state_name(each) for each in states] == ["empty", "whole", "applying", "dirty"]
    staged: list[Staged] = [NothingStaged(), Building(REF), Ready(None, REF, Way.FULL)]
    assert [staged_ref(each) for each in staged] == [None, None, REF]


def test_a_status_says_what_is_not_known_as_none() -> None:
    blank = make_status(
        "active", Empty(), NothingStaged(), None, 5.0, reporter=Reporter(), why_not="empty"
    )
    assert (blank.lag, blank.tail_age_s, blank.active, blank.live) == (None, None, None, None)
    assert not blank.is_ready
    view = TailView(VersionId(7), VersionId(3), Slot(9), 2.0)
    known = make_status(
        "active",
        Whole(REF),
        NothingStaged(),
        view,
        5.0,
        reporter=Reporter(),
        why_not="",
    )
    assert (known.lag, known.tail_age_s, known.active, known.live) == (4, 3.0, 3, REF)
    assert known.is_ready
