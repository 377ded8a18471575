"""What finding changes on a device must give: what the NumPy oracle gives, in the same order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weightstore.codec.kernels import STORE_SLACK_COUNT
from weightstore.codec.lanes import Units
from weightstore.codec.numpy_kernels import NumpyKernels
from weightstore.testing.device_kernels_contract import (
    PATTERNS,
    SIZES,
    bits_of,
    unaligned,
)
from weightstore.testing.live_storage_contract import WIDTHS, random_units
from weightstore.trainer.detect_kernels import DetectKernels


def check_changes(kernels: DetectKernels, device: torch.device, old: Units, new: Units) -> None:
    """Compare with the oracle: positions, bits before, bits after."""
    room = old.size + STORE_SLACK_COUNT
    positions = np.empty(room, np.uint32)
    old_bits, new_bits = np.empty(room, old.dtype), np.empty(room, old.dtype)
    count = NumpyKernels().find_changes(old, new, positions, old_bits, new_bits)
    found = kernels.find_changes(unaligned(old, device), unaligned(new, device))
    assert found.positions.dtype is torch.int32
    for expected, bits in zip((positions, old_bits, new_bits), found, strict=True):
        assert np.array_equal(bits_of(bits), expected[:count])


class DetectKernelsContract:
    """Subclass, and give a fixture `kernels`; another `device` than the CPU is given likewise."""

    @pytest.fixture
    def kernels(self) -> DetectKernels:
        """The loops."""
        raise NotImplementedError

    @pytest.fixture
    def device(self) -> torch.device:
        """Where the bits are."""
        return torch.device("cpu")

    @pytest.mark.parametrize("name", PATTERNS)
    def test_every_pattern_against_others_and_itself(
        self, kernels: DetectKernels, device: torch.device, name: str
    ) -> None:
        """A NaN equals itself, minus zero is not zero: only bits count."""
        patterns = PATTERNS[name]
        check_changes(kernels, device, patterns, patterns.copy())
        check_changes(kernels, device, patterns, np.roll(patterns, 1))
        new = patterns.copy()
        new[::3] ^= new.dtype.type(1) << new.dtype.type(8 * new.itemsize - 1)
        check_changes(kernels, device, patterns, new)

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("width", WIDTHS)
    def test_any_number_of_units(
        self, kernels: DetectKernels, device: torch.device, width: int, size: int
    ) -> None:
        """None, one, all changed, none changed, and the last one alone."""
        old = random_units(width, size)
        check_changes(kernels, device, old, old.copy())
        check_changes(kernels, device, old, ~old)
        new = old.copy()
        new[-1:] ^= new.dtype.type(4)
        check_changes(kernels, device, old, new)

    @pytest.mark.parametrize("width", WIDTHS)
    def test_order_goes_over_many_blocks(
        self, kernels: DetectKernels, device: torch.device, width: int
    ) -> None:
        """Blocks without a change lie between others."""
        old = random_units(width, 70_001, 3)
        new = old.copy()
        chosen = np.random.default_rng(4).choice(old.size, 300, replace=False)
        new[chosen] ^= new.dtype.type(2)
        new[20_000:40_000] = old[20_000:40_000]
        check_changes(kernels, device, old, new)
