"""Deltas on live memory: staged in bounded memory, or streamed; every piece is accounted for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.errors import (
    DigestMismatchError,
    LiveWeightsError,
    ObjectMissingError,
    WrongBaseError,
)
from weightstore.history.delta_path import DeltaPath, VersionRef
from weightstore.layout.tensors import Units
from weightstore.receiver.delta_work import DeltaWork, LiveTables
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_writes import write_change
from weightstore.receiver.placement import Placement
from weightstore.receiver.pool import Pool, PoolFullError
from weightstore.receiver.reports import Tally
from weightstore.receiver.rolling_scan import scan
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab
from weightstore.testing.virtual_time import VirtualClock


@pytest.fixture
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(mixed_schema(), 4)


class Bench:
    """Arrays at version 1, and the way to another version."""

    def __init__(self, lab: ReceiverLab, target: int = 4) -> None:
        self.lab = lab
        self.arrays: dict[str, Units] = {
            name: lab.expected(1, name).copy() for name in lab.arrays(tied=True)
        }
        self.placement: Placement = place_arrays(lab.schema, self.arrays, {})
        lanes = scan(self.placement, range(len(self.placement.destinations)), 1)
        self.live = LiveTables(lab.versions.plan(lab.versions.records[0]).last_table, lanes)
        records = lab.versions.records
        path = lab.source.path(records[target - 1], VersionRef.of(records[0]))
        assert isinstance(path, DeltaPath)
        self.path = path
        self.tally = Tally(VirtualClock())

    @property
    def work(self) -> DeltaWork:
        return DeltaWork(self.lab.source, self.placement, PieceCodec())


def test_a_staged_change_is_the_whole_way(lab: ReceiverLab) -> None:
    bench = Bench(lab)
    change = bench.work.stage(bench.path, bench.live, Pool.of_size(1 << 20), bench.tally)
    assert lab.is_at(bench.arrays, 1)
    write_change(bench.placement, change, 1 << 20, bench.tally, is_redo=False)
    assert lab.is_at(bench.arrays, 4)
    numbers = range(len(bench.placement.destinations))
    assert np.array_equal(change.lanes, scan(bench.placement, numbers, 1))
    assert np.array_equal(change.table, bench.path.last_table)
    assert bench.tally.wire_bytes == bench.path.size_bytes
    assert bench.tally.applied_count == change.count
    assert bench.tally.launch_count == len(change.parts)


@pytest.mark.parametrize("size_bytes", [0, 10_000, 17_000])
def test_a_pool_that_is_too_small_says_so_and_nothing_is_written(
    lab: ReceiverLab, size_bytes: int
) -> None:
    bench = Bench(lab)
    with pytest.raises(PoolFullError):
        bench.work.stage(bench.path, bench.live, Pool.of_size(size_bytes), bench.tally)
    assert lab.is_at(bench.arrays, 1)


def test_a_stream_goes_through_every_version(lab: ReceiverLab) -> None:
    bench = Bench(lab)
    bench.work.check_first(bench.path, bench.live, bench.tally)
    assert lab.is_at(bench.arrays, 1)
    found = bench.work.stream(bench.path, bench.live, bench.tally)
    assert lab.is_at(bench.arrays, 4)
    numbers = range(len(bench.placement.destinations))
    assert np.array_equal(found.lanes, scan(bench.placement, numbers, 1))
    assert np.array_equal(found.table, bench.path.last_table)


def test_the_first_delta_of_a_stream_is_checked_before_it_begins(lab: ReceiverLab) -> None:
    bench = Bench(lab)
    place = np.flatnonzero(lab.expected(1, "head") != lab.expected(2, "head"))[0]
    bench.arrays["head"][place] ^= 1
    with pytest.raises(WrongBaseError):
        bench.work.check_first(bench.path, bench.live, bench.tally)


def test_changes_that_have_no_place_are_counted_against_the_manifest(lab: ReceiverLab) -> None:
    """An adapter that drops a tensor silently is found before anything is written."""
    bench = Bench(lab, 2)
    head = lab.schema.index_of("head")
    kept = tuple(each for each in bench.placement.destinations if each.tensor_index != head)
    bench.placement = replace(bench.placement, destinations=kept)
    with pytest.raises(LiveWeightsError, match="no place here") as caught:
        bench.work.stage(bench.path, bench.live, Pool.of_size(1 << 20), bench.tally)
    assert caught.value.facts["tensors"] == ("head",)
    assert lab.is_at(bench.arrays, 1)


def test_a_lost_pack_is_an_error_that_names_it(lab: ReceiverLab) -> None:
    bench = Bench(lab)
    key = next(blob.key for blob in lab.blobs.list("packs/") if "/3-" in blob.key)
    lab.blobs.delete(key)
    with pytest.raises(ObjectMissingError) as caught:
        bench.work.stage(bench.path, bench.live, Pool.of_size(1 << 20), bench.tally)
    assert caught.value.facts["key"] == key


def test_a_table_that_is_not_that_of_the_base_is_refused(lab: ReceiverLab) -> None:
    bench = Bench(lab)
    table = bench.live.table.copy()
    table[lab.schema.index_of("head"), 0] += np.uint64(1)
    with pytest.raises(DigestMismatchError, match="digest"):
        bench.work.stage(
            bench.path, replace(bench.live, table=table), Pool.of_size(1 << 20), bench.tally
        )
