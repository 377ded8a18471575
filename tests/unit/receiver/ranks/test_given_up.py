"""A rank that gives up its weights says so, and ends nothing that is under way elsewhere."""

from __future__ import annotations

import pytest

from weightstore.errors import RankFailedError
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


def test_weights_that_are_given_up_under_a_version_on_its_way_are_that_ranks_failure() -> None:
    engine = ranks_of()
    engine.drive(engine.leader.staging(2))
    engine.ranks[1].engine.invalidate()
    engine.step(1)
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
