"""A change that waits in the pool: absolute bits for each memory, ready to be scattered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.receiver.evaluation import GroupChange
from weightstore.receiver.piece_groups import PieceGroup, storages_of
from weightstore.receiver.placement import Placement
from weightstore.receiver.pool import Pool, PoolFullError


@dataclass(frozen=True, slots=True, eq=False)
class StoragePart:
    """What changes in one memory.

    Attributes:
        storage_index: In the placement.
        change: All of it, tensor by tensor in the order of their first changes.
    """

    storage_index: int
    change: BlockedChange


@dataclass(frozen=True, slots=True, eq=False)
class StagedChange:
    """Everything that leads from one version to another, without the store.

    Attributes:
        parts: One for each memory that changes.
        table: Digest lanes of the version, shape (tensors, 2).
        lanes: Digest lanes of each destination afterwards, shape (destinations, 2).
    """

    parts: tuple[StoragePart, ...]
    table: NDArray[np.uint64]
    lanes: NDArray[np.uint64]

    @property
    def count(self) -> int:
        """Units that are written; one that lives in two places counts twice."""
        return sum(part.change.count for part in self.parts)

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(part.change.size_bytes for part in self.parts)

    def reversed(self, table: NDArray[np.uint64], lanes: NDArray[np.uint64]) -> StagedChange:
        """The way back, to what had these digest lanes; shares all arrays."""
        parts = tuple(replace(part, change=part.change.reversed()) for part in self.parts)
        return StagedChange(parts, table, lanes)

    def launches(self, size_bytes: int) -> Iterator[tuple[int, BlockedChange]]:
        """What is scattered at a time: memory by memory, in parts of about that size."""
        for part in self.parts:
            for change in part.change.cut(size_bytes):
                yield part.storage_index, change


class ChangeBuilder:
    """Collects what groups change, and moves it into the pool as soon as a memory is done.

    Not for several threads.

    Args:
        placement: Where the tensors live.
        pool: Where the change will wait; it is cleared.
        groups: All that will be added, in the order of `add`.
    """

    def __init__(self, placement: Placement, pool: Pool, groups: Sequence[PieceGroup]) -> None:
        self._placement = placement
        self._pool = pool
        self._touched = [storages_of(group, placement) for group in groups]
        self._open_counts = Counter(index for touched in self._touched for index in touched)
        self._waiting: dict[int, list[BlockedChange]] = defaultdict(list)
        self._waiting_bytes = 0
        self._parts: list[StoragePart] = []
        self.lane_deltas = np.zeros((len(placement.destinations), 2), np.uint64)
        pool.clear()

    def add(self, number: int, found: GroupChange) -> None:
        """Take what a group changes.

        Raises:
            PoolFullError: it does not fit.
        """
        for segment in found.segments:
            destination = self._placement.destinations[segment.destination]
            self._waiting[destination.storage_index].append(segment.change)
            self._waiting_bytes += _least_bytes(segment.change)
            if segment.lane_deltas is not None:
                self.lane_deltas[segment.destination] += segment.lane_deltas
        # Now, and not when a memory is done: all of a model may be one memory, and what waits
        # for it must not grow beyond the pool's bound.
        if self._waiting_bytes > self._pool.free_bytes:
            raise PoolFullError
        for index in self._touched[number]:
            self._open_counts[index] -= 1
            if not self._open_counts[index]:
                self._settle(index)

    def finish(self) -> tuple[StoragePart, ...]:
        """Everything, in the order of the memories."""
        assert not self._waiting
        return tuple(sorted(self._parts, key=lambda part: part.storage_index))

    def _settle(self, index: int) -> None:
        """Join what one memory has into one change in the pool."""
        segments = self._waiting.pop(index, [])
        if not segments:
            return
        segments.sort(key=lambda each: (int(each.block_starts[0]), int(each.offsets[0])))
        counts = [each.count for each in segments]
        count, befores = sum(counts), np.cumsum([0, *counts[:-1]])
        starts = np.concatenate([each.block_starts for each in segments])
        firsts = np.concatenate([each.block_firsts[:-1] for each in segments])
        firsts += np.repeat(befores, [each.block_starts.size for each in segments])
        # Small pieces share windows, and a pause goes by windows.
        kept = np.flatnonzero(np.diff(starts, prepend=-1))
        block_count = kept.size
        dtype = segments[0].new_bits.dtype
        joined = BlockedChange(
            self._pool.take(block_count, np.int64),
            self._pool.take(block_count + 1, np.int64),
            self._pool.take(count, np.uint16),
            self._pool.take(count, dtype),
            self._pool.take(count, dtype),
        )
        for field in ("offsets", "old_bits", "new_bits"):
            arrays = [getattr(each, field) for each in segments]
            np.concatenate(arrays, out=getattr(joined, field))
        joined.block_starts[:] = starts[kept]
        joined.block_firsts[:-1], joined.block_firsts[-1] = firsts[kept], count
        self._parts.append(StoragePart(index, joined))
        self._waiting_bytes -= sum(_least_bytes(each) for each in segments)


def _least_bytes(change: BlockedChange) -> int:
    """Bytes of the pool that a part of a change takes at least: its windows may be others' too."""
    return change.count * change.unit_size_bytes


def moved_lanes(
    placement: Placement,
    lanes: NDArray[np.uint64],
    table: NDArray[np.uint64],
    deltas: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """Digest lanes of each destination after a change.

    Args:
        placement: Where the tensors live.
        lanes: Before, shape (destinations, 2).
        table: Of the version after it, shape (tensors, 2).
        deltas: What the change adds where a destination is no whole tensor.
    """
    after = lanes + deltas
    for number, destination in enumerate(placement.destinations):
        if destination.is_whole:
            after[number] = table[destination.tensor_index]
    return after
