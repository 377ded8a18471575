"""Engines are begun one after the other, and every rank is waited for, but not for ever."""

from __future__ import annotations

import pytest

from weightstore.errors import (
    BlobOutcomeUnknownError,
    CorruptObjectError,
    FencedError,
    RankFailedError,
)
from weightstore.ids import Sha256, VersionId
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.ranks.channel import (
    MemoryChannel,
    answer_key,
    engine_key,
    lost_key,
    order_key,
)
from weightstore.receiver.ranks.messages import (
    Engine,
    Order,
    Part,
    decode,
    encode,
)
from weightstore.receiver.ranks.roll_call import RollCall
from weightstore.testing.rank_lab import RANK_SETTINGS
from weightstore.testing.rank_messages import rank_answer
from weightstore.testing.virtual_time import SeededEntropy, VirtualClock

TARGET = VersionRef(VersionId(3), Sha256("a" * 64))


class Roll:
    """A roll call of two ranks that are played by hand."""

    def __init__(self) -> None:
        self.channel = MemoryChannel()
        self.clock = VirtualClock()
        self.call = self.another(0)

    def another(self, seed: int) -> RollCall:
        return RollCall(
            self.channel,
            2,
            clock=self.clock,
            entropy=SeededEntropy(seed),
            settings=RANK_SETTINGS,
        )

    def answer(self, turn: int, rank: int, part: Part, *, said_rank: int | None = None) -> None:
        engine = self.call.engine
        assert engine is not None
        answer = rank_answer(
            rank if said_rank is None else said_rank,
            turn=turn,
            part=part,
            engine_id=engine.engine_id,
        )
        self.channel.put(answer_key(engine.generation, turn, rank), encode(answer))

    def attach(self) -> Engine:
        engine = self.call.begin()
        for rank in range(2):
            self.answer(0, rank, Part.ATTACH)
        with pytest.raises(StopIteration):
            next(self.call.attached())
        return engine


def test_engines_have_new_ids_and_rising_generations() -> None:
    roll = Roll()
    first, second = roll.call.begin(), roll.call.begin()
    assert (first.generation, second.generation) == (1, 2)
    assert first.engine_id != second.engine_id
    data = roll.channel.get(engine_key(2), max_size_bytes=4096)
    assert data is not None
    assert decode(Engine, data, what="engine") == second


def test_an_order_says_engine_turn_round_and_version() -> None:
    roll = Roll()
    engine = roll.attach()
    roll.call.round = 7
    waiting = roll.call.ask(Part.STAGE, TARGET, base=TARGET, reason="r")
    next(waiting)
    data = roll.channel.get(order_key(1, 1), max_size_bytes=1 << 20)
    assert data is not None
    order = decode(Order, data, what="order")
    assert (order.engine_id, order.turn, order.round) == (engine.engine_id, 1, 7)
    assert order.part is Part.STAGE
    assert order.base == order.target


def test_answers_come_by_rank() -> None:
    roll = Roll()
    roll.attach()
    waiting = roll.call.ask(Part.STAGE, TARGET, base=None)
    next(waiting)
    roll.answer(1, 1, Part.STAGE)
    next(waiting)
    roll.answer(1, 0, Part.STAGE)
    with pytest.raises(StopIteration) as end:
        next(waiting)
    assert [answer.rank for answer, _ in end.value.value] == [0, 1]


@pytest.mark.parametrize("part", [Part.STAGE, Part.APPLY])
def test_a_rank_that_does_not_answer_is_named_at_the_deadline(part: Part) -> None:
    roll = Roll()
    roll.attach()
    waiting = roll.call.ask(part, TARGET, base=None)
    next(waiting)
    roll.answer(1, 0, part)
    roll.clock.sleep(59.0)
    next(waiting)
    roll.clock.sleep(1.0)
    with pytest.raises(RankFailedError) as caught:
        next(waiting)
    assert caught.value.facts == {"ranks": (1,), "is_gone": True}


def test_those_that_do_not_attach_are_named_and_may_still_come() -> None:
    roll = Roll()
    roll.call.begin()
    roll.answer(0, 1, Part.ATTACH)
    waiting = roll.call.attached()
    next(waiting)
    roll.clock.sleep(60.0)
    with pytest.raises(RankFailedError, match=r"\(0,\) of 2 have not attached"):
        next(waiting)
    roll.answer(0, 0, Part.ATTACH)
    with pytest.raises(StopIteration):
        next(roll.call.attached())


def test_who_waits_says_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    roll = Roll()
    roll.call.begin()
    roll.answer(0, 0, Part.ATTACH)
    waiting = roll.call.attached()
    for _ in range(25):
        next(waiting)
        roll.clock.sleep(1.0)
    roll.answer(0, 1, Part.ATTACH)
    with pytest.raises(StopIteration):
        next(waiting)
    asked = roll.call.ask(Part.STAGE, TARGET, base=None)
    for _ in range(11):
        next(asked)
        roll.clock.sleep(1.0)
    next(asked)
    assert caplog.messages == [
        "ranks (1,) of 2 have not attached yet",
        "ranks (1,) of 2 have not attached yet",
        "ranks (0, 1) of 2 have not answered to 'stage' yet",
    ]


def test_a_word_of_loss_ends_the_waiting_at_once() -> None:
    roll = Roll()
    roll.attach()
    waiting = roll.call.ask(Part.APPLY, TARGET, base=None)
    next(waiting)
    roll.answer(1, 0, Part.APPLY)
    roll.answer(1, 1, Part.APPLY)
    roll.channel.put(lost_key(1, 1), b"")
    assert roll.call.lost_ranks() == (1,)
    with pytest.raises(RankFailedError) as caught:
        next(waiting)
    assert caught.value.facts["ranks"] == (1,)


def test_a_loss_while_ranks_attach_begins_another_engine() -> None:
    roll = Roll()
    roll.call.begin()
    roll.answer(0, 0, Part.ATTACH)
    roll.answer(0, 1, Part.ATTACH)
    roll.channel.put(lost_key(1, 1), b"")
    waiting = roll.call.attached()
    next(waiting)
    assert roll.call.engine is not None
    assert roll.call.engine.generation == 2
    assert roll.call.lost_ranks() == ()


def test_a_newer_leader_fences_everything() -> None:
    roll = Roll()
    roll.attach()
    waiting = roll.call.ask(Part.STAGE, TARGET, base=None)
    next(waiting)
    roll.another(1).begin()
    with pytest.raises(FencedError):
        next(waiting)
    with pytest.raises(FencedError):
        next(roll.call.ask(Part.STAGE, TARGET, base=None))
    with pytest.raises(FencedError):
        roll.call.begin()


def test_two_leaders_that_begin_at_once_begin_one_engine() -> None:
    roll = Roll()
    other = roll.another(1)
    put = MemoryChannel.put

    def first(key: str, data: bytes) -> None:
        roll.channel.put = lambda key, data: put(roll.channel, key, data)  # type: ignore[method-assign]
        other.begin()
        put(roll.channel, key, data)

    roll.channel.put = first  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        roll.call.begin()


def test_an_answer_to_something_else_is_refused() -> None:
    roll = Roll()
    roll.attach()
    waiting = roll.call.ask(Part.STAGE, TARGET, base=None)
    next(waiting)
    roll.answer(1, 0, Part.STAGE, said_rank=1)
    with pytest.raises(CorruptObjectError, match="something else"):
        next(waiting)


class LosingChannel(MemoryChannel):
    """Loses answers to puts: of what has landed, of what lands late, or of what never does."""

    def __init__(self) -> None:
        super().__init__()
        self.fate = ""
        self.late: list[tuple[str, bytes]] = []

    def put(self, key: str, data: bytes, /) -> None:
        fate, self.fate = self.fate, ""
        if fate in {"", "landed"}:
            super().put(key, data)
        if fate == "late":
            self.late.append((key, data))
        if fate:
            raise BlobOutcomeUnknownError(f"put {key}: no answer")


@pytest.mark.parametrize("fate", ["landed", "late", "never"])
@pytest.mark.parametrize("is_first", [True, False])
def test_p11_an_engine_whose_answer_was_lost_does_not_fence_its_own_leader(
    fate: str, *, is_first: bool
) -> None:
    roll, channel = Roll(), LosingChannel()
    roll.channel, roll.call = (
        channel,
        RollCall(channel, 2, clock=roll.clock, entropy=SeededEntropy(7), settings=RANK_SETTINGS),
    )
    if not is_first:
        roll.attach()
    channel.fate = fate
    with pytest.raises(BlobOutcomeUnknownError):
        roll.call.begin()
    for key, data in channel.late:
        MemoryChannel.put(channel, key, data)
    engine = roll.attach()
    assert engine.generation == (1 if is_first else 2)
    assert roll.call.begin().generation == engine.generation + 1


@pytest.mark.parametrize("fate", ["landed", "never"])
def test_p11_a_leader_whose_lost_engine_was_overtaken_is_fenced(fate: str) -> None:
    roll, channel = Roll(), LosingChannel()
    roll.channel, roll.call = (
        channel,
        RollCall(channel, 2, clock=roll.clock, entropy=SeededEntropy(7), settings=RANK_SETTINGS),
    )
    roll.attach()
    channel.fate = fate
    with pytest.raises(BlobOutcomeUnknownError):
        roll.call.begin()
    roll.another(8).begin()
    with pytest.raises(FencedError):
        roll.call.begin()
