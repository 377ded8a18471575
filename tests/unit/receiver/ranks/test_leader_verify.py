"""Live weights of every rank are looked at, and what differs is named."""

from __future__ import annotations

import pytest

from weightstore.errors import InputRefusedError, RankFailedError
from weightstore.testing.rank_lab import ranks_of


def test_every_rank_is_looked_at_and_one_that_differs_is_named() -> None:
    engine = ranks_of(3)
    assert engine.drive(engine.leader.verifying()) == engine.leader.live
    assert engine.served() == {0: 1, 1: 1, 2: 1}
    engine.is_checked = False
    engine.ranks[1].arrays["a"][:] = 7  # behind its back
    with pytest.raises(RankFailedError, match="'a'") as caught:
        engine.drive(engine.leader.verifying())
    assert caught.value.facts["ranks"] == (1,)
    assert caught.value.facts["code"] == "WS-4007"
    assert not engine.served()
    with pytest.raises(InputRefusedError, match="no version is open"):
        engine.drive(engine.leader.verifying())
    engine.is_checked = True
    engine.refit(1)
    assert engine.drive(engine.leader.verifying()).version == 1
    assert engine.all_hold(1)


def test_an_engine_without_a_version_has_nothing_to_look_at() -> None:
    engine = ranks_of(at=None)
    with pytest.raises(InputRefusedError, match="no version is open"):
        engine.drive(engine.leader.verifying())
