"""Boxes and ranges by example; `tests/property/test_boxes.py` has the laws."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.errors import InputRefusedError
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


def test_cutting_covers_everything_once() -> None:
    assert list(cut_flat(0)) == []
    assert list(cut_flat(1)) == [FlatRange(0, 1)]
    eight_mi = 8 * 1024 * 1024
    assert list(cut_flat(eight_mi)) == [FlatRange(0, eight_mi)]
    assert list(cut_flat(eight_mi + 1)) == [FlatRange(0, eight_mi), FlatRange(eight_mi, 1)]
    assert list(cut_flat(7, 3)) == [FlatRange(0, 3), FlatRange(3, 3), FlatRange(6, 1)]


def test_intersections() -> None:
    rows, columns = Box((2, 0), (2, 8)), Box((0, 3), (12, 2))
    assert intersect(rows, columns) == Box((2, 3), (2, 2))
    assert intersect(rows, Box((4, 0), (1, 8))) is None
    assert intersect(rows, Box((2, 0), (0, 8))) is None
    assert intersect(Box((), ()), Box((), ())) == Box((), ())
    with pytest.raises(InputRefusedError, match="one tensor"):
        intersect(rows, Box((0,), (1,)))
    assert intersect_ranges(FlatRange(0, 5), FlatRange(3, 9)) == FlatRange(3, 2)
    assert intersect_ranges(FlatRange(0, 5), FlatRange(5, 1)) is None


def test_row_shards_are_one_run_and_column_shards_one_run_per_row() -> None:
    shape = (12, 8)
    rows, columns = Box((4, 0), (4, 8)), Box((0, 2), (12, 2))
    assert flat_range_of_box(rows, shape) == FlatRange(32, 32)
    assert flat_range_of_box(columns, shape) is None
    assert list(runs_of_box(rows, shape)) == [FlatRange(32, 32)]
    assert list(runs_of_box(columns, shape)) == [FlatRange(8 * row + 2, 2) for row in range(12)]


def test_dims_of_size_1_and_no_dims() -> None:
    assert flat_range_of_box(Box((1, 0, 0), (2, 1, 3)), (4, 1, 3)) == FlatRange(3, 6)
    assert flat_range_of_box(Box((1, 0, 1), (1, 1, 2)), (4, 1, 3)) == FlatRange(4, 2)
    assert flat_range_of_box(Box((), ()), ()) == FlatRange(0, 1)
    assert list(runs_of_box(Box((), ()), ())) == [FlatRange(0, 1)]
    assert flat_range_of_box(Box((5,), (0,)), (5,)) == FlatRange(0, 0)
    assert list(runs_of_box(Box((5,), (0,)), (5,))) == []


def test_a_range_becomes_the_boxes_that_tile_it() -> None:
    assert boxes_of_range(FlatRange(0, 96), (12, 8)) == (Box.whole((12, 8)),)
    assert boxes_of_range(FlatRange(3, 15), (12, 8)) == (
        Box((0, 3), (1, 5)),
        Box((1, 0), (1, 8)),
        Box((2, 0), (1, 2)),
    )
    assert boxes_of_range(FlatRange(0, 1), ()) == (Box((), ()),)
    assert boxes_of_range(FlatRange(0, 0), (3, 0)) == ()


def test_positions_in_a_box_are_found_in_the_tensor() -> None:
    found = tensor_positions(Box((1, 2), (2, 3)), (4, 8), np.arange(6, dtype=np.int64))
    assert found.tolist() == [10, 11, 12, 18, 19, 20]
    assert tensor_positions(Box((), ()), (), np.zeros(1, np.int64)).tolist() == [0]


def test_positions_pass_32_bits() -> None:
    shape = (2**20, 2**20)
    found = tensor_positions(Box((2**20 - 1, 0), (1, 2**20)), shape, np.array([7], np.int64))
    assert found.tolist() == [(2**20 - 1) * 2**20 + 7]


@pytest.mark.parametrize(
    "box", [Box((0, 0), (13, 8)), Box((12, 0), (1, 8)), Box((0,), (1,)), Box((0, 8), (1, 1))]
)
def test_boxes_outside_the_tensor_are_refused(box: Box) -> None:
    for use in (flat_range_of_box, lambda box, shape: list(runs_of_box(box, shape))):
        with pytest.raises(InputRefusedError, match="not within"):
            use(box, (12, 8))
    with pytest.raises(InputRefusedError, match="not within"):
        tensor_positions(box, (12, 8), np.zeros(1, np.int64))


def test_what_is_no_box_or_range_is_refused() -> None:
    for offsets, sizes in [((0,), (1, 1)), ((-1,), (1,)), ((0,), (-1,))]:
        with pytest.raises(InputRefusedError, match="no box"):
            Box(offsets, sizes)
    with pytest.raises(InputRefusedError, match="no range"):
        FlatRange(-1, 1)
    with pytest.raises(InputRefusedError, match="ends after"):
        boxes_of_range(FlatRange(0, 97), (12, 8))
