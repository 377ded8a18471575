"""The loops over live memory that torch holds, as a seam: torch operations, or Triton on CUDA.

Bits go in and out as integers of the unit's width (`torch_storage.INTEGERS`), all on one device.
A kernel checks nothing: places lie within the memory, and no place is written twice.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from weightstore.codec.lanes import Lanes
from weightstore.codec.sparse import Combine
from weightstore.codec.triton_choice import triton_where_it_runs
from weightstore.receiver.live_extents import Extent

_LOGGER = logging.getLogger("weightstore.receiver")


@dataclass(frozen=True, slots=True, eq=False)
class DeviceChange:
    """A `BlockedChange` on a device.

    Attributes:
        block_starts: First unit of each window; int64.
        block_firsts: Where each window's changes begin, and the end; int64, one more.
        offsets: Unit within its window of each change; the 16 bits of it as int16.
        old_bits: What each unit holds before.
        new_bits: What it holds afterwards.
    """

    block_starts: torch.Tensor
    block_firsts: torch.Tensor
    offsets: torch.Tensor
    old_bits: torch.Tensor
    new_bits: torch.Tensor


class DeviceKernels(Protocol):
    """Stateless; safe to use from several threads."""

    @property
    def name(self) -> str:
        """`torch` or `triton`."""
        ...

    def gather(self, flat: torch.Tensor, places: torch.Tensor, /) -> torch.Tensor:
        """The bits of the units at places (int64), which may repeat."""
        ...

    def gather_combine(
        self, flat: torch.Tensor, places: torch.Tensor, words: torch.Tensor, combine: Combine, /
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The bits of the units at places (int64), and what a word makes of each."""
        ...

    def scatter_compare(
        self, flat: torch.Tensor, change: DeviceChange, /, *, redo: bool
    ) -> torch.Tensor:
        """Write the new bits, and count the units that held something unexpected.

        Returns:
            The number of units that did not hold their old bits; with `redo`, neither those
            nor their new ones. One integer, on the device: whoever reads it waits for it.
        """
        ...

    def lanes(self, flat: torch.Tensor, extent: Extent, /) -> Lanes:
        """The digest lanes of a part, each unit counted at its canonical index."""
        ...


@cache
def device_kernels_for(device: torch.device) -> DeviceKernels:
    """Triton's kernels for a CUDA device where Triton runs, else torch operations."""
    return triton_where_it_runs(
        str(device), tried=lambda: _tried(device), portable=_portable, logger=_LOGGER
    )


def _tried(device: torch.device) -> DeviceKernels:
    from weightstore.receiver.triton_kernels import TritonKernels  # noqa: PLC0415 -- triton is late

    kernels = TritonKernels()
    one = torch.zeros(1, dtype=torch.int64, device=device)
    kernels.gather(one, one)
    return kernels


def _portable() -> DeviceKernels:
    from weightstore.receiver.torch_kernels import TorchKernels  # noqa: PLC0415 -- it needs this

    return TorchKernels()
