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
from weightstore.receiver.ranks.messages import NO_TABLES, Answer, Part, Work, counts_of

WORK = Work(
    way="change",
    reason="r",
    is_redo=True,
    applied_count=1,
    launch_count=2,
    wire_bytes=3,
    applied_bytes=4,
    skipped_bytes=5,
    full_bytes=6,
    seconds_us={"apply": 1_500_000},
)


def answer(rank: int, work: Work | None) -> Answer:
    return Answer(
        engine_id="0" * 32,
        turn=1,
        part=Part.OPEN,
        rank=rank,
        rank_count=2,
        process_id="0" * 32,
        failure=None,
        held=None,
        schema_id="b" * 64,
        callback_count=0,
        work=work,
        **counts_of(NO_TABLES),
    )


def test_what_a_rank_says_is_in_its_report() -> None:
    first, second = rank_reports([answer(0, WORK), answer(1, None)])
    assert first == RankReport(
        rank=0,
        way="change",
        reason="r",
        is_redo=True,
        applied_count=1,
        launch_count=2,
        wire_bytes=3,
        applied_bytes=4,
        skipped_bytes=5,
        full_bytes=6,
        seconds={"apply": 1.5},
    )
    assert second == RankReport(1, "")


def test_a_refit_of_an_engine_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    ranks = rank_reports([answer(0, WORK), answer(1, WORK.model_copy(update={"way": "full"}))])
    report = EngineReport(VersionId(2), VersionId(3), ranks, is_redo=True, pause_s=0.25)
    with caplog.at_level("INFO", "weightstore.receiver"):
        assert logged(report) is report
    assert caplog.messages == [
        "version 2 -> 3 by change, full again on 2 ranks, pause 250.0 ms, 6 bytes read, 8 written"
    ]


def test_nothing_to_do_has_no_ranks() -> None:
    assert EngineReport(None, 3).ranks == ()  # type: ignore[arg-type]
