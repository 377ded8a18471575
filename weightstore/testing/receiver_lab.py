"""A store with real versions and receivers of it, in every kind of live memory; and cuts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import numpy as np

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.codec.piece import ValueCoding
from weightstore.errors import NotReadyError, WeightStoreError
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_extents import Extent
from weightstore.receiver.live_storage import ScatterCounts
from weightstore.receiver.placement import Placement
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import RealVersions, next_weights, random_weights
from weightstore.testing.wrapped_storage import WrappedStorage

Place = Callable[[Schema], Placement]
Bits = dict[str, Units]

SMALL_LAUNCHES = ReceiverSettings(launch_size_bytes=1, block_timeout_s=5.0)
"""A launch for each window of 65,536 units, so that there are many places to cut."""
STREAMED = ReceiverSettings(pool_size_bytes=16, block_timeout_s=1.0)
"""A pool that no change fits."""
CUT_WAYS = ("before", "half", "after")
"""How much of a write is done when it is cut."""


class Cut(BaseException):
    """Ends a write in the middle; nothing below may catch it, as with a signal."""


@dataclass
class Fuse:
    """Cuts the n-th write of live memory, in one of three ways.

    Attributes:
        left: Writes that still go through; None never cuts.
        way: One of `CUT_WAYS`.
        count: Writes that were asked for.
    """

    left: int | None = None
    way: str = "half"
    count: int = 0

    def burns(self) -> bool:
        """Count a write, and say whether it is the one to cut."""
        self.count += 1
        if self.left is None:
            return False
        self.left -= 1
        return self.left < 0

    def set(self, left: int | None, way: str = "half") -> None:
        """Cut the write after `left` more."""
        self.left, self.way, self.count = left, way, 0


@dataclass(frozen=True)
class FusedStorage(WrappedStorage):
    """A live storage whose writes can be cut.

    Attributes:
        fuse: Shared by all memories of a receiver.
    """

    fuse: Fuse

    def scatter(self, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
        """Of the memory, or a part of it and a cut."""
        if self.fuse.burns():
            self.scatter_first(self._done_count(change.count), change, redo=redo)
            raise Cut
        return self.inner.scatter(change, redo=redo)

    def write(self, extent: Extent, units: Units, /) -> None:
        """Of the memory, or a part of it and a cut."""
        if self.fuse.burns():
            self.write_first(self._done_count(units.size), extent, units)
            raise Cut
        self.inner.write(extent, units)

    def _done_count(self, count: int) -> int:
        """Units that are written before the cut."""
        return dict(zip(CUT_WAYS, (0, count // 2, count), strict=True))[self.fuse.way]


@dataclass
class ReceiverLab:
    """A store in memory, what each of its versions holds, and a fuse for its receivers.

    Attributes:
        schema: Of every version.
        pieces_per_pack: A small number makes several packs.
        piece_unit_count: Longest run of one piece.
        weights: By version.
    """

    schema: Schema
    pieces_per_pack: int = 2
    piece_unit_count: int = 40_000
    weights: dict[int, Bits] = field(default_factory=dict)
    fuse: Fuse = field(default_factory=Fuse)

    def __post_init__(self) -> None:
        self.blobs = MemoryBlobStore()
        self.versions = RealVersions(
            self.blobs,
            self.schema,
            pieces_per_pack=self.pieces_per_pack,
            piece_unit_count=self.piece_unit_count,
        )
        self.source = VersionSource(
            self.blobs, self.versions.store.log, self.versions.store.settings
        )

    @classmethod
    def with_versions(
        cls,
        schema: Schema,
        count: int,
        *,
        share: float = 0.01,
        coding: ValueCoding | None = None,
        piece_unit_count: int = 40_000,
    ) -> Self:
        """A lab with so many versions; the first is full."""
        lab = cls(schema, piece_unit_count=piece_unit_count)
        lab.put(random_weights(schema, 0))
        for seed in range(1, count):
            lab.put(next_weights(lab.weights[seed], seed, share), coding=coding)
        return lab

    def put(
        self,
        weights: Mapping[str, Units],
        *,
        full: bool = False,
        coding: ValueCoding | None = None,
    ) -> int:
        """Put a version; its number."""
        record = self.versions.put(weights, full=full, coding=coding)
        self.weights[record.version] = {name: units.copy() for name, units in weights.items()}
        return record.version

    def receiver(self, place: Place, settings: ReceiverSettings | None = None) -> Receiver:
        """A receiver whose writes go through the fuse."""
        clock = self.versions.store.clock
        return Receiver(
            self.source, lambda schema: self.fused(place(schema)), clock=clock, settings=settings
        )

    def fused(self, placement: Placement) -> Placement:
        """A placement whose writes go through the fuse."""
        storages = tuple(FusedStorage(each, self.fuse) for each in placement.storages)
        return replace(placement, storages=storages)

    def arrays(self, *, tied: bool = False) -> Bits:
        """Zeros for every tensor, and memory of their own for tied names if asked for."""
        found: Bits = {
            spec.name: np.zeros(spec.unit_count, spec.dtype.unit_dtype)
            for spec in self.schema.tensors
        }
        if tied:
            found.update({alias.name: found[alias.target].copy() for alias in self.schema.aliases})
        return found

    def host_receiver(
        self,
        settings: ReceiverSettings | None = None,
        *,
        at: int | None = None,
        tied: bool = True,
    ) -> tuple[Receiver, Bits]:
        """A receiver of arrays, and the arrays; brought to a version if asked for."""
        arrays = self.arrays(tied=tied)
        given: dict[str, Units | HostTensor] = dict(arrays)
        receiver = self.receiver(partial(place_arrays, targets=given, boxes={}), settings)
        if at is not None:
            receiver.refit(at)
        return receiver, arrays

    def expected(self, version: int, name: str) -> Units:
        """The bits of a tensor, or of a tied name, in a version."""
        spec = self.schema.tensors[self.schema.index_of(name)]
        return self.weights[version][spec.name]

    def boxed(self, version: int, name: str, box: Box) -> Units:
        """The bits of a part of a tensor in a version."""
        spec = self.schema.tensors[self.schema.index_of(name)]
        whole = self.weights[version][spec.name].reshape(spec.unit_shape)
        part = tuple(
            slice(first, first + size) for first, size in zip(box.offsets, box.sizes, strict=True)
        )
        return np.ascontiguousarray(whole[part]).reshape(-1)

    def is_at(self, arrays: Mapping[str, Units], version: int) -> bool:
        """Whether arrays hold exactly a version."""
        return all(
            np.array_equal(units, self.expected(version, name)) for name, units in arrays.items()
        )

    def versions_of(self, arrays: Mapping[str, Units]) -> list[int]:
        """Every version that arrays hold exactly."""
        return [version for version in self.weights if self.is_at(arrays, version)]


def serves(receiver: Receiver) -> bool:
    """Whether a receiver lets anybody in."""
    try:
        with receiver.serving():
            return True
    except NotReadyError:
        return False


def every_cut(run: Callable[[], None], fuse: Fuse, way: str) -> int:
    """Run something again and again, each time cut one write later, until it outlives that.

    Args:
        run: What is cut; it must set everything up anew and heal by itself.
        fuse: Cuts it.
        way: As of `Fuse`.

    Returns:
        How many writes it had.
    """
    for number in itertools.count():
        fuse.set(number, way)
        run()
        if fuse.left is not None and fuse.left >= 0:
            return number
    raise AssertionError


def kinds_listed(error: WeightStoreError, kinds: Collection[str]) -> set[str]:
    """Which kinds of problem an error lists, each by how it begins; all it lists is also said.

    Raises:
        AssertionError: the message leaves out something that the facts list.
    """
    problems = error.facts["problems"]
    assert isinstance(problems, tuple)
    listed = [str(one) for one in problems]
    assert all(one in str(error) for one in listed)
    return {kind for kind in kinds for one in listed if one.startswith(kind)}
