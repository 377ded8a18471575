"""Looking at live memory: all of it, or a share at each refit until everything was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.lanes import Lanes
from weightstore.history.workers import Workers
from weightstore.receiver.placement import Placement

_LITTLE_UNIT_COUNT = 1 << 17
"""Destinations with fewer units on average take longer to hand to threads than to look at."""


def scan(placement: Placement, numbers: Iterable[int], thread_count: int) -> NDArray[np.uint64]:
    """Compute the digest lanes of destinations from the bits that are there.

    Args:
        placement: Where the tensors live.
        numbers: Of the destinations.
        thread_count: Threads to use.

    Returns:
        Shape (numbers, 2), in their order.
    """
    destinations = [placement.destinations[number] for number in numbers]
    jobs: Iterator[Callable[[], Lanes]] = (
        partial(placement.storage_of(destination).lanes, destination.extent)
        for destination in destinations
    )
    unit_count = sum(destination.extent.unit_count for destination in destinations)
    # Of little work threads make more: each of its short kernels hands the interpreter over.
    is_little = unit_count < _LITTLE_UNIT_COUNT * len(destinations)
    with Workers(1 if is_little else thread_count) as workers:
        return np.array(list(workers.run(jobs)), np.uint64).reshape(-1, 2)


def damaged_tensors(
    placement: Placement,
    numbers: Iterable[int],
    expected: NDArray[np.uint64],
    thread_count: int,
) -> tuple[str, ...]:
    """Names of tensors whose destinations do not have the lanes that they should.

    Args:
        placement: Where the tensors live.
        numbers: Of the destinations to look at.
        expected: Of all destinations, shape (destinations, 2).
        thread_count: Threads to use.
    """
    looked_at = list(numbers)
    found = scan(placement, looked_at, thread_count)
    wrong = np.flatnonzero(np.any(found != expected[looked_at], axis=1)).tolist()
    tensors = placement.schema.tensors
    names = (tensors[placement.destinations[looked_at[each]].tensor_index].name for each in wrong)
    return tuple(dict.fromkeys(names))


class RollingScan:
    """Which destinations come next, so that a round of refits sees every one.

    Args:
        placement: Where the tensors live.
        refit_count: Refits of a round.
    """

    def __init__(self, placement: Placement, refit_count: int) -> None:
        self._unit_counts = [each.extent.unit_count for each in placement.destinations]
        self._share = -(-sum(self._unit_counts) // refit_count)
        self._next = 0

    def take(self) -> list[int]:
        """The destinations of one refit: at least a round's share of all units."""
        count = len(self._unit_counts)
        taken: list[int] = []
        seen_count = 0
        while seen_count < self._share and len(taken) < count:
            taken.append(self._next)
            seen_count += self._unit_counts[self._next]
            self._next = (self._next + 1) % count
        return taken
