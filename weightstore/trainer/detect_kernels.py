"""Finding changes where the tensors are, as a seam: torch operations, or Triton on CUDA.

Bits go in and out as signed integers of the unit's width (bytes as uint8), all on one device.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import NamedTuple, Protocol

import torch

from weightstore.codec.triton_choice import triton_where_it_runs

_LOGGER = logging.getLogger("weightstore.trainer")


class DeviceChanges(NamedTuple):
    """Units that differ, in rising order, on their device.

    Attributes:
        positions: Where; int32.
        old_bits: What they held before.
        new_bits: What they hold now.
    """

    positions: torch.Tensor
    old_bits: torch.Tensor
    new_bits: torch.Tensor


class DetectKernels(Protocol):
    """Stateless; safe to use from several threads."""

    @property
    def name(self) -> str:
        """`torch` or `triton`."""
        ...

    def find_changes(self, old: torch.Tensor, new: torch.Tensor, /) -> DeviceChanges:
        """Find the units that differ: where, and their bits before and after.

        Args:
            old: One dimension, contiguous, at most 2^31 - 1 units.
            new: The same units now.
        """
        ...


@cache
def detect_kernels_for(device: torch.device) -> DetectKernels:
    """Triton's kernels for a CUDA device where Triton runs, else torch operations."""
    return triton_where_it_runs(
        str(device), tried=lambda: _tried(device), portable=TorchDetectKernels, logger=_LOGGER
    )


def _tried(device: torch.device) -> DetectKernels:
    from weightstore.trainer.triton_detect import (  # noqa: PLC0415 -- triton is late
        TritonDetectKernels,
    )

    kernels = TritonDetectKernels()
    one = torch.zeros(1, dtype=torch.int64, device=device)
    kernels.find_changes(one, one)
    return kernels


class TorchDetectKernels:
    """`DetectKernels` in torch operations: the portable path, on any device."""

    name = "torch"

    def find_changes(self, old: torch.Tensor, new: torch.Tensor, /) -> DeviceChanges:
        """See `DetectKernels`."""
        positions = torch.nonzero(old != new).reshape(-1)
        return DeviceChanges(
            positions.to(torch.int32),
            old.index_select(0, positions),
            new.index_select(0, positions),
        )
