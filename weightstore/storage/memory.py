"""Blobs in a dictionary: for tests, simulations and throw-away stores."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from typing_extensions import Buffer

from weightstore.errors import (
    BlobExistsError,
    BlobNotFoundError,
    CorruptObjectError,
    InputRefusedError,
    StoreClosedError,
)
from weightstore.storage.blob_keys import check_hint_key, check_key, check_prefix
from weightstore.storage.blobs import BlobInfo
from weightstore.storage.buffers import byte_view
from weightstore.storage.machine import process_id


class MemoryBlobStore:
    """A `BlobStore` in the memory of one process; everything in it ends with the process.

    A forked child holds a copy that its parent would never see, so it is refused there.
    """

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._process_id = process_id()

    @property
    def location(self) -> str:
        """Where this is, for messages."""
        return f"memory of process {self._process_id}"

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        """Read a whole blob; see `BlobStore.get`."""
        data = self._found(key)
        if len(data) > max_size_bytes:
            raise CorruptObjectError(
                f"{key} has {len(data)} bytes, expected at most {max_size_bytes}",
                facts={"key": key, "size_bytes": len(data)},
            )
        return data

    def read_into(self, key: str, offset: int, target: Buffer, /) -> None:
        """Fill a writable buffer from a range; see `BlobStore.read_into`."""
        data = self._found(key)
        view = byte_view(target)
        if offset < 0 or (view.readonly and view.nbytes):
            raise InputRefusedError(
                f"cannot read {key} at {offset}: the offset is below 0 or the buffer read-only",
                do="Give an offset from 0 and a writable buffer.",
            )
        if offset + view.nbytes > len(data):
            raise CorruptObjectError(
                f"{key} ends at byte {len(data)}, expected at least {offset + view.nbytes}",
                facts={"key": key, "size_bytes": len(data)},
            )
        if view.nbytes:
            view[:] = memoryview(data)[offset : offset + view.nbytes]

    def size(self, key: str, /) -> int:
        """Size of a blob in bytes; see `BlobStore.size`."""
        return len(self._found(key))

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        """Create a blob, or leave everything as it was; see `BlobStore.put_if_absent`.

        After a crash: nothing of this store is left, durable or not.
        """
        del durable  # nothing here survives its process
        self._put(key, bytes(byte_view(data)))

    def put_stream_if_absent(self, key: str, chunks: Iterable[Buffer], /) -> int:
        """Create a blob from chunks; see `BlobStore.put_stream_if_absent`.

        After a crash: nothing of this store is left.
        """
        check_key(key)
        self._check_process()
        return self._put(key, b"".join(bytes(byte_view(chunk)) for chunk in chunks))

    def put_file_if_absent(self, key: str, source: Path, /) -> int:
        """Create a blob from a local file; see `BlobStore.put_file_if_absent`.

        After a crash: nothing of this store is left.

        Raises:
            InputRefusedError: the source is no regular file or cannot be read.
        """
        check_key(key)
        self._check_process()
        if not source.is_file():
            raise InputRefusedError(f"{source} is no regular file", do="Give a plain file.")
        try:
            data = source.read_bytes()
        except OSError as error:
            raise InputRefusedError(
                f"cannot read {source}: {error.strerror}", do="Give a file that can be read."
            ) from error
        return self._put(key, data)

    def overwrite(self, key: str, data: Buffer, /) -> None:
        """Replace or create a hint; see `BlobStore.overwrite`.

        After a crash: nothing of this store is left.
        """
        check_hint_key(key)
        self._check_process()
        with self._lock:
            self._blobs[key] = bytes(byte_view(data))

    def list(self, prefix: str, /) -> Iterator[BlobInfo]:
        """Blobs whose key starts with `prefix`, sorted; see `BlobStore.list`."""
        check_prefix(prefix)
        self._check_process()
        with self._lock:
            found = sorted(key for key in self._blobs if key.startswith(prefix))
            infos = [BlobInfo(key, len(self._blobs[key])) for key in found]
        return iter(infos)

    def delete(self, key: str, /) -> None:
        """Remove a blob; see `BlobStore.delete`.

        After a crash: nothing of this store is left.
        """
        check_key(key)
        self._check_process()
        with self._lock:
            self._blobs.pop(key, None)

    def confirm_durable(self, prefix: str, /) -> None:
        """Do nothing: what is in memory is as durable as it gets.

        After a crash: nothing of this store is left.
        """
        check_prefix(prefix)
        self._check_process()

    def local_path(self, key: str, /) -> None:
        """None: there are no files."""
        self._found(key)

    def _found(self, key: str) -> bytes:
        check_key(key)
        self._check_process()
        with self._lock:
            data = self._blobs.get(key)
        if data is None:
            raise BlobNotFoundError(f"no blob {key}", facts={"key": key})
        return data

    def _put(self, key: str, data: bytes) -> int:
        check_key(key)
        self._check_process()
        with self._lock:
            if key in self._blobs:
                raise BlobExistsError(f"{key} is already there", facts={"key": key})
            self._blobs[key] = data
        return len(data)

    def _check_process(self) -> None:
        """Checked before the lock is taken: at the fork another thread may have held it."""
        if process_id() != self._process_id:
            raise StoreClosedError(
                "a store in memory belongs to the process that made it",
                do="Use a store on a disk between processes.",
            )
