"""Whole tensors without a baseline: their digest table, and on demand a copy of their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.digest import lanes_of, member_lanes
from weightstore.history.workers import Workers
from weightstore.layout.boxes import FlatRange, cut_flat
from weightstore.layout.bundles import Bundle
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units
from weightstore.settings import Limits
from weightstore.trainer.baseline import Baseline, plan_layout
from weightstore.trainer.benches import Bench, Benches
from weightstore.trainer.binding import Binding, BoundTensor
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.feed import BundleFill, PieceFeed
from weightstore.trainer.inputs import InputTensor, StreamedInputs

_Found = tuple[list[int], NDArray[np.uint64]]
"""Schema indices, and their shares of the lanes, shape (indices, 2)."""


@dataclass(frozen=True, slots=True, eq=False)
class Scanned:
    """What a scan found.

    Attributes:
        table: Per-tensor digest lanes, shape (tensors, 2), uint64; zeros where not given.
        unmentioned: Schema indices of tensors that were not given.
    """

    table: NDArray[np.uint64]
    unmentioned: tuple[int, ...]


class Scan:
    """Reads tensors on all threads.

    Args:
        workers: Threads for ranges.
        benches: What each job works with.
        limits: Bounds of a range.
    """

    def __init__(self, workers: Workers, benches: Benches, limits: Limits) -> None:
        self._workers = workers
        self._benches = benches
        self._limits = limits

    def run(self, binding: Binding, into: Baseline | None = None) -> Scanned:
        """Read every given tensor once, and copy its bits into a baseline if there is one.

        Raises:
            SchemaMismatchError: a stream does not fit the schema, or tied names differ.
        """
        layout = into.layout if into is not None else plan_layout(binding.schema)
        feed: PieceFeed[_Found] = PieceFeed(
            binding, layout, workers=self._workers, benches=self._benches, limits=self._limits
        )
        table = np.zeros((len(binding.schema.tensors), 2), dtype=np.uint64)
        target = _Target(into)
        with closing(feed.run(target.span, target.bundle)) as found:
            for indices, lanes in found:
                table[indices] += lanes
        feed.ties.check(table)
        return Scanned(table, binding.unmentioned())

    def baseline_table(self, baseline: Baseline) -> NDArray[np.uint64]:
        """Digest table of what a baseline holds, shape (tensors, 2), uint64."""
        table = np.zeros((len(baseline.layout.schema.tensors), 2), dtype=np.uint64)
        for indices, lanes in self._workers.run(self._held_jobs(baseline)):
            table[indices] += lanes
        return table

    def spool(self, inputs: StreamedInputs, casts: CastRules) -> dict[str, HostTensor]:
        """Copy a stream whose schema is not known yet, cast to the published dtypes."""
        return {found.spec.name: self._copied(found, casts) for found in inputs.tensors}

    def _held_jobs(self, baseline: Baseline) -> Iterator[Callable[[], _Found]]:
        layout = baseline.layout
        for number, bundle in enumerate(layout.bundles):
            yield partial(self._bundle_lanes, baseline.bundle_units(number), bundle)
        for index in range(len(layout.schema.tensors)):
            if index not in layout.bundle_of:
                for span in layout.pieces(index, self._limits):
                    yield partial(self._span_lanes, baseline.units(index, span), index, span)

    def _bundle_lanes(self, units: Units, bundle: Bundle) -> _Found:
        with self._benches.lend() as bench:
            return _lanes_of_bundle(units, bundle, bench)

    def _span_lanes(self, units: Units, index: int, span: FlatRange) -> _Found:
        with self._benches.lend() as bench:
            return _lanes_of_span(units, index, span, bench)

    def _copied(self, found: InputTensor, casts: CastRules) -> HostTensor:
        dtype = casts.published(found.spec.name, found.spec.dtype)
        spec = TensorSpec(found.spec.name, dtype, found.spec.shape)
        bound = BoundTensor(0, spec, found, repeats=False)
        out = np.empty(spec.unit_count, dtype=dtype.unit_dtype)

        def copy(span: FlatRange) -> None:
            with self._benches.lend() as bench:
                end = span.first_unit + span.unit_count
                out[span.first_unit : end] = bound.read(span.first_unit, span.unit_count, bench)

        spans = cut_flat(spec.unit_count, self._limits.piece_element_count)
        for _ in self._workers.run(partial(copy, span) for span in spans):
            pass
        return HostTensor(spec, out)


class _Target:
    """Takes the lanes of pieces, and copies their bits into a baseline if there is one."""

    def __init__(self, into: Baseline | None) -> None:
        self._into = into

    def span(self, bound: BoundTensor, span: FlatRange, bench: Bench) -> _Found:
        units = bound.read(span.first_unit, span.unit_count, bench)
        if self._into is not None:
            units = _copied(units, self._into.units(bound.index, span))
        return _lanes_of_span(units, bound.index, span, bench)

    def bundle(self, fill: BundleFill, bench: Bench) -> _Found:
        units = fill.units(bench)
        if self._into is not None:
            units = _copied(units, self._into.bundle_units(fill.number))
        indices, lanes = _lanes_of_bundle(units, fill.bundle, bench)
        return indices, lanes * fill.given[:, np.newaxis]


def fill_from_spool(schema: Schema, spooled: dict[str, HostTensor], into: Baseline) -> None:
    """Move spooled tensors into a baseline, letting each one go as it is copied."""
    for index, spec in enumerate(schema.tensors):
        into.units(index)[:] = spooled.pop(spec.name).units


def _lanes_of_span(units: Units, index: int, span: FlatRange, bench: Bench) -> _Found:
    kernels = bench.kernels_for(units.size)
    lanes = lanes_of(units, first_index=span.first_unit, kernels=kernels)
    return [index], np.array([lanes], dtype=np.uint64)


def _lanes_of_bundle(units: Units, bundle: Bundle, bench: Bench) -> _Found:
    kernels = bench.kernels_for(units.size)
    return list(bundle.members), member_lanes(units, bundle.starts, kernels=kernels)


def _copied(units: Units, target: Units) -> Units:
    target[:] = units
    return target
