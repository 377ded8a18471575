"""Triton's kernels on the CPU, by Triton's own interpreter.

Triton decides when it is imported whether kernels are compiled or interpreted, so a process has
them in one way only.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading

import pytest
import torch

from weightstore.codec.lanes import Lanes
from weightstore.codec.sparse import Combine
from weightstore.receiver.device_kernels import DeviceChange, DeviceKernels
from weightstore.receiver.live_extents import Extent

_BLOCK_UNIT_COUNT = 16_384
"""Large, since every program takes the interpreter about as long."""


def interpret_triton() -> None:
    """Import Triton's kernels so that they are interpreted; a second call does nothing.

    Where Triton is not installed, the test that calls this is skipped.

    Raises:
        RuntimeError: this process has imported Triton to compile.
    """
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs the triton extra")
    if "triton" not in sys.modules:
        # It stays: Triton asks again when it first starts a kernel.
        os.environ["TRITON_INTERPRET"] = "1"  # noqa: TID251 -- Triton reads it from nowhere else
    from triton.runtime.interpreter import InterpretedFunction  # noqa: PLC0415 -- triton is late

    from weightstore.receiver import triton_kernels  # noqa: PLC0415 -- triton is late

    is_interpreted = isinstance(triton_kernels._lanes, InterpretedFunction)  # noqa: SLF001 -- no public way
    if not is_interpreted:
        raise RuntimeError("Triton was imported to compile: run these tests in another process")


class OneAtATime:
    """Triton's kernels for several threads: its interpreter runs one kernel at a time."""

    name = "triton"
    _lock = threading.Lock()

    def __init__(self) -> None:
        interpret_triton()
        from weightstore.receiver.triton_kernels import TritonKernels  # noqa: PLC0415 -- in its mode

        self._kernels: DeviceKernels = TritonKernels(_BLOCK_UNIT_COUNT)

    def gather(self, flat: torch.Tensor, places: torch.Tensor, /) -> torch.Tensor:
        """See `DeviceKernels`."""
        with self._lock:
            return self._kernels.gather(flat, places)

    def gather_combine(
        self, flat: torch.Tensor, places: torch.Tensor, words: torch.Tensor, combine: Combine, /
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DeviceKernels`."""
        with self._lock:
            return self._kernels.gather_combine(flat, places, words, combine)

    def scatter_compare(
        self, flat: torch.Tensor, change: DeviceChange, /, *, redo: bool
    ) -> torch.Tensor:
        """See `DeviceKernels`."""
        with self._lock:
            return self._kernels.scatter_compare(flat, change, redo=redo)

    def lanes(self, flat: torch.Tensor, extent: Extent, /) -> Lanes:
        """See `DeviceKernels`."""
        with self._lock:
            return self._kernels.lanes(flat, extent)
