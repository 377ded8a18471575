"""Which torch tensors lie in the same memory: exact, also for views that are not contiguous."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """A tensor that bits will be written into.

    Attributes:
        name: As its holder calls it.
        owner: Whose bits it gets; holders of one owner may be the same memory.
        tensor: Dense, on any device.
    """

    name: str
    owner: str
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor's bytes are: addresses from `first` up to `end`, strides in bytes."""

    first: int
    end: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    width_bytes: int
    is_contiguous: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of all its elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.width_bytes

    def of(self, marks: Marks, origin: int) -> NDArray[Any]:
        """The marks of exactly the bytes of this place; a mark's index is address - origin."""
        return as_strided(
            marks[self.first - origin :],
            (*self.shape, self.width_bytes),
            (*self.strides, 1),
        )


def overlaps(holders: Iterable[Holder]) -> Iterator[str]:
    """Describe tensors that would spoil each other, and those that overlap themselves.

    Takes a byte of memory for each byte of tensors that are not contiguous or whose spans
    overlap; all others cost nothing.
    """
    by_device: dict[torch.device, dict[tuple[str, _Place], str]] = {}
    for holder in holders:
        if holder.tensor.numel():
            places = by_device.setdefault(holder.tensor.device, {})
            places.setdefault((holder.owner, _place(holder.tensor)), holder.name)
    for places in by_device.values():
        named = sorted(
            ((place, name) for (_, place), name in places.items()),
            key=lambda item: (item[0].first, item[0].end, item[1]),
        )
        for cluster in _clusters(named):
            yield from _cluster_overlaps(cluster)


def _place(tensor: torch.Tensor) -> _Place:
    width = tensor.element_size()
    # A dim of size 1 never moves: whatever stride it claims says nothing.
    moves = [
        (size, stride * width)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1
    ]
    first = tensor.data_ptr()
    return _Place(
        first=first,
        end=first + sum((size - 1) * stride for size, stride in moves) + width,
        shape=tuple(size for size, _ in moves),
        strides=tuple(stride for _, stride in moves),
        width_bytes=width,
        is_contiguous=tensor.is_contiguous(),
    )


def _clusters(named: Sequence[tuple[_Place, str]]) -> Iterator[list[tuple[_Place, str]]]:
    """Runs of places whose spans overlap, from places in order of their first address."""
    end, number = 0, 0
    numbered = []
    for place, name in named:
        number += place.first >= end
        end = max(end, place.end)
        numbered.append((number, (place, name)))
    for _, members in groupby(numbered, key=lambda item: item[0]):
        yield [member for _, member in members]


def _cluster_overlaps(cluster: Sequence[tuple[_Place, str]]) -> Iterator[str]:
    if len(cluster) == 1 and cluster[0][0].is_contiguous:
        return
    origin = cluster[0][0].first
    marks = np.zeros(max(place.end for place, _ in cluster) - origin, np.bool_)
    for index, (place, name) in enumerate(cluster):
        own = place.of(marks, origin)
        if own.any():
            other = next(
                other for before, other in cluster[:index] if _share(before, place, origin)
            )
            yield f"in the same memory: {other!r} and {name!r}"
        span = marks[place.first - origin : place.end - origin]
        before_count = np.count_nonzero(span)
        is_apart = not own.any()
        own[...] = True
        if is_apart and np.count_nonzero(span) - before_count != place.size_bytes:
            yield f"several elements in one place: {name!r}"


def _share(left: _Place, right: _Place, origin: int) -> bool:
    marks = np.zeros(max(left.end, right.end) - origin, np.bool_)
    left.of(marks, origin)[...] = True
    return bool(right.of(marks, origin).any())
