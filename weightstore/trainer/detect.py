"""The detection pass: given tensors against the baseline, which is only read."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.piece import EncodeResult
from weightstore.format.pack import BundlePlace, PiecePlace, TensorPlace
from weightstore.history.workers import Workers
from weightstore.layout.boxes import FlatRange
from weightstore.layout.tensors import Units
from weightstore.settings import Limits
from weightstore.trainer.baseline import Baseline
from weightstore.trainer.benches import Bench, Benches
from weightstore.trainer.binding import Binding, BoundTensor
from weightstore.trainer.feed import BundleFill, PieceFeed
from weightstore.trainer.packing import PackSink

if TYPE_CHECKING:
    from weightstore.trainer.device_baseline import DevicePass

_Found = tuple[PiecePlace, EncodeResult]


@dataclass(frozen=True, slots=True, eq=False)
class Detected:
    """What a pass found.

    Attributes:
        table: Per-tensor digest lanes of the new version, shape (tensors, 2), uint64.
        changed_count: Units that differ from the baseline.
        piece_count: Pieces that hold them.
        unmentioned: Schema indices of tensors that were not given.
    """

    table: NDArray[np.uint64]
    changed_count: int
    piece_count: int
    unmentioned: tuple[int, ...]


class DetectionPass:
    """One pass; `run` it once.

    Args:
        binding: The given tensors under the baseline's schema.
        baseline: Bits of the version that the delta starts from.
        table: That version's digest lanes, shape (tensors, 2), uint64; not changed.
        workers: Threads for pieces.
        benches: What each job works with.
        sink: Takes the changed pieces.
        limits: Bounds of a piece.
        device: Compares large tensors where they are; None compares all on the host.
    """

    def __init__(
        self,
        binding: Binding,
        baseline: Baseline,
        table: NDArray[np.uint64],
        *,
        workers: Workers,
        benches: Benches,
        sink: PackSink,
        limits: Limits,
        device: DevicePass | None = None,
    ) -> None:
        self._binding = binding
        self._device = device
        self._baseline = baseline
        self._table = table.copy()
        self._sink = sink
        self._feed: PieceFeed[_Found] = PieceFeed(
            binding, baseline.layout, workers=workers, benches=benches, limits=limits, held=baseline
        )
        self._changed_count = 0
        self._piece_count = 0

    def run(self) -> Detected:
        """Read every given tensor once; when this ends, none of them is needed any more.

        Raises:
            SchemaMismatchError: a stream does not fit the schema, or tied names differ.
            WeightStoreError: a pack could not be uploaded.
        """
        with closing(self._feed.run(self._encode_span, self._encode_bundle)) as found:
            for place, result in found:
                self._add(place, result)
        self._feed.ties.check(self._table)
        if self._device is not None:
            self._device.end()
        return Detected(
            self._table, self._changed_count, self._piece_count, self._binding.unmentioned()
        )

    def _encode_span(self, bound: BoundTensor, span: FlatRange, bench: Bench) -> _Found:
        def whole() -> tuple[Units, Units]:
            new = bound.read(span.first_unit, span.unit_count, bench)
            return self._baseline.units(bound.index, span), new

        place = TensorPlace(bound.index, span.first_unit, span.unit_count, None)
        changes = None if self._device is None else self._device.changes(bound, span)
        if changes is None:
            return place, bench.worker.encode(*whole(), first_index=span.first_unit)
        result = bench.worker.encode_found(
            changes, whole, span.unit_count, first_index=span.first_unit
        )
        return place, result

    def _encode_bundle(self, fill: BundleFill, bench: Bench) -> _Found:
        bundle = fill.bundle
        old = self._baseline.bundle_units(fill.number)
        result = bench.worker.encode(old, fill.units(bench), member_starts=bundle.starts)
        return BundlePlace(bundle.members, bundle.starts), result

    def _add(self, place: PiecePlace, result: EncodeResult) -> None:
        if result.piece is None:
            return
        self._changed_count += result.piece.changed_count
        self._piece_count += 1
        if isinstance(place, BundlePlace):
            self._table[list(place.members)] += result.member_lane_deltas
            self._sink.add(place, result.piece, result.member_changed_counts)
        else:
            self._table[place.tensor_index] += result.member_lane_deltas[0]
            self._sink.add(place, result.piece, None)
