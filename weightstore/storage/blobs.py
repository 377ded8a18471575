"""The seam between weightstore and the bytes below: ten verbs on keys.

`put_if_absent` is the only conditional primitive; commits rest on it alone. Keys are
relative, slash-separated names; an implementation refuses every other key before it touches
anything (`InputRefusedError`; the grammar is in `storage.blob_keys`). Implementations:
`storage.local`, `storage.memory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """One entry of a listing."""

    key: str
    size_bytes: int


class BlobStore(Protocol):
    """Immutable blobs under unique keys. Safe to use from several threads.

    Every method may also raise `StorageFailedError`, `StoreClosedError` and, for writes,
    `StoreReadOnlyError` and `StorageFullError`.
    """

    @property
    def location(self) -> str:
        """Where this is, for messages: a path or a URL."""
        ...

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        """Read a whole blob.

        Raises:
            BlobNotFoundError: there is none.
            CorruptObjectError: it is larger than `max_size_bytes`; nothing was read.
        """
        ...

    def read_into(self, key: str, offset: int, target: Buffer, /) -> None:
        """Fill a writable buffer from a byte range of a blob.

        Raises:
            BlobNotFoundError: there is none.
            CorruptObjectError: the blob ends before the range does.
        """
        ...

    def size(self, key: str, /) -> int:
        """Size of a blob in bytes.

        Raises:
            BlobNotFoundError: there is none.
        """
        ...

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        """Create a blob, or leave everything as it was.

        After a crash: no blob, or the whole blob; never a part. With `durable` that holds
        for power loss too, and once this has returned the blob and its name survive it;
        without, power loss may take any of the blob's bytes or its name.

        Raises:
            BlobExistsError: someone was first; nothing was written.
            BlobOutcomeUnknownError: read the key before anything else.
        """
        ...

    def put_stream_if_absent(self, key: str, chunks: Iterable[Buffer], /) -> int:
        """Create a large durable blob from chunks in bounded memory; its size in bytes.

        After a crash: as `put_if_absent`. If the iterable raises, no blob.
        """
        ...

    def put_file_if_absent(self, key: str, source: Path, /) -> int:
        """Create a durable blob from a local file, sharing blocks where the file system can.

        The blob never shares later edits of `source`. Returns the size in bytes.

        After a crash: as `put_if_absent`.
        """
        ...

    def overwrite(self, key: str, data: Buffer, /) -> None:
        """Replace or create a hint (`head`, `receivers/`); every other key is refused.

        After a crash: the old blob or the new one; after power loss any bytes or none, so
        that whoever reads a hint checks it.
        """
        ...

    def list(self, prefix: str, /) -> Iterator[BlobInfo]:
        """Blobs whose key starts with `prefix`, sorted. May be stale: finds garbage only.

        What is no blob (a temporary file, a lock, a link) is left out.
        """
        ...

    def delete(self, key: str, /) -> None:
        """Remove a blob. One that is not there is no error.

        After a crash: the blob is there or not; never a part.
        """
        ...

    def confirm_durable(self, prefix: str, /) -> None:
        """Make what is visible under a folder survive power loss, whoever wrote it.

        A record that was found, not written, counts only after this has returned.

        Raises:
            BlobOutcomeUnknownError: the fsync failed; this handle is dead.
        """
        ...

    def local_path(self, key: str, /) -> Path | None:
        """The blob as a local file, for readers that map files; None if this store has none.

        Raises:
            BlobNotFoundError: there is no such blob.
        """
        ...
