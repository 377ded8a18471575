"""A rollout engine of the simulation: real live arrays, a real receiver, and who serves by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.errors import NotReadyError, WeightStoreError
from weightstore.history.log import Log
from weightstore.ids import VersionId
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.receiver.follower import Follower
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_extents import Extent
from weightstore.receiver.live_state import Empty, Live, Whole
from weightstore.receiver.live_storage import ScatterCounts
from weightstore.receiver.placement import Placement
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.refits import At
from weightstore.receiver.serve_policy import ModeName
from weightstore.receiver.version_source import VersionSource
from weightstore.testing.simulation.turns import Group
from weightstore.testing.simulation.world import (
    MAX_STALENESS_S,
    SCHEMA,
    SETTINGS,
    Bits,
    Claimed,
    Served,
    Share,
    World,
    part_of,
    sha_of,
)
from weightstore.testing.virtual_time import SeededEntropy
from weightstore.testing.wrapped_storage import WrappedStorage

CUT_RATIO_MAX = 0.2
INVALIDATED_RATIO = 0.02
"""How often an engine gives its weights up, of its looks for work."""
_TOKEN_COUNT = 3


class LiveCut(Exception):  # noqa: N818 -- what a device says that failed in the middle
    """A write of live memory has ended in the middle."""


@dataclass(frozen=True)
class LiveMemory(WrappedStorage):
    """A live storage whose writes take time, and may end in the middle."""

    world: World
    chances: np.random.Generator
    cut_ratio: float

    def scatter(self, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
        """Of the memory, or half of it and an error."""
        self.world.turns.pause(0.002)
        if self._is_cut() and change.count > 1:
            self.scatter_first(change.count // 2, change, redo=redo)
            raise LiveCut
        return self.inner.scatter(change, redo=redo)

    def write(self, extent: Extent, units: Units, /) -> None:
        """Of the memory; or it, and an error."""
        self.world.turns.pause(0.002)
        self.inner.write(extent, units)
        if self._is_cut():
            raise LiveCut

    def _is_cut(self) -> bool:
        is_cut = not self.world.is_calm and float(self.chances.random()) < self.cut_ratio
        self.world.counts["cut_writes"] += is_cut
        return is_cut


@dataclass
class Process:
    """One start of one engine, or of one rank: live arrays, a receiver, and who serves by it.

    Attributes:
        world: Everything.
        group: Its tasks.
        settings: Of the receiver.
        chances: Of this name.
        arrays: Its live weights.
        share: The part of each tensor that they are.
        at: When they may be written.
        last_served: The version that it has served last.
        receiver: Of its weights; None until it is attached.
        others: The processes of the other ranks, where the engine has several.
    """

    world: World
    group: Group
    settings: ReceiverSettings
    chances: np.random.Generator
    share: Share
    at: At = "step"
    last_served: int | None = None
    receiver: Receiver | None = None
    others: Callable[[], Sequence[Process]] = tuple

    def __post_init__(self) -> None:
        # What was in the memory before is anything.
        self.arrays: Bits = {
            name: np.full(
                each.unit_count, 0x5A, SCHEMA.tensors[SCHEMA.index_of(name)].dtype.unit_dtype
            )
            for name, each in self.share.items()
        }
        self.world.shares[self.group.name] = self.share
        self._cut_ratio = float(self.chances.random()) ** 2 * CUT_RATIO_MAX

    def attach(self) -> tuple[Receiver, VersionSource]:
        """A receiver, as soon as there is a version."""
        world = self.world
        blobs = world.blobs(self.group)
        source = VersionSource(blobs, Log(blobs, SETTINGS.limits), SETTINGS)
        boxes = {
            name: box
            for name, box in self.share.items()
            if box != Box.whole(SCHEMA.tensors[SCHEMA.index_of(name)].unit_shape)
        }

        def place(schema: Schema) -> Placement:
            found = place_arrays(schema, self.arrays, boxes)
            memories = tuple(
                LiveMemory(each, world, self.chances, self._cut_ratio) for each in found.storages
            )
            return replace(found, storages=memories)

        while True:
            try:
                receiver = Receiver(
                    source,
                    place,
                    clock=world.clock(self.group),
                    settings=self.settings,
                    entropy=SeededEntropy(f"{world.seed}/{self.group.name}"),
                )
            except WeightStoreError as error:
                world.say(self.group.name, f"cannot attach: {error.message}")
                world.turns.pause(1.0)
            else:
                self.receiver = receiver
                return receiver, source

    def serve(self, receiver: Receiver, follower: Callable[[], Follower | None]) -> None:
        """What the engine's scheduler does: block after block, as long as it lives."""
        while True:
            _check_errors(self.world, self.group, follower())
            self.world.turns.pause(0.2 + float(self.chances.random()) * 0.6)
            if float(self.chances.random()) < INVALIDATED_RATIO and not self.world.is_calm:
                receiver.invalidate("something else has written here")
                self.world.counts["invalidated"] += 1
                self.world.say(self.group.name, "gives its weights up")
            try:
                if float(self.chances.random()) < 0.2:  # noqa: PLR2004 -- one in five is a request
                    self._request(receiver)
                else:
                    self._block(receiver)
            except NotReadyError as error:
                self.world.counts["refused"] += 1
                self.world.say(self.group.name, f"does not serve: {error.message}")

    def _request(self, receiver: Receiver) -> None:
        """A whole request of several blocks, which refits that are told to wait for wait for."""
        with receiver.admitted() as sample:
            for token in range(_TOKEN_COUNT):
                sample.add(VersionId(self._block(receiver)), token)
                self.world.turns.pause(float(self.chances.random()) * 0.5)
        versions = [each.version for each in sample.served]
        self.world.counts["requests"] += 1
        if self.at == "idle" and len(versions) > 1:
            self.world.break_rule(
                f"{self.group.name} writes between requests, and one was served by {versions}"
            )

    def _block(self, receiver: Receiver) -> int:
        """One engine step; the version that it was computed with."""
        world = self.world
        with receiver.serving() as version:
            self._check_served(receiver, version)
            begun_s, before = world.turns.now_s, sha_of(self.arrays)
            # Now and then a block is long, so that an apply cannot wait for its end.
            long_s = 2.0 if float(self.chances.random()) < 0.1 else 0.05  # noqa: PLR2004 -- one in ten
            world.turns.pause(float(self.chances.random()) * long_s)
            ended_s, after = world.turns.now_s, sha_of(self.arrays)
        self.last_served = int(version)
        world.counts["served"] += 1
        world.say(self.group.name, f"served version {version} since {begun_s:.3f}")
        served = Served(
            who=self.group.name,
            mode=self.settings.mode,
            begun_s=begun_s,
            ended_s=ended_s,
            version=int(version),
            before=before,
            after=after,
            max_staleness_s=self.settings.max_staleness_s,
        )
        world.served.append(served)
        return int(version)

    def _check_served(self, receiver: Receiver, version: int) -> None:
        """What is served is wholly there, and by the mode `latest` as new as it must be."""
        live, view = receiver.live, receiver.view
        if not isinstance(live, Whole) or live.ref.version != version:
            self.world.break_rule(f"{self.group.name} serves version {version}, and is {live}")
        newest = view.newest if view else None
        is_latest = self.settings.mode == "latest"
        if is_latest and newest and newest - version > self.settings.max_lag:
            self.world.break_rule(
                f"{self.group.name} serves version {version}, has seen version {newest}, and may "
                f"be {self.settings.max_lag} behind"
            )
        for other in self.others():
            # A rank that has just started holds nothing; it does not serve.
            is_empty = other.receiver is None or isinstance(other.receiver.live, Empty)
            if not (is_empty or other.group.is_dead or other.holds(live)):
                self.world.break_rule(
                    f"{self.group.name} serves version {version}, and {other.group.name} holds "
                    "something else"
                )

    def holds(self, live: Live) -> bool:
        """Whether the live weights are this process's share of a whole version."""
        if not isinstance(live, Whole):
            return False
        return sha_of(self.arrays) == sha_of(part_of(self.world.bits[live.ref.digest], self.share))


@dataclass
class Rollout:
    """One engine that starts again whenever it was killed.

    Attributes:
        world: Everything.
        name: Of the engine; each start adds its number.
        mode: By what it serves.
        process: That runs now, or ran last.
    """

    world: World
    name: str
    mode: ModeName
    process: Process | None = None

    def __post_init__(self) -> None:
        self._chances = self.world.chances(self.name)
        self._settings = receiver_settings(self._chances, self.mode, self.name)
        self._at: At = "idle" if float(self._chances.random()) < 0.5 else "step"  # noqa: PLR2004 -- half

    def mains(self) -> list[tuple[str, Callable[[Group, int], None]]]:
        """The name of its process, and what that does."""
        return [(self.name, self._main)]

    def _main(self, group: Group, number: int) -> None:
        """What the process does from its start to its end."""
        del number
        share = {spec.name: Box.whole(spec.unit_shape) for spec in SCHEMA.tensors}
        process = Process(self.world, group, self._settings, self._chances, share, self._at)
        self.process = process
        receiver, _ = process.attach()
        followers: list[Follower] = []
        self.world.turns.spawn(
            group,
            f"{group.name}/engine",
            lambda: process.serve(receiver, lambda: followers[0] if followers else None),
        )
        if self.mode == "controller":
            control(self.world, group, self._chances, lambda: receiver.refit("latest", at=self._at))
        followers.append(receiver.follow(at=self._at))
        self.world.claims[followers[0].membership.member_id] = Claimed(receiver, group)
        followers[0].run()

    def is_at(self, version: int | None) -> bool:
        """Whether the process that runs now has served a version last."""
        return self.process is not None and is_at(self.process, version)


def is_at(process: Process, version: int | None) -> bool:
    """Whether a process lives and has served a version last. Its bits were compared then."""
    return not process.group.is_dead and process.last_served == version


def receiver_settings(chances: np.random.Generator, mode: ModeName, name: str) -> ReceiverSettings:
    """Paces that fit a run of some seconds, and a pool that every change fits or none."""
    return ReceiverSettings(
        mode=mode,
        max_lag=int(chances.integers(0, 3)) if mode == "latest" else 0,
        max_staleness_s=MAX_STALENESS_S,
        poll_s=0.3 + float(chances.random()) * 0.7,
        retry_max_s=2.0,
        heartbeat_s=1.0,
        stage_hold_s=4.0,
        block_timeout_s=1.0,
        launch_size_bytes=2_000,
        scan_refit_count=3,
        pool_size_bytes=int(chances.choice([600, 40_000])),
        name=name,
    )


def control(
    world: World, group: Group, chances: np.random.Generator, refit: Callable[[], object]
) -> None:
    """The caller's controller: brings in what is newest, and tries again what fails."""
    while True:
        try:
            world.say(group.name, f"refit: {refit()}")
        except (WeightStoreError, LiveCut) as error:
            world.say(group.name, f"refit: {type(error).__name__}: {error}")
        world.turns.pause(0.5 + float(chances.random()))


def _check_errors(world: World, group: Group, follower: Follower | None) -> None:
    """What a follower goes on after must be what is expected of a store or a device."""
    if follower is None:
        return
    status = follower.status
    for trouble in (status.look, status.work, status.member):
        if trouble and not isinstance(trouble.error, WeightStoreError | LiveCut):
            world.break_rule(f"{group.name}: {trouble.error!r}")
