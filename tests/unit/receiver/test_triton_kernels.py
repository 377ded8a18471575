"""Triton's kernels over live memory by its interpreter, bit for bit as NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.receiver.device_kernels import DeviceKernels
from weightstore.receiver.live_extents import extent_of
from weightstore.receiver.live_storage import LiveStorage
from weightstore.receiver.torch_kernels import TorchKernels
from weightstore.receiver.torch_storage import TorchStorage
from weightstore.testing.device_kernels_contract import (
    DeviceKernelsContract,
    check_combine,
    check_scatter,
    moved,
)
from weightstore.testing.live_storage_contract import LiveStorageContract, plain_lanes
from weightstore.testing.tensors import hard_units
from weightstore.testing.triton_interpreter import interpret_triton

CPU = torch.device("cpu")


def triton_kernels(block_unit_count: int = 1024) -> DeviceKernels:
    interpret_triton()
    from weightstore.receiver.triton_kernels import TritonKernels  # noqa: PLC0415 -- in its mode

    return TritonKernels(block_unit_count)


class TestTritonKernels(DeviceKernelsContract):
    @pytest.fixture
    def kernels(self) -> DeviceKernels:
        return triton_kernels()


class TestStorageOfTriton(LiveStorageContract):
    @pytest.fixture
    def make(self) -> Callable[[Units], LiveStorage]:
        return lambda units: TorchStorage(moved(units, CPU), triton_kernels())


@settings(max_examples=40)
@given(
    dtype=st.sampled_from([DType.U8, DType.BF16, DType.F16, DType.F32, DType.F64]),
    count=st.integers(1, 3_000),
    changed=st.integers(0, 200),
    block=st.sampled_from([16, 64, 1024]),
    seed=st.integers(0, 2**32 - 1),
    redo=st.booleans(),
)
def test_they_equal_numpy(
    dtype: DType,
    count: int,
    changed: int,
    block: int,
    seed: int,
    redo: bool,  # noqa: FBT001 -- drawn
) -> None:
    rng = np.random.default_rng(seed)
    values = hard_units(dtype)
    memory = rng.choice(values, count)
    places = np.sort(rng.choice(count, min(count, changed), replace=False))
    old_bits, new_bits = memory[places].copy(), rng.choice(values, places.size)
    touched = rng.random(places.size) < 0.3
    memory[places[touched]] = rng.choice(values, int(touched.sum()))
    kernels = triton_kernels(block)
    check_combine(kernels, CPU, memory, places)
    check_scatter(kernels, CPU, memory, BlockedChange.of(places, old_bits, new_bits), redo=redo)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 6), max_size=4),
    dtype=st.sampled_from([DType.U8, DType.BF16, DType.F32, DType.F64]),
    block=st.sampled_from([16, 64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_lanes_of_any_box_equal_numpy(
    sizes: list[int], dtype: DType, block: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(size + int(rng.integers(0, 3)) for size in sizes)
    offsets = tuple(
        int(rng.integers(0, whole - size + 1)) for whole, size in zip(shape, sizes, strict=True)
    )
    strides = np.cumprod([1, *(size + int(rng.integers(0, 2)) for size in sizes)])[: len(sizes)]
    extent = extent_of(
        shape, Box(offsets, tuple(sizes)), 3, tuple(rng.permutation(strides[::-1]).tolist())
    )
    memory = rng.choice(hard_units(dtype), 10_000)
    expected = plain_lanes(extent, memory)
    for kernels in (triton_kernels(block), TorchKernels()):
        assert kernels.lanes(moved(memory, CPU), extent) == expected


def test_places_beyond_31_bits() -> None:
    # Pages that are not touched take no memory.
    flat = torch.empty((1 << 31) + 4_096, dtype=torch.uint8)
    places = np.array([5, (1 << 31) - 1, 1 << 31, (1 << 31) + 4_095])
    old_bits, new_bits = np.array([1, 2, 3, 4], np.uint8), np.array([9, 8, 7, 6], np.uint8)
    flat[torch.from_numpy(places)] = torch.from_numpy(old_bits)
    storage = TorchStorage(flat, triton_kernels())
    assert storage.gather(places).tolist() == old_bits.tolist()
    change = BlockedChange.of(places, old_bits, new_bits)
    assert storage.scatter(change, redo=False) == (4, 0)
    assert storage.gather(places).tolist() == new_bits.tolist()
    column = extent_of((2, 9), Box((0, 3), (2, 1)), (1 << 31) - 1, (4_096, 1))
    assert storage.lanes(column) == TorchStorage(flat, TorchKernels()).lanes(column)
