"""Live memory of torch on any device, through integers of the unit's width."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import (
    LANE_FACTORS,
    LANE_OFFSETS,
    MASK_64,
    MIX_FACTOR_1,
    MIX_FACTOR_2,
    NO_LANES,
    Lanes,
    Units,
    add_lanes,
)
from weightstore.receiver.live_extents import Extent
from weightstore.receiver.live_storage import PART_UNIT_COUNT, ScatterCounts

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""What units of each width are read through; comparing and copying do not ask for a sign."""
_SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_OFFSET_MASK = 0xFFFF
_SIGN_BIT = 1 << 63


class TorchStorage:
    """Memory of a torch storage.

    Args:
        flat: All of it as one of `INTEGERS`; one dimension, contiguous.
    """

    def __init__(self, flat: torch.Tensor) -> None:
        self._flat = flat

    @property
    def width_bytes(self) -> int:
        """See `LiveStorage`."""
        return self._flat.element_size()

    @property
    def unit_count(self) -> int:
        """See `LiveStorage`."""
        return self._flat.numel()

    @property
    def is_host(self) -> bool:
        """See `LiveStorage`."""
        return self._flat.device.type == "cpu"

    def gather(self, places: NDArray[np.int64], /) -> Units:
        """See `LiveStorage`."""
        found = self._flat.index_select(0, self._moved(places))
        return self._host(found)

    def scatter(self, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
        """See `LiveStorage`."""
        places = self._places(change)
        old_bits, new_bits = self._bits(change.old_bits), self._bits(change.new_bits)
        held = self._flat.index_select(0, places)
        strange = held != old_bits
        if redo:
            strange &= held != new_bits
        self._flat.index_copy_(0, places, new_bits)
        return ScatterCounts(places.numel(), int(strange.sum()))

    def lanes(self, extent: Extent, /) -> Lanes:
        """See `LiveStorage`."""
        total = NO_LANES
        mask = -1 if self.width_bytes == 8 else (1 << 8 * self.width_bytes) - 1  # noqa: PLR2004 -- of int64
        for part in extent.parts(PART_UNIT_COUNT):
            bits = self._view(part).to(torch.int64) & mask
            indices = torch.full(part.sizes, part.first_index, device=bits.device)
            for dim, (size, stride) in enumerate(zip(part.sizes, part.index_strides, strict=True)):
                steps = torch.arange(size, device=bits.device) * stride
                indices += steps.view(-1, *(1 for _ in part.sizes[dim + 1 :]))
            first, second = (_lane(bits, indices, lane) for lane in range(2))
            total = add_lanes(total, (first, second))
        return total

    def write(self, extent: Extent, units: Units, /) -> None:
        """See `LiveStorage`."""
        if extent.unit_count:
            self._view(extent).copy_(self._bits(units).view(extent.sizes))

    def read(self, extent: Extent, /) -> Units:
        """See `LiveStorage`."""
        return self._host(self._view(extent).reshape(-1))

    def _view(self, extent: Extent) -> torch.Tensor:
        return self._flat.as_strided(extent.sizes, extent.strides, extent.base)

    def _places(self, change: BlockedChange) -> torch.Tensor:
        offsets = self._moved(change.offsets.view(np.int16)).to(torch.int64) & _OFFSET_MASK
        counts = self._moved(np.diff(change.block_firsts))
        return self._moved(change.block_starts).repeat_interleave(counts) + offsets

    def _bits(self, units: Units) -> torch.Tensor:
        return self._moved(units.view(_SIGNED[self.width_bytes]))

    def _moved(self, array: NDArray[Any]) -> torch.Tensor:
        # torch warns of arrays that it could write to and must not; nothing here does.
        held = array if array.flags.writeable else array.copy()
        return torch.from_numpy(held).to(self._flat.device)

    def _host(self, bits: torch.Tensor) -> Units:
        found: Units = bits.cpu().numpy().view(_UNSIGNED[self.width_bytes])
        return found.copy() if self.is_host else found


def torch_storage(tensor: torch.Tensor) -> TorchStorage:
    """The whole storage behind a tensor, in units of the tensor's elements."""
    return TorchStorage(flat_integers(tensor))


def flat_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage behind a tensor as integers of its width, sharing the memory.

    It is no view for autograd, so gradients, versions and inference mode do not see it.
    """
    width = tensor.element_size()
    storage = tensor.untyped_storage()
    # An inference tensor could not be written outside that mode; an ordinary one always can.
    with torch.inference_mode(False):
        flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
        return flat[: flat.numel() // width * width].view(INTEGERS[width])


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
