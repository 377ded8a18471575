"""The loops over live memory as torch operations: the portable path, on any device."""

from __future__ import annotations

from typing import assert_never

import torch

from weightstore.codec.lanes import (
    LANE_COUNT,
    LANE_FACTORS,
    LANE_OFFSETS,
    MASK_64,
    MIX_FACTOR_1,
    MIX_FACTOR_2,
    NO_LANES,
    Lanes,
    add_lanes,
)
from weightstore.codec.sparse import Combine
from weightstore.receiver.device_kernels import DeviceChange
from weightstore.receiver.live_extents import Extent
from weightstore.receiver.live_storage import PART_UNIT_COUNT

_OFFSET_MASK = 0xFFFF
_SIGN_BIT = 1 << 63


class TorchKernels:
    """`DeviceKernels` in torch operations."""

    name = "torch"

    def gather(self, flat: torch.Tensor, places: torch.Tensor, /) -> torch.Tensor:
        """See `DeviceKernels`."""
        return flat.index_select(0, places)

    def gather_combine(
        self, flat: torch.Tensor, places: torch.Tensor, words: torch.Tensor, combine: Combine, /
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DeviceKernels`."""
        held = flat.index_select(0, places)
        match combine:
            case Combine.ADD:
                return held, held + words
            case Combine.XOR:
                return held, held ^ words
            case Combine.SET:
                return held, words
            case _:
                assert_never(combine)

    def scatter_compare(
        self, flat: torch.Tensor, change: DeviceChange, /, *, redo: bool
    ) -> torch.Tensor:
        """See `DeviceKernels`."""
        places = _places(change)
        held = flat.index_select(0, places)
        strange = held != change.old_bits
        if redo:
            strange &= held != change.new_bits
        flat.index_copy_(0, places, change.new_bits)
        return strange.sum()

    def lanes(self, flat: torch.Tensor, extent: Extent, /) -> Lanes:
        """See `DeviceKernels`."""
        total = NO_LANES
        mask = unit_mask(flat)
        for part in extent.parts(PART_UNIT_COUNT):
            base = flat.storage_offset() + part.base
            bits = flat.as_strided(part.sizes, part.strides, base).to(torch.int64) & mask
            indices = torch.full(part.sizes, part.first_index, device=bits.device)
            for dim, (size, stride) in enumerate(zip(part.sizes, part.index_strides, strict=True)):
                steps = torch.arange(size, device=bits.device) * stride
                indices += steps.view(-1, *(1 for _ in part.sizes[dim + 1 :]))
            first, second = (_lane(bits, indices, lane) for lane in range(LANE_COUNT))
            total = add_lanes(total, (first, second))
        return total


def unit_mask(flat: torch.Tensor) -> int:
    """The bits of a unit, as an int64: what zero-extends a signed one."""
    width = flat.element_size()
    return -1 if width == torch.int64.itemsize else (1 << 8 * width) - 1


def _places(change: DeviceChange) -> torch.Tensor:
    offsets = change.offsets.to(torch.int64) & _OFFSET_MASK
    counts = change.block_firsts.diff()
    return change.block_starts.repeat_interleave(counts, output_size=offsets.numel()) + offsets


def _lane(bits: torch.Tensor, indices: torch.Tensor, lane: int) -> int:
    words = _mix(indices * _signed(LANE_FACTORS[lane]) + _signed(LANE_OFFSETS[lane]))
    return int(_mix(bits ^ words).sum()) & MASK_64


def _mix(words: torch.Tensor) -> torch.Tensor:
    """The finaliser of splitmix64; int64 wraps as uint64 does."""
    words = (words ^ _shifted(words, 30)) * _signed(MIX_FACTOR_1)
    words = (words ^ _shifted(words, 27)) * _signed(MIX_FACTOR_2)
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bit_count: int) -> torch.Tensor:
    """Shift right without the sign."""
    return (words >> bit_count) & ((1 << 64 - bit_count) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word & _SIGN_BIT else word
