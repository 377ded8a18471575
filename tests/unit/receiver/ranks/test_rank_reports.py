"""What one rank tells of an engine's refits: to callbacks, to metrics and over HTTP."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from weightstore.errors import InputRefusedError, LiveWeightsError, RankFailedError
from weightstore.layout.boxes import Box
from weightstore.receiver.live_state import Way
from weightstore.receiver.reports import Phase, RefitFailure, RefitReport, Report
from weightstore.store import WeightStore
from weightstore.testing.rank_lab import RANK_SETTINGS, RankLab, ranks_of


def slow(engine: RankLab) -> None:
    """Let time pass in every pause."""
    for rank in engine.ranks.values():
        rank.engine.on_applied(lambda _: engine.clock.sleep(1.0))


def told_of(engine: RankLab) -> dict[int, list[Report]]:
    told: dict[int, list[Report]] = {rank: [] for rank in engine.everybody()}
    for number, rank in engine.ranks.items():
        rank.engine.on_report(told[number].append)
    return told


def test_every_rank_reports_its_own_part_of_each_refit() -> None:
    engine = ranks_of(3)
    told = told_of(engine)
    slow(engine)
    found = engine.drive(engine.leader.refitting(2))
    for rank in found.ranks:
        (report,) = told[rank.rank]
        assert isinstance(report, RefitReport)
        assert (report.base, report.target) == (1, 2)
        assert (report.way.value, report.applied_count) == (rank.way, rank.applied_count)
        assert report.size_bytes.wire == rank.wire_bytes
        assert report.pause_s == pytest.approx(rank.seconds["pause"], abs=1e-6)
        assert 0 < report.pause_s <= found.pause_s
        status = engine.ranks[rank.rank].engine.status()
        assert status.last_report is report
        assert status.totals.applied_bytes >= rank.applied_bytes > 0
    # Nothing to do: nobody is asked to close.
    engine.refit(2)
    assert {len(reports) for reports in told.values()} == {1}


def test_a_rank_that_fails_is_told_as_it_is_and_the_others_as_given_up() -> None:
    engine = ranks_of(2)
    told = told_of(engine)
    engine.drive(engine.leader.staging(2))
    engine.is_checked = False
    for units in engine.ranks[1].arrays.values():
        units[:] = 7  # behind its back
    with pytest.raises(RankFailedError):
        engine.drive(engine.leader.applying())
    engine.refit(2)
    codes = {
        number: [report.error_code for report in reports if isinstance(report, RefitFailure)]
        for number, reports in told.items()
    }
    assert codes == {0: [RankFailedError.code], 1: [LiveWeightsError.code]}
    redo, full = (reports[-1] for reports in told.values())
    assert isinstance(redo, RefitReport)
    assert isinstance(full, RefitReport)
    assert (redo.is_redo, full.way) == (True, Way.FULL)
    assert engine.all_hold(2)


def test_metrics_are_of_each_rank() -> None:
    metrics_of = pytest.importorskip(
        "weightstore.receiver.metrics", reason="needs the metrics extra"
    ).ReceiverMetrics
    engine = ranks_of(2)
    metrics = [metrics_of(engine.ranks[number].engine) for number in engine.everybody()]
    found = engine.drive(engine.leader.refitting(2))
    for number, each in enumerate(metrics):
        value = each.registry.get_sample_value
        assert value("weightstore_refits_total", {"way": "change", "redo": "false"}) == 1
        wire = value("weightstore_refit_bytes_total", {"kind": "wire"})
        assert wire == found.ranks[number].wire_bytes > 0
        pauses = value("weightstore_refit_phase_seconds_count", {"phase": Phase.PAUSE.value})
        assert pauses == 1
        assert value("weightstore_receiver_version", {"which": "live"}) == 2
        assert value("weightstore_receiver_ready", {}) == 1


def test_a_callback_that_asks_the_engine_for_a_refit_is_refused() -> None:
    engine = ranks_of(2)
    own, other = engine.ranks[0].engine, engine.ranks[1].engine
    engine.leader.own_step = lambda: any([own.step(), other.step()])
    refused: list[str] = []

    def ask(_: object) -> None:
        with pytest.raises(InputRefusedError, match="callback") as caught:
            own.leader.refit(3)
        refused.append(caught.value.do)

    own.on_applied(ask)
    own.on_report(ask)
    assert own.leader.refit(2).target == 2
    assert refused == ["Ask for it when the refit has ended."] * 2
    assert engine.all_hold(2)
    # Nothing is left behind that would refuse the next one.
    assert own.leader.refit(3).target == 3


def test_a_callback_of_a_rank_in_another_thread_is_refused_too(tmp_path: Path) -> None:
    """Its leader waits for it, so it would wait for ever."""
    live = [np.zeros(8, np.uint32) for _ in range(2)]
    boxes = [Box((0,), (8,)), Box((8,), (8,))]
    refused: list[str] = []
    with WeightStore.open(tmp_path / "store", create=True) as store:
        weights = np.arange(16, dtype=np.float32)
        for step in (1, 2):
            weights[step] = -1.0
            store.put_step(step, {"w": weights})
        own, other = (
            store.engine(
                {"w": live[rank]},
                boxes={"w": boxes[rank]},
                rank=rank,
                rank_count=2,
                channel=tmp_path / "channel",
            )
            for rank in range(2)
        )

        def ask(_: object) -> None:
            with pytest.raises(InputRefusedError, match="callback") as caught:
                own.leader.refit(1)
            refused.append(caught.value.code)

        other.on_applied(ask)
        stop = threading.Event()
        loop = threading.Thread(target=other.serve_rounds, args=(stop,))
        loop.start()
        try:
            assert own.leader.refit(2).target == 2
        finally:
            stop.set()
            loop.join(20.0)
    assert refused == [InputRefusedError.code]


def test_a_slow_report_keeps_no_leader_waiting() -> None:
    engine = ranks_of(2)
    told: list[int] = []

    def slow_report(report: Report) -> None:
        engine.clock.sleep(2 * RANK_SETTINGS.answer_timeout_s)
        told.append(report.target or 0)

    engine.ranks[1].engine.on_report(slow_report)
    found = engine.drive(engine.leader.refitting(2))
    assert told == [2]
    assert found.ranks[1].seconds["pause"] < RANK_SETTINGS.answer_timeout_s
    assert engine.all_hold(2)
