"""Which part of every tensor each rank has, and which rank answers for it.

A rank's share is a list of places: a tensor and a box of it. Equal boxes on several ranks are
replicas; the lowest of these ranks accounts for them, and the others must agree with it. Every
other overlap, and every gap, is refused.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import CorruptObjectError, InputRefusedError, RanksDisagreeError
from weightstore.layout.boxes import Box, intersect
from weightstore.layout.schema import Schema
from weightstore.receiver.live_extents import Extent
from weightstore.receiver.placement import Placement, mismatch
from weightstore.settings import Limits

Lanes = NDArray[np.uint64]
Place = tuple[int, Box]
"""A tensor's index in the schema, and a box of it."""

DIM_COUNT_MAX = 64
_LISTED_COUNT = 5


def places_of(placement: Placement) -> tuple[Place, ...]:
    """The tensor and the box of each destination.

    Raises:
        InputRefusedError: a destination is no box of its tensor.
    """
    tensors = placement.schema.tensors
    return tuple(
        (
            each.tensor_index,
            Box.whole(tensors[each.tensor_index].unit_shape)
            if each.is_whole
            else _box_of(each.extent, tensors[each.tensor_index].unit_shape),
        )
        for each in placement.destinations
    )


def encode_boxes(places: Sequence[Place]) -> NDArray[np.int64]:
    """Places as words: tensor, number of dims, offsets, sizes, one place after the other."""
    words = [
        word for index, box in places for word in (index, len(box.sizes), *box.offsets, *box.sizes)
    ]
    return np.array(words, np.int64)


def decode_boxes(words: NDArray[np.int64], schema: Schema, *, what: str) -> tuple[Place, ...]:
    """Places out of words.

    Raises:
        CorruptObjectError: they are no boxes of the schema's tensors.
    """
    given = words.tolist()
    places: list[Place] = []
    at = 0
    while at < len(given):
        index, dim_count = [*given[at : at + 2], -1][:2]
        end = at + 2 + 2 * dim_count
        if not (0 <= index < len(schema.tensors) and 0 <= dim_count <= DIM_COUNT_MAX):
            raise CorruptObjectError(f"{what} has a place of no tensor")
        numbers = given[at + 2 : end]
        shape = schema.tensors[index].unit_shape
        if len(numbers) != 2 * dim_count or min(numbers, default=0) < 0:
            raise CorruptObjectError(f"{what} has a box that ends too early")
        box = Box(tuple(numbers[:dim_count]), tuple(numbers[dim_count:]))
        if not box.is_within(shape):
            raise CorruptObjectError(f"{what} has a box that is not within its tensor")
        places.append((index, box))
        at = end
    return tuple(places)


@dataclass(frozen=True, eq=False)
class Accounts:
    """Who answers for what.

    Attributes:
        schema: Whose tensors these are.
        tensor_indices: By rank, of each of its places.
        accounts: By rank, whether it answers for each of its places.
        replicas: Pairs of (rank, place) that hold the same box; the first one answers.
    """

    schema: Schema
    tensor_indices: tuple[NDArray[np.int64], ...]
    accounts: tuple[NDArray[np.bool_], ...]
    replicas: tuple[tuple[tuple[int, int], tuple[int, int]], ...]

    def check(self, lanes: Sequence[Lanes | None], expected: Lanes, *, what: str) -> None:
        """Compare the ranks' partial digests with one another and with a version's table.

        Args:
            lanes: By rank, of each of its places; None where it does not know yet. A tensor
                is compared if every rank that answers for a part of it knows.
            expected: Of the version, shape (tensors, 2).
            what: Names it in messages.

        Raises:
            RanksDisagreeError: replicas differ, or sums do; names ranks and tensors.
        """
        for rank, each in enumerate(lanes):
            count = len(self.tensor_indices[rank])
            if each is not None and len(each) != count:
                raise RanksDisagreeError(
                    f"rank {rank} says digests of {len(each)} places, it has {count}",
                    facts={"rank": rank},
                )
        for (rank, number), (other, copy) in self.replicas:
            first, second = lanes[rank], lanes[other]
            if first is None or second is None or np.array_equal(first[number], second[copy]):
                continue
            name = self.schema.tensors[int(self.tensor_indices[rank][number])].name
            raise RanksDisagreeError(
                f"{what}: ranks {rank} and {other} hold the same box of {name!r} with other bits",
                facts={"tensor": name, "ranks": (rank, other)},
            )
        wrong = self._wrong(lanes, expected)
        if wrong:
            raise RanksDisagreeError(
                f"{what}: the digests of the ranks do not add up for {len(wrong)} tensors, the "
                f"first {wrong[0]!r}",
                facts={"tensors": wrong[:_LISTED_COUNT]},
            )

    def _wrong(self, lanes: Sequence[Lanes | None], expected: Lanes) -> tuple[str, ...]:
        sums = np.zeros_like(expected)
        is_known = np.ones(len(expected), np.bool_)
        for rank, each in enumerate(lanes):
            mask = self.accounts[rank]
            indices = self.tensor_indices[rank][mask]
            if each is None:
                is_known[indices] = False
            else:
                np.add.at(sums, indices, each[mask])
        wrong = np.flatnonzero(is_known & np.any(sums != expected, axis=1)).tolist()
        return tuple(self.schema.tensors[index].name for index in wrong)


def plan_accounts(schema: Schema, shares: Sequence[Sequence[Place]], limits: Limits) -> Accounts:
    """Choose who answers for each box, and see that every element has exactly one.

    Args:
        schema: Whose tensors these are.
        shares: By rank.
        limits: Bounds the comparing of boxes.

    Raises:
        SchemaMismatchError: boxes overlap and are not equal, or leave something out; all of
            it is listed.
    """
    owners: dict[int, dict[Box, tuple[int, int]]] = defaultdict(dict)
    accounts = [np.zeros(len(share), np.bool_) for share in shares]
    replicas: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for rank, share in enumerate(shares):
        for number, (index, box) in enumerate(share):
            owner = owners[index].setdefault(box, (rank, number))
            if owner == (rank, number):
                accounts[rank][number] = True
            else:
                replicas.append((owner, (rank, number)))
    problems = list(_problems(schema, owners, limits))
    if problems:
        raise mismatch(problems)
    indices = tuple(np.array([index for index, _ in share], np.int64) for share in shares)
    return Accounts(schema, indices, tuple(accounts), tuple(replicas))


def _problems(
    schema: Schema, owners: dict[int, dict[Box, tuple[int, int]]], limits: Limits
) -> Iterator[str]:
    for index, spec in enumerate(schema.tensors):
        held = [(box, rank) for box, (rank, _) in owners.get(index, {}).items() if box.unit_count]
        if len(held) * (len(held) - 1) // 2 > limits.box_pair_count:
            yield f"more boxes than can be compared: {spec.name!r} has {len(held)}"
            continue
        for number, (box, rank) in enumerate(held):
            for other, other_rank in held[:number]:
                if intersect(box, other) is not None:
                    yield (
                        f"ranks {other_rank} and {rank} overlap: {spec.name!r}, {other} and {box}"
                    )
        count = sum(box.unit_count for box, _ in held)
        if count < spec.unit_count:
            yield f"no rank has {spec.unit_count - count} of {spec.unit_count} units: {spec.name!r}"


def _box_of(extent: Extent, shape: tuple[int, ...]) -> Box:
    """The box of a tensor whose runs were merged into an extent."""
    if not extent.unit_count:
        return Box((0,) * len(shape), (0,) * len(shape))
    offsets, rest = [], extent.first_index
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    for stride in strides:
        index, rest = divmod(rest, stride)
        offsets.append(index)
    sizes = [1] * len(shape)
    merged = list(zip(extent.sizes, extent.index_strides, strict=True))
    left = 1
    for dim in reversed(range(len(shape))):
        if left == 1 and merged and merged[-1][1] == strides[dim]:
            left = merged.pop()[0]
        if left > shape[dim] - offsets[dim]:
            sizes[dim], left = shape[dim], left // shape[dim]
        else:
            sizes[dim], left = left, 1
    box = Box(tuple(offsets), tuple(sizes))
    if merged or left != 1 or box.unit_count != extent.unit_count or not box.is_within(shape):
        raise InputRefusedError(
            f"a live tensor holds units of a tensor of shape {shape} that are no box of it",
            do="Give the ranks of an engine whole tensors and boxes.",
        )
    return box
