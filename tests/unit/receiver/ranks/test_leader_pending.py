"""A version that was begun and cannot be brought in keeps out no other one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weightstore.errors import RankFailedError
from weightstore.testing.rank_lab import RankLab, ranks_of

Harm = Callable[[RankLab, str], None]


def damage(engine: RankLab, prefix: str) -> None:
    """Flip the last bit of each object."""
    blobs = engine.lab.blobs
    for info in list(blobs.list(prefix)):
        data = bytearray(blobs.get(info.key, max_size_bytes=info.size_bytes))
        data[-1] ^= 1
        blobs.delete(info.key)
        blobs.put_if_absent(info.key, bytes(data), durable=False)


def lose(engine: RankLab, prefix: str) -> None:
    """Delete each object."""
    for info in list(engine.lab.blobs.list(prefix)):
        engine.lab.blobs.delete(info.key)


def put_full(engine: RankLab) -> int:
    """Other weights as a whole version."""
    newest = engine.lab.weights[max(engine.lab.weights)]
    return engine.lab.put({name: ~units for name, units in newest.items()}, full=True)


@pytest.mark.parametrize("at", [1, None])
@pytest.mark.parametrize("following", ["an older one", "a newer one"])
def test_a_version_whose_damage_is_found_by_its_write_keeps_out_no_other(
    at: int | None, following: str
) -> None:
    engine = ranks_of(at=at)
    for rank in engine.ranks.values():
        rank.engine.invalidate()
    damaged = put_full(engine)
    damage(engine, f"anchors/grpo-1-{damaged}-")
    for number in (1, 2):
        with pytest.raises(RankFailedError, match=f"version {damaged}"):
            engine.refit(damaged)
        assert not engine.served()
        assert engine.leader._roll_call.round == number + (at or 0), "it is tried once"
    wanted = put_full(engine) if following == "a newer one" else 3
    report = engine.drive(engine.leader.refitting(wanted))
    assert not report.is_redo
    assert engine.all_hold(wanted)
    assert engine.leader.pending is None


@pytest.mark.parametrize("harm", [damage, lose])
def test_a_version_whose_packs_are_gone_under_closed_gates_keeps_out_no_other(harm: Harm) -> None:
    engine = ranks_of()
    engine.drive(engine.leader.staging(2))
    engine.ranks[1].engine.invalidate()  # and could not tell yet
    with pytest.raises(RankFailedError, match="not staged"):
        engine.drive(engine.leader.applying())
    harm(engine, "packs/grpo-1/2-")
    with pytest.raises(RankFailedError):
        engine.refit(2)
    wanted = put_full(engine)
    engine.refit(wanted)
    assert engine.all_hold(wanted)


def test_a_rank_that_is_gone_ends_the_refit_before_the_other_version_is_tried() -> None:
    engine = ranks_of()
    engine.drive(engine.leader.staging(2))
    engine.ranks[1].engine.invalidate()
    with pytest.raises(RankFailedError, match="not staged"):
        engine.drive(engine.leader.applying())
    engine.kill(1)
    start_s = engine.clock.monotonic_s()
    with pytest.raises(RankFailedError) as caught:
        engine.refit(3)
    assert caught.value.facts["is_gone"]
    assert engine.clock.monotonic_s() - start_s < 1.5 * engine.settings.stage_timeout_s
    engine.start(1)
    engine.refit(3)
    assert engine.all_hold(3)
