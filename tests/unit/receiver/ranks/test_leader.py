"""Rounds of an engine: one version on every rank, or nobody serves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weightstore.errors import (
    FencedError,
    InputRefusedError,
    RankFailedError,
    SchemaMismatchError,
    StorageFailedError,
    VersionNotFoundError,
)
from weightstore.history.log import Log
from weightstore.layout.boxes import Box
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.ranks.channel import MemoryChannel
from weightstore.receiver.ranks.leader import Leader
from weightstore.receiver.version_source import VersionSource
from weightstore.testing.faults import Call, Fault, LossyBlobs
from weightstore.testing.rank_lab import RANK_SCHEMA, RANK_SETTINGS, RankLab, ranks_of, split
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab

CALL_COUNT_MAX = 100


@pytest.mark.parametrize("how", ["rows", "columns", "whole", "copies"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_split_arrives_by_every_way(how: str, count: int) -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 3)
    engine = RankLab(lab, split(lab.schema, count, how))
    ways = []
    for version in (1, 2, 3, 1):
        report = engine.drive(engine.leader.refitting(version))
        assert engine.all_hold(version)
        ways.append({rank.way for rank in report.ranks})
    assert ways == [{"full"}, {"change"}, {"change"}, {"full"}]


def test_a_change_that_does_not_fit_a_pool_is_streamed_on_that_rank() -> None:
    lab = ReceiverLab.with_versions(RANK_SCHEMA, 4, share=0.2)
    receiver = replace(RANK_SETTINGS.receiver, pool_size_bytes=64)
    engine = RankLab(
        lab, split(RANK_SCHEMA, 2, "rows"), settings=replace(RANK_SETTINGS, receiver=receiver)
    )
    engine.refit(1)
    report = engine.drive(engine.leader.refitting(3))
    assert {rank.way for rank in report.ranks} == {"streamed"}
    assert engine.all_hold(3)


def test_a_report_says_what_each_rank_did() -> None:
    engine = ranks_of()
    report = engine.drive(engine.leader.refitting("latest"))
    assert (report.base, report.target, report.is_redo) == (1, 4, False)
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert all(rank.applied_count and rank.wire_bytes for rank in report.ranks)
    assert report.pause_s >= 0
    assert report.stage_s >= 0
    again = engine.drive(engine.leader.refitting(4))
    assert (again.base, again.target, again.ranks) == (4, 4, ())


def test_a_version_that_is_open_is_asked_for_again_and_every_rank_must_be_there() -> None:
    engine = ranks_of(at=2)
    engine.kill(1)
    with pytest.raises(RankFailedError, match="have not answered to 'call'"):
        engine.refit(2)
    assert engine.leader.version is None
    engine.start(1)
    report = engine.drive(engine.leader.refitting(2))
    assert [rank.way for rank in report.ranks] == ["nothing", "full"]
    assert engine.all_hold(2)


def test_a_version_that_one_rank_has_given_up_is_brought_again() -> None:
    engine = ranks_of(at=2)
    engine.ranks[1].engine.invalidate()
    report = engine.drive(engine.leader.refitting(2))
    assert [rank.way for rank in report.ranks] == ["nothing", "full"]
    assert engine.all_hold(2)


def test_stage_and_apply_are_two_calls_and_all_serve_in_between() -> None:
    engine = ranks_of()
    with pytest.raises(InputRefusedError, match="no version is staged"):
        engine.drive(engine.leader.applying())
    staged = engine.drive(engine.leader.staging(3))
    leader = engine.leader
    assert (leader.staged, leader.version) == (staged, 1)
    assert engine.served() == {0: 1, 1: 1}
    assert engine.drive(engine.leader.applying()).target == 3
    assert (leader.staged, leader.live) == (None, staged)
    assert engine.leader.version == 3
    assert engine.all_hold(3)


def test_a_version_that_is_not_there_changes_nothing() -> None:
    engine = ranks_of()
    with pytest.raises(VersionNotFoundError):
        engine.refit(99)
    assert engine.served() == {0: 1, 1: 1}
    engine.refit(2)
    assert engine.all_hold(2)


def test_callbacks_run_on_every_rank_when_all_have_applied_and_none_is_open() -> None:
    engine = ranks_of()
    seen: list[tuple[int, dict[int, int]]] = []
    for number, rank in engine.ranks.items():

        def called(ref: VersionRef, number: int = number) -> None:
            assert all(engine.holds(each, ref.version) for each in engine.ranks.values())
            seen.append((number, dict(engine.served())))

        rank.engine.on_applied(called)
    engine.refit(2)
    assert seen == [(0, {}), (1, {})]


# --- who has what ---


def with_shares(*changes: tuple[int, str, Box]) -> RankLab:
    shares = [dict(share) for share in split(RANK_SCHEMA, 2, "rows")]
    for rank, name, box in changes:
        shares[rank][name] = box
    return RankLab(ReceiverLab.with_versions(RANK_SCHEMA, 4, share=0.2), shares)


def test_overlaps_and_gaps_are_refused_at_attach_and_nothing_is_written() -> None:
    engine = with_shares((0, "a", Box((0, 0), (7, 10))), (1, "b", Box((0,), (0,))))
    engine.shares[0]["b"] = Box((0,), (8,))  # type: ignore[index]
    engine.start(0)
    for _ in range(2):
        with pytest.raises(SchemaMismatchError) as caught:
            engine.refit(1)
        assert "ranks 0 and 1 overlap: 'a'" in str(caught.value)
        assert "no rank has 1 of 9 units: 'b'" in str(caught.value)
    assert not engine.served()
    assert not any(units.any() for rank in engine.ranks.values() for units in rank.arrays.values())


def test_a_leader_of_another_number_of_ranks_is_refused() -> None:
    engine = ranks_of(at=None)
    other = RankLab(
        engine.lab, split(RANK_SCHEMA, 3, "rows"), channel=engine.channel, clock=engine.clock
    )
    engine.ranks[1] = other.ranks[1]
    with pytest.raises(RankFailedError, match="rank 1 is of 3 ranks, the leader of 2"):
        engine.refit(1)
    assert not engine.served()


def test_weights_that_somebody_wrote_on_one_rank_are_written_whole_there() -> None:
    engine = ranks_of()
    spoil(engine, 1)
    engine.ranks[1].engine.invalidate("the engine loaded something")
    assert engine.served() == {0: 1}
    report = engine.drive(engine.leader.refitting(2))
    assert [each.way for each in report.ranks] == ["change", "full"]
    assert engine.all_hold(2)


# --- failures ---


def spoil(engine: RankLab, rank: int, *names: str) -> None:
    """Write behind a rank's back, where the staged change will be."""
    engine.is_checked = False
    arrays = engine.ranks[rank].arrays
    for name in names or arrays:
        arrays[name][:] = 7


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_to_stage_leaves_the_others_serving(rank: int) -> None:
    engine = ranks_of()
    scan_none = replace(RANK_SETTINGS.receiver, scan_refit_count=1000)
    engine.settings = replace(RANK_SETTINGS, receiver=scan_none)
    engine.start(rank)
    engine.step(rank)
    engine.refit(1)
    spoil(engine, rank, "tied")  # where the look at a share of all elements does not come first
    with pytest.raises(RankFailedError, match=f"rank {rank} failed"):
        engine.refit(2)
    assert engine.served() == {1 - rank: 1}
    report = engine.drive(engine.leader.refitting(2))
    ways = [each.way for each in report.ranks]
    assert (ways[rank], ways[1 - rank]) == ("full", "change")
    assert engine.all_hold(2)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_to_apply_stops_all_until_a_redo(rank: int) -> None:
    engine = ranks_of()
    engine.drive(engine.leader.staging(3))
    spoil(engine, rank)
    with pytest.raises(RankFailedError, match=f"rank {rank} failed") as caught:
        engine.drive(engine.leader.applying())
    assert caught.value.facts["ranks"] == (rank,)
    assert caught.value.facts["code"] == "WS-4007"
    assert not engine.served()
    assert engine.leader.live is None
    report = engine.drive(engine.leader.refitting(3))
    assert report.is_redo
    assert [each.way for each in report.ranks][rank] == "full"
    assert [each.is_redo for each in report.ranks][1 - rank]
    assert engine.all_hold(3)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_callback_that_raises_on_one_rank_opens_nobody(rank: int) -> None:
    engine = ranks_of()
    failures = iter([RuntimeError("no cache")])

    def callback(_: VersionRef) -> None:
        for failure in failures:
            raise failure

    engine.ranks[rank].engine.on_applied(callback)
    with pytest.raises(RankFailedError, match="no cache"):
        engine.refit(2)
    assert not engine.served()
    report = engine.drive(engine.leader.refitting(4))
    assert engine.all_hold(4)
    assert not report.is_redo  # the round that failed was finished before it


def test_a_begun_version_that_is_retired_is_given_up_for_the_next() -> None:
    engine = ranks_of()
    engine.drive(engine.leader.staging(2))
    spoil(engine, 1)
    with pytest.raises(RankFailedError):
        engine.drive(engine.leader.applying())
    leader, find = engine.leader, engine.lab.source.find

    def gone(selector: int | str) -> object:
        if selector == 2:
            raise VersionNotFoundError("retired")
        return find(selector)

    engine.lab.source.find = gone  # type: ignore[method-assign, assignment]
    assert leader.pending is not None
    engine.refit(4)
    assert engine.all_hold(4)


def test_a_second_leader_fences_the_first() -> None:
    engine = ranks_of()
    first = engine.leader
    engine.kill(0)
    engine.start(0)
    engine.refit(2)
    assert engine.all_hold(2)
    for _ in range(2):
        with pytest.raises(FencedError):
            engine.drive(first.refitting(3))
    assert engine.all_hold(2)


def test_the_first_attachment_of_a_new_leader_takes_the_channel_over() -> None:
    engine = ranks_of(at=None)
    first: Leader = engine.leader
    waiting = first.attaching()
    next(waiting)
    engine.start(0)
    engine.refit(1)
    with pytest.raises(FencedError):
        engine.drive(waiting)
    assert engine.all_hold(1)


def test_ranks_that_all_hold_one_version_serve_it_again_without_a_write() -> None:
    engine = ranks_of(at=3)
    for rank in engine.ranks.values():
        rank.fuse.set(0)
    assert engine.drive(engine.leader.attaching()) == engine.leader.live
    assert engine.all_hold(3)
    assert engine.leader.version == 3


def test_a_rank_whose_weights_changed_meanwhile_is_found_by_the_scan_of_a_new_leader() -> None:
    engine = ranks_of(at=3)
    spoil(engine, 1)
    assert engine.drive(engine.leader.attaching()) is None
    assert not engine.served()
    engine.refit(3)
    assert engine.all_hold(3)


def test_a_leader_that_was_away_itself_still_sees_answers_that_came() -> None:
    engine = ranks_of()
    waiting = engine.leader.refitting(2)
    next(waiting)
    engine.step(0)
    engine.step(1)
    engine.clock.sleep(1e6)
    engine.drive(waiting)
    assert engine.all_hold(2)


def test_old_messages_are_deleted() -> None:
    engine = ranks_of()
    counts = set()
    for version in (2, 3, 4) * 4:
        engine.refit(version)
        counts.add(len(engine.channel.keys("")))
    assert max(counts) <= 12


def test_the_blocking_calls_take_the_steps_of_the_own_rank() -> None:
    engine = RankLab(
        ReceiverLab.with_versions(RANK_SCHEMA, 4, share=0.2), split(RANK_SCHEMA, 1, "rows")
    )
    leader = engine.leader
    assert leader.attach() is None
    assert leader.engine_id is not None
    assert leader.stage(1).version == 1
    assert leader.apply().target == 1
    assert leader.refit("latest").target == 4
    assert engine.all_hold(4)


class OrderLosingChannel(MemoryChannel):
    """Turns the next order away."""

    is_broken = False

    def put(self, key: str, data: bytes, /) -> None:
        if self.is_broken and key.endswith("-order"):
            self.is_broken = False
            raise StorageFailedError("no answer")
        super().put(key, data)


def test_an_order_that_did_not_arrive_is_not_waited_for() -> None:
    channel = OrderLosingChannel()
    engine = ranks_of(channel=channel)
    channel.is_broken = True
    with pytest.raises(StorageFailedError):
        engine.refit(2)
    assert engine.served() == {0: 1, 1: 1}
    engine.refit(2)
    assert engine.all_hold(2)
    assert engine.clock.slept_s < RANK_SETTINGS.answer_timeout_s


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_store_that_is_away_for_the_leader_closes_no_gate(*, is_staged: bool) -> None:
    """Whichever call of the leader fails, and however often it tries."""
    failing: list[str] = []
    lab = ReceiverLab.with_versions(RANK_SCHEMA, 3, share=0.2)
    for number in range(CALL_COUNT_MAX):
        engine = RankLab(lab, split(RANK_SCHEMA, 2, "rows"))
        engine.refit(1)
        store, settings = engine.lab.blobs, engine.lab.source.settings
        blobs = LossyBlobs(store, lambda call, at=number: _away_from(call, at))  # type: ignore[misc]
        if is_staged:
            engine.drive(engine.leader.staging(2))
        engine_id = engine.leader.engine_id
        source = VersionSource(blobs, Log(blobs, settings.limits), settings)
        engine.leader._source = engine.leader._sums._source = source
        try:
            engine.refit(3)
        except StorageFailedError as error:
            failing.append(error.message)
        else:
            assert engine.all_hold(3)
            break
        with pytest.raises(StorageFailedError):
            engine.refit(3)
        assert engine.served() == {0: 1, 1: 1}
        engine.leader._source = engine.leader._sums._source = engine.lab.source
        engine.refit(3)
        assert engine.all_hold(3)
        assert engine.leader.engine_id == engine_id
    assert {message.split()[1].split("/")[0] for message in failing} >= {"log", "manifests"}


def _away_from(call: Call, number: int) -> Fault | None:
    return Fault.UNAVAILABLE if call.index >= number else None


@pytest.mark.parametrize("yield_count", range(1, 12))
def test_a_leader_that_is_interrupted_anywhere_begins_anew(yield_count: int) -> None:
    engine = ranks_of()
    waiting = engine.leader.refitting(2)
    for _ in range(yield_count):
        if next(waiting, 0) is None:
            engine.step(1)
            engine.step(0)
    waiting.close()
    engine.check()
    engine.refit(3)
    assert engine.all_hold(3)
