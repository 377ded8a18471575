"""A receiver's memory: what changed decides it, not what is there; and it does not grow."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from weightstore import WeightStore
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.live_state import Way
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.settings import MIB
from weightstore.testing.receiver_lab import ReceiverLab
from weightstore.testing.store_lab import LAB_SETTINGS

UNIT_COUNT = 16 * MIB
MANY_UNIT_COUNT = 400_000_000
CYCLE_COUNT = 200


def peak_bytes(lab: ReceiverLab, version: int, settings: ReceiverSettings) -> int:
    """Most memory that staging and applying a version from the one before takes."""
    # The first time imports and compiles kernels: once here, where nothing is measured.
    receiver, _ = lab.host_receiver(settings, at=version - 1)
    receiver.stage(version)
    receiver.apply()
    receiver, _ = lab.host_receiver(settings, at=version - 1)
    receiver.stage(version)
    receiver._weights.drop()
    tracemalloc.start()
    try:
        receiver.stage(version)
        receiver.apply()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def available_bytes() -> int:
    line = next(
        each
        for each in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        if each.startswith("MemAvailable:")
    )
    return int(line.split()[1]) * 1024


def check_one_of_many(unit_count: int, pool_size_bytes: int | None) -> None:
    """Two steps of one tensor, one with one changed unit and one with none."""
    schema = Schema.build([TensorSpec("w", DType.BF16, (unit_count,))])
    lab = ReceiverLab(schema, piece_unit_count=8 * MIB)
    units = np.zeros(unit_count, np.uint16)
    lab.put({"w": units})
    units[unit_count - 3] = 1
    lab.put({"w": units})
    lab.put({"w": units})
    settings = ReceiverSettings(pool_size_bytes=pool_size_bytes)
    for version in (2, 3):
        assert peak_bytes(lab, version, settings) < MIB


@pytest.mark.parametrize("pool_size_bytes", [None, 8], ids=["staged", "streamed"])
def test_one_changed_element_of_many_costs_nothing_like_the_tensor(
    pool_size_bytes: int | None,
) -> None:
    check_one_of_many(UNIT_COUNT, pool_size_bytes)


@pytest.mark.slow
def test_one_changed_element_of_four_hundred_million_costs_as_little() -> None:
    if available_bytes() < 8 << 30:  # store, trainer and receiver in one process
        pytest.skip("less than 8 GiB of memory are free")
    check_one_of_many(MANY_UNIT_COUNT, None)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


@pytest.mark.slow
def test_memory_stays_flat_over_many_cycles(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    trained = {"w": rng.integers(0, 1 << 16, (1024, 512), np.uint16)}
    live = np.zeros(1024 * 512, np.uint16)
    sizes = []
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        store.put_step(0, trained)
        receiver = store.receiver({"w": live})
        for step in range(1, CYCLE_COUNT + 1):
            places = rng.integers(0, live.size, live.size // 40)
            trained["w"].reshape(-1)[places] += np.uint16(1)
            store.put_step(step, trained)
            assert receiver.refit().way in {Way.FULL, Way.CHANGE}
            receiver.verify()
            if step % 10 == 0:
                store.retire()
            sizes.append(resident_bytes())
    assert np.array_equal(live, trained["w"].reshape(-1))
    # The first cycles compile kernels and fill the caches of the log. Whichever threads come to
    # take a buffer for the first time, each keeps one of 1 MiB; a step that stayed would be
    # 100 KiB in each cycle.
    assert max(sizes[-20:]) - min(sizes[60:80]) < 8 * MIB
