"""Taking over a user's checkpoint as a full form: copied first, then read from the copy."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.codec.digest import lanes_of, member_lanes
from weightstore.codec.kernels import Kernels
from weightstore.errors import BlobExistsError, InputRefusedError
from weightstore.format.anchor_plan import INDEX_FILE_NAME
from weightstore.format.blocks import BLOCK_SIZE_BYTES, block_count
from weightstore.format.keys import anchor_key
from weightstore.format.manifest import AnchorFile, FullForm
from weightstore.format.safetensors_header import SafetensorsHeader, StoredTensor
from weightstore.history.anchor_writer import AnchorSink
from weightstore.history.import_plan import ImportFile, ImportPlan
from weightstore.history.progress import Meter, Progress, no_progress
from weightstore.history.settle import put_settled
from weightstore.history.workers import Lender, Workers
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import Units
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore

_TAIL_BYTES = 7
"""A unit may begin in one block and end in the next; it belongs to the first."""


@dataclass(frozen=True, slots=True, eq=False)
class ImportedForm:
    """An imported checkpoint, ready to be named by a manifest.

    Attributes:
        schema: Of the checkpoint.
        full: What the manifest says of the files.
        table: Digest lanes of every tensor, shape (tensors, 2), from the stored copies.
    """

    schema: Schema
    full: FullForm
    table: NDArray[np.uint64]


def run_import(
    blobs: BlobStore,
    plan: ImportPlan,
    anchor_id: str,
    *,
    settings: Settings,
    codec: PieceCodec | None = None,
    progress: Progress = no_progress,
) -> ImportedForm:
    """Copy or reflink a checkpoint into the store, then hash and digest what is stored.

    The user may edit the files meanwhile: what counts is the copy. Memory: one block per
    thread.

    After a crash: some of the files, each whole; nothing names them.

    Args:
        blobs: The store.
        plan: Of the checkpoint.
        anchor_id: Unique to this attempt.
        settings: Threads and limits.
        codec: Kernels to use; None makes one.
        progress: Told the bytes of files copied (`"copy"`) and read back (`"digest"`).

    Raises:
        InputRefusedError: a file was removed, replaced or resized since the plan was made.
        BlobExistsError: a file of this id is there with other bytes.
        BlobOutcomeUnknownError: a copy could not be settled in a few tries.
    """
    sink = AnchorSink(blobs, anchor_id, settings.limits)
    meter = Meter(progress, "copy", plan.size_bytes)
    for file in plan.files:
        key = anchor_key(anchor_id, file.name)
        _copy_file(blobs, key, file, settings.limits.put_try_count)
        meter.add(file.size_bytes)
    codec = codec or PieceCodec(limits=settings.limits)
    table = np.zeros((len(plan.schema.tensors), 2), np.uint64)
    meter = Meter(progress, "digest", plan.size_bytes)
    scanner = _Scanner(blobs, plan.schema, codec.kernels_for(plan.schema.unit_count))
    with Workers(settings.thread_count) as workers:
        for file in plan.files:
            key = anchor_key(anchor_id, file.name)
            hashes = []
            for block in workers.run(scanner.jobs(key, file)):
                hashes.append(block.digest)
                for indices, lanes in block.lanes:
                    table[indices] += lanes
                meter.add(block.size_bytes)
            stated = AnchorFile(name=file.name, size_bytes=file.size_bytes, role=file.role)
            sink.add(stated, tuple(hashes))
    index = plan.index
    if index is not None:
        stated = AnchorFile(name=INDEX_FILE_NAME, size_bytes=len(index), role="index")
        sink.put(stated, lambda: [index])
    return ImportedForm(plan.schema, sink.finish(), table)


def _copy_file(blobs: BlobStore, key: str, file: ImportFile, try_count: int) -> None:
    def put() -> None:
        blobs.put_file_if_absent(key, file.source)

    before = _stamp(file)
    try:
        put_settled(blobs, key, put, lambda: _file_chunks(file), try_count=try_count)
    except BlobExistsError as error:
        # What was stored is compared with the source. If the source moved, the difference is
        # the user's edit and not somebody else's object.
        if _stamp(file) != before:
            raise _changed(file, "it was written to") from error
        raise
    size_bytes = blobs.size(key)
    if size_bytes != file.size_bytes:
        raise _changed(file, f"{size_bytes} bytes instead of {file.size_bytes}")


def _stamp(file: ImportFile) -> tuple[int, int, int]:
    """What differs after a file was written to or replaced."""
    try:
        found = file.source.stat()
    except OSError as error:
        raise _unreadable(file, error) from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def _file_chunks(file: ImportFile) -> Iterator[bytes]:
    try:
        with file.source.open("rb") as stream:
            while chunk := stream.read(BLOCK_SIZE_BYTES):
                yield chunk
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: ImportFile, error: OSError) -> InputRefusedError:
    return _changed(file, f"it cannot be read any more ({error.strerror or error})")


def _changed(file: ImportFile, how: str) -> InputRefusedError:
    return InputRefusedError(
        f"{file.source} was changed while it was imported: {how}",
        do="Import again when nothing writes to the checkpoint; nothing was committed.",
        facts={"path": str(file.source)},
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """What one block of a stored file holds."""

    size_bytes: int
    digest: bytes
    lanes: tuple[tuple[list[int], NDArray[np.uint64]], ...]


class _Scanner:
    """Reads stored files back block by block: SHA-256 of the block, lanes of its units."""

    def __init__(self, blobs: BlobStore, schema: Schema, kernels: Kernels) -> None:
        self._blobs = blobs
        self._schema = schema
        self._kernels = kernels
        self._scratch: Lender[NDArray[np.uint8]] = Lender(
            lambda: np.empty(BLOCK_SIZE_BYTES + _TAIL_BYTES, np.uint8)
        )

    def jobs(self, key: str, file: ImportFile) -> Iterator[Callable[[], _Block]]:
        """A job for each block of a file.

        Raises:
            InputRefusedError: the stored header is not the planned one.
        """
        tensors: list[StoredTensor] = []
        if file.header is not None:
            self._check_header(key, file, file.header)
            tensors = [tensor for tensor in file.tensors if tensor.size_bytes]
        starts = [tensor.file_offset for tensor in tensors]
        for block in range(block_count(file.size_bytes)):
            start = block * BLOCK_SIZE_BYTES
            end = min(start + BLOCK_SIZE_BYTES, file.size_bytes)
            first = max(bisect_right(starts, start) - 1, 0)
            last = bisect_right(starts, end - 1)
            yield partial(self._scan, key, file.size_bytes, (start, end), tensors[first:last])

    def _check_header(self, key: str, file: ImportFile, header: SafetensorsHeader) -> None:
        found = np.empty(header.data_offset, np.uint8)
        self._blobs.read_into(key, 0, found.data)
        if hashlib.sha256(found.data).hexdigest() != file.head_sha256:
            raise _changed(file, "its header is another one")

    def _scan(
        self,
        key: str,
        file_size_bytes: int,
        bounds: tuple[int, int],
        tensors: Sequence[StoredTensor],
    ) -> _Block:
        start, end = bounds
        with self._scratch.lend() as buffer:
            data = buffer[: min(end + _TAIL_BYTES, file_size_bytes) - start]
            self._blobs.read_into(key, start, data.data)
            digest = hashlib.sha256(data[: end - start].data).digest()
            lanes = tuple(self._lanes(data, start, end, tensors))
        return _Block(end - start, digest, lanes)

    def _lanes(
        self, data: NDArray[np.uint8], start: int, end: int, tensors: Sequence[StoredTensor]
    ) -> Iterator[tuple[list[int], NDArray[np.uint64]]]:
        """Lanes of the units that begin between two bytes of a file.

        Args:
            data: Bytes of the file from `start` to a little after `end`.
            start: First byte.
            end: Byte after the last.
            tensors: Those that overlap the range, in file order.
        """
        whole: list[StoredTensor] = []
        for tensor in tensors:
            width = tensor.spec.dtype.unit_size_bytes
            first = max(0, -(-(start - tensor.file_offset) // width))
            last = min(tensor.spec.unit_count, -(-(end - tensor.file_offset) // width))
            if first == 0 and last == tensor.spec.unit_count:
                if whole and whole[0].spec.dtype.unit_size_bytes != width:
                    yield self._lanes_of_whole(data, start, whole)
                    whole = []
                whole.append(tensor)
            elif first < last:
                place = tensor.file_offset + first * width - start
                units = _units(data, place, last - first, tensor)
                lanes = lanes_of(units, first_index=first, kernels=self._kernels)
                index = self._schema.index_of(tensor.spec.name)
                yield [index], np.array([lanes], np.uint64)
        if whole:
            yield self._lanes_of_whole(data, start, whole)

    def _lanes_of_whole(
        self, data: NDArray[np.uint8], start: int, tensors: Sequence[StoredTensor]
    ) -> tuple[list[int], NDArray[np.uint64]]:
        """Lanes of whole tensors that lie side by side and have one width."""
        starts = np.zeros(len(tensors) + 1, np.int64)
        np.cumsum([tensor.spec.unit_count for tensor in tensors], out=starts[1:])
        units = _units(data, tensors[0].file_offset - start, int(starts[-1]), tensors[0])
        indices = [self._schema.index_of(tensor.spec.name) for tensor in tensors]
        return indices, member_lanes(units, starts, kernels=self._kernels)


def _units(data: NDArray[np.uint8], place: int, count: int, tensor: StoredTensor) -> Units:
    dtype = tensor.spec.dtype.unit_dtype
    units: Units = data[place : place + count * dtype.itemsize].view(dtype)
    # Offsets in a file need no alignment; the kernels are compiled for aligned memory.
    return units if units.flags.aligned else units.copy()
