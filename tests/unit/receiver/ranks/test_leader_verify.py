"""Live weights of every rank are looked at, and what differs is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weightstore.errors import InputRefusedError, RankFailedError
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.reports import Tally
from weightstore.testing.rank_lab import RANK_SCHEMA, RANK_SETTINGS, RankLab, ranks_of, split
from weightstore.testing.receiver_lab import ReceiverLab


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


def test_a_rank_that_has_given_up_its_weights_says_nothing_against_the_others() -> None:
    engine = ranks_of(3)
    engine.ranks[1].engine.invalidate()
    with pytest.raises(RankFailedError, match="holds no whole version") as caught:
        engine.drive(engine.leader.verifying())
    assert caught.value.facts["ranks"] == (1,)
    assert engine.served() == {0: 1, 2: 1}
    report = engine.drive(engine.leader.refitting(1))
    assert [rank.way for rank in report.ranks] == ["nothing", "full", "nothing"]
    assert engine.all_hold(1)


def test_one_that_has_given_up_hides_none_that_differs() -> None:
    engine = ranks_of(3)
    engine.is_checked = False
    engine.ranks[0].engine.invalidate()
    engine.ranks[1].arrays["a"][:] = 7  # behind its back
    with pytest.raises(RankFailedError) as caught:
        engine.drive(engine.leader.verifying())
    assert caught.value.facts["ranks"] == (0, 1)
    assert not engine.served()


def test_an_engine_without_a_version_has_nothing_to_look_at() -> None:
    engine = ranks_of(at=None)
    with pytest.raises(InputRefusedError, match="no version is open"):
        engine.drive(engine.leader.verifying())


def test_a_look_at_everything_may_take_as_long_as_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(RANK_SETTINGS, answer_timeout_s=10.0)
    lab = ReceiverLab.with_versions(RANK_SCHEMA, 1)
    engine = RankLab(lab, split(RANK_SCHEMA, 2, "rows"), settings=settings)
    engine.refit(1)
    look_at = LiveWeights.look_at

    def slow(weights: LiveWeights, numbers: list[int], tally: Tally) -> tuple[str, ...]:
        engine.clock.sleep(20.0)
        return look_at(weights, numbers, tally)

    monkeypatch.setattr(LiveWeights, "look_at", slow)
    assert engine.drive(engine.leader.verifying()).version == 1
