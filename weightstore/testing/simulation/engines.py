"""An engine of several ranks in the simulation: each rank is a process, rank 0 leads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from weightstore.errors import WeightStoreError
from weightstore.receiver.follower import Follower
from weightstore.receiver.ranks.attach import make_rank
from weightstore.receiver.ranks.channel import BlobChannel
from weightstore.receiver.ranks.engine_rank import EngineRank
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.serve_policy import ModeName
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.rank_lab import split
from weightstore.testing.simulation.far_store import FarBlobs
from weightstore.testing.simulation.receivers import (
    Process,
    control,
    is_at,
    receiver_settings,
)
from weightstore.testing.simulation.threads import TurnEvent
from weightstore.testing.simulation.turns import Group
from weightstore.testing.simulation.world import SCHEMA, Claimed, World
from weightstore.testing.virtual_time import SeededEntropy

RANK_COUNT = 2


@dataclass
class RankedEngine:
    """An engine whose ranks start again, each by itself, whenever they were killed.

    Attributes:
        world: Everything.
        name: Of the engine; ranks add theirs.
        mode: By what it serves.
        processes: That run now, or ran last, by rank.
    """

    world: World
    name: str
    mode: ModeName
    processes: dict[int, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chances = self.world.chances(self.name)
        self._chances = chances
        self._channel = MemoryBlobStore()
        self._shares = split(SCHEMA, RANK_COUNT, str(chances.choice(["rows", "whole", "copies"])))
        self._settings = EngineSettings(
            stage_timeout_s=5.0,
            answer_timeout_s=2.5,
            poll_s=0.1,
            idle_poll_s=0.2,
            receiver=receiver_settings(chances, self.mode, self.name),
        )

    def mains(self) -> list[tuple[str, Callable[[Group, int], None]]]:
        """The name of each rank's process, and what that does."""
        return [
            (f"{self.name}-rank-{rank}", partial(self._main, rank)) for rank in range(RANK_COUNT)
        ]

    def _main(self, rank: int, group: Group, number: int) -> None:
        """What the process of a rank does from its start to its end."""
        del number
        world = self.world
        process = Process(world, group, self._settings.receiver, self._chances, self._shares[rank])
        process.others = lambda: [each for each in self.processes.values() if each is not process]
        self.processes[rank] = process
        receiver, source = process.attach()
        engine = make_rank(
            receiver,
            source,
            BlobChannel(FarBlobs(self._channel, world.channel_sky, group)),
            rank=rank,
            rank_count=RANK_COUNT,
            settings=self._settings,
            clock=world.clock(group),
            entropy=SeededEntropy(f"{world.seed}/{group.name}/rank"),
        )
        followers: list[Follower] = []
        world.turns.spawn(
            group,
            f"{group.name}/engine",
            lambda: process.serve(receiver, lambda: followers[0] if followers else None),
        )
        if rank:
            self._obey(group, engine)
        if self.mode == "controller":
            control(world, group, self._chances, lambda: engine.leader.refit("latest"))
        followers.append(engine.follow())
        followed = followers[0]._receiver  # noqa: SLF001 -- what is said of all ranks together
        world.claims[followers[0].membership.member_id] = Claimed(followed, group)
        followers[0].run()

    def is_at(self, version: int | None) -> bool:
        """Whether every rank's process has served a version last."""
        return len(self.processes) == RANK_COUNT and all(
            is_at(each, version) for each in self.processes.values()
        )

    def _obey(self, group: Group, engine: EngineRank) -> None:
        while True:
            try:
                engine.serve_rounds(TurnEvent(self.world.turns))
            except WeightStoreError as error:
                self.world.say(group.name, f"rounds: {type(error).__name__}: {error.message}")
                self.world.turns.pause(0.5)
