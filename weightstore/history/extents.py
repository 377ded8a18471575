"""Which units the packs of one delta change: no unit twice, whatever the packs call it.

The index of a pack is checked by itself when it is read. What two packs say is compared
here, from the indexes alone: runs and bundles before the later pack is applied, boxes that are
no run when the packs of the delta have all been read. A caller that applies pieces as they come
must therefore keep its result to itself until `settle` has returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from operator import add

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import CorruptObjectError, LimitError
from weightstore.format.piece_index import PieceIndex, TensorPlace
from weightstore.ids import VersionId
from weightstore.layout.boxes import Box, FlatRange, boxes_of_range, flat_range_of_box
from weightstore.layout.schema import Schema
from weightstore.settings import Limits

_AXIS_END = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Disjoint runs on one axis, ascending.

    Attributes:
        starts: First unit of each; int64.
        ends: Unit after the last of each; int64.
        packs: Number of the pack that changes it; int64.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    packs: NDArray[np.int64]

    @classmethod
    def sorted(
        cls, starts: NDArray[np.int64], ends: NDArray[np.int64], packs: NDArray[np.int64]
    ) -> _Runs:
        """Runs in any order."""
        order = np.argsort(starts, kind="stable")
        return cls(starts[order], ends[order], packs[order])

    def joined(self, other: _Runs) -> _Runs:
        """These runs and those of another, which overlap none of these."""
        return _Runs.sorted(
            np.concatenate([self.starts, other.starts]),
            np.concatenate([self.ends, other.ends]),
            np.concatenate([self.packs, other.packs]),
        )

    def overlap_with(self, other: _Runs) -> tuple[int, int] | None:
        """The first run of `other` that shares a unit with one of these, and that one."""
        # Of disjoint ascending runs only the last that begins before an end can reach it.
        last = np.searchsorted(self.starts, other.ends, side="left") - 1
        is_hit = (last >= 0) & (self.ends[np.maximum(last, 0)] > other.starts)
        if not is_hit.any():
            return None
        found = int(is_hit.argmax())
        return found, int(last[found])


class DeltaExtents:
    """Refuses the second change of a unit by one delta. Not for several threads.

    All tensors lie one after the other on one axis, and behind them each bundle has one
    place; a tensor is in a bundle or has pieces of its own, never both. Runs are kept in
    batches of doubling sizes, so all packs together cost O(n log² n) for n pieces, whatever
    their order. Boxes that are no run are kept aside until `settle`.

    Args:
        schema: Of the version.
        version: Whose delta it is.
        limits: Bounds the boxes that are compared.

    Raises:
        CorruptObjectError: the tensors have more units than any store can hold.
    """

    def __init__(self, schema: Schema, version: VersionId, limits: Limits) -> None:
        if schema.unit_count + len(schema.bundles) > _AXIS_END:
            raise CorruptObjectError(
                f"version {version}: its tensors would have {schema.unit_count} units",
                facts={"version": version},
            )
        self._schema = schema
        self._version = version
        self._limits = limits
        self._tensor_starts = np.zeros(len(schema.tensors) + 1, np.int64)
        np.cumsum(schema.unit_counts, out=self._tensor_starts[1:])
        self._keys: list[str] = []
        self._batches: list[_Runs] = []
        self._strided: dict[int, list[tuple[TensorPlace, int]]] = defaultdict(list)

    def add(self, key: str, index: PieceIndex) -> None:
        """Take note of a pack, before any of its pieces is applied.

        Args:
            key: Of the pack.
            index: Its index, checked.

        Raises:
            CorruptObjectError: an earlier pack changes one of its units; names both packs.
        """
        runs = self._runs_of(index, len(self._keys))
        self._keys.append(key)
        if not runs.starts.size:
            return
        for batch in self._batches:
            found = batch.overlap_with(runs)
            if found is not None:
                mine, theirs = found
                unit = max(runs.starts[mine], batch.starts[theirs])
                raise self._changed_twice(
                    self._said(int(unit)), int(batch.packs[theirs]), int(runs.packs[mine])
                )
        self._batches.append(runs)
        while (
            len(self._batches) > 1
            and self._batches[-2].starts.size <= self._batches[-1].starts.size
        ):
            newest = self._batches.pop()
            self._batches[-1] = self._batches[-1].joined(newest)

    def settle(self) -> None:
        """Compare what could not be compared pack by pack: boxes that are no run.

        Raises:
            CorruptObjectError: two packs change one unit; names both.
            LimitError: more boxes of a tensor lie across each other than may be compared.
        """
        for tensor_index, places in self._strided.items():
            name = self._schema.tensors[tensor_index].name
            parts = [*self._boxes_of(places), *self._boxes_of_runs(tensor_index)]
            offsets = np.array([box.offsets for box, _ in parts], np.int64)
            ends = offsets + np.array([box.sizes for box, _ in parts], np.int64)
            found = _first_overlap(offsets, ends, name, self._limits)
            if found is not None:
                first, second = sorted(parts[one][1] for one in found)
                raise self._changed_twice(name, first, second)

    def _runs_of(self, index: PieceIndex, pack: int) -> _Runs:
        """The runs of a pack; its own index has seen to it that they are disjoint."""
        tensors, firsts, ends = index.flat_runs.T
        base = self._tensor_starts[tensors]
        bundles = index.bundle_numbers + self._tensor_starts[-1]
        boxed = np.array(list(self._box_runs(index, pack)), np.int64).reshape(-1, 2)
        starts = np.concatenate([base + firsts, boxed[:, 0], bundles])
        return _Runs.sorted(
            starts,
            np.concatenate([base + ends, boxed[:, 1], bundles + 1]),
            np.full(starts.size, pack, np.int64),
        )

    def _box_runs(self, index: PieceIndex, pack: int) -> Iterator[tuple[int, int]]:
        """Pieces of boxes that are runs, on the axis; the others are put aside."""
        for place in index.box_places:
            assert place.box is not None
            shape = self._schema.tensors[place.tensor_index].unit_shape
            run = flat_range_of_box(place.box, shape)
            if run is None:
                self._strided[place.tensor_index].append((place, pack))
                continue
            start = int(self._tensor_starts[place.tensor_index]) + run.first_unit + place.first_unit
            yield start, start + place.unit_count

    def _boxes_of(self, places: list[tuple[TensorPlace, int]]) -> Iterator[tuple[Box, int]]:
        """What pieces of boxes change, as boxes of the tensor, each with its pack."""
        for place, pack in places:
            assert place.box is not None
            part = FlatRange(place.first_unit, place.unit_count)
            for inner in boxes_of_range(part, place.box.sizes):
                offsets = tuple(map(add, place.box.offsets, inner.offsets))
                yield Box(offsets, inner.sizes), pack

    def _boxes_of_runs(self, tensor_index: int) -> Iterator[tuple[Box, int]]:
        """The runs of a tensor as boxes of it, each with its pack."""
        shape = self._schema.tensors[tensor_index].unit_shape
        start, end = self._tensor_starts[tensor_index : tensor_index + 2].tolist()
        for batch in self._batches:
            part = slice(*np.searchsorted(batch.starts, [start, end]).tolist())
            for first, after, pack in zip(
                batch.starts[part].tolist(),
                batch.ends[part].tolist(),
                batch.packs[part].tolist(),
                strict=True,
            ):
                for box in boxes_of_range(FlatRange(first - start, after - first), shape):
                    yield box, pack

    def _said(self, unit: int) -> str:
        """Name of the tensor at a place of the axis; of a bundle its first member's."""
        bundle = unit - int(self._tensor_starts[-1])
        if bundle >= 0:
            return self._schema.tensors[self._schema.bundles[bundle].members[0]].name
        index = int(np.searchsorted(self._tensor_starts, unit, side="right")) - 1
        return self._schema.tensors[index].name

    def _changed_twice(self, name: str, first: int, second: int) -> CorruptObjectError:
        keys = (self._keys[first], self._keys[second])
        return CorruptObjectError(
            f"version {self._version}: the packs {keys[0]} and {keys[1]} change the same units "
            f"of tensor {name!r}",
            do="Check out a version with a full form; report the store as damaged.",
            facts={"version": self._version, "tensor": name, "keys": keys},
        )


def _first_overlap(
    offsets: NDArray[np.int64], ends: NDArray[np.int64], name: str, limits: Limits
) -> tuple[int, int] | None:
    """Two boxes that share a unit, or None.

    Only boxes that meet along one dim are compared, along that where the fewest do: none for
    boxes side by side, few for a grid.
    """
    orders = [_order_along(offsets[:, dim], ends[:, dim]) for dim in range(offsets.shape[1])]
    order, meeting_counts = min(orders, key=lambda one: int(one[1].sum()))
    pair_count = int(meeting_counts.sum())
    if pair_count > limits.box_pair_count:
        raise LimitError(
            f"{len(offsets)} boxes of tensor {name!r} lie across each other: {pair_count} pairs "
            f"to compare are above {limits.box_pair_count}",
            do="Raise Limits.box_pair_count if the version is genuine.",
            facts={"tensor": name, "box_pair_count": pair_count},
        )
    lefts = np.repeat(np.arange(len(order)), meeting_counts)
    first_pairs = np.cumsum(meeting_counts) - meeting_counts
    rights = lefts + 1 + np.arange(pair_count) - np.repeat(first_pairs, meeting_counts)
    ones, others = order[lefts], order[rights]
    for dim in range(offsets.shape[1]):
        start = np.maximum(offsets[ones, dim], offsets[others, dim])
        meets = start < np.minimum(ends[ones, dim], ends[others, dim])
        ones, others = ones[meets], others[meets]
    return (int(ones[0]), int(others[0])) if ones.size else None


def _order_along(
    starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Boxes by their start along a dim, and how many later ones begin before each ends."""
    order = np.argsort(starts, kind="stable")
    reach = np.searchsorted(starts[order], ends[order], side="left")
    return order, reach - np.arange(len(order)) - 1
