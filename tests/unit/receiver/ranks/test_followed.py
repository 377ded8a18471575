"""An engine of several ranks that follows the log: one member, and gates that go by activations."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from weightstore.clock import SystemClock
from weightstore.errors import InputRefusedError, RankFailedError, StorageFailedError
from weightstore.format.member import Member
from weightstore.history.activation import activate
from weightstore.history.log import Log
from weightstore.history.members import list_members
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.follower import Follower
from weightstore.receiver.live_state import Empty, NothingStaged, Ready, held_version
from weightstore.receiver.ranks.channel import MemoryChannel
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.ranks.followed import FollowedEngine
from weightstore.receiver.ranks.messages import Part, Tables
from weightstore.receiver.ranks.rank_work import RankWork
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.receiver_status import state_name
from weightstore.receiver.reports import Phase
from weightstore.receiver.version_source import VersionSource
from weightstore.testing.faults import Fault, LossyBlobs
from weightstore.testing.rank_lab import RankLab, split
from weightstore.testing.receiver_lab import ReceiverLab

SCHEMA = Schema.build([TensorSpec("a", DType.BF16, (12, 10)), TensorSpec("b", DType.F32, (9,))])
ACTIVE = EngineSettings(
    answer_timeout_s=60.0,
    stage_timeout_s=60.0,
    poll_s=0.01,
    receiver=ReceiverSettings(
        mode="active", max_staleness_s=2.0, poll_s=0.5, stage_hold_s=0.0, block_timeout_s=5.0
    ),
)


class BrokenChannel(MemoryChannel):
    """Answers nothing while it is broken."""

    is_broken = False

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes | None:
        if self.is_broken:
            raise StorageFailedError("no answer")
        return super().get(key, max_size_bytes=max_size_bytes)


class Fleet:
    """An engine of two ranks that follows, and an activator."""

    def __init__(
        self, settings: EngineSettings = ACTIVE, *, channel: MemoryChannel | None = None
    ) -> None:
        self.lab = ReceiverLab.with_versions(SCHEMA, 3, share=0.2)
        self.engine = RankLab(
            self.lab,
            split(SCHEMA, 2, "rows"),
            channel=channel or MemoryChannel(),
            settings=settings,
        )
        self.engine.leader.own_step = self.step_all
        self.follower: Follower = self.engine.ranks[0].engine.follow()

    def step_all(self) -> bool:
        stepped = [self.engine.step(rank) for rank in self.engine.everybody()]
        return any(stepped)

    def look(self) -> None:
        for rank in self.engine.ranks.values():
            rank.engine.poll()

    def follow(self, count: int = 4) -> None:
        for _ in range(count):
            self.look()
            self.follower.step()
            self.engine.check()

    def activate(self, version: int) -> None:
        store = self.lab.versions.store
        activate(
            store.writer(),
            self.lab.blobs,
            version=version,
            clock=self.engine.clock,
            timeout_s=0.0,
            poll_s=0.1,
            silent_s=1.0,
        )

    def member(self) -> Member:
        listed = list_members(self.lab.blobs, self.lab.versions.store.settings.limits)
        (member,) = listed.members
        return member


def test_an_engine_is_one_member_and_switches_all_ranks_with_an_activation() -> None:
    fleet = Fleet()
    fleet.activate(1)
    fleet.follow()
    assert fleet.engine.served() == {0: 1, 1: 1}
    member = fleet.member()
    assert (member.rank_count, member.mode, member.state) == (2, "active", "whole")
    assert member.live is not None
    assert member.staged is not None
    assert (member.live.version, member.staged.version) == (1, 3)
    assert member.applied_slot == member.activate_slot is not None
    assert member.refit_count == 1
    assert member.wire_bytes > 0
    fleet.activate(3)
    fleet.follow()
    assert fleet.engine.all_hold(3)
    assert fleet.member().applied_slot == fleet.member().activate_slot


def test_no_rank_serves_what_is_no_longer_active_or_was_looked_at_too_long_ago() -> None:
    fleet = Fleet()
    fleet.activate(1)
    fleet.follow()
    fleet.activate(2)
    fleet.engine.ranks[1].engine.poll()
    assert fleet.engine.served() == {0: 1}
    fleet.engine.clock.sleep(2.1)
    assert fleet.engine.served() == {}
    fleet.follow()
    assert fleet.engine.all_hold(2)


def test_a_rank_that_starts_again_between_rounds_is_brought_back_without_a_new_version() -> None:
    fleet = Fleet()
    fleet.activate(3)
    fleet.follow()
    assert fleet.engine.all_hold(3)
    fleet.engine.kill(1)
    fleet.engine.start(1)
    fleet.engine.step(1)
    fleet.look()
    fleet.follower.look()
    member = fleet.member()
    assert (member.state, member.live, member.applied_slot) == ("dirty", None, None)
    fleet.follow()
    assert fleet.engine.all_hold(3)
    assert fleet.member().state == "whole"


@pytest.mark.parametrize("rank", [0, 1])
def test_weights_that_a_rank_has_given_up_are_brought_back(rank: int) -> None:
    fleet = Fleet()
    fleet.activate(3)
    fleet.follow()
    fleet.engine.ranks[rank].engine.invalidate()
    # Of rank 0 nobody takes a step; rank 1 says it once.
    assert [fleet.engine.step(1) for _ in range(2)] == [rank == 1, False]
    fleet.look()
    fleet.follower.look()
    assert (fleet.member().state, fleet.member().live) == ("dirty", None)
    fleet.follower.work()
    assert fleet.engine.all_hold(3)
    assert fleet.member().state == "whole"
    # And it is told once: nothing of it is left that would begin an engine again.
    engine_id = fleet.engine.leader.engine_id
    fleet.follow()
    assert fleet.engine.leader.engine_id == engine_id


@pytest.mark.parametrize("part", [Part.OPEN, Part.SCAN])
def test_weights_that_are_given_up_right_after_a_part_are_brought_back(
    part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`invalidate` waits for the part, and comes before its answer."""
    fleet = Fleet()
    fleet.activate(3)
    if part is Part.SCAN:
        fleet.follow()
    rank, do, parts = fleet.engine.ranks[1].engine, RankWork.do, [part]

    def then_invalid(self: RankWork, asked: Part, *given: Any) -> Tables:  # noqa: ANN401 -- as given
        found = do(self, asked, *given)
        if self is rank._work and asked in parts:
            parts.remove(asked)
            rank.invalidate()
        return found

    monkeypatch.setattr(RankWork, "do", then_invalid)
    if part is Part.SCAN:
        fleet.engine.leader.verify()
    else:
        fleet.follow()
    assert not parts
    fleet.engine.step(1)
    fleet.follow()
    assert fleet.engine.all_hold(3)
    assert fleet.member().state == "whole"


@pytest.mark.parametrize("rank", [0, 1])
def test_damage_that_staging_finds_is_mended_without_an_activation(rank: int) -> None:
    fleet = Fleet(replace(ACTIVE, receiver=replace(ACTIVE.receiver, scan_refit_count=1)))
    fleet.activate(1)
    fleet.follow(1)
    assert fleet.engine.all_hold(1)
    fleet.engine.is_checked = False
    for units in fleet.engine.ranks[rank].arrays.values():
        units[:] = 7  # behind its back
    fleet.follow()
    fleet.engine.step(1)
    fleet.follow()
    fleet.engine.is_checked = True
    assert fleet.engine.all_hold(1)
    assert fleet.member().state == "whole"


def test_a_staged_version_is_taken_back_when_a_rank_is_gone() -> None:
    fleet = Fleet()
    fleet.activate(1)
    fleet.follow()
    assert fleet.member().staged is not None
    fleet.engine.kill(1)
    fleet.engine.start(1)
    fleet.engine.step(1)
    with pytest.raises(RankFailedError):
        fleet.engine.leader.apply()
    assert fleet.member().staged is None
    fleet.follow()
    assert fleet.engine.served() == {0: 1, 1: 1}


def test_a_staged_version_whose_claim_cannot_be_taken_back_is_not_dropped() -> None:
    fleet = Fleet()
    fleet.activate(1)
    fleet.follow()
    staged, leader = fleet.member().staged, fleet.engine.leader
    assert staged is not None
    blobs = LossyBlobs(
        fleet.lab.blobs, lambda call: Fault.UNAVAILABLE if call.method.is_write else None
    )
    fleet.follower.membership._blobs = blobs
    fleet.activate(2)
    fleet.follow()
    trouble = fleet.follower.status.work
    assert trouble is not None
    assert isinstance(trouble.error, StorageFailedError)
    assert leader.staged is not None
    assert fleet.member().staged == staged
    assert leader.staged.version == staged.version
    fleet.follower.membership._blobs = fleet.lab.blobs
    fleet.follow()
    assert fleet.engine.all_hold(2)
    assert fleet.follower.status.work is None


@pytest.mark.parametrize("asked", ["stage", "refit"])
def test_nobody_else_asks_the_ranks_while_a_claim_is_taken_back(asked: str) -> None:
    """From the withdrawal to the end another version must not be staged and then claimed."""
    fleet = Fleet()
    fleet.activate(1)
    fleet.follow()
    leader, followed = fleet.engine.leader, fleet.engine.ranks[0].engine._followed
    assert followed is not None
    was_free: list[bool] = []

    def look() -> None:
        was_free.append(leader._lock.acquire(blocking=False))
        if was_free[-1]:
            leader._lock.release()

    def look_from_elsewhere(_: object) -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    fleet.follower.membership._blobs = LossyBlobs(fleet.lab.blobs, look_from_elsewhere)
    ask = partial(followed.refit, at="step") if asked == "refit" else followed.stage
    ask(2)
    assert was_free
    assert not any(was_free)


def test_a_staged_version_that_was_not_dropped_is_said_again() -> None:
    fleet = Fleet()
    fleet.activate(1)
    fleet.follow()
    staged, leader = fleet.member().staged, fleet.engine.leader
    assert staged is not None
    good, limits = leader._source, fleet.lab.source.settings.limits
    blobs = LossyBlobs(fleet.lab.blobs, lambda _: Fault.UNAVAILABLE)
    leader._source = VersionSource(blobs, Log(blobs, limits), fleet.lab.source.settings)
    fleet.activate(2)
    fleet.follow(1)
    assert fleet.follower.status.work is not None
    assert leader.staged is not None
    # It is asked to go back before the store was there again.
    fleet.activate(1)
    leader._source = good
    fleet.follow()
    assert fleet.engine.all_hold(1)
    assert fleet.member().staged == staged


def test_a_channel_that_cannot_be_read_slows_no_look_at_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    channel = BrokenChannel()
    fleet = Fleet(channel=channel)
    fleet.activate(1)
    fleet.follow()
    channel.is_broken = True
    before = fleet.follower.look()
    assert [fleet.follower.look() for _ in range(6)] == [before] * 6
    assert fleet.follower.status.look is None
    assert len([each for each in caplog.messages if "channel of the ranks" in each]) == 1
    channel.is_broken = False
    fleet.activate(3)
    fleet.follow()
    assert fleet.engine.all_hold(3)


def test_what_the_leader_knows_is_what_others_are_told() -> None:
    fleet = Fleet()
    followed = FollowedEngine(fleet.engine.leader, fleet.engine.ranks[0].receiver)
    assert (followed.live, followed.staged, followed.view) == (Empty(), NothingStaged(), None)
    followed.refit(1, at="step")
    first = fleet.engine.leader.live
    assert first is not None
    assert held_version(followed.live) == first
    followed.stage(2)
    staged = followed.staged
    assert isinstance(staged, Ready)
    assert (staged.base, staged.target.version) == (first, 2)
    fleet.engine.is_checked = False
    fleet.engine.ranks[1].arrays["a"][:] = 7  # behind its back
    with pytest.raises(RankFailedError):
        followed.refit(2, at="step")
    assert state_name(followed.live) == "dirty"
    assert followed.standing().state == "dirty"
    assert followed.refit(2, at="step").is_redo
    assert followed.standing().refit_count == 2


def test_others_see_what_an_engine_waits_for() -> None:
    fleet = Fleet()
    followed = FollowedEngine(fleet.engine.leader, fleet.engine.ranks[0].receiver)
    seen: list[str] = []

    def step_all() -> bool:
        seen.append(followed.standing().phase)
        return fleet.step_all()

    fleet.engine.leader.own_step = step_all
    followed.refit(1, at="step")
    assert set(seen) == {"stage", "apply"}
    assert followed.standing().phase == ""


def test_a_refit_is_logged_by_the_leader_alone(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet()
    with caplog.at_level("INFO", "weightstore.receiver"):
        fleet.engine.leader.refit(1)
    (line,) = [each for each in caplog.messages if "->" in each]
    assert line.startswith("version None -> 1 by full on 2 ranks, stage ")
    assert all(f" {phase.value} " in line for phase in (Phase.DISCOVER, Phase.FETCH, Phase.PAUSE))
    size_bytes = 12 * 10 * 2 + 9 * 4
    assert line.endswith(f"skipped 0, full {size_bytes}")


def test_an_engine_is_followed_once_and_by_rank_0() -> None:
    fleet = Fleet()
    with pytest.raises(InputRefusedError, match="followed already"):
        fleet.engine.ranks[0].engine.follow()
    with pytest.raises(InputRefusedError, match="does not lead"):
        fleet.engine.ranks[1].engine.follow()
    fleet.follower.close()
    fleet.engine.ranks[0].engine.follow().close()


def test_a_rank_of_a_mode_that_goes_by_the_log_looks_at_it_while_it_serves_rounds() -> None:
    receiver = replace(ACTIVE.receiver, poll_s=0.001)
    fleet = Fleet(replace(ACTIVE, idle_poll_s=0.001, receiver=receiver))
    fleet.activate(1)
    stop = threading.Event()
    rank = fleet.engine.ranks[1]
    thread = threading.Thread(target=rank.engine.serve_rounds, args=(stop,))
    thread.start()
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + 20
    while rank.receiver.view is None and clock.monotonic_s() < deadline_s:
        stop.wait(0.01)
    stop.set()
    thread.join(20)
    assert rank.receiver.view is not None
    assert rank.receiver.view.active == 1
