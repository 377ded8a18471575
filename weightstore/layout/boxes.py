"""Boxes and flat ranges: which part of a tensor, without ranks, offsets or pointers.

All numbers are in units of the tensor's dtype (`TensorSpec.unit_shape`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import InputRefusedError

PIECE_UNIT_COUNT_MAX = 8 * 1024 * 1024
"""Longest flat run of one piece: the measured best trade of bytes against parallelism."""


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """A hyper-rectangle of a tensor.

    Attributes:
        offsets: First index along each dim.
        sizes: Length along each dim, from 0.

    Raises:
        InputRefusedError: negative numbers, or different numbers of dims.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.offsets) != len(self.sizes) or any(
            number < 0 for number in self.offsets + self.sizes
        ):
            raise InputRefusedError(
                f"offsets {self.offsets} and sizes {self.sizes} are no box",
                do="Give one offset and one size from 0 for each dim.",
            )

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """The box that is all of a tensor."""
        return cls(offsets=(0,) * len(shape), sizes=shape)

    @property
    def unit_count(self) -> int:
        """Units in the box."""
        return math.prod(self.sizes)

    def is_within(self, shape: tuple[int, ...]) -> bool:
        """Whether this is a box of a tensor of that shape."""
        return len(shape) == len(self.sizes) and all(
            offset + size <= dim
            for offset, size, dim in zip(self.offsets, self.sizes, shape, strict=True)
        )


@dataclass(frozen=True, slots=True, order=True)
class FlatRange:
    """A run of units in row-major order.

    Raises:
        InputRefusedError: a negative number.
    """

    first_unit: int
    unit_count: int

    def __post_init__(self) -> None:
        if self.first_unit < 0 or self.unit_count < 0:
            raise InputRefusedError(f"{self} is no range", do="Give two numbers from 0.")

    @property
    def end_unit(self) -> int:
        """The unit after the last."""
        return self.first_unit + self.unit_count


def intersect(first: Box, second: Box) -> Box | None:
    """What two boxes of one tensor share, or None if nothing.

    Raises:
        InputRefusedError: they have different numbers of dims.
    """
    if len(first.sizes) != len(second.sizes):
        raise InputRefusedError(
            f"{first} and {second} are no boxes of one tensor", do="Compare equal dims."
        )
    starts = tuple(map(max, first.offsets, second.offsets))
    ends = tuple(
        min(a + size_a, b + size_b)
        for a, size_a, b, size_b in zip(
            first.offsets, first.sizes, second.offsets, second.sizes, strict=True
        )
    )
    sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
    if any(size <= 0 for size in sizes):
        return None
    return Box(offsets=starts, sizes=sizes)


def intersect_ranges(first: FlatRange, second: FlatRange) -> FlatRange | None:
    """What two flat ranges share, or None if nothing."""
    start = max(first.first_unit, second.first_unit)
    end = min(first.end_unit, second.end_unit)
    return FlatRange(start, end - start) if start < end else None


def cut_flat(unit_count: int, limit: int = PIECE_UNIT_COUNT_MAX) -> Iterator[FlatRange]:
    """Cut `unit_count` units into runs of `limit`, the last one shorter; none for 0 units."""
    for start in range(0, unit_count, limit):
        yield FlatRange(start, min(limit, unit_count - start))


def flat_range_of_box(box: Box, shape: tuple[int, ...]) -> FlatRange | None:
    """The box as one row-major run of the tensor, or None if it is not one run.

    A box without units is the empty run at 0.

    Raises:
        InputRefusedError: the box is not within the shape.
    """
    _check_within(box, shape)
    if box.unit_count == 0:
        return FlatRange(0, 0)
    run_dim = _first_dim_of_run(box, shape)
    if math.prod(box.sizes[:run_dim]) != 1:
        return None
    return FlatRange(_flat_index(box.offsets, shape), box.unit_count)


def runs_of_box(box: Box, shape: tuple[int, ...]) -> Iterator[FlatRange]:
    """The box's longest row-major runs in the tensor, in ascending order.

    Raises:
        InputRefusedError: the box is not within the shape.
    """
    _check_within(box, shape)
    if box.unit_count == 0:
        return
    run_dim = _first_dim_of_run(box, shape)
    run_length = math.prod(box.sizes[run_dim:])
    outer = [
        range(offset, offset + size)
        for offset, size in zip(box.offsets[:run_dim], box.sizes[:run_dim], strict=True)
    ]
    for index in itertools.product(*outer):
        yield FlatRange(_flat_index((*index, *box.offsets[run_dim:]), shape), run_length)


def boxes_of_range(part: FlatRange, shape: tuple[int, ...]) -> tuple[Box, ...]:
    """The fewest boxes that tile a flat range, in ascending order; none for an empty range.

    Raises:
        InputRefusedError: the range is not within the shape.
    """
    if part.end_unit > math.prod(shape):
        raise InputRefusedError(f"{part} ends after a tensor of shape {shape}", do="Check it.")
    return tuple(_boxes(part.first_unit, part.end_unit, shape))


def tensor_positions(
    box: Box, shape: tuple[int, ...], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Flat indices in the tensor for positions in a box.

    Args:
        box: A box of the tensor.
        shape: The tensor's shape in units.
        positions: Flat row-major indices in the box; int64.

    Returns:
        Flat row-major indices in the tensor; int64 of the same length.

    Raises:
        InputRefusedError: the box is not within the shape.
    """
    _check_within(box, shape)
    result = np.full_like(positions, _flat_index(box.offsets, shape))
    rest = positions
    stride = 1
    for size, dim in zip(reversed(box.sizes), reversed(shape), strict=True):
        rest, index = np.divmod(rest, max(size, 1))
        result += index * stride
        stride *= dim
    return result


def _first_dim_of_run(box: Box, shape: tuple[int, ...]) -> int:
    """The dim from which on the box is one run: all later dims are whole."""
    dim = len(shape)
    while dim > 0 and box.sizes[dim - 1] == shape[dim - 1]:
        dim -= 1
    return max(dim - 1, 0)


def _flat_index(index: tuple[int, ...], shape: tuple[int, ...]) -> int:
    flat = 0
    for place, dim in zip(index, shape, strict=True):
        flat = flat * dim + place
    return flat


def _boxes(start: int, end: int, shape: tuple[int, ...]) -> Iterator[Box]:
    if start >= end:
        return
    if not shape:
        yield Box((), ())
        return
    row = math.prod(shape[1:])
    head_row, head = divmod(start, row)
    tail_row, tail = divmod(end, row)
    if head_row == tail_row:
        yield from _in_row(head_row, head, tail, shape)
        return
    if head:
        yield from _in_row(head_row, head, row, shape)
        head_row += 1
    if head_row < tail_row:
        yield Box((head_row, *(0 for _ in shape[1:])), (tail_row - head_row, *shape[1:]))
    yield from _in_row(tail_row, 0, tail, shape)


def _in_row(row_index: int, start: int, end: int, shape: tuple[int, ...]) -> Iterator[Box]:
    for box in _boxes(start, end, shape[1:]):
        yield Box((row_index, *box.offsets), (1, *box.sizes))


def _check_within(box: Box, shape: tuple[int, ...]) -> None:
    if not box.is_within(shape):
        raise InputRefusedError(
            f"{box} is not within a tensor of shape {shape}",
            do="Check offsets and sizes against the shape.",
        )
