"""One open LMDB environment: snapshot reads, atomic writes, and its errors as ours.

Imported at the first use of an index and never before: loading LMDB costs several times
what opening a store does.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import lmdb

from weightstore.errors import (
    CorruptObjectError,
    LimitError,
    StorageFailedError,
    StorageFullError,
    WeightStoreError,
)
from weightstore.settings import KIB, MIB
from weightstore.storage.durable import FULL_ERRNOS
from weightstore.storage.index_file import Expected

FIRST_MAP_SIZE_BYTES = 16 * MIB
"""Address space, not disk: the file is as long as what it holds."""
_META = struct.Struct("@NHHI IIPN IHHNNNNN IHHNNNNN NN")
"""The head of a meta page: `MDB_page` up to its data, then `MDB_meta`, both in liblmdb's
`mdb.c` (0.9.x, data version 1). In native order, so with 8-byte words: page number, pad, flags
and bounds at 0; magic at 16, version 20, address 24, map size 32; the free database at 40, which
begins with the page size; the main one at 88; last page number at 136, transaction at 144. Meta
pages are pages 0 and 1.
"""
_MAGIC = 0xBEEFC0DE
_DATA_VERSION = 1
_META_COUNT = 2
_PAGE_SIZES_BYTES = frozenset(1 << power for power in range(8, 17))
_RETRY_COUNT_MAX = 64
_FILE_MODE = 0o644
_READER_COUNT_MAX = 510
_DATA_NAME = "data.mdb"
_LOCK_NAME = "lock.mdb"
_LOCK_SIZE_BYTES = 64 * KIB
"""More than the table of readers needs, whose entries have 64 bytes."""
_DAMAGE = (
    lmdb.BadChecksumError,
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)


class Environment:
    """An LMDB environment in a folder. Not for several threads.

    Args:
        folder: Where `data.mdb` and `lock.mdb` are, or will be made.
        size_bytes_max: The file never grows above this.
        first_map_size_bytes: Address space to begin with; it is doubled as needed.

    After a crash: any of the two files, or none. Their names are not synced: a cache that
    power loss takes is made again, and one that it leaves half is known by its seal.

    Raises:
        CorruptObjectError: the files are no environment of this version of LMDB.
        StorageFailedError: they cannot be opened or made.
    """

    def __init__(
        self,
        folder: Path,
        *,
        size_bytes_max: int,
        first_map_size_bytes: int = FIRST_MAP_SIZE_BYTES,
    ) -> None:
        self._folder = folder
        self.size_bytes_max = size_bytes_max
        try:
            _check_length(folder / _DATA_NAME)
            _reserve_lock_file(folder)
            self._lmdb = lmdb.open(
                str(folder),
                map_size=min(first_map_size_bytes, size_bytes_max),
                mode=_FILE_MODE,
                max_readers=_READER_COUNT_MAX,
                lib_version=0,  # two engines exist whose files the other one cannot read
            )
        except (lmdb.Error, OSError) as error:
            raise self._error(error, "open") from error

    def get_many(self, keys: Sequence[bytes]) -> tuple[bytes | None, ...]:
        """The values of keys in one snapshot.

        Raises:
            CorruptObjectError: a page is damaged.
            StorageFailedError: the system failed.
        """
        try:
            with self._began(write=False) as snapshot:
                return tuple(snapshot.get(key) for key in keys)
        except lmdb.Error as error:
            raise self._error(error, "read") from error

    def put_many(self, entries: Mapping[bytes, bytes], expected: Expected) -> bool:
        """Write entries in one transaction; False, and nothing changed, if another value is there.

        After a crash: all of the entries or none.

        Raises:
            CorruptObjectError: a page is damaged.
            LimitError: the bound is reached; nothing was changed.
            StorageFullError: no space.
            StorageFailedError: the system failed. LMDB may report the next commit as done
                although its pages never reached the disk, so this environment must be
                thrown away, as after any other error here.
        """
        for _ in range(_RETRY_COUNT_MAX):
            try:
                is_done = self._try_put(entries, expected)
                self._fill_up()
            except lmdb.MapFullError as error:
                # Nothing was written: the transaction was aborted as a whole.
                self._grow(error)
            except (lmdb.Error, OSError) as error:
                raise self._error(error, "write") from error
            else:
                return is_done
        raise StorageFailedError(f"the index {self._folder} takes no entries")

    def forget_dead_readers(self) -> None:
        """Free the snapshots of processes that were killed; they would make the file grow.

        Raises:
            StorageFailedError: the system failed.
        """
        try:
            self._lmdb.reader_check()
        except lmdb.Error as error:
            raise self._error(error, "look after") from error

    def close(self) -> None:
        """Unmap the file; a second call does nothing."""
        self._lmdb.close()

    def _try_put(self, entries: Mapping[bytes, bytes], expected: Expected) -> bool:
        with self._began(write=True) as writing:
            if writing.get(expected.key) != expected.value:
                writing.abort()
                return False
            for key, value in entries.items():
                writing.put(key, value)
            return True

    def _fill_up(self) -> None:
        """Make the file as long as its pages: LMDB leaves free last pages unwritten."""
        size_bytes = (self._lmdb.info()["last_pgno"] + 1) * self._lmdb.stat()["psize"]
        path = self._folder / _DATA_NAME
        if path.stat().st_size < size_bytes:
            os.truncate(path, size_bytes)

    def _began(self, *, write: bool) -> lmdb.Transaction[bytes]:
        try:
            return self._lmdb.begin(write=write)
        except lmdb.MapResizedError:
            # Another process let the file grow above our map: take its size over.
            self._lmdb.set_mapsize(0)
        except lmdb.ReadersFullError:
            self._lmdb.reader_check()
        return self._lmdb.begin(write=write)

    def _grow(self, full: lmdb.MapFullError) -> None:
        size_bytes = self._lmdb.info()["map_size"]
        if size_bytes >= self.size_bytes_max:
            raise LimitError(
                f"the index {self._folder} has reached its bound of {self.size_bytes_max} bytes",
                do="Raise limits.index_size_bytes; without it, new records are read one by one.",
            ) from full
        try:
            self._lmdb.set_mapsize(min(2 * size_bytes, self.size_bytes_max))
        except lmdb.Error as error:
            raise self._error(error, "enlarge") from error

    def _error(self, error: lmdb.Error | OSError, what: str) -> WeightStoreError:
        message = f"cannot {what} the index {self._folder}: {error}"
        number = error.code if isinstance(error, lmdb.Error) else error.errno or errno.EIO
        if isinstance(error, _DAMAGE):
            return CorruptObjectError(message, do="Delete the index; it is made again.")
        if number in FULL_ERRNOS:
            return StorageFullError(message, do="Free space; the store works without the index.")
        return StorageFailedError(message, do="Mend the storage; the store works without it.")


def _reserve_lock_file(folder: Path) -> None:
    """Give the lock file its space before LMDB maps it.

    LMDB would make it as one long hole and write through its map: on a full disk that ends
    the process (SIGBUS), for the sake of a cache.

    After a crash: a lock file of zeros, which LMDB takes for a new one; or none.

    Raises:
        OSError: no space, or it cannot be made.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(folder / _LOCK_NAME, flags, _FILE_MODE)
    try:
        if os.fstat(file).st_size < _LOCK_SIZE_BYTES:
            os.posix_fallocate(file, 0, _LOCK_SIZE_BYTES)
    finally:
        os.close(file)


def _check_length(path: Path) -> None:
    """Refuse a file that is shorter than its pages: LMDB would map it and die of SIGBUS.

    Raises:
        CorruptObjectError: it is cut short, or is no file of this version of LMDB.
        OSError: it cannot be read.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        size_bytes = os.fstat(file).st_size
        if size_bytes and size_bytes < _needed_size_bytes(file):
            raise CorruptObjectError(
                f"the index {path} is cut short, or is no index: {size_bytes} bytes",
                do="Delete the index; it is made again.",
            )
    finally:
        os.close(file)


def _needed_size_bytes(file: int) -> float:
    """The length that the meta pages speak of; infinite if they are none."""
    page_size_bytes = last_page = 0
    for number in range(_META_COUNT):
        head = os.pread(file, _META.size, number * page_size_bytes)
        if len(head) < _META.size:
            return float("inf")
        meta = _META.unpack(head)
        magic, version, size_bytes, last = meta[4], meta[5], meta[8], meta[24]
        is_known = (magic, version) == (_MAGIC, _DATA_VERSION)
        if not is_known or size_bytes not in _PAGE_SIZES_BYTES:
            return float("inf")
        if number and size_bytes != page_size_bytes:
            return float("inf")
        page_size_bytes, last_page = size_bytes, max(last_page, last)
    return (last_page + 1) * page_size_bytes
