"""Tied names that were given as tensors of their own must hold the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.digest import NO_LANES, Lanes, add_lanes, lanes_of
from weightstore.layout.boxes import cut_flat
from weightstore.settings import Limits
from weightstore.trainer.benches import Benches
from weightstore.trainer.binding import BoundTensor, refuse_untied


class TieCheck:
    """Adds up the digest lanes of repeated names, to be compared with their tensors'."""

    def __init__(self, benches: Benches, limits: Limits) -> None:
        self._benches = benches
        self._limits = limits
        self._sums: list[tuple[BoundTensor, list[Lanes]]] = []

    def jobs(self, bound: BoundTensor) -> Iterator[Callable[[], None]]:
        """Jobs that read a repeated name."""
        lanes: list[Lanes] = []
        self._sums.append((bound, lanes))
        for span in cut_flat(bound.spec.unit_count, self._limits.piece_element_count):
            yield partial(self._measure, bound, span.first_unit, span.unit_count, lanes)

    def check(self, table: NDArray[np.uint64]) -> None:
        """Compare with the digest table, after all jobs have run.

        Raises:
            SchemaMismatchError: two tied names hold different bits.
        """
        for bound, lanes in self._sums:
            total = NO_LANES
            for part in lanes:
                total = add_lanes(total, part)
            if total != (int(table[bound.index, 0]), int(table[bound.index, 1])):
                raise refuse_untied(bound)

    def _measure(self, bound: BoundTensor, first: int, count: int, lanes: list[Lanes]) -> None:
        with self._benches.lend() as bench:
            units = bound.read(first, count, bench)
            kernels = bench.kernels_for(count)
            lanes.append(lanes_of(units, first_index=first, kernels=kernels))
