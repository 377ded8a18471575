"""Arithmetic of kept sets: sorted, disjoint, never adjacent ranges of versions.

One set has one form, so two kept sets are equal exactly when their tuples are. Every
function takes and returns well-formed sets; `is_well_formed` checks what came from outside.
Costs are in ranges (at most `Limits.kept_range_count`), never in versions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise

from weightstore.format.records import KeptRange
from weightstore.ids import VersionId

Kept = tuple[KeptRange, ...]


def is_well_formed(kept: Kept) -> bool:
    """Whether the ranges are in order, not empty, and a gap lies between any two."""
    return all(part.first <= part.last for part in kept) and all(
        left.last + 1 < right.first for left, right in pairwise(kept)
    )


def contains(kept: Kept, version: int) -> bool:
    """Whether a version is in the set."""
    place = bisect_right(kept, version, key=_first)
    return place > 0 and version <= kept[place - 1].last


def count(kept: Kept) -> int:
    """How many versions the set holds."""
    return sum(part.last - part.first + 1 for part in kept)


def iterate(kept: Kept) -> Iterator[VersionId]:
    """Every version of the set, rising."""
    for part in kept:
        for version in range(part.first, part.last + 1):
            yield VersionId(version)


def of_versions(versions: Iterable[int]) -> Kept:
    """The set of these versions, in any order, repeats allowed."""
    return _joined((version, version) for version in sorted(versions))


def add(kept: Kept, version: int) -> Kept:
    """The set with one more version."""
    if kept and version == kept[-1].last + 1:
        return (*kept[:-1], _range(kept[-1].first, version))
    return union(kept, (_range(version, version),))


def union(left: Kept, right: Kept) -> Kept:
    """Versions of either set."""
    return _joined(sorted((part.first, part.last) for part in (*left, *right)))


def intersect(left: Kept, right: Kept) -> Kept:
    """Versions of both sets."""
    return _joined(_overlaps(left, right))


def subtract(left: Kept, right: Kept) -> Kept:
    """Versions of `left` that are not in `right`."""
    parts: list[tuple[int, int]] = []
    for part in left:
        first = part.first
        for hole in right:
            if first <= hole.last and hole.first <= part.last:
                parts.append((first, hole.first - 1))
                first = VersionId(hole.last + 1)
        parts.append((first, part.last))
    return _joined((first, last) for first, last in parts if first <= last)


def is_subset(inner: Kept, outer: Kept) -> bool:
    """Whether every version of `inner` is in `outer`."""
    return intersect(inner, outer) == inner


def coarsen(kept: Kept, *, within: Kept, range_count: int) -> Kept:
    """A superset of `kept` inside `within` of at most `range_count` ranges.

    The smallest gaps are filled first, so as few versions as possible stay that could go.
    A gap is filled only if all of it is in `within`; since `within` is itself bounded,
    filling every such gap always suffices when `kept` is a subset of it.

    Raises:
        ValueError: `within` has more ranges than `range_count` and so has the result.
    """
    gaps = sorted(
        (right.first - left.last, left.last + 1, right.first - 1)
        for left, right in pairwise(kept)
        if is_subset((_range(left.last + 1, right.first - 1),), within)
    )
    excess = max(0, len(kept) - range_count)
    if excess > len(gaps):
        raise ValueError(f"{len(kept)} ranges cannot become {range_count} inside the given set")
    return union(kept, _joined(sorted((first, last) for _, first, last in gaps[:excess])))


def _first(part: KeptRange) -> int:
    return part.first


def _range(first: int, last: int) -> KeptRange:
    return KeptRange(first=VersionId(first), last=VersionId(last))


def _joined(parts: Iterable[tuple[int, int]]) -> Kept:
    """Parts sorted by their first version, merged where they touch or overlap."""
    merged: list[tuple[int, int]] = []
    for first, last in parts:
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(_range(first, last) for first, last in merged)


def _overlaps(left: Kept, right: Kept) -> Iterator[tuple[int, int]]:
    i = j = 0
    while i < len(left) and j < len(right):
        first = max(left[i].first, right[j].first)
        last = min(left[i].last, right[j].last)
        if first <= last:
            yield first, last
        if left[i].last < right[j].last:
            i += 1
        else:
            j += 1
