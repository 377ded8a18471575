"""Where a machine's store lies, seen from below: any object can be read, exchanged and lost."""

from __future__ import annotations

import enum
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from weightstore.history.log_index import LogIndex
from weightstore.ids import StoreId
from weightstore.settings import Settings
from weightstore.storage.blob_keys import INDEX_FOLDER
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.storage.memory_index import MemoryIndexFile
from weightstore.store.opening import index_of

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- a folder of its own is made in it


class Damage(enum.Enum):
    """What becomes of bytes."""

    FLIPPED = "one bit is another one"
    CUT = "the end is missing"
    EMPTY = "all of it is missing"
    LONGER = "something follows"
    REPLACED = "it is another object's"
    LOST = "it is not there"


def damaged(data: bytes, how: Damage, place: int, other: bytes) -> bytes | None:
    """Bytes after damage; None if they are gone.

    Args:
        data: As they were.
        how: What happens.
        place: Where; any number.
        other: Bytes of another object.
    """
    match how:
        case Damage.FLIPPED if data:
            changed = bytearray(data)
            changed[place // 8 % len(data)] ^= 1 << place % 8
            return bytes(changed)
        case Damage.CUT:
            return data[: place % max(1, len(data))]
        case Damage.EMPTY:
            return b""
        case Damage.LONGER | Damage.FLIPPED:
            return data + bytes(1 + place % 9)
        case Damage.REPLACED:
            return other
        case Damage.LOST:
            return None


class Place(Protocol):
    """A store's objects, whoever uses them."""

    def open(self) -> BlobStore:
        """A handle, as a process would open it."""
        ...

    def index(self, store_id: StoreId, settings: Settings) -> LogIndex | None:
        """The index that belongs to a handle."""
        ...

    def exchange(self, key: str, data: bytes | None) -> None:
        """Let an object hold other bytes, or be gone.

        After a crash: the object is there or not, and may be cut short.
        """
        ...

    def spoil_index(self, how: Damage, place: int) -> None:
        """Damage the index; no handle may be open.

        After a crash: the index may hold anything.
        """
        ...

    def close(self) -> None:
        """Leave nothing behind."""
        ...

    @property
    def folder(self) -> Path:
        """A folder for files beside the store."""
        ...


class MemoryPlace:
    """A store in memory, and its index beside it."""

    def __init__(self) -> None:
        self._blobs = MemoryBlobStore()
        self._index = KeptIndexFile()
        self._folder: Path | None = None

    def open(self) -> BlobStore:
        """See `Place.open`."""
        return self._blobs

    def index(self, store_id: StoreId, settings: Settings) -> LogIndex:
        """See `Place.index`."""
        return LogIndex(lambda: self._index, store_id, settings.limits)

    def exchange(self, key: str, data: bytes | None) -> None:
        """See `Place.exchange`.

        After a crash: nothing of this store is left.
        """
        self._blobs.delete(key)
        if data is not None:
            self._blobs.put_if_absent(key, data)

    def spoil_index(self, how: Damage, place: int) -> None:
        """See `Place.spoil_index`.

        After a crash: nothing of this store is left.
        """
        self._index.spoil(how, place)

    def close(self) -> None:
        """See `Place.close`."""
        if self._folder is not None:
            shutil.rmtree(self._folder)

    @property
    def folder(self) -> Path:
        """See `Place.folder`; made when it is first asked for."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="weightstore-machine-"))
        return self._folder


class KeptIndexFile(MemoryIndexFile):
    """An index in memory that outlives its handles, as one on a disk does."""

    def close(self) -> None:
        """Nothing: the next handle goes on with it."""

    def spoil(self, how: Damage, place: int) -> None:
        """Damage one value, or all of them.

        After a crash: nothing of this index is left.
        """
        if how is Damage.LOST:
            self._entries.clear()
        keys = sorted(self._entries)
        if keys:
            key, other = keys[place % len(keys)], keys[place // 7 % len(keys)]
            data = damaged(self._entries[key], how, place, self._entries[other])
            if data is None:
                del self._entries[key]
            else:
                self._entries[key] = data


class LocalPlace:
    """A store in a directory of its own."""

    def __init__(self) -> None:
        # Where files are memory, if there is such a place: a sync that takes no time is as
        # good, since nothing here loses what was not synced.
        memory = str(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="weightstore-machine-", dir=memory))
        self._root = self._folder / "store"

    def open(self) -> BlobStore:
        """See `Place.open`.

        After a crash: the directory is there or not.
        """
        return LocalBlobStore(self._root, create=True)

    def index(self, store_id: StoreId, settings: Settings) -> LogIndex | None:
        """See `Place.index`."""
        return index_of(self.open(), store_id, settings)

    def exchange(self, key: str, data: bytes | None) -> None:
        """See `Place.exchange`.

        After a crash: the object is there or not, and may be cut short.
        """
        path = self._root / key
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)

    def spoil_index(self, how: Damage, place: int) -> None:
        """See `Place.spoil_index`.

        After a crash: the index may hold anything.
        """
        folder = self._root / INDEX_FOLDER
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        if how is Damage.LOST or not files:
            shutil.rmtree(folder, ignore_errors=True)
            return
        file = files[place % len(files)]
        garbage = np.random.default_rng(place).bytes(4096)
        data = damaged(file.read_bytes(), how, place * 4099, garbage)
        file.write_bytes(data or b"")

    def close(self) -> None:
        """See `Place.close`."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """See `Place.folder`."""
        return self._folder


MakePlace = Callable[[], Place]
