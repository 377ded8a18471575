"""Reports of an engine say what each rank did."""

from __future__ import annotations

import pytest

from weightstore.ids import VersionId
from weightstore.receiver.ranks.engine_report import (
    EngineReport,
    RankReport,
    logged,
    rank_reports,
)
from weightstore.testing.rank_messages import WORK, rank_answer


def test_what_a_rank_says_is_in_its_report() -> None:
    first, second = rank_reports([rank_answer(0, work=WORK), rank_answer(1)])
    assert first == RankReport(
        rank=0,
        way="change",
        reason="r",
        is_redo=True,
        applied_count=1,
        launch_count=2,
        wire_bytes=3,
        decoded_bytes=7,
        applied_bytes=4,
        skipped_bytes=5,
        full_bytes=6,
        seconds={"apply": 1.5},
    )
    assert second == RankReport(1, "")


def test_a_refit_of_an_engine_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    slow = WORK.model_copy(
        update={"way": "full", "seconds_us": {"apply": 2_500_000, "wait": 10_000}}
    )
    ranks = rank_reports([rank_answer(0, work=WORK), rank_answer(1, work=slow)])
    report = EngineReport(
        VersionId(2), VersionId(3), ranks, is_redo=True, pause_s=0.25, stage_s=1.25
    )
    with caplog.at_level("INFO", "weightstore.receiver"):
        assert logged(report) is report
    (line,) = caplog.messages
    assert line == (
        "version 2 -> 3 by change, full again on 2 ranks, stage 1250.0 ms, pause 250.0 ms; of the "
        "slowest rank and of all: ms: wait 10.0, apply 2500.0; bytes: wire 6, decoded 14, "
        "applied 8, skipped 10, full 12"
    )


def test_nothing_to_do_has_no_ranks() -> None:
    assert EngineReport(None, 3).ranks == ()  # type: ignore[arg-type]
