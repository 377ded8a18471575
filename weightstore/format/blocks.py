"""Hashes of the 8 MiB blocks of an anchor's files, so that a range verifies by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import Buffer

from weightstore.errors import CorruptObjectError, InputRefusedError
from weightstore.format.manifest import AnchorFile

BLOCK_SIZE_BYTES = 8 * 1024 * 1024
BLOCKS_MAGIC = b"WSBLOCK1"
HASH_SIZE_BYTES = 32

_HEADER_DTYPE = np.dtype([("magic", "V8"), ("block_size_bytes", "<u8"), ("file_count", "<u8")])


class BlockHasher:
    """SHA-256 of each block of a byte stream; takes the bytes in parts of any size."""

    def __init__(self) -> None:
        self._hashes: list[bytes] = []
        self._current = hashlib.sha256()
        self._filled_bytes = 0
        self.size_bytes = 0

    def update(self, data: Buffer) -> None:
        """Take the next bytes."""
        rest = memoryview(data).cast("B")
        self.size_bytes += len(rest)
        while len(rest):
            part = rest[: BLOCK_SIZE_BYTES - self._filled_bytes]
            self._current.update(part)
            self._filled_bytes += len(part)
            if self._filled_bytes == BLOCK_SIZE_BYTES:
                self._close_block()
            rest = rest[len(part) :]

    def finish(self) -> list[bytes]:
        """Hashes of all blocks, the last one shorter; none for an empty stream."""
        if self._filled_bytes:
            self._close_block()
        return self._hashes

    def _close_block(self) -> None:
        self._hashes.append(self._current.digest())
        self._current = hashlib.sha256()
        self._filled_bytes = 0


@dataclass(frozen=True, slots=True)
class FileBlocks:
    """The block hashes of one file.

    Attributes:
        name: Of the file in its anchor.
        size_bytes: Of the file.
        hashes: SHA-256 of each block, 32 bytes each.

    Raises:
        InputRefusedError: not as many hashes as the file has blocks.
    """

    name: str
    size_bytes: int
    hashes: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if len(self.hashes) != block_count(self.size_bytes):
            raise InputRefusedError(
                f"{self.name!r} of {self.size_bytes} bytes has {len(self.hashes)} block hashes",
                do="Hash every block of the file.",
            )

    def check_block(self, block: int, data: Buffer) -> None:
        """Compare a whole block with its hash.

        Args:
            block: Number of the block, from 0.
            data: Its bytes.

        Raises:
            CorruptObjectError: they differ, or the block is not whole.
        """
        view = memoryview(data).cast("B")
        start = block * BLOCK_SIZE_BYTES
        expected_size = min(BLOCK_SIZE_BYTES, self.size_bytes - start)
        if len(view) != expected_size or hashlib.sha256(view).digest() != self.hashes[block]:
            raise CorruptObjectError(
                f"block {block} of {self.name!r}, {len(view)} bytes from byte {start}, is not"
                " what was stored",
                do="Read another copy of the file.",
                facts={"file": self.name, "block": block},
            )


def block_count(size_bytes: int) -> int:
    """Blocks of a file."""
    return -(-size_bytes // BLOCK_SIZE_BYTES)


def blocks_of_range(first_byte: int, size_bytes: int) -> range:
    """Numbers of the blocks that hold a range of bytes; none for an empty range."""
    if size_bytes == 0:
        return range(0)
    return range(first_byte // BLOCK_SIZE_BYTES, block_count(first_byte + size_bytes))


def encode_blocks(files: Sequence[FileBlocks]) -> bytes:
    """Bytes of the sidecar.

    Args:
        files: In the order of the manifest, which has their names.
    """
    header = np.zeros((), _HEADER_DTYPE)
    header["magic"] = np.void(BLOCKS_MAGIC)
    header["block_size_bytes"] = BLOCK_SIZE_BYTES
    header["file_count"] = len(files)
    sizes = np.array([file.size_bytes for file in files], "<u8")
    hashes = b"".join(digest for file in files for digest in file.hashes)
    return header.tobytes() + sizes.tobytes() + hashes


def decode_blocks(data: bytes, files: Sequence[AnchorFile]) -> tuple[FileBlocks, ...]:
    """Parse the sidecar of an anchor.

    Args:
        data: Stored bytes.
        files: As the manifest lists them.

    Raises:
        CorruptObjectError: not a sidecar of these files.
    """
    counts = [block_count(file.size_bytes) for file in files]
    hashes_start = _HEADER_DTYPE.itemsize + 8 * len(files)
    expected = hashes_start + HASH_SIZE_BYTES * sum(counts)
    if len(data) != expected:
        raise CorruptObjectError(
            f"the block hashes of {len(files)} files have {len(data)} bytes, expected {expected}"
        )
    header = np.frombuffer(data, _HEADER_DTYPE, 1)[0]
    sizes = np.frombuffer(data, "<u8", len(files), _HEADER_DTYPE.itemsize).tolist()
    if (
        header["magic"].tobytes() != BLOCKS_MAGIC
        or header["block_size_bytes"] != BLOCK_SIZE_BYTES
        or header["file_count"] != len(files)
        or sizes != [file.size_bytes for file in files]
    ):
        raise CorruptObjectError("the block hashes of an anchor are of other files")
    found = []
    start = hashes_start
    for file, count in zip(files, counts, strict=True):
        end = start + HASH_SIZE_BYTES * count
        hashes = tuple(
            data[place : place + HASH_SIZE_BYTES] for place in range(start, end, HASH_SIZE_BYTES)
        )
        found.append(FileBlocks(file.name, file.size_bytes, hashes))
        start = end
    return tuple(found)
