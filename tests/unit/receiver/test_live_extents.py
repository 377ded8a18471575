"""Extents: every unit of a tensor's part has one place, in any layout, whole or cut."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weightstore.layout.boxes import Box
from weightstore.receiver.live_extents import Extent, extent_of


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, int, tuple[int, ...]]:
    """A shape, a box of it, and memory in any order of dims with room between them."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    offsets, sizes = [], []
    for dim in shape:
        offset = draw(st.integers(0, dim))
        offsets.append(offset)
        sizes.append(draw(st.integers(0, dim - offset)))
    strides = [0] * len(shape)
    step = draw(st.integers(1, 3))
    for dim in draw(st.permutations(range(len(shape)))):
        strides[dim] = step
        step *= max(1, sizes[dim]) + draw(st.integers(0, 2))
    return shape, Box(tuple(offsets), tuple(sizes)), draw(st.integers(0, 9)), tuple(strides)


def by_hand(
    shape: tuple[int, ...], box: Box, base: int, strides: tuple[int, ...]
) -> dict[int, int]:
    """Canonical index to place, unit by unit."""
    found = {}
    for inner in np.ndindex(*box.sizes):
        outer = [first + at for first, at in zip(box.offsets, inner, strict=True)]
        index = int(np.ravel_multi_index(outer, shape)) if shape else 0
        found[index] = base + sum(at * step for at, step in zip(inner, strides, strict=True))
    return found


@given(laid_out())
def test_find_gives_exactly_the_units_of_the_box(
    given_layout: tuple[tuple[int, ...], Box, int, tuple[int, ...]],
) -> None:
    shape, box, base, strides = given_layout
    extent = extent_of(shape, box, base, strides)
    expected = by_hand(*given_layout)
    assert extent.unit_count == len(expected)
    indices = np.arange(math.prod(shape))
    chosen, places = extent.find(indices)
    assert dict(zip(indices[chosen].tolist(), places.tolist(), strict=True)) == expected
    if expected:
        assert extent.end == max(expected.values()) + 1


@given(laid_out(), st.integers(1, 40))
def test_parts_are_the_whole_in_canonical_order(
    given_layout: tuple[tuple[int, ...], Box, int, tuple[int, ...]], limit: int
) -> None:
    extent = extent_of(*given_layout)
    seen: list[int] = []
    for part in extent.parts(limit):
        assert 0 < part.unit_count <= limit
        firsts, length = part.run_indices()
        seen += (firsts[:, None] + np.arange(length)).reshape(-1).tolist()
        assert part.end <= extent.end
    assert seen == sorted(by_hand(*given_layout))


@given(laid_out(), st.integers(0, 700), st.integers(1, 50))
def test_a_run_that_it_does_not_touch_has_no_unit_of_it(
    given_layout: tuple[tuple[int, ...], Box, int, tuple[int, ...]], first: int, count: int
) -> None:
    extent = extent_of(*given_layout)
    assume(not extent.touches(first, count))
    assert not set(by_hand(*given_layout)) & set(range(first, first + count))


@pytest.mark.parametrize(
    ("shape", "strides", "sizes"),
    [
        ((4, 5, 6), (30, 6, 1), (120,)),
        ((4, 1, 6), (6, 99, 1), (24,)),
        ((4, 6), (1, 4), (4, 6)),
        ((4, 6), (12, 1), (4, 6)),
        ((4, 6), (12, 2), (24,)),
        ((), (), ()),
        ((1, 1), (7, 3), ()),
    ],
)
def test_dims_that_run_on_are_merged(
    shape: tuple[int, ...], strides: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    extent = extent_of(shape, Box.whole(shape), 0, strides)
    assert extent.sizes == sizes
    assert extent.is_run is (len(sizes) <= 1)


def test_rows_of_a_contiguous_tensor_are_one_run() -> None:
    extent = extent_of((8, 100), Box((3, 0), (2, 100)), 40, (100, 1))
    assert extent == Extent(40, (200,), (1,), 300, (1,))
    assert extent.is_contiguous
