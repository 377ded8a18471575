"""The journal of one change of the files: new bits at their places, written as often as needed.

The file is a magic, the size of the head, the head as canonical JSON, the arrays of each part,
each padded to eight bytes, and the SHA-256 of all that. It is written beside the files and has
its name only when it is whole and durable.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import Buffer

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.errors import CorruptObjectError
from weightstore.format.canonical import MAX_INTEGER, CanonicalModel, decode_model, encode_model
from weightstore.history.delta_path import VersionRef
from weightstore.ids import SHA256_PATTERN, Sha256, VersionId
from weightstore.settings import Limits
from weightstore.storage.durable import storage_error

JOURNAL_NAME = "journal"

_MAGIC = b"WSREDO01"
_COUNT_BYTES = 8
_HASH_BYTES = 32
_ALIGNMENT_BYTES = 8
_HASH_PART_BYTES = 1 << 23
_WHAT = "the journal of the directory"

_WIDTHS = frozenset({1, 2, 4, 8})


class PartHead(CanonicalModel):
    """What of one file changes.

    Attributes:
        file: Its name.
        base: Byte of the file that unit 0 is at.
        width_bytes: Of a unit: 1, 2, 4 or 8.
        window_count: Windows that have changes.
        count: Changed units.
    """

    file: str = Field(min_length=1, max_length=255, pattern=r"^[^/\x00]+$")
    base: int = Field(ge=0)
    width_bytes: int = Field(ge=1, le=8)
    window_count: int = Field(ge=0)
    count: int = Field(ge=0)


class JournalHead(CanonicalModel):
    """Between which versions, and where.

    Attributes:
        journal_format: Of this form.
        base: Number of the version that was there.
        base_digest: Its state digest.
        target: Number of the version that will be there.
        target_digest: Its state digest.
        folder: The folder of the files.
        parts: By file and place.
    """

    journal_format: Literal[1] = 1
    base: VersionId = Field(ge=1)
    base_digest: Sha256 = Field(pattern=SHA256_PATTERN)
    target: VersionId = Field(ge=1)
    target_digest: Sha256 = Field(pattern=SHA256_PATTERN)
    folder: str
    parts: tuple[PartHead, ...]

    @property
    def base_ref(self) -> VersionRef:
        """The version that was there."""
        return VersionRef(self.base, self.base_digest)

    @property
    def target_ref(self) -> VersionRef:
        """The version that will be there."""
        return VersionRef(self.target, self.target_digest)


@dataclass(frozen=True, slots=True, eq=False)
class FilePart:
    """New bits of one file.

    Attributes:
        file: Its name.
        base: Byte of the file that unit 0 is at.
        change: What changes, in units of its own width. One that comes from a journal has no
            old bits: its new ones stand for them.
    """

    file: str
    base: int
    change: BlockedChange

    @property
    def head(self) -> PartHead:
        """What the journal's head says of it."""
        return PartHead(
            file=self.file,
            base=self.base,
            width_bytes=self.change.new_bits.itemsize,
            window_count=self.change.block_starts.size,
            count=self.change.count,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Journal:
    """A change that can be written again.

    Attributes:
        head: Between which versions, and where.
        parts: What to write.
    """

    head: JournalHead
    parts: tuple[FilePart, ...]


def journal_chunks(head: JournalHead, parts: Sequence[FilePart]) -> Iterator[Buffer]:
    """The bytes of a journal, hash included."""
    whole = hashlib.sha256()
    text = encode_model(head)
    start = _MAGIC + len(text).to_bytes(_COUNT_BYTES, "little") + text
    yield from _hashed(start, whole)
    for part in parts:
        change = part.change
        for array in (change.block_starts, change.block_firsts, change.offsets, change.new_bits):
            yield from _hashed(np.ascontiguousarray(array).view(np.uint8).data, whole)
    yield whole.digest()


def read_journal(stream: BinaryIO, limits: Limits) -> Journal:
    """Read a journal and check all of it.

    The arrays are a map of the file, which may lose its name meanwhile.

    Args:
        stream: A plain file, at its start.
        limits: What a head may be.

    Raises:
        CorruptObjectError: it is torn, or anything else.
        StorageFailedError: it cannot be read, whatever it is.
    """
    try:
        size_bytes = os.fstat(stream.fileno()).st_size
        # Before the whole is read: what somebody else has put there may be of any size.
        head, offset = _read_head(stream, size_bytes, limits)
        data = np.frombuffer(
            mmap.mmap(stream.fileno(), size_bytes, access=mmap.ACCESS_READ), np.uint8
        )
    except OSError as error:
        raise storage_error(error, f"read {_WHAT}") from error
    except ValueError as error:  # one that became shorter cannot be mapped
        raise CorruptObjectError(f"{_WHAT} cannot be mapped: {error}") from error
    if _sha256_of(data[:-_HASH_BYTES]) != data[-_HASH_BYTES:].tobytes():
        raise CorruptObjectError(f"{_WHAT} is not what was written")
    return Journal(head, tuple(_parts(data, offset, head)))


def _read_head(stream: BinaryIO, size_bytes: int, limits: Limits) -> tuple[JournalHead, int]:
    """The head, which fits the size of the file, and where the arrays begin."""
    start = len(_MAGIC) + _COUNT_BYTES
    first = stream.read(start)
    if len(first) < start or not first.startswith(_MAGIC):
        raise CorruptObjectError(f"{_WHAT} does not begin as one")
    text_size = int.from_bytes(first[len(_MAGIC) :], "little")
    if text_size > min(size_bytes - start, limits.manifest_size_bytes):
        raise CorruptObjectError(f"{_WHAT} has a head of {text_size} bytes")
    head = decode_model(JournalHead, stream.read(text_size), what=_WHAT)
    offset = _padded(start + text_size)
    arrays = (each for part in head.parts for each in _arrays(part))
    end = offset + sum(_padded(count * dtype.itemsize) for dtype, count in arrays)
    if size_bytes != end + _HASH_BYTES:
        raise CorruptObjectError(
            f"{_WHAT} has {size_bytes} bytes, its head says {end + _HASH_BYTES}"
        )
    return head, offset


def _arrays(part: PartHead) -> tuple[tuple[np.dtype[Any], int], ...]:
    if part.width_bytes not in _WIDTHS:
        raise CorruptObjectError(f"{_WHAT} has units of {part.width_bytes} bytes")
    return (
        (np.dtype(np.int64), part.window_count),
        (np.dtype(np.int64), part.window_count + 1),
        (np.dtype(np.uint16), part.count),
        (np.dtype(f"u{part.width_bytes}"), part.count),
    )


def _parts(data: NDArray[np.uint8], offset: int, head: JournalHead) -> Iterator[FilePart]:
    for part in head.parts:
        arrays: list[NDArray[Any]] = []
        for dtype, count in _arrays(part):
            end = offset + count * dtype.itemsize
            arrays.append(data[offset:end].view(dtype))
            offset = _padded(end)
        starts, firsts, offsets, bits = arrays
        _check_windows(starts, firsts, part.count)
        units: Units = bits
        yield FilePart(part.file, part.base, BlockedChange(starts, firsts, offsets, units, units))


def _check_windows(starts: NDArray[np.int64], firsts: NDArray[np.int64], count: int) -> None:
    is_whole = firsts[0] == 0 and firsts[-1] == count and bool(np.all(np.diff(firsts) >= 0))
    is_rising = bool(np.all(np.diff(starts) > 0))
    is_bounded = not starts.size or (starts[0] >= 0 and starts[-1] <= MAX_INTEGER)
    if not (is_whole and is_rising and is_bounded):
        raise CorruptObjectError(f"{_WHAT} has windows that do not fit")


def _hashed(data: Buffer, whole: Any) -> Iterator[Buffer]:  # noqa: ANN401 -- hashlib names no type
    size_bytes = memoryview(data).nbytes
    for chunk in (data, bytes(_padded(size_bytes) - size_bytes)):
        if memoryview(chunk).nbytes:
            whole.update(chunk)
            yield chunk


def _sha256_of(data: NDArray[np.uint8]) -> bytes:
    whole = hashlib.sha256()
    for first in itertools.takewhile(
        lambda start: start < data.size, itertools.count(0, _HASH_PART_BYTES)
    ):
        whole.update(data[first : first + _HASH_PART_BYTES].data)
    return whole.digest()


def _padded(offset: int) -> int:
    return -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
