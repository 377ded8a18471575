"""Finding changes as Triton kernels. Import this module late: it imports Triton.

Two passes: every program counts the changes of its block, a prefix sum says where each block's
go, and every program that has some writes them there, in order. With `TRITON_INTERPRET=1` in the
environment before the import they run on the CPU, slowly, on tensors in host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from weightstore.trainer.detect_kernels import DeviceChanges

BLOCK_UNIT_COUNT = 1024
"""Units that one program compares."""
_OPTIONS = {"enable_fp_fusion": False}
"""There is no float in any kernel; said, so that Triton does not warn of its default."""
_kernel: Callable[[Callable[..., object]], Any] = triton.jit


class TritonDetectKernels:
    """`DetectKernels` in Triton.

    Args:
        block_unit_count: Units that one program compares; a power of two.
    """

    name = "triton"

    def __init__(self, block_unit_count: int = BLOCK_UNIT_COUNT) -> None:
        self._block = block_unit_count

    def find_changes(self, old: torch.Tensor, new: torch.Tensor, /) -> DeviceChanges:
        """See `DetectKernels`."""
        unit_count, device = old.numel(), old.device
        program_count = triton.cdiv(unit_count, self._block)
        counts = torch.zeros(program_count, dtype=torch.int32, device=device)
        firsts = torch.zeros(program_count + 1, dtype=torch.int64, device=device)
        with torch.cuda.device(old.get_device()):
            if program_count:
                _count[(program_count,)](
                    old, new, counts, unit_count, block=self._block, **_OPTIONS
                )
            torch.cumsum(counts, 0, dtype=torch.int64, out=firsts[1:])
            change_count = int(firsts[-1])
            # Zeros, since units that change meanwhile would leave some entries unwritten.
            found = DeviceChanges(
                torch.zeros(change_count, dtype=torch.int32, device=device),
                torch.zeros(change_count, dtype=old.dtype, device=device),
                torch.zeros(change_count, dtype=old.dtype, device=device),
            )
            if change_count:
                _compact[(program_count,)](
                    old, new, firsts, *found, unit_count, block=self._block, **_OPTIONS
                )
        return found


@_kernel
def _count(
    old: tl.tensor,
    new: tl.tensor,
    counts: tl.tensor,
    unit_count: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Count the changes of one block."""
    program = tl.program_id(0)
    numbers = program.to(tl.int64) * block + tl.arange(0, block)
    is_inside = numbers < unit_count
    before = tl.load(old + numbers, mask=is_inside, other=0)
    after = tl.load(new + numbers, mask=is_inside, other=0)
    tl.store(counts + program, tl.sum((before != after).to(tl.int32)))


@_kernel
def _compact(
    old: tl.tensor,
    new: tl.tensor,
    firsts: tl.tensor,
    positions: tl.tensor,
    old_bits: tl.tensor,
    new_bits: tl.tensor,
    unit_count: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Write the changes of one block, from where `firsts` says; see `find_changes`."""
    program = tl.program_id(0)
    first = tl.load(firsts + program)
    end = tl.load(firsts + program + 1)
    if first < end:
        numbers = program.to(tl.int64) * block + tl.arange(0, block)
        is_inside = numbers < unit_count
        before = tl.load(old + numbers, mask=is_inside, other=0)
        after = tl.load(new + numbers, mask=is_inside, other=0)
        differs = before != after
        places = first + tl.cumsum(differs.to(tl.int32), 0) - 1
        # Never beyond what was counted, whatever has become of the units since.
        is_kept = differs & (places < end)
        tl.store(positions + places, numbers.to(tl.int32), mask=is_kept)
        tl.store(old_bits + places, before, mask=is_kept)
        tl.store(new_bits + places, after, mask=is_kept)
