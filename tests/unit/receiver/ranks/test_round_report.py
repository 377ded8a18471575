"""A round is reported once on each rank, with everything that it moved there."""

from __future__ import annotations

import pytest

from weightstore.errors import LiveWeightsError, RankFailedError
from weightstore.ids import Sha256, VersionId
from weightstore.receiver.live_state import Ready, VersionRef, Way
from weightstore.receiver.ranks.round_report import RankRound
from weightstore.receiver.receiver_status import Reporter
from weightstore.receiver.reports import Phase, RefitFailure, RefitReport
from weightstore.testing.virtual_time import VirtualClock

BASE = VersionRef(VersionId(1), Sha256("1" * 64))
TARGET = VersionRef(VersionId(2), Sha256("2" * 64))
FULL_BYTES = 1000


class Story:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.reporter = Reporter()
        self.told: list[RefitReport | RefitFailure] = []
        self.reporter.add(self.told.append)
        self.round = RankRound(self.reporter.tell, self.clock, BASE, TARGET)

    def staged(self, *, is_redo: bool = False) -> None:
        self.round.staged(Ready(BASE, TARGET, Way.CHANGE), BASE, is_redo=is_redo)

    def is_open_ended(self) -> bool:
        return self.round.is_open_ended


def test_a_round_that_is_done_is_reported_with_its_pause() -> None:
    story = Story()
    with story.round.tally.phase(Phase.STAGE):
        story.clock.sleep(5.0)
    story.staged(is_redo=True)
    assert not story.is_open_ended()
    story.round.closing()
    assert story.is_open_ended()
    story.clock.sleep(7.0)  # open blocks end
    story.round.closed()
    story.clock.sleep(1.0)
    story.round.closed()  # asked for twice
    assert story.is_open_ended()
    story.round.tally.wrote(3, 6)
    story.clock.sleep(1.0)
    story.round.done(FULL_BYTES)
    story.round.done(FULL_BYTES)
    assert not story.is_open_ended()
    (report,) = story.told
    assert isinstance(report, RefitReport)
    assert (report.base, report.target, report.way, report.is_redo) == (1, 2, Way.CHANGE, True)
    assert report.seconds == {Phase.STAGE: 5.0, Phase.PAUSE: 2.0}
    assert (report.applied_count, report.size_bytes.applied, report.size_bytes.full) == (
        3,
        6,
        FULL_BYTES,
    )
    work = story.round.work(FULL_BYTES)
    assert (work.way, work.applied_count, work.full_bytes) == ("change", 3, FULL_BYTES)
    assert work.seconds_us == {"stage": 5_000_000, "pause": 2_000_000}
    assert story.reporter.totals.refit_count == 1


def test_what_was_cut_after_it_was_staged_is_a_redo() -> None:
    story = Story()
    story.staged()
    story.round.write_begins(is_redo=False)
    assert not story.round.work(FULL_BYTES).is_redo
    story.round.write_begins(is_redo=True)
    story.round.write_begins(is_redo=False)
    assert story.round.work(FULL_BYTES).is_redo


def test_what_was_never_staged_is_no_refit() -> None:
    story = Story()
    assert story.round.work(FULL_BYTES).way == ""
    story.round.done(FULL_BYTES)
    assert story.told == []


@pytest.mark.parametrize("is_own", [True, False])
def test_an_end_without_the_version_is_a_failure_once(*, is_own: bool) -> None:
    story = Story()
    story.staged()
    story.round.closed()
    story.clock.sleep(3.0)
    if is_own:
        story.round.failed(LiveWeightsError("moved"), FULL_BYTES)
    else:
        story.round.given_up("another rank failed", FULL_BYTES)
    story.round.given_up("again", FULL_BYTES)
    story.round.done(FULL_BYTES)
    (failure,) = story.told
    assert isinstance(failure, RefitFailure)
    assert (failure.base, failure.target, failure.pause_s) == (1, 2, 3.0)
    assert failure.error_code == (LiveWeightsError if is_own else RankFailedError).code
    assert story.reporter.totals.failed_count == 1
