"""The loops over live memory as Triton kernels. Import this module late: it imports Triton.

With `TRITON_INTERPRET=1` in the environment before the import they run on the CPU, slowly, on
tensors in host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from weightstore.codec.lanes import (
    LANE_COUNT,
    LANE_FACTORS,
    LANE_OFFSETS,
    MASK_64,
    MIX_FACTOR_1,
    MIX_FACTOR_2,
    NO_LANES,
    Lanes,
)
from weightstore.codec.sparse import Combine
from weightstore.receiver.device_kernels import DeviceChange
from weightstore.receiver.live_extents import Extent
from weightstore.receiver.torch_kernels import TorchKernels, unit_mask

BLOCK_UNIT_COUNT = 1024
"""Units that one program works on at once."""
DIM_COUNT_MAX = 3
"""Dims of an extent that the kernel walks; an extent of more goes through torch."""

_OPTIONS = {"enable_fp_fusion": False}
"""There is no float in any kernel; said, so that Triton does not warn of its default."""
_kernel: Callable[[Callable[..., object]], Any] = triton.jit
_ADD, _XOR, _SET, _KEEP = (tl.constexpr(code) for code in range(4))
_CODES = {Combine.ADD: _ADD, Combine.XOR: _XOR, Combine.SET: _SET}
_ROWS, _PLANES = tl.constexpr(2), tl.constexpr(3)
_OFFSET_MASK = tl.constexpr(0xFFFF)
_FACTOR_0, _FACTOR_1 = (tl.constexpr(factor) for factor in LANE_FACTORS)
_OFFSET_0, _OFFSET_1 = (tl.constexpr(offset) for offset in LANE_OFFSETS)
_MIX_1, _MIX_2 = tl.constexpr(MIX_FACTOR_1), tl.constexpr(MIX_FACTOR_2)


class TritonKernels:
    """`DeviceKernels` in Triton.

    Args:
        block_unit_count: Units that one program works on at once; a power of two.
    """

    name = "triton"

    def __init__(self, block_unit_count: int = BLOCK_UNIT_COUNT) -> None:
        self._block = block_unit_count

    def gather(self, flat: torch.Tensor, places: torch.Tensor, /) -> torch.Tensor:
        """See `DeviceKernels`."""
        return self._gathered(flat, places, None, _KEEP)[0]

    def gather_combine(
        self, flat: torch.Tensor, places: torch.Tensor, words: torch.Tensor, combine: Combine, /
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `DeviceKernels`."""
        return self._gathered(flat, places, words, _CODES[combine])

    def scatter_compare(
        self, flat: torch.Tensor, change: DeviceChange, /, *, redo: bool
    ) -> torch.Tensor:
        """See `DeviceKernels`."""
        window_count = change.block_starts.numel()
        strange = torch.zeros(window_count, dtype=torch.int64, device=flat.device)
        if window_count:
            with torch.cuda.device(flat.get_device()):
                _scatter_compare[(window_count,)](
                    flat,
                    change.block_starts,
                    change.block_firsts,
                    change.offsets,
                    change.old_bits,
                    change.new_bits,
                    strange,
                    redo=redo,
                    block=self._block,
                    **_OPTIONS,
                )
        return strange.sum()

    def lanes(self, flat: torch.Tensor, extent: Extent, /) -> Lanes:
        """See `DeviceKernels`."""
        count = extent.unit_count
        if not count:
            return NO_LANES
        if len(extent.sizes) > DIM_COUNT_MAX:
            return TorchKernels().lanes(flat, extent)
        program_count = triton.cdiv(count, self._block)
        sums = torch.empty((program_count, LANE_COUNT), dtype=torch.int64, device=flat.device)
        dims = _Dims.of(extent)
        with torch.cuda.device(flat.get_device()):
            _lanes[(program_count,)](
                flat,
                sums,
                count,
                extent.base,
                extent.first_index,
                *dims.sizes[1:],
                *dims.strides,
                *dims.index_strides,
                dim_count=len(extent.sizes),
                unit_mask=unit_mask(flat),
                block=self._block,
                **_OPTIONS,
            )
        first, second = sums.sum(0).tolist()
        return first & MASK_64, second & MASK_64

    def _gathered(
        self,
        flat: torch.Tensor,
        places: torch.Tensor,
        words: torch.Tensor | None,
        combine: tl.constexpr,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = places.numel()
        old_bits = torch.empty(count, dtype=flat.dtype, device=flat.device)
        new_bits = old_bits if words is None else torch.empty_like(old_bits)
        if count:
            with torch.cuda.device(flat.get_device()):
                _gather_combine[(triton.cdiv(count, self._block),)](
                    flat,
                    places,
                    old_bits if words is None else words,
                    old_bits,
                    new_bits,
                    count,
                    combine=combine.value,
                    block=self._block,
                    **_OPTIONS,
                )
        return old_bits, new_bits


class _Dims(NamedTuple):
    """The dims of an extent, the innermost last, as many as the kernel takes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    index_strides: tuple[int, ...]

    @classmethod
    def of(cls, extent: Extent) -> _Dims:
        lacking = DIM_COUNT_MAX - len(extent.sizes)
        ones, zeros = (1,) * lacking, (0,) * lacking
        return cls(ones + extent.sizes, zeros + extent.strides, zeros + extent.index_strides)


@_kernel
def _gather_combine(
    flat: tl.tensor,
    places: tl.tensor,
    words: tl.tensor,
    old_bits: tl.tensor,
    new_bits: tl.tensor,
    count: tl.tensor,
    combine: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """See `DeviceKernels.gather_combine`; `_KEEP` reads the old bits alone."""
    numbers = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_inside = numbers < count
    held = tl.load(flat + tl.load(places + numbers, mask=is_inside, other=0), mask=is_inside)
    tl.store(old_bits + numbers, held, mask=is_inside)
    if combine != _KEEP:
        word = tl.load(words + numbers, mask=is_inside)
        made = word
        if combine == _ADD:
            # In 64 bits and cut to the width: wrapping is meant, so no check of it may trap.
            made = (held.to(tl.int64) + word.to(tl.int64)).to(held.dtype)
        if combine == _XOR:
            made = held ^ word
        tl.store(new_bits + numbers, made, mask=is_inside)


@_kernel
def _scatter_compare(
    flat: tl.tensor,
    block_starts: tl.tensor,
    block_firsts: tl.tensor,
    offsets: tl.tensor,
    old_bits: tl.tensor,
    new_bits: tl.tensor,
    strange: tl.tensor,
    redo: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """See `DeviceKernels.scatter_compare`; a program writes one window."""
    window = tl.program_id(0)
    start = tl.load(block_starts + window)
    end = tl.load(block_firsts + window + 1)
    strange_counts = tl.zeros((block,), tl.int32)
    for first in range(tl.load(block_firsts + window), end, block):
        numbers = first + tl.arange(0, block)
        is_inside = numbers < end
        offset = tl.load(offsets + numbers, mask=is_inside, other=0).to(tl.int64) & _OFFSET_MASK
        held = tl.load(flat + start + offset, mask=is_inside)
        new = tl.load(new_bits + numbers, mask=is_inside)
        is_strange = is_inside & (held != tl.load(old_bits + numbers, mask=is_inside))
        if redo:
            is_strange = is_strange & (held != new)
        strange_counts += is_strange.to(tl.int32)
        tl.store(flat + start + offset, new, mask=is_inside)
    tl.store(strange + window, tl.sum(strange_counts))


@_kernel
def _lanes(
    flat: tl.tensor,
    sums: tl.tensor,
    unit_count: tl.tensor,
    base: tl.tensor,
    first_index: tl.tensor,
    size_1: tl.tensor,
    size_2: tl.tensor,
    stride_0: tl.tensor,
    stride_1: tl.tensor,
    stride_2: tl.tensor,
    index_stride_0: tl.tensor,
    index_stride_1: tl.tensor,
    index_stride_2: tl.tensor,
    dim_count: tl.constexpr,
    unit_mask: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """See `DeviceKernels.lanes`; a program adds up one block."""
    program = tl.program_id(0).to(tl.int64)
    numbers = program * block + tl.arange(0, block)
    is_inside = numbers < unit_count
    rest = numbers
    places = base + tl.zeros_like(numbers)
    indices = first_index + tl.zeros_like(numbers)
    if dim_count >= _ROWS:
        inner = rest % size_2
        rest = rest // size_2
        places += inner * stride_2
        indices += inner * index_stride_2
        if dim_count == _PLANES:
            middle = rest % size_1
            rest = rest // size_1
            places += middle * stride_1
            indices += middle * index_stride_1
            places += rest * stride_0
            indices += rest * index_stride_0
        else:
            places += rest * stride_1
            indices += rest * index_stride_1
    else:
        places += rest * stride_2
        indices += rest * index_stride_2
    bits = (tl.load(flat + places, mask=is_inside, other=0).to(tl.int64) & unit_mask).to(tl.uint64)
    words = indices.to(tl.uint64)
    first = _mix(bits ^ _mix(words * _FACTOR_0 + _OFFSET_0))
    second = _mix(bits ^ _mix(words * _FACTOR_1 + _OFFSET_1))
    none = tl.zeros_like(bits)
    tl.store(sums + 2 * program, tl.sum(tl.where(is_inside, first, none)).to(tl.int64))
    tl.store(sums + 2 * program + 1, tl.sum(tl.where(is_inside, second, none)).to(tl.int64))


@_kernel
def _mix(word: tl.tensor) -> tl.tensor:
    """The finaliser of splitmix64."""
    word = (word ^ (word >> 30)) * _MIX_1
    word = (word ^ (word >> 27)) * _MIX_2
    return word ^ (word >> 31)
