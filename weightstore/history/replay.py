"""From a base's bits to a version's: the packs of its deltas, each checked before it is used."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.codec.piece import Piece
from weightstore.errors import CorruptError, UpgradeRequiredError
from weightstore.format.manifest import Manifest
from weightstore.format.pack import BundlePlace, PiecePlace, TensorPlace
from weightstore.history.chain import delta_form
from weightstore.history.extents import DeltaExtents
from weightstore.history.ledger import DeltaBook, DeltaCounts, DeltaLedger
from weightstore.history.manifests import load_table
from weightstore.history.pack_jobs import PackJob, explained, load_packs
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


class Deltas(Protocol):
    """What a replay needs of a plan."""

    @property
    def schema(self) -> Schema:
        """Shared by all versions."""
        ...

    @property
    def deltas(self) -> tuple[Manifest, ...]:
        """Manifests of versions with a delta, oldest first."""
        ...

    @property
    def first_table(self) -> NDArray[np.uint64]:
        """Lanes of what the first delta is applied to, shape (tensors, 2)."""
        ...

    @property
    def last_table(self) -> NDArray[np.uint64]:
        """Lanes of the last version, shape (tensors, 2)."""
        ...

    @property
    def delta_size_bytes(self) -> int:
        """Bytes of all packs."""
        ...


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
        plan: Deltas,
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
            CorruptObjectError: a pack or piece is damaged, two packs change the same units, or
                counts differ from the manifest.
            WrongBaseError: a piece does not fit the bits below it.
            DigestMismatchError: the pieces of a delta do not lead from table to table.
        """
        plan = self._plan
        meter = Meter(progress, "delta", plan.delta_size_bytes)
        before = plan.first_table
        with closing(self._loaded(plan.deltas)) as loaded:
            for manifest in plan.deltas:
                is_last = manifest is plan.deltas[-1]
                after = (
                    plan.last_table
                    if is_last
                    else load_table(self._blobs, manifest, plan.schema, self._limits)
                )
                ledger = DeltaLedger(plan.schema, manifest, before, after)
                self._run_delta(manifest, loaded, ledger, memory, meter)
                before = after

    def check_delta(self, manifest: Manifest, progress: Progress) -> None:
        """Check the packs of one delta whose base is not read, so that no table says its sum.

        Args:
            manifest: Of the version.
            progress: Told the bytes of packs, in the phase `"delta"`.

        Raises:
            ObjectMissingError: a pack is not there.
            CorruptObjectError: a pack or piece is damaged, two packs change the same units, or
                counts differ from the manifest.
        """
        meter = Meter(progress, "delta", delta_form(manifest).size_bytes)
        with closing(self._loaded([manifest])) as loaded:
            self._run_delta(manifest, loaded, DeltaCounts(manifest), None, meter)

    def _loaded(self, manifests: Sequence[Manifest]) -> Generator[PackJob, None, None]:
        return load_packs(
            self._blobs,
            self._plan.schema,
            manifests,
            workers=self._workers,
            limits=self._limits,
        )

    def _run_delta(
        self,
        manifest: Manifest,
        loaded: Iterator[PackJob],
        book: DeltaBook,
        memory: Memory | None,
        meter: Meter,
    ) -> None:
        extents = DeltaExtents(self._plan.schema, manifest.version, self._limits)
        for pack in delta_form(manifest).packs:
            job = next(loaded)
            extents.add(pack.key, job.reader.places)
            self._run_pack(job, book, memory)
            meter.add(pack.size_bytes)
        extents.settle()
        book.settle()

    def _run_pack(self, job: PackJob, book: DeltaBook, memory: Memory | None) -> None:
        with closing(self._workers.run(self._batches(job, book, memory))) as done:
            for _ in done:
                pass

    def _batches(
        self, job: PackJob, book: DeltaBook, memory: Memory | None
    ) -> Iterator[Callable[[], None]]:
        """Jobs of enough pieces each; the book is kept by the thread that takes them."""
        batch: list[tuple[PiecePlace, Piece]] = []
        unit_count = 0
        for index in range(job.reader.piece_count):
            place, piece = job.reader.places[index], job.reader.piece(index)
            is_bundle = isinstance(place, BundlePlace)
            counts = job.reader.member_changed_counts(index) if is_bundle else None
            book.add(place, piece, counts)
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
                    raise explained(error, job, place) from error


def _apply(worker: PieceWorker, place: PiecePlace, piece: Piece, memory: Memory) -> None:
    match place:
        case TensorPlace():
            first_unit = first_unit_of(place, memory.schema)
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


def first_unit_of(place: TensorPlace, schema: Schema) -> int:
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
