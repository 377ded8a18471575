"""An attempt's own packs over the baseline: moved into it, or read through it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from weightstore.format.pack import BundlePlace, PackReader, PiecePlace, TensorPlace
from weightstore.history.workers import Workers
from weightstore.layout.boxes import FlatRange
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import Units
from weightstore.settings import Limits
from weightstore.trainer.baseline import Baseline
from weightstore.trainer.benches import Bench, Benches
from weightstore.trainer.packing import OwnPack


class OwnChange:
    """What one attempt changes.

    Args:
        schema: Of the baseline.
        packs: All packs of the attempt.
        limits: Bounds for reading packs.
    """

    def __init__(self, schema: Schema, packs: Sequence[OwnPack], limits: Limits) -> None:
        self._readers = [PackReader(pack.data, schema, limits) for pack in packs]

    def apply(self, baseline: Baseline, *, workers: Workers, benches: Benches) -> None:
        """Move a baseline to the new version; only after the log has said so.

        After a crash: a mixture, which its owner must not use any more.

        Raises:
            WrongBaseError: the baseline does not hold the base; some pieces may be applied.
        """

        def move(reader: PackReader, number: int) -> None:
            place = reader.places[number]
            with benches.lend() as bench:
                _apply(bench, reader, number, place, _target(baseline, place))

        jobs = (
            partial(move, reader, number)
            for reader in self._readers
            for number in range(len(reader.places))
        )
        for _ in workers.run(jobs):
            pass


class NewBits:
    """Bits of the new version, put together range by range; the baseline is only read.

    Args:
        baseline: Bits of the base.
        change: The attempt's own.
        bench: Scratch for the range in hand.
    """

    def __init__(self, baseline: Baseline, change: OwnChange, bench: Bench) -> None:
        self._baseline = baseline
        self._bench = bench
        self._spans: dict[tuple[int, int], tuple[PackReader, int]] = {}
        self._bundles: dict[int, tuple[PackReader, int]] = {}
        self._held: dict[DType, tuple[int, Units]] = {}
        for reader in change._readers:  # noqa: SLF001 -- the two are one value with two uses
            for number, place in enumerate(reader.places):
                self._note(place, reader, number)

    def units(self, index: int, first_unit: int, unit_count: int) -> Units:
        """New bits of a flat range of a tensor, valid until the next call.

        Args:
            index: Of the tensor in the schema.
            first_unit: Start of the range: that of a piece.
            unit_count: Length of the range: that of a piece, or a whole small tensor.
        """
        layout = self._baseline.layout
        if index in layout.bundle_of:
            number, place = layout.bundle_of[index]
            start = int(layout.bundles[number].starts[place]) + first_unit
            return self._bundle(number)[start : start + unit_count]
        spec = layout.schema.tensors[index]
        old = self._baseline.units(index, FlatRange(first_unit, unit_count))
        found = self._spans.get((index, first_unit))
        if found is None:
            return old
        out = self._bench.pieces.units(old.size, spec.dtype.unit_dtype)
        return self._changed(old, out, *found)

    def _note(self, place: PiecePlace, reader: PackReader, number: int) -> None:
        if isinstance(place, TensorPlace):
            self._spans[place.tensor_index, place.first_unit] = (reader, number)
        else:
            bundle = self._baseline.layout.bundle_of[place.members[0]][0]
            self._bundles[bundle] = (reader, number)

    def _bundle(self, number: int) -> Units:
        """A bundle's new bits; one is held for each dtype, as tensors are asked for by width."""
        old = self._baseline.bundle_units(number)
        found = self._bundles.get(number)
        if found is None:
            return old
        dtype = self._baseline.layout.bundles[number].dtype
        held = self._held.get(dtype)
        if held is None or held[0] != number:
            held = self._held[dtype] = (number, self._changed(old, np.empty_like(old), *found))
        return held[1]

    def _changed(self, old: Units, out: Units, reader: PackReader, number: int) -> Units:
        out[:] = old
        _apply(self._bench, reader, number, reader.places[number], out)
        return out


def _target(baseline: Baseline, place: PiecePlace) -> Units:
    if isinstance(place, BundlePlace):
        number, _ = baseline.layout.bundle_of[place.members[0]]
        return baseline.bundle_units(number)
    return baseline.units(place.tensor_index, FlatRange(place.first_unit, place.unit_count))


def _apply(bench: Bench, reader: PackReader, number: int, place: PiecePlace, target: Units) -> None:
    if isinstance(place, BundlePlace):
        bench.worker.apply(reader.piece(number), target, member_starts=place.starts)
    else:
        bench.worker.apply(reader.piece(number), target, first_index=place.first_unit)
