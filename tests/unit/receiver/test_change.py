"""A staged change: one for each memory, in the pool, sorted; its launches and its way back."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from weightstore.codec.blocked import BlockedChange
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.receiver.change import ChangeBuilder, StagedChange, moved_lanes
from weightstore.receiver.evaluation import GroupChange, Segment
from weightstore.receiver.live_extents import Extent
from weightstore.receiver.live_storage import HostStorage
from weightstore.receiver.piece_groups import PieceGroup
from weightstore.receiver.placement import Destination, LiveTensor, Placement, plan_placement
from weightstore.receiver.pool import Pool, PoolFullError

SCHEMA = Schema.build([TensorSpec(name, DType.BF16, (100_000,)) for name in "abc"])


def two_memories() -> tuple[Placement, list[Units]]:
    """`a` and `c` are the two halves of one memory, `c` first; `b` has one of its own."""
    memories: list[Units] = [np.zeros(200_000, np.uint16), np.zeros(100_000, np.uint16)]
    shared, own = (HostStorage(memory) for memory in memories)
    make = partial(LiveTensor, sizes=(100_000,), strides=(1,))
    live = [
        make("a", shared, 100_000, address=(1).__int__),
        make("b", own, 0, address=(2).__int__),
        make("c", shared, 0, address=(3).__int__),
    ]
    return plan_placement(SCHEMA, live, {}), memories


def group(index: int) -> PieceGroup:
    return PieceGroup((index,), np.array([0, 100_000]), 0, ())


def segment_of(placement: Placement, number: int, places: list[int], bit: int) -> GroupChange:
    base = placement.destinations[number].extent.base
    at = np.array(places, np.int64) + base
    new_bits = np.full(at.size, bit, np.uint16)
    change = BlockedChange.of(at, np.zeros(at.size, np.uint16), new_bits)
    return GroupChange((Segment(number, change, None),), at.size, 0, 0)


def staged(pool: Pool) -> tuple[Placement, list[Units], StagedChange]:
    placement, memories = two_memories()
    builder = ChangeBuilder(placement, pool, [group(0), group(1), group(2)])
    builder.add(0, segment_of(placement, 0, [0, 70_000, 99_999], 1))
    builder.add(1, segment_of(placement, 1, [5], 2))
    builder.add(2, segment_of(placement, 2, [7, 65_536], 3))
    table = np.zeros((3, 2), np.uint64)
    return placement, memories, StagedChange(builder.finish(), table, table)


def test_a_memory_has_one_change_in_the_order_of_its_units() -> None:
    pool = Pool.of_size(10_000)
    placement, memories, change = staged(pool)
    assert [part.storage_index for part in change.parts] == [0, 1]
    first = change.parts[0].change
    assert first.places().tolist() == [7, 65_536, 100_000, 170_000, 199_999]
    assert change.count == 6
    assert change.size_bytes <= pool.used_bytes <= change.size_bytes + 10 * 64
    for index, part in change.launches(1 << 20):
        placement.storages[index].scatter(part, redo=False)
    assert memories[0][[7, 65_536, 100_000, 170_000, 199_999]].tolist() == [3, 3, 1, 1, 1]
    assert np.count_nonzero(memories[0]) == 5
    assert np.flatnonzero(memories[1]).tolist() == [5]


def test_launches_are_as_few_as_memories_where_the_change_is_small() -> None:
    _, _, change = staged(Pool.of_size(10_000))
    assert len(list(change.launches(64 << 20))) == 2
    # A window that two segments share is two.
    assert len(list(change.launches(1))) == 6


def test_the_way_back_undoes_it() -> None:
    placement, memories, change = staged(Pool.of_size(10_000))
    table = np.ones((3, 2), np.uint64)
    for step in (change, change.reversed(table, table)):
        for index, part in step.launches(1 << 20):
            assert placement.storages[index].scatter(part, redo=False).strange_count == 0
    assert not any(memory.any() for memory in memories)
    assert change.reversed(table, table).table is table


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PoolFullError):
        staged(Pool.of_size(200))


def test_what_waits_for_a_memory_is_refused_before_it_outgrows_the_pool() -> None:
    placement, _ = two_memories()
    builder = ChangeBuilder(placement, Pool.of_size(200), [group(0), group(2)])
    with pytest.raises(PoolFullError):
        # The memory of both is not done before the second one.
        builder.add(0, segment_of(placement, 0, list(range(40)), 1))


def test_staging_again_takes_the_pool_back() -> None:
    pool = Pool.of_size(10_000)
    staged(pool)
    used = pool.used_bytes
    staged(pool)
    assert pool.used_bytes == used


def test_digests_of_whole_tensors_come_from_the_table() -> None:
    placement, _ = two_memories()
    part = Destination(1, 1, Extent(0, (10,), (1,), 0, (1,)), is_whole=False)
    placement = Placement(
        SCHEMA, placement.storages, (*placement.destinations, part), frozenset({1})
    )
    lanes = np.arange(8, dtype=np.uint64).reshape(4, 2)
    table = np.full((3, 2), 99, np.uint64)
    deltas = np.zeros((4, 2), np.uint64)
    deltas[3] = (10, 2**64 - 1)
    assert moved_lanes(placement, lanes, table, deltas).tolist() == [[99, 99]] * 3 + [[16, 6]]
