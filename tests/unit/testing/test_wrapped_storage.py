"""A wrapped storage is the storage in it, and writes a first part where it is told to."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.live_kernels import numpy_live_kernels
from weightstore.receiver.live_storage import HostStorage
from weightstore.testing.live_storage_contract import LiveStorageContract, MakeStorage
from weightstore.testing.wrapped_storage import WrappedStorage


class TestWrappedStorage(LiveStorageContract):
    @pytest.fixture
    def make(self) -> MakeStorage:
        return lambda units: WrappedStorage(HostStorage(units.copy(), numpy_live_kernels()))


def test_a_cut_scatter_has_written_the_first_units_alone() -> None:
    units = np.zeros(9, np.uint16)
    places = np.array([1, 4, 7], np.int64)
    bits = np.array([5, 6, 7], np.uint16)
    change = BlockedChange.of(places, units[places], bits)
    WrappedStorage(HostStorage(units, numpy_live_kernels())).scatter_first(2, change, redo=False)
    assert units.tolist() == [0, 5, 0, 0, 6, 0, 0, 0, 0]
