"""From a base's bits to a version's: the packs of its deltas, each checked before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import numpy as np

from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.codec.piece import Piece
from weightstore.errors import (
    CorruptError,
    CorruptObjectError,
    Fact,
    UpgradeRequiredError,
    WrongBaseError,
)
from weightstore.format.manifest import Manifest, PackRef
from weightstore.format.objects import ObjectRef
from weightstore.format.pack import BundlePlace, PackReader, PiecePlace, TensorPlace
from weightstore.history.chain import CheckoutPlan, delta_form
from weightstore.history.ledger import DeltaLedger
from weightstore.history.manifests import fetch_object, load_table
from weightstore.history.progress import Meter, Progress
from weightstore.history.targets import Memory
from weightstore.history.workers import Lender, Workers
from weightstore.layout.boxes import flat_range_of_box
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import Units
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore

_JOB_UNIT_COUNT = 4 * 1024 * 1024
_JOB_PIECE_COUNT = 256


@dataclass(frozen=True, slots=True, eq=False)
class PackJob:
    """One verified pack of one delta, and what its errors name."""

    manifest: Manifest
    pack: PackRef
    reader: PackReader
    schema: Schema


class Replay:
    """Applies the deltas of a plan, or checks them without a target.

    Memory: beside the target at most one pack per thread, and per thread the codec's
    buffers of one piece and one bundle.

    Args:
        blobs: The store.
        plan: What to replay.
        codec: Kernels to use.
        workers: Threads to use.
        limits: Hard bounds.
    """

    def __init__(
        self,
        blobs: BlobStore,
        plan: CheckoutPlan,
        *,
        codec: PieceCodec,
        workers: Workers,
        limits: Limits,
    ) -> None:
        self._blobs = blobs
        self._plan = plan
        self._limits = limits
        self._workers = workers
        self._pieces: Lender[PieceWorker] = Lender(codec.worker)

    def run(self, memory: Memory | None, progress: Progress) -> None:
        """Replay every delta, oldest first, and check each against the digest tables.

        Args:
            memory: Holds the bits of the full form, and afterwards those of the version;
                None checks everything that can be checked without them.
            progress: Told the bytes of packs, in the phase `"delta"`.

        Raises:
            ObjectMissingError: a pack or table is not there; names version and object.
            CorruptObjectError: a pack or piece is damaged, or counts differ from the manifest.
            WrongBaseError: a piece does not fit the bits below it.
            DigestMismatchError: the pieces of a delta do not lead from table to table.
        """
        plan = self._plan
        meter = Meter(progress, "delta", plan.delta_size_bytes)
        loads = (
            partial(self._load, manifest, pack)
            for manifest in plan.deltas
            for pack in delta_form(manifest).packs
        )
        before = plan.first_table
        with closing(self._workers.run(loads, ahead=self._workers.thread_count)) as loaded:
            for manifest in plan.deltas:
                is_last = manifest is plan.deltas[-1]
                after = (
                    plan.last_table
                    if is_last
                    else load_table(self._blobs, manifest, plan.schema, self._limits)
                )
                ledger = DeltaLedger(plan.schema, manifest, before, after)
                for pack in delta_form(manifest).packs:
                    self._run_pack(next(loaded), ledger, memory)
                    meter.add(pack.size_bytes)
                ledger.settle()
                before = after

    def _load(self, manifest: Manifest, pack: PackRef) -> PackJob:
        ref = ObjectRef(key=pack.key, size_bytes=pack.size_bytes, sha256=pack.sha256)
        data = fetch_object(
            self._blobs,
            ref,
            version=manifest.version,
            what="pack",
            max_size_bytes=self._limits.pack_size_bytes,
        )
        schema = self._plan.schema
        try:
            reader = PackReader(data, schema, self._limits)
        except CorruptObjectError as error:
            where = f"version {manifest.version}, pack {pack.key}"
            raise _located(error, where, {"version": manifest.version, "key": pack.key}) from error
        if reader.piece_count != pack.piece_count:
            raise CorruptObjectError(
                f"version {manifest.version}: the pack {pack.key} has {reader.piece_count} "
                f"pieces, the manifest says {pack.piece_count}",
                do="Restore the pack from another copy of the store.",
                facts={"version": manifest.version, "key": pack.key},
            )
        return PackJob(manifest, pack, reader, schema)

    def _run_pack(self, job: PackJob, ledger: DeltaLedger, memory: Memory | None) -> None:
        with closing(self._workers.run(self._batches(job, ledger, memory))) as done:
            for _ in done:
                pass

    def _batches(
        self, job: PackJob, ledger: DeltaLedger, memory: Memory | None
    ) -> Iterator[Callable[[], None]]:
        """Jobs of enough pieces each; the ledger is kept by the thread that takes them."""
        batch: list[tuple[PiecePlace, Piece]] = []
        unit_count = 0
        for index in range(job.reader.piece_count):
            place, piece = job.reader.places[index], job.reader.piece(index)
            is_bundle = isinstance(place, BundlePlace)
            counts = job.reader.member_changed_counts(index) if is_bundle else None
            ledger.add(place, piece, counts)
            batch.append((place, piece))
            unit_count += piece.unit_count
            if unit_count >= _JOB_UNIT_COUNT or len(batch) >= _JOB_PIECE_COUNT:
                yield partial(self._run_batch, job, batch, memory)
                batch, unit_count = [], 0
        if batch:
            yield partial(self._run_batch, job, batch, memory)

    def _run_batch(
        self, job: PackJob, batch: Sequence[tuple[PiecePlace, Piece]], memory: Memory | None
    ) -> None:
        with self._pieces.lend() as worker:
            for place, piece in batch:
                try:
                    if memory is None:
                        worker.check(piece)
                    else:
                        _apply(worker, place, piece, memory)
                except CorruptError as error:
                    raise _explained(error, job, place) from error


def _apply(worker: PieceWorker, place: PiecePlace, piece: Piece, memory: Memory) -> None:
    match place:
        case TensorPlace():
            first_unit = _first_unit(place, memory.schema)
            units = memory.arrays[place.tensor_index]
            part = units[first_unit : first_unit + place.unit_count]
            worker.apply(piece, part, first_index=first_unit)
        case BundlePlace():
            joined = memory.joined(place.members)
            if joined is not None:
                worker.apply(piece, joined, member_starts=place.starts)
                return
            arrays = [memory.arrays[index] for index in place.members]
            gathered = np.concatenate(arrays)
            worker.apply(piece, gathered, member_starts=place.starts)
            _spread(gathered, place, arrays)
        case _:
            assert_never(place)


def _spread(gathered: Units, place: BundlePlace, arrays: Sequence[Units]) -> None:
    starts = place.starts.tolist()
    for start, end, units in zip(starts[:-1], starts[1:], arrays, strict=True):
        units[:] = gathered[start:end]


def _first_unit(place: TensorPlace, schema: Schema) -> int:
    """First flat unit in the tensor of a piece's run."""
    if place.box is None:
        return place.first_unit
    spec = schema.tensors[place.tensor_index]
    run = flat_range_of_box(place.box, spec.unit_shape)
    if run is None:
        raise UpgradeRequiredError(
            f"a piece of tensor {spec.name!r} is of a box that is no contiguous run",
            do="Check this version out with a release that reads pieces of strided boxes.",
            facts={"tensor": spec.name},
        )
    return run.first_unit + place.first_unit


def _explained(error: CorruptError, job: PackJob, place: PiecePlace) -> CorruptError:
    """Name version, base and tensors in an error of the codec, which knows only bits."""
    manifest, base = job.manifest, job.manifest.base
    tensor = _said(place, job.schema)
    facts: dict[str, Fact] = {
        "version": manifest.version,
        "key": job.pack.key,
        "tensor": tensor,
        "base": base.version if base else None,
        "base_digest": base.digest if base else None,
    }
    where = f"version {manifest.version}, {tensor}, pack {job.pack.key}"
    if isinstance(error, WrongBaseError):
        return WrongBaseError(
            f"{where}: the bits below are not those of the base, version {facts['base']} with "
            f"the digest {facts['base_digest']}: {error.message}",
            do="Verify the chain (weightstore verify), or check out another version.",
            facts={**error.facts, **facts},
        )
    return _located(error, where, facts)


def _said(place: PiecePlace, schema: Schema) -> str:
    if isinstance(place, TensorPlace):
        name = schema.tensors[place.tensor_index].name
        return f"tensor {name!r} from unit {place.first_unit}"
    first, last = (schema.tensors[place.members[end]].name for end in (0, -1))
    return f"the bundle of {len(place.members)} tensors from {first!r} to {last!r}"


def _located(error: CorruptError, where: str, facts: Mapping[str, Fact]) -> CorruptError:
    return type(error)(f"{where}: {error.message}", do=error.do, facts={**error.facts, **facts})
