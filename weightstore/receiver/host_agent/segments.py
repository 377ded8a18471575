"""Segments: one pack and its decoded pieces in memory that many processes map and none writes.

A segment holds the bytes of the pack, then the positions and words of each piece. Where
they lie is not said in it: it follows from the pack's own index, which each rank verifies by
the SHA-256 that its manifest says. The kernel seals a segment before it is handed out, so
that nobody can change or shorten it under a rank that reads it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from weightstore.codec.codec import PieceWorker
from weightstore.codec.piece import Piece, ValueCoding
from weightstore.codec.sparse import Combine, SparseChange
from weightstore.errors import CorruptObjectError, StorageFailedError
from weightstore.format.manifest import PackRef
from weightstore.format.pack import PackReader
from weightstore.history.workers import Lender, Workers
from weightstore.layout.schema import Schema
from weightstore.settings import MIB, Limits

ALIGNMENT_BYTES = 8
POSITION_DTYPE = np.dtype(np.uint32)
_BATCH_SIZE_BYTES = 1 * MIB
# The kernel's numbers, not the names of `fcntl` and `os`: a Python that was built against an old C
# library lacks those, and must still be able to import this.
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEALS = 0b1111
"""Nobody may add seals, shorten, lengthen or write."""
_CLOSE_ON_EXEC, _ALLOW_SEALING = 1, 2

_COMBINE = {ValueCoding.ULP: Combine.ADD, ValueCoding.DENSE_ULP: Combine.ADD}
_COMBINE[ValueCoding.XOR] = Combine.XOR


@dataclass(frozen=True, slots=True, eq=False)
class SegmentLayout:
    """Where the arrays of each piece of a pack lie in its segment.

    Attributes:
        position_starts: First byte of the positions of each piece; int64.
        word_starts: First byte of its words; int64.
        size_bytes: Of the segment.
    """

    position_starts: NDArray[np.int64]
    word_starts: NDArray[np.int64]
    size_bytes: int

    @classmethod
    def of(cls, pack_size_bytes: int, reader: PackReader) -> SegmentLayout:
        """The layout of a pack: the same wherever it is worked out."""
        index = reader.places
        counts = index.changed_counts
        # All units are said, in order: their positions are their numbers.
        has_positions = index.value_codings != ValueCoding.DENSE_BITS
        position_sizes = _aligned(counts * POSITION_DTYPE.itemsize) * has_positions
        word_sizes = _aligned(counts * index.widths_bytes)
        first = int(_aligned(np.array(pack_size_bytes, np.int64)))
        ends = first + np.cumsum(position_sizes + word_sizes)
        word_starts = ends - word_sizes
        size_bytes = int(ends[-1]) if ends.size else first
        return cls(word_starts - position_sizes, word_starts, size_bytes)


def check_sealed_memory() -> None:
    """Whether segments can be made on this machine; makes an empty one.

    Raises:
        StorageFailedError: they cannot.
    """
    try:
        file = _memory_file()
        try:
            fcntl.fcntl(file, _ADD_SEALS, _SEALS)
        finally:
            os.close(file)
    except OSError as error:
        raise StorageFailedError(
            f"no sealed memory can be made here: {error.strerror or error}",
            do="Run the agent on Linux with a Python that has os.memfd_create, or none at all: "
            "each receiver then decodes by itself.",
        ) from error


def make_segment(
    data: bytes,
    reader: PackReader,
    layout: SegmentLayout,
    lender: Lender[PieceWorker],
    workers: Workers,
) -> int:
    """Decode a pack into a new sealed segment.

    After a crash: nothing; the memory has no name, and goes with the last that holds it.

    Args:
        data: The pack, verified.
        reader: Over it.
        layout: Of it.
        lender: Gives decoders.
        workers: Threads to use.

    Returns:
        A file descriptor, which the caller owns.

    Raises:
        CorruptObjectError: a piece is damaged.
        OSError: the system has no memory for it.
    """
    file = _memory_file()
    try:
        os.ftruncate(file, layout.size_bytes)
        _write(file, memoryview(data), 0)
        jobs = (_Batch(file, first, end, reader, layout, lender) for first, end in _batches(layout))
        for _ in workers.run(jobs):
            pass
        fcntl.fcntl(file, _ADD_SEALS, _SEALS)
    except BaseException:
        os.close(file)
        raise
    return file


class SharedPieces:
    """The decoded pieces of one pack in a segment. Safe from several threads.

    Args:
        view: The segment.
        reader: Over the pack in it.
        layout: Of it.
    """

    def __init__(self, view: memoryview, reader: PackReader, layout: SegmentLayout) -> None:
        self._view = view
        self._reader = reader
        self._layout = layout

    def sparse(self, number: int) -> SparseChange:
        """One piece, after all checks that need no live bits.

        Raises:
            CorruptObjectError: positions do not rise, or pass the piece.
        """
        piece = self._reader.piece(number)
        words = self._array(
            int(self._layout.word_starts[number]), piece.changed_count, f"u{piece.width_bytes}"
        )
        if piece.value_coding is ValueCoding.DENSE_BITS:
            return SparseChange(np.arange(piece.unit_count, dtype=np.uint32), words, Combine.SET)
        start = int(self._layout.position_starts[number])
        positions = self._array(start, piece.changed_count, POSITION_DTYPE)
        is_rising = bool(np.all(positions[1:] > positions[:-1]))
        if not is_rising or int(positions[-1]) >= piece.unit_count:
            raise CorruptObjectError(
                f"the host agent gave positions that a piece of {piece.unit_count} units "
                "cannot have"
            )
        return SparseChange(positions, words, _COMBINE.get(piece.value_coding, Combine.SET))

    def _array(self, start: int, count: int, dtype: DTypeLike) -> NDArray[Any]:
        # A copy, so that nothing but the pack's own job keeps the segment mapped.
        return np.frombuffer(self._view, dtype, count, start).copy()


def open_segment(
    file: int, schema: Schema, pack: PackRef, limits: Limits
) -> tuple[PackReader, SharedPieces]:
    """Map a segment that somebody else has made, and check it as bytes from outside.

    Args:
        file: Its descriptor; closed before this returns.
        schema: Of the version.
        pack: What the manifest says of the pack.
        limits: Hard bounds.

    Raises:
        CorruptObjectError: it is not sealed, has another size, or does not begin with the
            pack that the manifest names.
    """
    try:
        view = _mapped(file, pack)
    except OSError as error:
        raise CorruptObjectError(f"the host agent gave no segment: {error}") from error
    finally:
        os.close(file)
    data = view[: pack.size_bytes]
    found = hashlib.sha256(data).hexdigest()
    if found != pack.sha256:
        raise CorruptObjectError(
            f"the host agent gave other bytes for the pack {pack.key}: expected the SHA-256 "
            f"{pack.sha256}, found {found}",
            facts={"key": pack.key, "expected": pack.sha256, "found": found},
        )
    reader = PackReader(data, schema, limits)
    layout = SegmentLayout.of(pack.size_bytes, reader)
    if layout.size_bytes != len(view):
        raise CorruptObjectError(
            f"the host agent gave {len(view)} bytes for the pack {pack.key}, expected "
            f"{layout.size_bytes}",
            facts={"key": pack.key, "expected": layout.size_bytes, "found": len(view)},
        )
    return reader, SharedPieces(view, reader, layout)


def _mapped(file: int, pack: PackRef) -> memoryview:
    # First of all: a segment that could be shortened would end a process that reads it.
    if fcntl.fcntl(file, _GET_SEALS) & _SEALS != _SEALS:
        raise CorruptObjectError("the host agent gave a segment that is not sealed")
    size_bytes = os.fstat(file).st_size
    if size_bytes < pack.size_bytes:
        raise CorruptObjectError(
            f"the host agent gave {size_bytes} bytes for a pack of {pack.size_bytes}",
            facts={"key": pack.key},
        )
    return memoryview(mmap.mmap(file, size_bytes, prot=mmap.PROT_READ))


def _memory_file() -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, "this Python has no os.memfd_create")
    return os.memfd_create("weightstore-pack", _CLOSE_ON_EXEC | _ALLOW_SEALING)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """A job: pieces that lie side by side, decoded and written at once."""

    file: int
    first: int
    end: int
    reader: PackReader
    layout: SegmentLayout
    lender: Lender[PieceWorker]

    def __call__(self) -> None:
        start, end = self._starts(self.first), self._starts(self.end)
        buffer = np.zeros(end - start, np.uint8)
        with self.lender.lend() as worker:
            for number in range(self.first, self.end):
                piece = self.reader.piece(number)
                found = worker.sparse(piece)
                self._place(buffer, number, piece, found, start)
        _write(self.file, buffer.data, start)

    def _starts(self, number: int) -> int:
        starts = self.layout.position_starts
        return int(starts[number]) if number < starts.size else self.layout.size_bytes

    def _place(
        self, buffer: NDArray[np.uint8], number: int, piece: Piece, found: SparseChange, start: int
    ) -> None:
        _put(buffer, int(self.layout.word_starts[number]) - start, found.words)
        if piece.value_coding is not ValueCoding.DENSE_BITS:
            _put(buffer, int(self.layout.position_starts[number]) - start, found.positions)


def _batches(layout: SegmentLayout) -> list[tuple[int, int]]:
    """First and last-but-one number of pieces that are decoded together."""
    starts = layout.position_starts
    batches: list[tuple[int, int]] = []
    first = 0
    while first < starts.size:
        reach = int(starts[first]) + _BATCH_SIZE_BYTES
        end = max(first + 1, int(np.searchsorted(starts, reach, side="right")) - 1)
        batches.append((first, min(end, starts.size)))
        first = batches[-1][1]
    return batches


def _put(buffer: NDArray[np.uint8], start: int, array: NDArray[np.generic]) -> None:
    buffer[start : start + array.nbytes] = array.view(np.uint8)


def _write(file: int, data: memoryview, start: int) -> None:
    """Write all of it; one call may take a part."""
    while data:
        count = os.pwrite(file, data, start)
        data, start = data[count:], start + count


def _aligned(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return sizes + -sizes % ALIGNMENT_BYTES
