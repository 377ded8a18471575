"""Ranks that die, are late, or wake up in another time: nobody serves a mixture."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from weightstore.errors import (
    CorruptObjectError,
    InputRefusedError,
    NotReadyError,
    RankFailedError,
    StorageFailedError,
    StoreClosedError,
)
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.ranks.channel import MemoryChannel, engine_key, order_key
from weightstore.receiver.ranks.engine_rank import EngineRank
from weightstore.receiver.ranks.leader import Leader
from weightstore.receiver.ranks.messages import Order, Part, decode
from weightstore.testing.rank_lab import RANK_SETTINGS, LabRank, RankLab, orders, split
from weightstore.testing.receiver_lab import Cut, ReceiverLab

SCHEMA = Schema.build(
    [TensorSpec("a", DType.BF16, (12, 10)), TensorSpec("b", DType.F32, (9,))],
    aliases=[Alias("tied", "a")],
)
ROUND = (Part.STAGE, Part.CLOSE, Part.APPLY, Part.OPEN)


def engine_of(count: int = 2, how: str = "rows", *, at: int = 1) -> RankLab:
    found = RankLab(ReceiverLab.with_versions(SCHEMA, 4, share=0.2), split(SCHEMA, count, how))
    found.refit(at)
    return found


def asked(engine: RankLab) -> tuple[int, Part] | None:
    """The turn and the part of the newest order."""
    found = [
        decode(Order, data, what=key)
        for key in engine.channel.keys("rounds/")
        if key.endswith("-order")
        and (data := engine.channel.get(key, max_size_bytes=1 << 20)) is not None
        and key.startswith(f"rounds/{newest(engine)}-")
    ]
    last = max(found, key=lambda order: order.turn, default=None)
    return None if last is None else (last.turn, last.part)


def newest(engine: RankLab) -> int:
    return max(int(key.removeprefix("engines/")) for key in engine.channel.keys("engines/"))


def drive_until(engine: RankLab, version: int, part: Part, victim: int, *, answers: bool) -> None:
    """Refit, and take no step of one rank from a part on, or from after its answer on."""
    before = asked(engine)
    is_stopped = False

    def order() -> Sequence[int]:
        nonlocal is_stopped
        now = asked(engine)
        if now is not None and now != before and now[1] is part and not is_stopped:
            is_stopped = True
            return engine.everybody() if answers else [r for r in engine.everybody() if r != victim]
        return [r for r in engine.everybody() if r != victim] if is_stopped else engine.everybody()

    engine.drive(engine.leader.refitting(version), order)


@pytest.mark.parametrize("answers", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("part", ROUND)
def test_a_rank_that_dies_at_any_part_stops_all_and_its_successor_heals_all(
    part: Part, *, answers: bool
) -> None:
    engine = engine_of()
    is_done = answers and part is Part.OPEN
    if is_done:
        drive_until(engine, 2, part, 1, answers=True)
    else:
        with pytest.raises(RankFailedError) as caught:
            drive_until(engine, 2, part, 1, answers=answers)
        assert caught.value.facts == {"ranks": (1,), "is_gone": True}
        assert engine.clock.slept_s >= RANK_SETTINGS.answer_timeout_s
    engine.kill(1)
    engine.step(0)
    if not is_done:
        assert not engine.served()
        assert engine.leader.live is None
    engine.start(1)
    engine.step(1)
    engine.refit(3)
    assert engine.all_hold(3)


@pytest.mark.parametrize("answers", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("part", ROUND)
def test_a_successor_is_noticed_at_once(part: Part, *, answers: bool) -> None:
    engine = engine_of()
    before, is_killed = asked(engine), False

    def order() -> Sequence[int]:
        nonlocal is_killed
        now = asked(engine)
        if now is not None and now != before and now[1] is part and not is_killed:
            if answers:
                engine.step(1)
            is_killed = True
            engine.kill(1)
            engine.start(1)
        return engine.everybody()

    with pytest.raises(RankFailedError):
        engine.drive(engine.leader.refitting(2), order)
    engine.step(1)
    assert engine.clock.slept_s < RANK_SETTINGS.answer_timeout_s
    engine.refit(3)
    assert engine.all_hold(3)


@pytest.mark.parametrize("answers", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("part", ROUND)
def test_a_leader_that_dies_leaves_ranks_that_serve_on_or_stay_closed(
    part: Part, *, answers: bool
) -> None:
    engine = engine_of(3)
    waiting, before = engine.leader.refitting(2), asked(engine)
    while asked(engine) == before or (asked(engine) or (0, None))[1] is not part:
        next(waiting)
        if (asked(engine) or (0, None))[1] is not part:
            for rank in engine.everybody():
                engine.step(rank)
    engine.kill(0)
    for rank in engine.everybody() if answers else ():
        engine.step(rank)
    served = engine.served()
    if part is Part.STAGE or (part is Part.CLOSE and not answers):
        assert served == {1: 1, 2: 1}
    elif part is Part.OPEN and answers:
        assert served == {1: 2, 2: 2}
    else:
        assert not served
    engine.start(0)
    engine.refit(3)
    assert engine.all_hold(3)


@pytest.mark.parametrize("part", ROUND)
def test_a_rank_that_was_away_does_nothing_that_an_older_engine_asked(part: Part) -> None:
    engine = engine_of()
    with pytest.raises(RankFailedError):
        drive_until(engine, 2, part, 1, answers=False)
    late = engine.ranks[1]
    old = order_key(newest(engine) - 1, (asked_before(engine) or 0))
    assert engine.channel.get(old, max_size_bytes=1 << 20) is not None
    held, count = late.receiver.live, late.fuse.count
    late.engine.step()
    assert late.fuse.count == count
    assert 1 not in engine.served()
    if part in {Part.STAGE, Part.CLOSE, Part.APPLY}:
        assert late.receiver.live == held
        assert engine.holds(late, 1)
    engine.refit(3)
    assert engine.all_hold(3)


def asked_before(engine: RankLab) -> int | None:
    """The newest turn of the engine before the newest."""
    prefix = f"rounds/{newest(engine) - 1}-"
    turns = [
        int(key.split("-")[1]) for key in engine.channel.keys(prefix) if key.endswith("-order")
    ]
    return max(turns, default=None)


def test_a_zombie_whose_place_is_taken_closes_and_stays_closed() -> None:
    engine = engine_of()
    zombie = engine.kill(1)
    engine.start(1)
    engine.step(1)
    engine.refit(2)
    assert engine.all_hold(2)
    for _ in range(5):
        zombie.engine.step()
        engine.step(1)
        engine.step(0)
    with pytest.raises(NotReadyError), zombie.engine.serving():
        pass
    # It has told that another process has its place; the engine attaches once more.
    engine.refit(3)
    assert engine.all_hold(3)


def test_a_late_successor_does_not_take_part_in_an_engine_it_did_not_join() -> None:
    engine = engine_of()
    for version in (2, 3):
        engine.refit(version)
    engine.kill(1)
    fresh = engine.start(1)
    for _ in range(4):
        engine.step(1)
    assert fresh.fuse.count == 0
    assert engine.served() == {0: 3}
    report = engine.drive(engine.leader.refitting(3))
    assert engine.all_hold(3)
    assert report.target == 3


def test_a_write_that_is_interrupted_is_done_again_by_the_same_rank() -> None:
    total = 0
    for number in range(6):
        engine = engine_of()
        for each in engine.ranks.values():
            each.fuse.set(number)
        cut_count = 0

        def stepped(rank: int, engine: RankLab = engine) -> None:
            nonlocal cut_count
            try:
                engine.step(rank)
            except Cut:
                cut_count += 1
                engine.ranks[rank].fuse.set(None)

        waiting = engine.leader.refitting(2)
        for _ in range(40):
            if next(waiting, 0) == 0:
                break
            for rank in engine.everybody():
                stepped(rank)
        engine.check()
        assert engine.all_hold(2)
        total += cut_count
    assert total >= 4


class FailingChannel(MemoryChannel):
    """Fails so many times before it works."""

    left = 0

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes | None:
        self._fail()
        return super().get(key, max_size_bytes=max_size_bytes)

    def put(self, key: str, data: bytes, /) -> None:
        self._fail()
        super().put(key, data)

    def _fail(self) -> None:
        if self.left:
            self.left -= 1
            raise StorageFailedError("no answer")


def test_a_channel_that_fails_loses_nothing() -> None:
    channel = FailingChannel()
    lab = ReceiverLab.with_versions(SCHEMA, 2, share=0.2)
    engine = RankLab(lab, split(SCHEMA, 2, "rows"), channel=channel)
    waiting = engine.leader.refitting(1)
    for _ in range(60):
        if next(waiting, 0) == 0:
            break
        for rank in engine.everybody():
            channel.left = 1
            for _ in range(4):
                try:
                    engine.step(rank)
                except StorageFailedError:
                    continue
            channel.left = 0
    assert engine.all_hold(1)


class After:
    """Stops a loop after some looks."""

    def __init__(self, count: int) -> None:
        self.count = count

    def is_set(self) -> bool:
        self.count -= 1
        return self.count < 0


def test_a_loop_ends_with_the_error_of_a_channel_that_fails_too_often() -> None:
    channel = FailingChannel()
    lab = ReceiverLab.with_versions(SCHEMA, 2, share=0.2)
    engine = RankLab(lab, split(SCHEMA, 2, "rows"), channel=channel)
    rank = engine.ranks[1].engine
    channel.left = 500
    rank.serve_rounds(After(600))  # it works again before the bound is reached
    assert channel.left == 0
    channel.left = 10_000
    with pytest.raises(StorageFailedError):
        rank.serve_rounds(After(5000))


def test_a_loop_ends_at_once_when_the_channels_store_is_closed() -> None:
    engine = engine_of()
    before_s = engine.clock.slept_s

    class Closed(MemoryChannel):
        def get(self, key: str, /, *, max_size_bytes: int) -> bytes | None:
            raise StoreClosedError(f"closed, and asked for {key}, {max_size_bytes}")

    engine.ranks[1].engine._channel = Closed()
    with pytest.raises(StoreClosedError):
        engine.ranks[1].engine.serve_rounds(After(100))
    assert engine.clock.slept_s == before_s


def test_a_loop_stops_when_told() -> None:
    engine = engine_of()
    stop = threading.Event()
    stop.set()
    engine.ranks[1].engine.serve_rounds(stop)
    assert engine.served() == {0: 1, 1: 1}


def test_every_rank_hears_what_is_newest_when_it_stages() -> None:
    engine = engine_of(at=2)
    for rank in engine.ranks.values():
        with rank.engine.serving(max_lag=2):
            pass
        with (
            pytest.raises(NotReadyError, match="2 behind version 4"),
            rank.engine.serving(max_lag=1),
        ):
            pass


def test_only_rank_0_leads() -> None:
    engine = engine_of()
    assert isinstance(engine.ranks[0].engine.leader, Leader)
    with pytest.raises(InputRefusedError, match="rank 1 does not lead"):
        _ = engine.ranks[1].engine.leader


def test_a_rank_says_what_it_holds() -> None:
    engine = engine_of(at=2)
    rank: LabRank = engine.ranks[1]
    found: EngineRank = rank.engine
    assert (found.rank, found.rank_count, found.version) == (1, 2, 2)
    checked = found.verify()
    assert checked.version == engine.leader.version
    assert found.verify(tensors=[checked.tensors[0].name]).tensors == checked.tensors[:1]
    status = found.status()
    assert (status.state, status.is_ready, found.version) == ("whole", True, 2)
    found.invalidate()
    assert found.version is None
    assert "somebody else" in found.status().why_not
    with pytest.raises(NotReadyError):
        found.verify()


@pytest.mark.parametrize("key", ["engine", "order"])
def test_what_is_no_message_on_the_channel_is_a_typed_error(key: str) -> None:
    engine = engine_of()
    place = engine_key(2) if key == "engine" else order_key(1, (asked(engine) or (0, 0))[0] + 1)
    engine.channel.put(place, b"garbage")
    with pytest.raises(CorruptObjectError):
        engine.ranks[1].engine.step()


@pytest.mark.parametrize("order", list(orders(3)))
def test_any_order_of_the_ranks_steps_will_do(order: tuple[int, ...]) -> None:
    engine = engine_of(3)
    engine.drive(engine.leader.refitting(2), lambda: order)
    assert engine.all_hold(2)
