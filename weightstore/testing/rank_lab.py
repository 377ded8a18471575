"""An engine of several ranks in one process: any step of any rank, in any order, cut anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from weightstore.errors import NotReadyError
from weightstore.ids import VersionId
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_state import Empty, VersionRef
from weightstore.receiver.placement import Placement
from weightstore.receiver.ranks.attach import make_rank
from weightstore.receiver.ranks.channel import MemoryChannel, RankChannel
from weightstore.receiver.ranks.engine_rank import EngineRank
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.ranks.leader import Leader
from weightstore.receiver.ranks.messages import Part, Tables, Work
from weightstore.receiver.ranks.rank_work import RankWork
from weightstore.receiver.ranks.roll_call import T, Waiting
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.reports import Report
from weightstore.testing.receiver_lab import (
    SMALL_LAUNCHES,
    Bits,
    Cut,
    Fuse,
    FusedStorage,
    ReceiverLab,
)
from weightstore.testing.virtual_time import SeededEntropy, VirtualClock

Share = Mapping[str, Box]
"""The part of each tensor, and of each tied name, that lives on one rank."""

TICK_COUNT_MAX = 2000
RANK_SETTINGS = EngineSettings(
    answer_timeout_s=60.0,
    stage_timeout_s=60.0,
    poll_s=1.0,
    idle_poll_s=1.0,
    receiver=ReceiverSettings(launch_size_bytes=1, block_timeout_s=5.0),
)


RANK_SCHEMA = Schema.build(
    [
        TensorSpec("a", DType.BF16, (12, 10)),
        TensorSpec("b", DType.F32, (9,)),
        TensorSpec("c", DType.U8, ()),
    ],
    aliases=[Alias("tied", "a")],
)
"""What can be cut, what cannot, and a tied name."""
ONE_RANK_SCHEMA = Schema.build(
    [TensorSpec("a", DType.BF16, (12, 10)), TensorSpec("b", DType.F32, (9,))]
)


def split(schema: Schema, rank_count: int, how: str) -> tuple[Share, ...]:
    """A share for each rank.

    Args:
        schema: Of the versions.
        rank_count: Ranks.
        how: `rows` or `columns` cuts what can be cut into uneven parts and gives the rest to
            all; `whole` gives each tensor to one rank; `copies` gives everything to all.
    """
    shares: tuple[dict[str, Box], ...] = tuple({} for _ in range(rank_count))
    names = [spec.name for spec in schema.tensors]
    for name in [*names, *(alias.name for alias in schema.aliases)]:
        index = schema.index_of(name)
        shape = schema.tensors[index].unit_shape
        for rank, share in enumerate(shares):
            if how == "whole":
                is_here = index % rank_count == rank
                nothing = Box((0,) * len(shape), (0,) * len(shape))
                share[name] = Box.whole(shape) if is_here else nothing
            elif how == "copies":
                share[name] = Box.whole(shape)
            else:
                share[name] = _part(shape, rank, rank_count, how, index)
    return shares


def _part(shape: tuple[int, ...], rank: int, rank_count: int, how: str, number: int) -> Box:
    dim = 0 if how == "rows" else len(shape) - 1
    if not shape or shape[dim] < 2 * rank_count or (how == "columns" and len(shape) < 2):  # noqa: PLR2004 -- rows and columns
        return Box.whole(shape)
    cuts = [size * shape[dim] // rank_count for size in range(rank_count + 1)]
    cuts[1] += number % 2 if rank_count > 1 else 0  # uneven
    first, end = cuts[rank], cuts[rank + 1]
    offsets, sizes = [0] * len(shape), list(shape)
    offsets[dim], sizes[dim] = first, end - first
    return Box(tuple(offsets), tuple(sizes))


@dataclass
class LabRank:
    """The process of one rank.

    Attributes:
        engine: The rank.
        receiver: Of its weights.
        arrays: Its weights.
        share: Which parts they are.
        fuse: Cuts its writes.
        calls: Versions that its callback was given.
    """

    engine: EngineRank
    receiver: Receiver
    arrays: Bits
    share: Share
    fuse: Fuse
    calls: list[int] = field(default_factory=list)


@dataclass
class RankLab:
    """A store in memory and an engine on it.

    Attributes:
        lab: The store.
        shares: By rank.
        channel: Between the ranks.
        settings: Of every rank.
        clock: Of every rank.
        ranks: The processes that are alive.
        is_checked: Whether `check` looks: not while a test has written weights itself.
    """

    lab: ReceiverLab
    shares: Sequence[Share]
    channel: RankChannel = field(default_factory=MemoryChannel)
    settings: EngineSettings = RANK_SETTINGS
    clock: VirtualClock = field(default_factory=VirtualClock)
    ranks: dict[int, LabRank] = field(default_factory=dict)
    is_checked: bool = True

    def __post_init__(self) -> None:
        self._starts = itertools.count()
        for rank in range(len(self.shares)):
            self.start(rank)

    @property
    def leader(self) -> Leader:
        """Of rank 0."""
        return self.ranks[0].engine.leader

    def start(self, rank: int) -> LabRank:
        """Start a new process for a rank; its weights are zeros."""
        share, schema = self.shares[rank], self.lab.schema
        here = {
            name: box
            for name, box in share.items()
            if box.unit_count or _is_whole(schema, name, box)
        }
        arrays: Bits = {
            name: np.zeros(box.unit_count, schema.tensors[schema.index_of(name)].dtype.unit_dtype)
            for name, box in here.items()
        }
        boxes = {name: box for name, box in share.items() if not _is_whole(schema, name, box)}
        given: dict[str, Units | HostTensor] = dict(arrays)
        fuse = Fuse()
        place = partial(place_arrays, targets=given, boxes=boxes)

        def fused(wanted: Schema) -> Placement:
            found = place(wanted)
            storages = tuple(FusedStorage(each, fuse) for each in found.storages)
            return replace(found, storages=storages)

        receiver = Receiver(
            self.lab.source, fused, clock=self.clock, settings=self.settings.receiver
        )
        engine = make_rank(
            receiver,
            self.lab.source,
            self.channel,
            rank=rank,
            rank_count=len(self.shares),
            settings=self.settings,
            clock=self.clock,
            entropy=SeededEntropy(f"{rank}/{next(self._starts)}"),
        )
        found = LabRank(engine, receiver, arrays, share, fuse)
        self.ranks[rank] = found
        return found

    def kill(self, rank: int) -> LabRank:
        """End the process of a rank; what is returned is a zombie that may wake up."""
        return self.ranks.pop(rank)

    def step(self, rank: int) -> bool:
        """A step of a rank, if its process is alive; every promise is looked at afterwards."""
        if rank not in self.ranks:
            return False
        try:
            return self.ranks[rank].engine.step()
        finally:
            self.check()

    def drive(self, waiting: Waiting[T], order: Callable[[], Sequence[int]] | None = None) -> T:
        """Run a leader's work to its end, with a step of every rank between two of its own.

        Args:
            waiting: The leader's work.
            order: Gives the ranks that take a step next, in their order; None takes all.
        """
        for _ in range(TICK_COUNT_MAX):
            try:
                next(waiting)
            except StopIteration as end:
                self.check()
                found: T = end.value
                return found
            self.check()
            stepped = [self.step(rank) for rank in (order or self.everybody)()]
            if not any(stepped):
                self.clock.sleep(self.settings.poll_s)
        raise AssertionError("the leader waits for ever")

    def refit(self, selector: int | str = "latest") -> int:
        """Refit the engine; the version that is there now."""
        return self.drive(self.leader.refitting(selector)).target

    def everybody(self) -> list[int]:
        """Every rank that is alive."""
        return sorted(self.ranks)

    def served(self) -> dict[int, VersionId]:
        """The version that each rank would serve now."""
        found = {}
        for number, rank in self.ranks.items():
            try:
                with rank.engine.serving() as version:
                    found[number] = version
            except NotReadyError:
                continue
        return found

    def holds(self, rank: LabRank, version: int) -> bool:
        """Whether a rank's memory is exactly its share of a version."""
        return all(
            np.array_equal(units, self.lab.boxed(version, name, rank.share[name]))
            for name, units in rank.arrays.items()
        )

    def all_hold(self, version: int) -> bool:
        """Whether every rank holds and serves a version."""
        return self.served() == dict.fromkeys(self.ranks, version) and all(
            self.holds(rank, version) for rank in self.ranks.values()
        )

    def check(self) -> None:
        """None serves a mixture: what one rank serves, every rank that holds anything holds."""
        if not self.is_checked:
            return
        versions = set(self.served().values())
        assert len(versions) <= 1, f"ranks serve {versions} at once"
        for version in versions:
            for number, rank in self.ranks.items():
                is_empty = isinstance(rank.receiver.live, Empty)
                assert is_empty or self.holds(rank, version), (
                    f"version {version} is served, rank {number} holds something else"
                )


RANK_PARTS = (Part.STAGE, Part.CLOSE, Part.APPLY, Part.RESUME, Part.OPEN)
"""Of a round, in their order."""


class OneRank:
    """One rank of an engine on a store with three versions, asked part by part.

    Attributes:
        lab: The store.
        receiver: Of its weights.
        arrays: Its weights.
        work: What is asked.
        told: Reports so far.
        refs: The versions.
    """

    def __init__(self) -> None:
        self.lab = ReceiverLab.with_versions(ONE_RANK_SCHEMA, 3, share=0.2)
        self.receiver: Receiver
        self.arrays: Bits
        self.receiver, self.arrays = self.lab.host_receiver(SMALL_LAUNCHES)
        self.work = RankWork(
            self.receiver.exclusive,
            self.lab.source,
            self.lab.versions.store.clock,
            self.receiver.reporter,
            self.receiver.poll,
        )
        self.told: list[Report] = []
        self.receiver.on_report(self.told.append)
        self.refs = [VersionRef.of(record) for record in self.lab.versions.records]

    def do(self, part: Part, version: int, *, base: int | None = None) -> Tables:
        """Ask for a part of the round to a version; its reports are told."""
        held = None if base is None else self.refs[base - 1]
        try:
            return self.work.do(part, self.refs[version - 1], held, "a reason")
        finally:
            self.work.tell()

    def attach(self) -> Tables:
        """Attach anew; reports are told."""
        try:
            return self.work.attach()
        finally:
            self.work.tell()

    def round(self, version: int) -> None:
        """Go through all parts."""
        for part in RANK_PARTS:
            self.do(part, version)

    def cut(self, version: int) -> None:
        """Go as far as the first write, which is interrupted."""
        self.do(Part.STAGE, version)
        self.do(Part.CLOSE, version)
        self.lab.fuse.set(1)
        with suppress(Cut):
            self.do(Part.APPLY, version)
        self.lab.fuse.set(None)

    def done(self) -> Work:
        """What was done in the last round."""
        found = self.work.work()
        assert found is not None
        return found

    def is_open(self) -> bool:
        """Whether the rank serves."""
        return self.receiver.status().is_ready


def ranks_of(
    count: int = 2,
    how: str = "rows",
    *,
    at: int | None = 1,
    channel: RankChannel | None = None,
) -> RankLab:
    """An engine on a store with four versions of `RANK_SCHEMA`, brought to one if asked for."""
    lab = ReceiverLab.with_versions(RANK_SCHEMA, 4, share=0.2)
    found = RankLab(lab, split(RANK_SCHEMA, count, how), channel=channel or MemoryChannel())
    if at is not None:
        found.refit(at)
    return found


def orders(rank_count: int) -> Iterator[tuple[int, ...]]:
    """Every order in which ranks may take their steps."""
    return itertools.permutations(range(rank_count))


def _is_whole(schema: Schema, name: str, box: Box) -> bool:
    return box == Box.whole(schema.tensors[schema.index_of(name)].unit_shape)
