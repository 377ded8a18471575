"""Host memory as a live storage: with both kinds of kernels, aligned or not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from weightstore.codec.kernels import NUMPY_UNIT_COUNT_MAX
from weightstore.codec.lanes import Units
from weightstore.codec.live_kernels import live_kernels_for, numpy_live_kernels
from weightstore.codec.numba_live import NumbaLiveKernels
from weightstore.layout.boxes import Box
from weightstore.receiver import live_storage
from weightstore.receiver.live_extents import extent_of
from weightstore.receiver.live_storage import HostStorage, LiveStorage, lanes_of_part
from weightstore.testing.live_storage_contract import (
    LiveStorageContract,
    plain_lanes,
    random_units,
)

Make = Callable[[Units], LiveStorage]


class TestNumpyMemory(LiveStorageContract):
    @pytest.fixture
    def make(self) -> Make:
        return lambda units: HostStorage(units.copy(), numpy_live_kernels())


class TestNumbaMemory(LiveStorageContract):
    @pytest.fixture
    def make(self) -> Make:
        return lambda units: HostStorage(units.copy(), NumbaLiveKernels())


class TestMisalignedMemory(LiveStorageContract):
    @pytest.fixture
    def make(self) -> Make:
        def misaligned(units: Units) -> LiveStorage:
            behind = np.empty(units.nbytes + 1, np.uint8)
            inner = behind[1:].view(units.dtype)
            inner[:] = units
            return HostStorage(inner, NumbaLiveKernels())

        return misaligned


def test_large_memory_takes_compiled_loops() -> None:
    assert live_kernels_for(NUMPY_UNIT_COUNT_MAX).name == "numpy"
    assert live_kernels_for(NUMPY_UNIT_COUNT_MAX + 1).name == "numba"


def test_lanes_add_up_over_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = random_units(2, 600)
    extent = extent_of((30, 40), Box((3, 5), (20, 30)), 0, (1, 20))
    expected = plain_lanes(extent, memory)
    for count in (1, 7, 30, 31, 599, 600):
        monkeypatch.setattr(live_storage, "PART_UNIT_COUNT", count)
        assert HostStorage(memory).lanes(extent) == expected


def test_lanes_of_a_part_are_those_of_the_memory() -> None:
    memory = random_units(4, 60)
    extent = extent_of((6, 40), Box((0, 7), (6, 10)), 0, (10, 1))
    assert lanes_of_part(extent, memory) == HostStorage(memory).lanes(extent)
