"""Kept sets do what sets of versions do, in one form each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.format.canonical import MAX_INTEGER
from weightstore.format.kept import (
    Kept,
    add,
    coarsen,
    contains,
    count,
    intersect,
    is_subset,
    is_well_formed,
    iterate,
    of_versions,
    subtract,
    union,
)
from weightstore.format.records import KeptRange
from weightstore.ids import VersionId

VERSIONS = st.sets(st.integers(1, 40), max_size=30)
ENDS = st.sets(st.integers(MAX_INTEGER - 5, MAX_INTEGER) | st.integers(1, 6))


def _range(first: int, last: int) -> KeptRange:
    return KeptRange(first=VersionId(first), last=VersionId(last))


def _set(kept: Kept) -> set[int]:
    assert is_well_formed(kept)
    return set(iterate(kept))


@given(VERSIONS)
def test_a_set_and_its_ranges_say_the_same(versions: set[int]) -> None:
    kept = of_versions(versions)
    assert _set(kept) == versions
    assert list(iterate(kept)) == sorted(versions)
    assert count(kept) == len(versions)
    assert [contains(kept, version) for version in range(42)] == [
        version in versions for version in range(42)
    ]


@given(VERSIONS, VERSIONS)
def test_arithmetic_is_that_of_sets(left: set[int], right: set[int]) -> None:
    kept_left, kept_right = of_versions(left), of_versions(right)
    assert _set(union(kept_left, kept_right)) == left | right
    assert _set(intersect(kept_left, kept_right)) == left & right
    assert _set(subtract(kept_left, kept_right)) == left - right
    assert is_subset(kept_left, kept_right) == (left <= right)


@given(ENDS, ENDS)
def test_arithmetic_holds_to_the_largest_version(left: set[int], right: set[int]) -> None:
    kept_left, kept_right = of_versions(left), of_versions(right)
    assert _set(union(kept_left, kept_right)) == left | right
    assert _set(intersect(kept_left, kept_right)) == left & right
    assert _set(subtract(kept_left, kept_right)) == left - right


@given(VERSIONS, st.integers(1, 42))
def test_one_more_version(versions: set[int], version: int) -> None:
    assert _set(add(of_versions(versions), version)) == versions | {version}


def test_the_next_version_never_makes_another_range() -> None:
    kept = of_versions([1, 3, 4])
    assert add(kept, 5) == (_range(1, 1), _range(3, 5))
    assert add((), 1) == (_range(1, 1),)


@given(VERSIONS, VERSIONS, st.integers(1, 20))
def test_coarsening_keeps_all_adds_little_and_stays_inside(
    versions: set[int], more: set[int], range_count: int
) -> None:
    within = of_versions(versions | more)
    kept = of_versions(versions)
    if len(within) > range_count:
        return
    coarse = coarsen(kept, within=within, range_count=range_count)
    assert is_subset(kept, coarse)
    assert is_subset(coarse, within)
    assert len(coarse) <= range_count
    if len(kept) <= range_count:
        assert coarse == kept


def test_coarsening_fills_the_smallest_gaps_first() -> None:
    kept = of_versions([1, 10, 12, 20])
    coarse = coarsen(kept, within=of_versions(range(1, 21)), range_count=3)
    assert coarse == (_range(1, 1), _range(10, 12), _range(20, 20))


def test_coarsening_says_so_when_it_cannot() -> None:
    kept = of_versions([1, 3, 5])
    with pytest.raises(ValueError, match="3 ranges cannot become 2"):
        coarsen(kept, within=kept, range_count=2)


@pytest.mark.parametrize(
    "ranges",
    [
        (_range(2, 1),),
        (_range(1, 2), _range(3, 4)),
        (_range(1, 3), _range(3, 4)),
        (_range(5, 6), _range(1, 2)),
        (_range(1, 2), _range(1, 2)),
    ],
)
def test_every_other_form_is_refused(ranges: Kept) -> None:
    assert not is_well_formed(ranges)
