"""Given tensors as the pieces of their schema: spans of large ones, bundles of small ones.

Work on pieces runs on all threads; results come in one order, whatever the number of
threads: a mapping's in schema order, a stream's in that of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from weightstore.history.workers import Workers
from weightstore.layout.boxes import FlatRange
from weightstore.layout.bundles import Bundle
from weightstore.layout.tensors import Units
from weightstore.settings import Limits
from weightstore.trainer.baseline import Baseline, BaselineLayout
from weightstore.trainer.benches import Bench, Benches
from weightstore.trainer.binding import Binding, BoundTensor
from weightstore.trainer.ties import TieCheck

Result = TypeVar("Result")


class BundleFill:
    """Gathers the members of one bundle, whose bits are worked on together.

    Attributes:
        number: Of the bundle in its schema.
        bundle: Its members.
        given: Which members were given, shape (members,).
    """

    def __init__(self, number: int, bundle: Bundle, held: Units | None) -> None:
        self.number = number
        self.bundle = bundle
        self.given: NDArray[np.bool_] = np.zeros(len(bundle.members), dtype=np.bool_)
        self._held = held
        self._later: list[tuple[int, BoundTensor]] = []
        self._copies: Units | None = None
        self._given_count = 0

    @property
    def is_full(self) -> bool:
        """Whether all members were given."""
        return self._given_count == len(self.bundle.members)

    def note(self, place: int, bound: BoundTensor) -> None:
        """Take a member whose bits are read when the bundle's are."""
        self._take(place)
        self._later.append((place, bound))

    def copy(self, place: int, bound: BoundTensor, bench: Bench) -> None:
        """Take a member's bits now."""
        self._take(place)
        if self._copies is None:
            self._copies = np.empty(self.bundle.unit_count, self.bundle.dtype.unit_dtype)
            self._begin(self._copies)
        self._read(place, bound, self._copies, bench)

    def units(self, bench: Bench) -> Units:
        """The bundle's bits; members that were not given are as held, or zero."""
        if self._copies is not None:
            return self._copies
        out = bench.pieces.units(self.bundle.unit_count, self.bundle.dtype.unit_dtype)
        if not self.is_full:
            self._begin(out)
        for place, bound in self._later:
            self._read(place, bound, out, bench)
        return out

    def _take(self, place: int) -> None:
        self.given[place] = True
        self._given_count += 1

    def _begin(self, out: Units) -> None:
        out[:] = 0 if self._held is None else self._held

    def _read(self, place: int, bound: BoundTensor, out: Units, bench: Bench) -> None:
        first, end = int(self.bundle.starts[place]), int(self.bundle.starts[place + 1])
        out[first:end] = bound.read(0, end - first, bench)


class PieceFeed(Generic[Result]):
    """Takes bound tensors apart; `run` it once, and close what it returns.

    Args:
        binding: The given tensors under their schema.
        layout: Of that schema.
        workers: Threads for pieces.
        benches: What each job works with.
        limits: Bounds of a piece.
        held: Bits of members that are not given; None holds zeros.
    """

    def __init__(
        self,
        binding: Binding,
        layout: BaselineLayout,
        *,
        workers: Workers,
        benches: Benches,
        limits: Limits,
        held: Baseline | None = None,
    ) -> None:
        self.ties = TieCheck(benches, limits)
        self._binding = binding
        self._layout = layout
        self._workers = workers
        self._benches = benches
        self._limits = limits
        self._held = held
        self._fills: dict[int, BundleFill] = {}

    def run(
        self,
        on_span: Callable[[BoundTensor, FlatRange, Bench], Result],
        on_bundle: Callable[[BundleFill, Bench], Result],
    ) -> Generator[Result]:
        """Work on every piece that a given tensor is part of; yield the results in order.

        At its end, or once it is closed, no given tensor is read any more.

        Args:
            on_span: Works on a range of a large tensor; runs in any thread.
            on_bundle: Works on a bundle of small ones; runs in any thread.

        Raises:
            SchemaMismatchError: a stream does not fit the schema.
        """
        bound = self._binding.tensors()
        if self._binding.is_mapped:
            yield from self._results(
                job for one in bound for job in self._jobs(one, on_span, on_bundle)
            )
        else:
            for one in bound:
                # All reads of a streamed tensor end before the next one is asked for.
                yield from self._results(self._jobs(one, on_span, on_bundle))
        unfilled = sorted(self._fills.items())
        yield from self._results(partial(self._bundle, fill, on_bundle) for _, fill in unfilled)

    def _results(self, jobs: Iterator[Callable[[], Result | None]]) -> Generator[Result]:
        for result in self._workers.run(jobs):
            if result is not None:
                yield result

    def _jobs(
        self,
        bound: BoundTensor,
        on_span: Callable[[BoundTensor, FlatRange, Bench], Result],
        on_bundle: Callable[[BundleFill, Bench], Result],
    ) -> Iterator[Callable[[], Result | None]]:
        if bound.repeats:
            yield from self.ties.jobs(bound)
            return
        if bound.index not in self._layout.bundle_of:
            for span in self._layout.pieces(bound.index, self._limits):
                yield partial(self._span, bound, span, on_span)
            return
        number, place = self._layout.bundle_of[bound.index]
        fill = self._fills.get(number) or self._new_fill(number)
        if self._binding.is_mapped:
            fill.note(place, bound)
        else:
            with self._benches.lend() as bench:
                fill.copy(place, bound, bench)
        if fill.is_full:
            del self._fills[number]
            yield partial(self._bundle, fill, on_bundle)

    def _new_fill(self, number: int) -> BundleFill:
        held = None if self._held is None else self._held.bundle_units(number)
        fill = self._fills[number] = BundleFill(number, self._layout.bundles[number], held)
        return fill

    def _span(
        self,
        bound: BoundTensor,
        span: FlatRange,
        on_span: Callable[[BoundTensor, FlatRange, Bench], Result],
    ) -> Result:
        with self._benches.lend() as bench:
            return on_span(bound, span, bench)

    def _bundle(self, fill: BundleFill, on_bundle: Callable[[BundleFill, Bench], Result]) -> Result:
        with self._benches.lend() as bench:
            return on_bundle(fill, bench)
