"""Which units of a live memory are which units of a tensor, as one affine map.

The unit of multi-index `i` lies at `base + sum(i * strides)` of the memory and has the
canonical index `first_index + sum(i * index_strides)` in its tensor. A whole tensor, a
strided view and a box are such a map each; several copies, and whatever a loader scatters,
are several maps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.layout.boxes import Box

_NOWHERE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Extent:
    """A part of a memory and of a tensor. Use `extent_of`, which merges dims.

    Attributes:
        base: Unit of the memory where it begins.
        sizes: Of each dim; dims of size 1 are left out, so a single unit has none.
        strides: Units of the memory from one index of a dim to the next.
        first_index: Canonical index of its first unit.
        index_strides: Units of the tensor from one index of a dim to the next; they fall.
    """

    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    first_index: int
    index_strides: tuple[int, ...]

    @property
    def unit_count(self) -> int:
        """Units in it."""
        return math.prod(self.sizes)

    @property
    def end(self) -> int:
        """The unit of the memory after the last of it."""
        if not self.unit_count:
            return self.base
        steps = zip(self.sizes, self.strides, strict=True)
        return self.base + sum((size - 1) * stride for size, stride in steps) + 1

    @property
    def is_run(self) -> bool:
        """Whether it is one run in the tensor, in any steps of the memory."""
        return len(self.sizes) <= 1 and self.index_strides in {(), (1,)}

    @property
    def is_contiguous(self) -> bool:
        """Whether it is one run of the memory too."""
        return self.is_run and self.strides in {(), (1,)}

    def find(
        self, indices: NDArray[np.int64]
    ) -> tuple[slice | NDArray[np.int64], NDArray[np.int64]]:
        """Where canonical indices lie in the memory.

        Args:
            indices: Rising.

        Returns:
            Which of the indices are in this extent, and the unit of the memory of each.
        """
        if not self.unit_count:
            return slice(0, 0), _NOWHERE
        if self.is_run:
            ends = np.array([self.first_index, self.first_index + self.unit_count])
            first, last = np.searchsorted(indices, ends).tolist()
            step = self.strides[0] if self.strides else 1
            inside = indices[first:last] - self.first_index
            return slice(first, last), (inside if step == 1 else inside * step) + self.base
        rest = indices - self.first_index
        is_inside = rest >= 0
        places = np.full_like(indices, self.base)
        for size, stride, index_stride in zip(
            self.sizes, self.strides, self.index_strides, strict=True
        ):
            index, rest = np.divmod(rest, index_stride)
            is_inside &= index < size
            places += index * stride
        chosen = np.flatnonzero(is_inside & (rest == 0))
        return chosen, places[chosen]

    def touches(self, first_index: int, unit_count: int) -> bool:
        """Whether it may share a unit with a run of the tensor; False is certain."""
        if not self.unit_count:
            return False
        steps = zip(self.sizes, self.index_strides, strict=True)
        last = self.first_index + sum((size - 1) * stride for size, stride in steps)
        return first_index <= last and self.first_index < first_index + unit_count

    def parts(self, unit_count_max: int) -> Iterator[Extent]:
        """Cut into extents of so many units at most, in canonical order."""
        if self.unit_count <= unit_count_max:
            if self.unit_count:
                yield self
            return
        row_count = self.sizes[0]
        per_part = unit_count_max // (self.unit_count // row_count)
        if not per_part:
            for row in range(row_count):
                yield from self._rows(row, 1).parts(unit_count_max)
            return
        for row in range(0, row_count, per_part):
            yield self._rows(row, min(per_part, row_count - row))

    def run_indices(self) -> tuple[NDArray[np.int64], int]:
        """Canonical index of the first unit of each run in the tensor, and their length."""
        if not self.unit_count:
            return _NOWHERE, 0
        has_runs = self.index_strides[-1:] == (1,)
        length = self.sizes[-1] if has_runs else 1
        outer = len(self.sizes) - 1 if has_runs else len(self.sizes)
        firsts = np.array([self.first_index], np.int64)
        for size, stride in zip(self.sizes[:outer], self.index_strides[:outer], strict=True):
            firsts = (firsts[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
        return firsts, length

    def _rows(self, first: int, count: int) -> Extent:
        keeps = count > 1
        return Extent(
            self.base + first * self.strides[0],
            ((count,) if keeps else ()) + self.sizes[1:],
            (self.strides[:1] if keeps else ()) + self.strides[1:],
            self.first_index + first * self.index_strides[0],
            (self.index_strides[:1] if keeps else ()) + self.index_strides[1:],
        )


def extent_of(shape: tuple[int, ...], box: Box, base: int, strides: tuple[int, ...]) -> Extent:
    """The extent of a box of a tensor that lies in memory with given strides.

    Args:
        shape: Of the tensor, in units.
        box: Within that shape.
        base: Unit of the memory where the box begins.
        strides: Of the box's dims, in units of the memory.
    """
    index_strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    first_index = sum(map(_multiply, box.offsets, index_strides))
    dims: list[tuple[int, int, int]] = []
    for size, stride, index_stride in zip(box.sizes, strides, index_strides, strict=True):
        if size == 1:
            continue
        if dims:
            outer_size, outer_stride, outer_index_stride = dims[-1]
            if (outer_stride, outer_index_stride) == (size * stride, size * index_stride):
                dims[-1] = (outer_size * size, stride, index_stride)
                continue
        dims.append((size, stride, index_stride))
    return Extent(
        base,
        tuple(dim[0] for dim in dims),
        tuple(dim[1] for dim in dims),
        first_index,
        tuple(dim[2] for dim in dims),
    )


def _multiply(left: int, right: int) -> int:
    return left * right
