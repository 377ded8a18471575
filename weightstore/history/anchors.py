"""Reading a full form: every block of its files is verified, and what is asked for is kept."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import BlobNotFoundError, CorruptObjectError
from weightstore.format.blocks import (
    BLOCK_SIZE_BYTES,
    FileBlocks,
    block_count,
    blocks_of_range,
    decode_blocks,
)
from weightstore.format.keys import anchor_key
from weightstore.format.manifest import AnchorFile, Manifest
from weightstore.format.safetensors_header import (
    SIZE_FIELD_BYTES,
    SafetensorsHeader,
    parse_safetensors_header,
    read_header_size,
)
from weightstore.history.chain import full_form
from weightstore.history.manifests import fetch_object, missing_object
from weightstore.history.progress import Meter, Progress
from weightstore.history.targets import Memory
from weightstore.history.workers import Lender, Workers
from weightstore.ids import VersionId
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore

Bytes = NDArray[np.uint8]

_DIRECT_PART_COUNT = 8
"""Up to so many tensors a block is read straight into them; above, a copy costs less than
the calls."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredFile:
    """One file of a full form, readable by verified blocks.

    Attributes:
        blobs: Where it is.
        key: Its key.
        version: Who names it.
        blocks: Its name, size and block hashes, verified.
    """

    blobs: BlobStore
    key: str
    version: VersionId
    blocks: FileBlocks

    @property
    def size_bytes(self) -> int:
        """Of the whole file."""
        return self.blocks.size_bytes

    def block_bounds(self, block: int) -> tuple[int, int]:
        """First byte of a block, and the byte after its last."""
        start = block * BLOCK_SIZE_BYTES
        return start, min(start + BLOCK_SIZE_BYTES, self.size_bytes)

    def read_block(self, block: int, parts: Sequence[Bytes]) -> None:
        """Read a block into buffers that tile it, then compare it with its hash.

        Raises:
            ObjectMissingError: the file is not there.
            CorruptObjectError: it is shorter, or the block is another one; the buffers hold
                what was read.
        """
        offset, end = self.block_bounds(block)
        digest = hashlib.sha256()
        try:
            for part in parts:
                self.blobs.read_into(self.key, offset, part.data)
                digest.update(part.data)
                offset += part.size
        except BlobNotFoundError as error:
            raise missing_object(self.version, "file", self.key) from error
        assert offset == end
        if digest.digest() != self.blocks.hashes[block]:
            raise CorruptObjectError(
                f"version {self.version}: block {block} of {self.key} (bytes "
                f"{block * BLOCK_SIZE_BYTES} to {end}) is not what was committed",
                do="Restore the file from another copy of the store.",
                facts={"version": self.version, "key": self.key, "block": block},
            )


def check_size(blobs: BlobStore, key: str, size_bytes: int, version: VersionId) -> None:
    """Compare a file's stored size with the committed one, which its blocks do not tell.

    Raises:
        ObjectMissingError: the file is not there.
        CorruptObjectError: it is longer or shorter.
    """
    try:
        found = blobs.size(key)
    except BlobNotFoundError as error:
        raise missing_object(version, "file", key) from error
    if found != size_bytes:
        raise CorruptObjectError(
            f"version {version}: {key} has {found} bytes, {size_bytes} were committed",
            do="Restore the file from another copy of the store.",
            facts={"version": version, "key": key},
        )


def open_files(
    blobs: BlobStore, manifest: Manifest, limits: Limits
) -> tuple[tuple[AnchorFile, StoredFile], ...]:
    """The files of a version's full form with their verified block hashes.

    Raises:
        ObjectMissingError: the block hashes are not there.
        CorruptObjectError: they are damaged, or of other files.
    """
    full = full_form(manifest)
    data = fetch_object(
        blobs,
        full.blocks,
        version=manifest.version,
        what="block hashes",
        max_size_bytes=limits.anchor_index_size_bytes,
    )
    return tuple(
        (file, StoredFile(blobs, anchor_key(full.anchor_id, file.name), manifest.version, blocks))
        for file, blocks in zip(full.files, decode_blocks(data, full.files), strict=True)
    )


def verified_chunks(file: StoredFile) -> Iterator[memoryview]:
    """A whole file in blocks, each verified; a chunk is valid until the next one."""
    buffer = np.empty(min(BLOCK_SIZE_BYTES, file.size_bytes), np.uint8)
    for block in range(block_count(file.size_bytes)):
        start, end = file.block_bounds(block)
        chunk = buffer[: end - start]
        file.read_block(block, [chunk])
        yield chunk.data


def read_header(stored: StoredFile, limits: Limits) -> tuple[Bytes, SafetensorsHeader]:
    """The verified blocks that hold a weight file's header, and what it says.

    Raises:
        ObjectMissingError: the file is not there.
        CorruptObjectError: a block or the header is damaged.
    """
    what = f"version {stored.version}: {stored.key}"
    head = _read_blocks(stored, blocks_of_range(0, min(1, stored.size_bytes)))
    size_bytes = read_header_size(
        head[:SIZE_FIELD_BYTES].data,
        file_size_bytes=stored.size_bytes,
        limits=limits,
        what=what,
    )
    if size_bytes > head.size:
        head = _read_blocks(stored, blocks_of_range(0, size_bytes))
    return head, parse_safetensors_header(
        head.data, file_size_bytes=stored.size_bytes, limits=limits, what=what
    )


def _read_blocks(stored: StoredFile, blocks: range) -> Bytes:
    end = stored.block_bounds(blocks[-1])[1] if blocks else 0
    head = np.empty(end, np.uint8)
    for block in blocks:
        start, stop = stored.block_bounds(block)
        stored.read_block(block, [head[start:stop]])
    return head


@dataclass(frozen=True, slots=True, eq=False)
class FileParts:
    """Which memory each range of a weight file goes to.

    Attributes:
        starts: First byte of each part; ascending, without gaps. The first is the header.
        targets: Where the part goes; None for bytes that are only verified.
        end: Size of the file in bytes.
    """

    starts: tuple[int, ...]
    targets: tuple[Bytes | None, ...]
    end: int

    @classmethod
    def of(cls, header: SafetensorsHeader, end: int, memory: Memory) -> FileParts:
        """The parts of a file of `end` bytes whose tensors are all in the memory's schema."""
        schema = memory.schema
        starts, targets = [0], [cast("Bytes | None", None)]
        # Tensors tile the file, so each ends where the next begins.
        ends = [*(tensor.file_offset for tensor in header.tensors[1:]), end]
        for tensor, tensor_end in zip(header.tensors, ends, strict=False):
            if tensor_end == tensor.file_offset:
                continue
            name = tensor.spec.name
            index = schema.index_of(name)
            # A tied name is there for other readers; its bytes are those of its tensor.
            is_stored = schema.tensors[index].name == name
            starts.append(tensor.file_offset)
            targets.append(memory.bytes_of(index) if is_stored else None)
        return cls(tuple(starts), tuple(targets), end)

    def cut(self, start: int, end: int) -> list[tuple[int, Bytes | None]]:
        """The parts of a byte range in order: how many bytes go where."""
        found: list[tuple[int, Bytes | None]] = []
        number = bisect_right(self.starts, start) - 1
        while start < end:
            first = self.starts[number]
            is_last = number + 1 == len(self.starts)
            stop = min(end, self.end if is_last else self.starts[number + 1])
            target = self.targets[number]
            found.append(
                (stop - start, None if target is None else target[start - first : stop - first])
            )
            start, number = stop, number + 1
        return found


class AnchorReader:
    """Reads or checks the full form of a version.

    Memory: beside the target one block per thread, and a file's header while it is parsed.

    Args:
        blobs: The store.
        manifest: Has a full form.
        schema: Of the version.
        workers: Threads to use.
        limits: Hard bounds.
    """

    def __init__(
        self,
        blobs: BlobStore,
        manifest: Manifest,
        schema: Schema,
        *,
        workers: Workers,
        limits: Limits,
    ) -> None:
        self._blobs = blobs
        self._manifest = manifest
        self._schema = schema
        self._workers = workers
        self._limits = limits
        self._scratch: Lender[Bytes] = Lender(lambda: np.empty(BLOCK_SIZE_BYTES, np.uint8))

    def run(self, memory: Memory | None, progress: Progress) -> None:
        """Fill the memory from the weight files, or with None verify every file.

        Args:
            memory: Of the version's schema; holds the version's bits afterwards.
            progress: Told the bytes of files, in the phase `"full"`.

        Raises:
            ObjectMissingError: a file is not there; names version and file.
            CorruptObjectError: a block, a header or the set of tensors is not as committed.
        """
        files = open_files(self._blobs, self._manifest, self._limits)
        if memory is not None:
            files = tuple(pair for pair in files if pair[0].role == "weights")
        meter = Meter(progress, "full", sum(file.size_bytes for file, _ in files))
        for size_bytes in self._workers.run(self._jobs(files, memory)):
            meter.add(size_bytes)

    def _jobs(
        self, files: Sequence[tuple[AnchorFile, StoredFile]], memory: Memory | None
    ) -> Iterator[Callable[[], int]]:
        """Jobs that read blocks; headers are read here, while earlier jobs run."""
        seen: set[int] = set()
        for file, stored in files:
            check_size(self._blobs, stored.key, stored.size_bytes, stored.version)
            parts, first_block = None, 0
            if file.role == "weights":
                head, header = read_header(stored, self._limits)
                self._check_tensors(header, stored, seen)
                first_block = block_count(head.size)
                yield partial(int, head.size)
                if memory is not None:
                    parts = FileParts.of(header, stored.size_bytes, memory)
                    _copy(head, parts.cut(0, head.size))
            for block in range(first_block, block_count(stored.size_bytes)):
                yield partial(self._read, stored, block, parts)
        if len(seen) != len(self._schema.tensors):
            lacking = next(i for i in range(len(self._schema.tensors)) if i not in seen)
            raise CorruptObjectError(
                f"version {self._manifest.version}: the files of its full form lack "
                f"{len(self._schema.tensors) - len(seen)} tensors, among them "
                f"{self._schema.tensors[lacking].name!r}",
                do="Check out another version; report the store as damaged.",
                facts={"version": self._manifest.version},
            )

    def _check_tensors(self, header: SafetensorsHeader, stored: StoredFile, seen: set[int]) -> None:
        """Compare a file's tensors with the schema; tied names may be there as copies."""
        schema = self._schema
        for found in header.tensors:
            spec = found.spec
            index = schema.index_of(spec.name) if spec.name in schema else None
            expected = None if index is None else schema.tensors[index]
            if expected is None or (expected.dtype, expected.shape) != (spec.dtype, spec.shape):
                raise CorruptObjectError(
                    f"version {stored.version}: {stored.key} holds {spec.name!r} as "
                    f"{spec.dtype.value} {spec.shape}, the schema has "
                    f"{expected and (expected.dtype.value, expected.shape)}",
                    do="Check out another version; report the store as damaged.",
                    facts={"version": stored.version, "key": stored.key, "tensor": spec.name},
                )
            if index is not None and expected.name == spec.name:
                if index in seen:
                    raise CorruptObjectError(
                        f"version {stored.version}: tensor {spec.name!r} is in two files",
                        facts={"version": stored.version, "tensor": spec.name},
                    )
                seen.add(index)

    def _read(self, stored: StoredFile, block: int, parts: FileParts | None) -> int:
        """Verify one block and keep what is wanted of it; its size in bytes."""
        start, end = stored.block_bounds(block)
        cut = [] if parts is None else parts.cut(start, end)
        targets = [target for _, target in cut if target is not None]
        if cut and len(targets) == len(cut) <= _DIRECT_PART_COUNT:
            stored.read_block(block, targets)
            return end - start
        with self._scratch.lend() as buffer:
            chunk = buffer[: end - start]
            stored.read_block(block, [chunk])
            _copy(chunk, cut)
        return end - start


def _copy(chunk: Bytes, cut: Sequence[tuple[int, Bytes | None]]) -> None:
    offset = 0
    for size_bytes, target in cut:
        if target is not None:
            target[:] = chunk[offset : offset + size_bytes]
        offset += size_bytes
