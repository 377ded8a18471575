"""Live memory of torch on any device, through integers of the unit's width."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Lanes, Units
from weightstore.receiver.device_kernels import DeviceChange, DeviceKernels, device_kernels_for
from weightstore.receiver.live_extents import Extent
from weightstore.receiver.live_storage import ScatterCounts

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""What units of each width are read through; comparing and copying do not ask for a sign."""
_SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class TorchStorage:
    """Memory of a torch storage.

    Args:
        flat: All of it as one of `INTEGERS`; one dimension, contiguous.
        kernels: The loops to use; None takes what suits the device.
    """

    def __init__(self, flat: torch.Tensor, kernels: DeviceKernels | None = None) -> None:
        self._flat = flat
        self._kernels = kernels or device_kernels_for(flat.device)

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
        return self._host(self._kernels.gather(self._flat, self._moved(places)))

    def scatter(self, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
        """See `LiveStorage`."""
        moved = DeviceChange(
            self._moved(change.block_starts),
            self._moved(change.block_firsts),
            self._moved(change.offsets.view(np.int16)),
            self._bits(change.old_bits),
            self._bits(change.new_bits),
        )
        self._await_device()
        strange_count = self._kernels.scatter_compare(self._flat, moved, redo=redo)
        # Reading the number waits for the writes.
        return ScatterCounts(change.count, int(strange_count))

    def lanes(self, extent: Extent, /) -> Lanes:
        """See `LiveStorage`."""
        return self._kernels.lanes(self._flat, extent)

    def write(self, extent: Extent, units: Units, /) -> None:
        """See `LiveStorage`."""
        if extent.unit_count:
            bits = self._bits(units).view(extent.sizes)
            self._await_device()
            self._view(extent).copy_(bits)
            self._await_device()

    def read(self, extent: Extent, /) -> Units:
        """See `LiveStorage`."""
        return self._host(self._view(extent).reshape(-1))

    def _await_device(self) -> None:
        """Wait for all streams: the engine's step may still be running when its block has ended."""
        if self._flat.is_cuda:
            torch.cuda.synchronize(self._flat.device)

    def _view(self, extent: Extent) -> torch.Tensor:
        return self._flat.as_strided(extent.sizes, extent.strides, extent.base)

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
