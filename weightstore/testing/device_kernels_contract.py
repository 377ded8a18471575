"""What the loops over live memory must do, in torch operations and in Triton, on any device.

The oracle is NumPy: a fancy index, `SparseChange.after`, `NumpyLiveKernels` and the definition of
the lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.codec.numpy_live import NumpyLiveKernels
from weightstore.codec.sparse import Combine, SparseChange
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.receiver.device_kernels import DeviceChange, DeviceKernels
from weightstore.receiver.live_extents import extent_of
from weightstore.testing.live_storage_contract import EXTENTS, WIDTHS, plain_lanes, random_units
from weightstore.testing.tensors import all_units, hard_units

SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIZES = (0, 1, 2, 15, 17, 1023, 1025, 4099)
PATTERNS: dict[str, Units] = {
    "bf16": all_units(DType.BF16),
    "fp16": all_units(DType.F16),
    "fp8": all_units(DType.F8_E4M3),
    "fp32": hard_units(DType.F32),
    "fp64": hard_units(DType.F64),
    "complex64": hard_units(DType.C64),
}
"""Every bit pattern of up to two bytes, and the hard ones of wider types."""


def moved(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy on a device, bits as the integers that torch has in all operations."""
    signed = array.view(SIGNED[array.itemsize]) if array.dtype.kind == "u" else array
    return torch.from_numpy(signed.copy()).to(device)


def bits_of(tensor: torch.Tensor) -> Units:
    """The bits of integers on any device."""
    bits: Units = tensor.cpu().numpy().view(UNSIGNED[tensor.element_size()])
    return bits


def unaligned(units: Units, device: torch.device) -> torch.Tensor:
    """A copy whose first unit lies one unit after where an allocation begins."""
    behind = np.concatenate([units[:1], units]) if units.size else np.zeros(1, units.dtype)
    return moved(behind, device)[1:]


def device_change(change: BlockedChange, device: torch.device) -> DeviceChange:
    """A change on a device."""
    return DeviceChange(
        moved(change.block_starts, device),
        moved(change.block_firsts, device),
        moved(change.offsets, device),
        moved(change.old_bits, device),
        moved(change.new_bits, device),
    )


def check_combine(
    kernels: DeviceKernels, device: torch.device, memory: Units, places: NDArray[np.int64]
) -> None:
    """Compare every way to combine with the oracle, at places of a memory."""
    words = np.roll(memory[places], 7)
    flat, held = unaligned(memory, device), memory[places]
    assert np.array_equal(bits_of(kernels.gather(flat, moved(places, device))), held)
    for combine in Combine:
        old_bits, new_bits = kernels.gather_combine(
            flat, moved(places, device), moved(words, device), combine
        )
        expected = SparseChange(np.empty(0, np.uint32), words, combine).after(held)
        assert np.array_equal(bits_of(old_bits), held)
        assert np.array_equal(bits_of(new_bits), expected)
    assert np.array_equal(bits_of(flat), memory)


def check_scatter(
    kernels: DeviceKernels,
    device: torch.device,
    memory: Units,
    change: BlockedChange,
    *,
    redo: bool,
) -> None:
    """Compare a scatter with the oracle: the count, and all of the memory afterwards."""
    expected = memory.copy()
    count = NumpyLiveKernels().scatter_compare(expected, change, redo=redo)
    flat = unaligned(memory, device)
    found = kernels.scatter_compare(flat, device_change(change, device), redo=redo)
    assert int(found) == count
    assert np.array_equal(bits_of(flat), expected)


class DeviceKernelsContract:
    """Subclass, and give a fixture `kernels`; another `device` than the CPU is given likewise."""

    @pytest.fixture
    def kernels(self) -> DeviceKernels:
        """The loops."""
        raise NotImplementedError

    @pytest.fixture
    def device(self) -> torch.device:
        """Where the memory is."""
        return torch.device("cpu")

    @pytest.mark.parametrize("name", PATTERNS)
    def test_every_pattern_is_combined_by_integers_alone(
        self, kernels: DeviceKernels, device: torch.device, name: str
    ) -> None:
        """Differences wrap; no NaN loses its payload."""
        memory = PATTERNS[name]
        check_combine(kernels, device, memory, np.arange(memory.size)[::-1].copy())

    @pytest.mark.parametrize("name", PATTERNS)
    @pytest.mark.parametrize("redo", [False, True])
    def test_every_pattern_is_written_over_every_other(
        self,
        kernels: DeviceKernels,
        device: torch.device,
        name: str,
        redo: bool,  # noqa: FBT001 -- a parameter of the test
    ) -> None:
        """Each pattern is old, new and strange somewhere; two that differ in a bit are unequal."""
        patterns = PATTERNS[name]
        places = np.arange(patterns.size)
        new_bits = np.roll(patterns, 1)
        memory = patterns.copy()
        memory[1::3] = new_bits[1::3]
        memory[2::3] ^= memory.dtype.type(1)
        check_scatter(
            kernels, device, memory, BlockedChange.of(places, patterns, new_bits), redo=redo
        )

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("width", WIDTHS)
    def test_memory_of_any_size(
        self, kernels: DeviceKernels, device: torch.device, width: int, size: int
    ) -> None:
        """None, one, and sizes beside those of a block."""
        memory = random_units(width, size)
        places = np.arange(size)
        check_combine(kernels, device, memory, places)
        change = BlockedChange.of(places, memory.copy(), memory ^ memory.dtype.type(1))
        check_scatter(kernels, device, memory, change, redo=False)
        whole = extent_of((size,), Box.whole((size,)), 0, (1,))
        lanes = kernels.lanes(unaligned(memory, device), whole)
        assert lanes == plain_lanes(whole, memory)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_places_in_several_windows_and_none_between(
        self, kernels: DeviceKernels, device: torch.device, width: int
    ) -> None:
        """First and last unit of windows, a window of many changes, and one of none."""
        memory = random_units(width, 300_000, 1)
        window_firsts = [0, 65_536, 196_608, 262_144]
        places = np.concatenate([np.arange(5_000), [65_535, 65_536, 196_608, 299_999]])
        check_combine(kernels, device, memory, places)
        change = BlockedChange.of(places, memory[places], memory[places] + memory.dtype.type(1))
        check_scatter(kernels, device, memory, change, redo=False)
        assert change.block_starts.tolist() == window_firsts

    def test_a_redo_expects_new_bits_too(
        self, kernels: DeviceKernels, device: torch.device
    ) -> None:
        """Old, new, and neither."""
        memory = np.array([1, 20, 99, 7], np.uint16)
        change = BlockedChange.of(
            np.array([0, 1, 2]), np.array([1, 2, 3], np.uint16), np.array([10, 20, 30], np.uint16)
        )
        for redo, expected in ((False, 2), (True, 1)):
            flat = moved(memory, device)
            count = kernels.scatter_compare(flat, device_change(change, device), redo=redo)
            assert int(count) == expected
            assert bits_of(flat).tolist() == [10, 20, 30, 7]

    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("name", [*EXTENTS, "four dims", "far into its tensor"])
    def test_lanes_by_the_definition(
        self, kernels: DeviceKernels, device: torch.device, width: int, name: str
    ) -> None:
        """In any layout, also with indices beyond 32 bits."""
        extent = EXTENTS.get(name) or _MORE_EXTENTS[name]
        memory = random_units(width, 3_000, 2)
        assert kernels.lanes(moved(memory, device), extent) == plain_lanes(extent, memory)

    @pytest.mark.parametrize("name", PATTERNS)
    def test_lanes_of_every_pattern(
        self, kernels: DeviceKernels, device: torch.device, name: str
    ) -> None:
        """Bits count with zeros above them, whatever their highest one is."""
        memory = PATTERNS[name]
        whole = extent_of((memory.size,), Box.whole((memory.size,)), 0, (1,))
        assert kernels.lanes(moved(memory, device), whole) == plain_lanes(whole, memory)


_MORE_EXTENTS = {
    # No two neighbouring dims merge.
    "four dims": extent_of((4, 5, 6, 7), Box((1, 1, 1, 1), (3, 4, 5, 6)), 2, (200, 47, 9, 1)),
    "far into its tensor": extent_of((1 << 22, 1 << 12), Box((4_000_000, 5), (20, 70)), 9, (80, 1)),
}
