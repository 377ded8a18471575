"""torch memory as a live storage, through torch's own operations, bit for bit as NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from weightstore.codec.lanes import Units
from weightstore.layout.boxes import Box
from weightstore.receiver.live_extents import extent_of
from weightstore.receiver.live_storage import HostStorage, LiveStorage
from weightstore.receiver.torch_storage import TorchStorage, flat_integers, torch_storage
from weightstore.testing.live_storage_contract import EXTENTS, LiveStorageContract, random_units

SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
FLOATS = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}


def tensor_of(units: Units) -> torch.Tensor:
    """A float tensor with these bits, where a float of the width exists."""
    signed = torch.from_numpy(units.copy().view(SIGNED[units.itemsize]))
    return signed.view(FLOATS.get(units.itemsize, torch.uint8))


class TestTorchMemory(LiveStorageContract):
    @pytest.fixture
    def make(self) -> Callable[[Units], LiveStorage]:
        return lambda units: torch_storage(tensor_of(units))


class TestParameterMemory(LiveStorageContract):
    @pytest.fixture
    def make(self) -> Callable[[Units], LiveStorage]:
        def parameter(units: Units) -> LiveStorage:
            tensor = tensor_of(units)
            if units.itemsize == 4:
                with torch.inference_mode():
                    return torch_storage(tensor.clone())
            return torch_storage(tensor.requires_grad_(tensor.is_floating_point()))

        return parameter


@pytest.mark.parametrize("name", EXTENTS)
@pytest.mark.parametrize("width", SIGNED)
def test_lanes_equal_those_of_host_memory(name: str, width: int) -> None:
    units = random_units(width, 60)
    assert torch_storage(tensor_of(units)).lanes(EXTENTS[name]) == HostStorage(units).lanes(
        EXTENTS[name]
    )


def test_all_of_the_storage_is_seen_and_shared() -> None:
    behind = torch.arange(10, dtype=torch.float32)
    view = behind[3:5]
    flat = flat_integers(view)
    assert flat.numel() == 10
    assert flat.data_ptr() == behind.data_ptr()
    flat[4] = 0
    assert view[1] == 0


def test_bytes_that_are_no_whole_unit_are_left_out() -> None:
    behind = torch.zeros(7, dtype=torch.uint8)
    assert flat_integers(behind[:4].view(torch.float32)).numel() == 1


def test_autograd_sees_nothing() -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    saved = (weight * 2).sum()
    version = weight._version
    storage = TorchStorage(flat_integers(weight))
    storage.write(extent_of((), Box((), ()), 0, ()), np.array([1], np.uint32))
    assert weight._version == version
    saved.backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
