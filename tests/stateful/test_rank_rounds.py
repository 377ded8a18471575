"""Rounds of an engine under every order of small steps, with deaths at every place.

Each step of the leader and of each rank is an action. A schedule of a seed says who acts next; at
a place of it one process dies, is replaced or not, and a dead one may wake up later. After every
action: no two ranks serve different versions, and what one serves, all hold that hold anything.
In the end a refit brings every rank to the same bytes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from weightstore.errors import RankFailedError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.live_state import Dirty
from weightstore.receiver.ranks.engine_report import EngineReport
from weightstore.receiver.ranks.newest import newest_generation
from weightstore.receiver.ranks.roll_call import Waiting
from weightstore.testing.rank_lab import LabRank, RankLab, split
from weightstore.testing.receiver_lab import Cut, ReceiverLab

SCHEMA = Schema.build(
    [TensorSpec("a", DType.BF16, (8, 6)), TensorSpec("b", DType.F32, (5,))],
    aliases=[Alias("tied", "a")],
)
LAB = ReceiverLab.with_versions(SCHEMA, 4, share=0.3)
ROUND_ACTION_COUNT = 40
"""More than one round of three ranks has."""


class World:
    """An engine at version 1, a refit to version 2 under way, and a schedule."""

    def __init__(self, seed: int, rank_count: int, how: str) -> None:
        self.random = random.Random(seed)
        self.engine = RankLab(LAB, split(SCHEMA, rank_count, how))
        self.engine.refit(1)
        self.waiting: Waiting[EngineReport] | None = self.engine.leader.refitting(2)
        self.zombies: list[LabRank] = []

    def act(self, actor: int) -> None:
        """One action: -1 is the leader, any other a rank, and those beyond are zombies."""
        ranks = self.engine.everybody()
        try:
            if actor < 0:
                self.lead()
            elif actor < len(ranks):
                self.engine.step(ranks[actor])
            elif self.zombies:
                zombie = self.zombies[actor % len(self.zombies)]
                count = zombie.fuse.count
                is_stale = zombie.engine.generation != newest_generation(self.engine.channel, 0)
                # A change that was cut is ended before it tells what it holds.
                is_stale &= not isinstance(zombie.receiver.live, Dirty)
                zombie.engine.step()
                assert not is_stale or zombie.fuse.count == count, "it wrote for an older engine"
        except Cut:
            for rank in self.engine.ranks.values():
                rank.fuse.set(None)
        self.engine.check()

    def lead(self) -> None:
        """A step of the leader; in the end it begins another refit."""
        if self.waiting is None:
            if 0 not in self.engine.ranks:
                return
            self.waiting = self.engine.leader.refitting(self.random.choice([2, 3, 4]))
        try:
            next(self.waiting)
        except (StopIteration, RankFailedError):
            self.waiting = None

    def run(self, count: int) -> None:
        """So many actions, as the seed says; time passes now and then."""
        for _ in range(count):
            self.act(self.random.randrange(-1, len(self.engine.ranks) + len(self.zombies)))
            if self.random.random() < 0.05:
                self.engine.clock.sleep(100.0)

    def kill(self, rank: int) -> None:
        """A process dies; with rank 0 its leader."""
        self.zombies.append(self.engine.kill(rank))
        self.zombies[-1].fuse.set(None)
        if rank == 0:
            self.waiting = None
        self.engine.check()

    def heal(self) -> None:
        """Everybody is there again, and a refit succeeds."""
        for rank in range(len(self.engine.shares)):
            if rank not in self.engine.ranks:
                self.engine.start(rank)
            self.engine.step(rank)
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.close()
        for attempt in itertools.count():
            try:
                self.engine.refit(4)
                break
            except RankFailedError:
                assert attempt < 3, "no refit succeeds"
        assert self.engine.all_hold(4)


def schedules(seeds: range) -> Iterator[tuple[int, int, int, int, str]]:
    """Seed, place of the death, who dies, how many ranks, how they are split."""
    for seed in seeds:
        for place in range(0, ROUND_ACTION_COUNT, 3):
            count = 2 + seed % 2
            yield seed, place + seed % 3, seed // 2 % count, count, ("rows", "copies")[seed % 2]


def play(seed: int, place: int, victim: int, count: int, how: str) -> None:
    world = World(seed, count, how)
    world.run(place)
    if seed % 3 == 0:
        world.engine.ranks[victim].fuse.set(world.random.randrange(3))
        world.run(ROUND_ACTION_COUNT)
    world.kill(victim)
    world.run(ROUND_ACTION_COUNT // 2)
    if world.random.random() < 0.7:
        world.engine.start(victim)
        world.run(ROUND_ACTION_COUNT)
    world.heal()
    for zombie in world.zombies:
        for _ in range(3):
            zombie.engine.step()
        world.engine.check()


def check_all(seeds: range) -> int:
    count = 0
    for schedule in schedules(seeds):
        try:
            play(*schedule)
        except BaseException as error:
            error.add_note(f"replay: play{schedule}")
            raise
        count += 1
    return count


def test_no_schedule_lets_ranks_serve_a_mixture() -> None:
    assert check_all(range(4)) >= 50


@pytest.mark.slow
def test_no_schedule_of_many_lets_ranks_serve_a_mixture() -> None:
    assert check_all(range(4, 48)) >= 600


@pytest.mark.parametrize("how", ["rows", "copies"])
def test_every_order_of_answers_ends_at_the_same_bytes(how: str) -> None:
    """Two ranks, and in each part either may be first, or both before the leader looks."""
    both, either = [(0, 1), (1, 0)], [True, False]
    for first, second, look, other in itertools.product(both, both, either, either):
        world = World(0, 2, how)
        order = itertools.cycle([first, second])
        looks = itertools.cycle([look, other])
        for _ in range(ROUND_ACTION_COUNT):
            if world.waiting is None:
                break
            world.lead()
            for rank in next(order):
                world.act(rank)
                if next(looks) and world.waiting is not None:
                    world.lead()
        assert world.engine.all_hold(2)
