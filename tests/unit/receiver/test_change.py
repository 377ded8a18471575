"""A staged change: one for each memory, in the pool, sorted; its launches and its way back."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from weightstore.codec.blocked import WINDOW_UNIT_COUNT, BlockedChange
from weightstore.codec.live_kernels import LiveKernels
from weightstore.codec.numba_live import NumbaLiveKernels
from weightstore.codec.numpy_live import NumpyLiveKernels
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
    # A window that two segments share is one.
    assert len(list(change.launches(1))) == 5
    for part in change.parts:
        assert np.all(np.diff(part.change.block_starts) > 0)


def test_the_way_back_undoes_it() -> None:
    placement, memories, change = staged(Pool.of_size(10_000))
    table = np.ones((3, 2), np.uint64)
    for step in (change, change.reversed(table, table)):
        for index, part in step.launches(1 << 20):
            assert placement.storages[index].scatter(part, redo=False).strange_count == 0
    assert not any(memory.any() for memory in memories)
    assert change.reversed(table, table).table is table


@pytest.mark.parametrize(
    "kernels", [NumpyLiveKernels(), NumbaLiveKernels()], ids=lambda each: each.name
)
@pytest.mark.parametrize("step", [1, 64, 20_000])
@pytest.mark.parametrize("end", [65_536, 200_000])
def test_tensors_that_share_windows_unit_by_unit(kernels: LiveKernels, step: int, end: int) -> None:
    memory: Units = np.zeros(200_000, np.uint16)
    storage = HostStorage(memory, kernels)
    live = [
        # Every second unit each, the later one first.
        LiveTensor(name, storage, offset, (100_000,), (2,), address=(number).__int__)
        for number, (name, offset) in enumerate([("a", 1), ("b", 0)])
    ]
    schema = Schema.build([TensorSpec(name, DType.BF16, (100_000,)) for name in "ab"])
    placement = plan_placement(schema, live, {})
    builder = ChangeBuilder(placement, Pool.of_size(3_000_000), [group(0), group(1)])
    expected = np.zeros_like(memory)
    for number, bit in enumerate((5, 7)):
        base = placement.destinations[number].extent.base
        at = np.arange(base, end, 2 * step)
        expected[at] = bit
        old, new = np.zeros(at.size, np.uint16), np.full(at.size, bit, np.uint16)
        segment = Segment(number, BlockedChange.of(at, old, new), None)
        builder.add(number, GroupChange((segment,), at.size, 0, 0))
    table = np.zeros((2, 2), np.uint64)
    change = StagedChange(builder.finish(), table, table)
    (part,) = change.parts
    places = part.change.places()
    assert np.any(np.diff(places) < 0)
    assert np.array_equal(np.sort(places), np.flatnonzero(expected))
    if end == WINDOW_UNIT_COUNT:
        assert part.change.block_starts.tolist() == [0]
    for size_bytes in (1, 1 << 20):
        for there, after in ((change, expected), (change.reversed(table, table), 0)):
            for index, launched in there.launches(size_bytes):
                counts = placement.storages[index].scatter(launched, redo=False)
                assert counts.strange_count == 0
            assert np.array_equal(memory, np.broadcast_to(after, memory.shape))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PoolFullError):
        staged(Pool.of_size(200))


def test_windows_that_parts_share_take_no_room_of_their_own() -> None:
    placement, _ = two_memories()
    used_bytes: list[int] = []
    for size_bytes in (10_000, 0):
        pool = Pool.of_size(size_bytes or used_bytes[0])
        builder = ChangeBuilder(placement, pool, [group(2)] * 60)
        for number in range(60):
            builder.add(number, segment_of(placement, 2, [number], 1))
        (part,) = builder.finish()
        assert part.change.block_starts.tolist() == [0]
        used_bytes.append(pool.used_bytes)
    assert used_bytes[0] == used_bytes[1]


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
