"""A rank that gives up its weights says so, and ends nothing that is under way elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from weightstore.errors import InputRefusedError, RankFailedError, StorageFailedError
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.ranks.channel import MemoryChannel
from weightstore.receiver.ranks.messages import Tables
from weightstore.receiver.ranks.rank_work import RankWork
from weightstore.testing.rank_lab import ranks_of


def test_weights_that_were_given_up_are_told_once_and_end_no_round() -> None:
    engine = ranks_of()
    leader, rank = engine.leader, engine.ranks[1].engine
    engine_id = leader.engine_id
    engine.drive(leader.staging(2))
    assert leader.given_up_ranks() == ()
    rank.invalidate()
    assert engine.step(1)
    assert not engine.step(1)
    assert leader.given_up_ranks() == (1,)
    assert leader.staged is not None, "until somebody asks for it"
    engine.refit(1)
    assert leader.given_up_ranks() == ()
    assert engine.all_hold(1)
    assert leader.engine_id == engine_id


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("at", [1, None])
def test_a_version_whose_staging_was_given_up_is_staged_again(rank: int, at: int | None) -> None:
    engine = ranks_of(at=at)
    leader = engine.leader
    dropped: list[VersionRef | None] = []
    leader.before_drop = lambda: dropped.append(leader.staged)
    engine.drive(leader.staging(2))
    staged = leader.staged
    engine.ranks[rank].engine.invalidate()
    # Of rank 0 nobody takes a step between two rounds.
    assert engine.step(1) == (rank == 1)
    with pytest.raises(InputRefusedError, match="no version is staged on every rank"):
        engine.drive(leader.applying())
    assert set(engine.served()) == ({1 - rank} if at else set())
    assert (leader.staged, dropped) == (None, [staged])
    engine.drive(leader.staging(2))
    engine.ranks[rank].engine.invalidate()
    engine.step(1)
    report = engine.drive(leader.refitting(2))
    assert not report.is_redo
    assert engine.all_hold(2)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("told", ["before", "after"])
def test_what_is_staged_over_weights_that_were_given_up_is_applied(rank: int, told: str) -> None:
    engine = ranks_of()
    leader = engine.leader
    engine.ranks[rank].engine.invalidate()
    if told == "before":
        engine.step(rank)
    engine.drive(leader.staging(2))
    if told == "after":
        engine.step(rank)
    report = engine.drive(leader.applying())
    assert [one.way for one in report.ranks][rank] == "full"
    assert engine.all_hold(2)
    assert leader.given_up_ranks() == ()


def test_a_rank_that_could_not_stage_has_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ranks_of()
    stage = RankWork._stage

    def failing(self: RankWork, weights: LiveWeights, *given: Any) -> Tables:  # noqa: ANN401 -- as given
        if self is engine.ranks[1].engine._work:
            weights.drop()
            raise OSError("no room")
        return stage(self, weights, *given)

    engine.drive(engine.leader.staging(2))
    monkeypatch.setattr(RankWork, "_stage", failing)
    with pytest.raises(RankFailedError, match="no room"):
        engine.drive(engine.leader.staging(3))
    assert not engine.step(1)


def test_words_go_with_what_is_opened_after_them() -> None:
    """And not before: of what is open now, and staged now, they are still asked for."""
    engine = ranks_of(at=None)
    leader, channel = engine.leader, engine.channel
    for cycle in range(6):
        engine.drive(leader.refitting(1 + cycle % 2))
        engine.drive(leader.staging(3))
        engine.ranks[1].engine.invalidate()
        engine.step(1)
        engine.drive(leader.staging(4))
        assert leader.given_up_ranks() == (1,)
        assert len([key for key in channel.keys("rounds/") if "given-up" in key]) <= 4
        assert len(leader._roll_call._word_turns) <= 3
        if cycle == 3:
            engine.kill(1)
            engine.start(1)
            engine.drive(leader.attaching())


class OnceAfterAll(MemoryChannel):
    """The next answer of rank 0 is put, and its put fails."""

    is_armed = False

    def put(self, key: str, data: bytes, /) -> None:
        super().put(key, data)
        if self.is_armed and key.endswith("-0"):
            self.is_armed = False
            raise StorageFailedError("no answer")


def test_rank_0_tells_before_a_round_though_it_has_to_answer_again_first() -> None:
    channel = OnceAfterAll()
    engine = ranks_of(channel=channel)
    staging = engine.leader.staging(2)
    next(staging)
    channel.is_armed = True
    with pytest.raises(StorageFailedError):
        engine.step(0)
    engine.step(1)
    with pytest.raises(StopIteration):
        next(staging)
    engine.ranks[0].engine.invalidate()
    assert not engine.drive(engine.leader.refitting(2)).is_redo
    assert engine.all_hold(2)


def test_what_is_given_up_before_a_rank_could_tell_is_that_ranks_failure() -> None:
    engine = ranks_of()
    engine.drive(engine.leader.staging(2))
    engine.ranks[1].engine.invalidate()
    with pytest.raises(RankFailedError, match="not staged on this rank") as caught:
        engine.drive(engine.leader.applying())
    assert caught.value.facts["ranks"] == (1,)
    assert not caught.value.facts["is_gone"]
    engine.refit(2)
    assert engine.all_hold(2)


def test_what_was_given_up_before_a_new_engine_is_told_in_none() -> None:
    engine = ranks_of()
    engine.ranks[1].engine.invalidate()
    # The order is there before the rank has looked whether there is none.
    engine.drive(engine.leader.attaching())
    assert not engine.step(1)
    engine.refit(2)
    assert engine.leader.given_up_ranks() == ()
