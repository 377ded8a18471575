"""The content of a version before its record."""

from __future__ import annotations

import pytest

from weightstore.format.manifest import IndexRange
from weightstore.trainer.drafts import ranges_of


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ((), []),
        ((3,), [(3, 3)]),
        ((0, 1, 2, 5, 7, 8), [(0, 2), (5, 5), (7, 8)]),
    ],
)
def test_indices_are_said_as_ranges(
    indices: tuple[int, ...], expected: list[tuple[int, int]]
) -> None:
    assert ranges_of(indices) == tuple(IndexRange(first=a, last=b) for a, b in expected)
