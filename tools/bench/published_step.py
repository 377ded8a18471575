"""Steps put into a real store, and the packs of the last one as a reader has them.

What is decoded here is what the product wrote, read back from its files; what is counted are
all bytes that a reader of the version before has to fetch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tools.bench.weights import Weights, schema_of
from weightstore import WeightStore
from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.format.pack import BundlePlace, PackReader, TensorPlace
from weightstore.layout.boxes import cut_flat
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import Units
from weightstore.settings import Limits
from weightstore.trainer.pending import PutReport

LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class PieceInput:
    """What one piece is encoded from.

    Attributes:
        old: Bits before.
        new: Bits after.
        first_index: Of the first unit in its tensor.
        starts: Of a bundle's members, else None.
    """

    old: Units
    new: Units
    first_index: int
    starts: np.ndarray[tuple[int], np.dtype[np.int64]] | None

    def encode(self, worker: PieceWorker) -> int:
        """Detect and encode; the number of changed units."""
        found = worker.encode(
            self.old, self.new, first_index=self.first_index, member_starts=self.starts
        ).piece
        return 0 if found is None else found.changed_count


def piece_inputs(before: Weights, after: Weights) -> list[PieceInput]:
    """Cut two versions as the product cuts them: runs of large tensors, bundles of small ones."""
    schema = schema_of(before)
    old, new = _in_order(schema, before), _in_order(schema, after)
    inputs = [
        PieceInput(_joined(old, bundle.members), _joined(new, bundle.members), 0, bundle.starts)
        for bundle in schema.bundles
    ]
    bundled = {index for bundle in schema.bundles for index in bundle.members}
    for index, spec in enumerate(schema.tensors):
        if index not in bundled:
            for part in cut_flat(spec.unit_count):
                run = slice(part.first_unit, part.end_unit)
                inputs.append(PieceInput(old[index][run], new[index][run], part.first_unit, None))
    return inputs


@dataclass(frozen=True, slots=True)
class Published:
    """A chain of steps in a store.

    Attributes:
        reports: Of each put after the first.
        packs: Files of the last version's delta, with the SHA-256 that its manifest says.
    """

    reports: tuple[PutReport, ...]
    packs: tuple[tuple[bytes, bytes], ...]


def publish(steps: Iterable[Weights], folder: Path) -> Published:
    """Put every step into a new store."""
    reports = []
    with (
        WeightStore.open(folder / "store", create=True) as store,
        store.trainer(run="bench") as trainer,
    ):
        for step, weights in enumerate(steps):
            reports.append(trainer.put_step(step, weights).report())
    newest = reports[-1].version
    found = sorted((folder / "store" / "packs").rglob(f"{newest}-*.safetensors"))
    packs = [path.read_bytes() for path in found]
    return Published(
        tuple(reports[1:]), tuple((pack, hashlib.sha256(pack).digest()) for pack in packs)
    )


class HostCopy:
    """A version's bits in memory, which packs are applied to. Small tensors lie in bundles."""

    def __init__(self, before: Weights, packs: Sequence[tuple[bytes, bytes]]) -> None:
        self._schema = schema_of(before)
        self._packs = packs
        units = _in_order(self._schema, before)
        self._before = {
            **{("tensor", index): each for index, each in enumerate(units)},
            **{
                ("bundle", bundle.members[0]): _joined(units, bundle.members)
                for bundle in self._schema.bundles
            },
        }
        self._now = {key: each.copy() for key, each in self._before.items()}
        codec = PieceCodec()
        self._codec = codec

    def worker(self) -> PieceWorker:
        """Make what one thread works with."""
        return self._codec.worker()

    def reset(self) -> None:
        """Put the bits from before back."""
        for key, units in self._before.items():
            self._now[key][:] = units

    def readers(self) -> list[PackReader]:
        """Check the hash of every pack and parse its index."""
        for pack, expected in self._packs:
            if hashlib.sha256(pack).digest() != expected:
                raise SystemExit("a pack does not have its hash")
        return [PackReader(pack, self._schema, LIMITS) for pack, _ in self._packs]

    def apply(self, reader: PackReader, index: int, worker: PieceWorker) -> None:
        """Decode one piece, make all its checks, and write it."""
        place, piece = reader.places[index], reader.piece(index)
        if isinstance(place, BundlePlace):
            target = self._now["bundle", place.members[0]]
            worker.apply(piece, target, member_starts=place.starts)
            return
        assert isinstance(place, TensorPlace)
        target = self._now["tensor", place.tensor_index]
        run = slice(place.first_unit, place.first_unit + place.unit_count)
        worker.apply(piece, target[run], first_index=place.first_unit)

    def apply_all(self, worker: PieceWorker) -> None:
        """Apply every pack in this thread."""
        for reader in self.readers():
            for index in range(reader.piece_count):
                self.apply(reader, index, worker)

    def holds(self, weights: Weights) -> bool:
        """Whether these are the bits now."""
        units = _in_order(self._schema, weights)
        bundled = {index for bundle in self._schema.bundles for index in bundle.members}
        alone = all(
            np.array_equal(self._now["tensor", index], each)
            for index, each in enumerate(units)
            if index not in bundled
        )
        return alone and all(
            np.array_equal(self._now["bundle", each.members[0]], _joined(units, each.members))
            for each in self._schema.bundles
        )


def _in_order(schema: Schema, weights: Weights) -> list[Units]:
    return [weights[spec.name].units for spec in schema.tensors]


def _joined(units: Sequence[Units], members: Sequence[int]) -> Units:
    return np.concatenate([units[index] for index in members])
