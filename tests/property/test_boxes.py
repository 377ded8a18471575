"""Laws of boxes and ranges, against NumPy's own indexing."""

from __future__ import annotations

import math
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from weightstore.layout.boxes import (
    Box,
    FlatRange,
    boxes_of_range,
    cut_flat,
    flat_range_of_box,
    intersect,
    intersect_ranges,
    runs_of_box,
    tensor_positions,
)

Shape = tuple[int, ...]
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, shape: Shape) -> Box:
    ends = [sorted(draw(st.tuples(st.integers(0, dim), st.integers(0, dim)))) for dim in shape]
    return Box(tuple(a for a, _ in ends), tuple(b - a for a, b in ends))


@st.composite
def shaped_boxes(draw: st.DrawFn, count: int) -> tuple[Shape, list[Box]]:
    shape = draw(SHAPES)
    return shape, [draw(boxes(shape)) for _ in range(count)]


def units(box: Box, shape: Shape) -> NDArray[np.int64]:
    """Flat indices in the tensor of a box's units, in the box's own order: the oracle."""
    flat = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    window = tuple(
        slice(offset, offset + size) for offset, size in zip(box.offsets, box.sizes, strict=True)
    )
    return flat[window].reshape(-1) if shape else flat.reshape(-1)


def units_of_runs(runs: list[FlatRange]) -> list[int]:
    return [unit for run in runs for unit in range(run.first_unit, run.end_unit)]


@given(shaped_boxes(2))
def test_an_intersection_holds_what_both_hold(given_boxes: tuple[Shape, list[Box]]) -> None:
    shape, (first, second) = given_boxes
    both = intersect(first, second)
    shared = set(units(first, shape)) & set(units(second, shape))
    assert shared == (set() if both is None else set(units(both, shape)))
    assert both == intersect(second, first)
    assert both is None or both.unit_count > 0


@given(shaped_boxes(1))
def test_runs_tile_a_box_in_order_and_are_as_long_as_they_can_be(
    given_boxes: tuple[Shape, list[Box]],
) -> None:
    shape, (box,) = given_boxes
    runs = list(runs_of_box(box, shape))
    assert units_of_runs(runs) == units(box, shape).tolist()
    assert len({run.unit_count for run in runs}) <= 1
    is_one_run = bool(np.all(np.diff(units(box, shape)) == 1))
    found = flat_range_of_box(box, shape)
    assert (found is not None) == is_one_run
    if found is not None:
        assert units_of_runs([found]) == units(box, shape).tolist()


@given(shaped_boxes(1), st.randoms())
def test_positions_are_found_in_any_order(
    given_boxes: tuple[Shape, list[Box]], random: Random
) -> None:
    shape, (box,) = given_boxes
    positions = np.arange(box.unit_count, dtype=np.int64)
    positions = positions[random.sample(range(len(positions)), len(positions))]
    assert np.array_equal(tensor_positions(box, shape, positions), units(box, shape)[positions])


@given(SHAPES, st.data())
def test_boxes_of_a_range_tile_it_in_order(shape: Shape, data: st.DataObject) -> None:
    unit_count = math.prod(shape)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, unit_count)] * 2)))
    part = FlatRange(start, end - start)
    found = boxes_of_range(part, shape)
    assert [unit for box in found for unit in units(box, shape)] == list(range(start, end))
    assert len(found) <= max(1, 2 * len(shape) - 1)
    assert all(box.is_within(shape) and box.unit_count for box in found)


@given(st.integers(0, 200), st.integers(1, 50))
def test_cuts_are_full_but_the_last(unit_count: int, limit: int) -> None:
    cuts = list(cut_flat(unit_count, limit))
    assert units_of_runs(cuts) == list(range(unit_count))
    assert all(cut.unit_count == limit for cut in cuts[:-1])
    assert all(cut.unit_count for cut in cuts)


@given(*[st.tuples(st.integers(0, 20), st.integers(0, 20))] * 2)
def test_ranges_intersect_like_sets(first: tuple[int, int], second: tuple[int, int]) -> None:
    a, b = FlatRange(*first), FlatRange(*second)
    both = intersect_ranges(a, b)
    assert set(units_of_runs([a])) & set(units_of_runs([b])) == set(
        units_of_runs([both] if both else [])
    )
