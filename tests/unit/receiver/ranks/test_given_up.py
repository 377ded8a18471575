"""A rank that gives up its weights says so, and ends nothing that is under way elsewhere."""

from __future__ import annotations

import pytest

from weightstore.errors import InputRefusedError, RankFailedError
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
    engine.refit(1)
    assert leader.given_up_ranks() == ()
    assert engine.all_hold(1)
    assert leader.engine_id == engine_id


@pytest.mark.parametrize("rank", [0, 1])
def test_a_version_staged_over_weights_that_were_given_up_is_staged_again(rank: int) -> None:
    engine = ranks_of()
    leader = engine.leader
    engine.drive(leader.staging(2))
    engine.ranks[rank].engine.invalidate()
    # Of rank 0 nobody takes a step between two rounds.
    assert engine.step(1) == (rank == 1)
    with pytest.raises(InputRefusedError, match="no version is staged on every rank"):
        engine.drive(leader.applying())
    assert set(engine.served()) == {1 - rank}
    assert leader.staged is None
    engine.drive(leader.staging(2))
    engine.ranks[rank].engine.invalidate()
    engine.step(1)
    report = engine.drive(leader.refitting(2))
    assert not report.is_redo
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
