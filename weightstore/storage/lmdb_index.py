"""An index as LMDB files in a folder, which several threads and processes share.

LMDB maps its file into memory and trusts what is there: a file that was cut off or written
over ends the process that reads it. So a file is opened only if it is as its last writer
left it, and that is known by its **seal**: after each change the writer sets the file's time
of modification to a date in the past that follows from its inode number and size. Any other
write, a cut one of ours included, sets the time to now; a copy has another inode; a
truncation has another size. A file without its seal is deleted and built again.

Changes, openings and deletions exclude each other by a file lock on `guard`, which the
kernel drops with its holder. Nobody waits for it: who does not get it goes on without the
index this time.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from weightstore.errors import (
    CorruptObjectError,
    LimitError,
    StorageFailedError,
    StoreClosedError,
    UnavailableError,
)
from weightstore.storage.durable import storage_error
from weightstore.storage.index_file import Expected, check_index_keys
from weightstore.storage.index_place import folder_ids
from weightstore.storage.machine import process_id

if TYPE_CHECKING:
    from weightstore.storage.lmdb_environment import Environment

DATA_NAME = "data.mdb"
LOCK_NAME = "lock.mdb"
GUARD_NAME = "guard"

_SEAL_FIRST_S = 1_000_000_000
_SEAL_RANGE_S = 100_000_000
_NS = 1_000_000_000
_GUARD = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FileId: TypeAlias = tuple[int, int]  # device and inode, whatever path leads there


class LmdbIndexFile:
    """An `IndexFile` in a folder of a local file system.

    All handles of one process on one folder share one environment, whatever path leads to
    it, since LMDB allows no second one: a folder that is moved while it is open is no index at
    its new path until it is closed. A handle serves only the process that made it.

    Args:
        folder: Where the files are, or will be made at the first put. It may be reached
            through symbolic links; it and the files must be none.
        size_bytes_max: The index never grows above this; of several handles the largest
            bound counts.
    """

    def __init__(self, folder: Path, *, size_bytes_max: int) -> None:
        self._shared = _acquire(folder, size_bytes_max)
        self._release = weakref.finalize(self, _release, self._shared)

    @property
    def location(self) -> str:
        """The folder, for messages."""
        return str(self._shared.folder)

    def get_many(self, keys: Sequence[bytes], /) -> tuple[bytes | None, ...]:
        """The values of keys in one snapshot; see `IndexFile.get_many`."""
        check_index_keys(keys)
        return self._alive().get_many(keys)

    def put_many(self, entries: Mapping[bytes, bytes], /, *, expected: Expected) -> bool:
        """Add or replace entries; see `IndexFile.put_many`.

        After a crash: all of the entries or none, or an index without its seal, which is
        deleted by whoever comes next.
        """
        check_index_keys([*entries, expected.key])
        return self._alive().put_many(entries, expected)

    def clear(self) -> None:
        """Delete the files.

        After a crash: the old index, or one that whoever comes next deletes, or none.
        """
        self._alive().clear()

    def close(self) -> None:
        """Let go of the environment; the last handle of this process closes it."""
        self._release()

    def _alive(self) -> _SharedEnvironment:
        if not self._release.alive:
            raise StoreClosedError("this index is closed", do="Open the store again.")
        # Looked at before any lock is taken: at the fork another thread may have held it.
        if self._shared.process_id != process_id():
            raise StoreClosedError(
                "an open index belongs to the process that opened it",
                do="Open the store in the child process.",
            )
        return self._shared


class _SharedEnvironment:
    """The one environment of this process in a folder, and how many handles use it."""

    def __init__(self, folder: Path, size_bytes_max: int) -> None:
        self.folder = folder
        self.process_id = process_id()
        self.handle_count = 0
        self.size_bytes_max = size_bytes_max
        self._data_path = str(folder / DATA_NAME)
        self._lock = threading.Lock()
        self._environment: Environment | None = None
        self._file_id: _FileId | None = None

    def get_many(self, keys: Sequence[bytes]) -> tuple[bytes | None, ...]:
        with self._lock, self._dropped_on_error():
            environment = self._to_read()
            return (None,) * len(keys) if environment is None else environment.get_many(keys)

    def put_many(self, entries: Mapping[bytes, bytes], expected: Expected) -> bool:
        with self._lock, self._guarded(fcntl.LOCK_EX, create=True) as is_mine:
            if not is_mine:
                return False
            with self._deleted_on_error():
                return self._put(entries, expected)

    def clear(self) -> None:
        with self._lock, self._guarded(fcntl.LOCK_EX) as is_mine:
            if is_mine:
                self._delete()

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _put(self, entries: Mapping[bytes, bytes], expected: Expected) -> bool:
        found = self._found()
        if found is None:
            self._delete()  # what a cut deletion has left
        elif not _is_sealed(found):
            raise self._unsealed()
        environment = self._opened(found)
        if environment is None:
            return False
        # A reader that was killed holds its snapshot for ever, and the file would grow.
        environment.forget_dead_readers()
        is_done = environment.put_many(entries, expected)
        self._seal()
        return is_done

    def _to_read(self) -> Environment | None:
        """The environment, if the file is there and sound; None if there is none, or not now."""
        if self._environment is not None and self._is_as_opened():
            return self._environment
        with self._guarded(fcntl.LOCK_SH) as is_mine:
            if not is_mine:
                return None
            found = self._found()
            if found is None:
                self._drop()
                return None
            if not _is_sealed(found):
                raise self._unsealed()
            return self._opened(found)

    def _opened(self, found: os.stat_result | None) -> Environment | None:
        """The environment in the file that was found, or a new one; the guard is held.

        None while this process has the file open as that of another folder.
        """
        if self._environment is not None and found is not None and self._is_open(found):
            self._environment.size_bytes_max = self.size_bytes_max  # of a handle since
            return self._environment
        self._drop()
        if found is not None and not self._take(found):
            return None
        from weightstore.storage.lmdb_environment import Environment  # noqa: PLC0415 -- loaded late

        self._environment = Environment(self.folder, size_bytes_max=self.size_bytes_max)
        try:
            self._take((self.folder / DATA_NAME).stat())
        except OSError as error:  # somebody has deleted the folder, guard and all
            raise storage_error(error, f"look at the index {self.folder}") from error
        return self._environment

    def _take(self, found: os.stat_result) -> bool:
        """Note that this environment has a file open; False if another one of this process has."""
        file_id = (found.st_dev, found.st_ino)
        # One step, without a lock: a handle that is collected as garbage gets here anywhere.
        if _open_files.setdefault(file_id, self) is not self:
            return False
        if self._file_id is not None and self._file_id != file_id:  # exchanged meanwhile
            _open_files.pop(self._file_id, None)
        self._file_id = file_id
        return True

    def _is_open(self, found: os.stat_result) -> bool:
        return (found.st_dev, found.st_ino) == self._file_id

    def _is_as_opened(self) -> bool:
        """Whether the open file still has its name and its seal; one system call."""
        try:
            found = os.lstat(self._data_path)
        except OSError:
            return False
        return self._is_open(found) and _is_sealed(found)

    def _found(self) -> os.stat_result | None:
        """The data file, or None unless both files are there."""
        found = [self._look(name) for name in (DATA_NAME, LOCK_NAME)]
        return None if None in found else found[0]

    def _look(self, name: str) -> os.stat_result | None:
        try:
            folder = self.folder.lstat()
            found = (self.folder / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, f"look at the index {self.folder}") from error
        if not (stat.S_ISDIR(folder.st_mode) and stat.S_ISREG(found.st_mode)):
            raise self._not_plain()
        return found

    def _seal(self) -> None:
        path = self.folder / DATA_NAME
        try:
            seal_ns = _seal_ns(path.stat())
            os.utime(path, ns=(seal_ns, seal_ns), follow_symlinks=False)
            is_sealed = _is_sealed(path.stat())
        except OSError as error:
            raise storage_error(error, f"seal {path}") from error
        if not is_sealed:
            raise StorageFailedError(f"the file system of {path} keeps no times of modification")

    def _not_plain(self) -> StorageFailedError:
        return StorageFailedError(
            f"the index {self.folder} is not plain files in a plain folder",
            do="Remove it; it is made again.",
        )

    def _unsealed(self) -> CorruptObjectError:
        return CorruptObjectError(
            f"the index {self.folder} is not as its last writer left it",
            do="Delete it; it is made again.",
        )

    @contextmanager
    def _dropped_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._drop()
            raise

    @contextmanager
    def _deleted_on_error(self) -> Iterator[None]:
        """After a failed write nothing of it is trusted; and a full disk gets its space back."""
        try:
            yield
        except LimitError:
            self._seal()  # nothing was written
            raise
        except BaseException:
            with suppress(UnavailableError):
                self._delete()
            raise

    @contextmanager
    def _guarded(self, mode: int, *, create: bool = False) -> Iterator[bool]:
        """Hold the guard; False if another process has it, or if it is not there."""
        file = self._guard_file(create=create)
        if file is None:
            yield False
            return
        try:
            yield self._is_locked(file, mode)
        finally:
            # Unlocked by name: a child forked meanwhile shares the lock with the descriptor.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _guard_file(self, *, create: bool) -> int | None:
        access = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        try:
            if create:
                self.folder.mkdir(parents=True, exist_ok=True)
            if self.folder.is_symlink():
                raise self._not_plain()
            return os.open(self.folder / GUARD_NAME, access | _GUARD, 0o644)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error(error, f"open the guard of the index {self.folder}") from error

    def _is_locked(self, file: int, mode: int) -> bool:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise storage_error(error, f"lock the index {self.folder}") from error
        # Somebody may have deleted the folder: a lock on a file without a name holds off nobody.
        return os.fstat(file).st_nlink > 0

    def _delete(self) -> None:
        """Delete both files, the one without which the other is not used first."""
        self._drop()
        for name in (LOCK_NAME, DATA_NAME):
            try:
                (self.folder / name).unlink(missing_ok=True)
            except NotADirectoryError:
                return
            except OSError as error:
                raise storage_error(error, f"delete the index {self.folder}") from error

    def _drop(self) -> None:
        if self._environment is not None:
            self._environment.close()
            self._environment = None
        if self._file_id is not None:
            _open_files.pop(self._file_id, None)
            self._file_id = None


def _is_sealed(found: os.stat_result) -> bool:
    return found.st_mtime_ns == _seal_ns(found)


def _seal_ns(found: os.stat_result) -> int:
    """Whole seconds, so that file systems with coarse times keep it."""
    mark = zlib.crc32(f"{found.st_ino} {found.st_size}".encode("ascii"))
    return (_SEAL_FIRST_S + mark % _SEAL_RANGE_S) * _NS


# LMDB's rule, one environment a process, makes this the process's and nobody else's.
_shared: dict[Path, _SharedEnvironment] = {}
_open_files: dict[_FileId, _SharedEnvironment] = {}
# Taken again by a handle that is collected as garbage while its thread holds it.
_shared_lock = threading.RLock()
_inherited: list[_SharedEnvironment] = []


def _acquire(folder: Path, size_bytes_max: int) -> _SharedEnvironment:
    place = folder.parent.resolve() / folder.name
    with _shared_lock:
        shared = _shared.get(place) or _shared_at(place)
        if shared is None:
            shared = _shared[place] = _SharedEnvironment(place, size_bytes_max)
        shared.size_bytes_max = max(shared.size_bytes_max, size_bytes_max)
        shared.handle_count += 1
        return shared


def _shared_at(place: Path) -> _SharedEnvironment | None:
    """The environment in a folder that another path leads to as well, by a mount.

    Asked of the folders as they are now: one that was moved is not where it was.
    """
    ids = folder_ids(place)
    return next((one for one in [*_shared.values()] if ids & folder_ids(one.folder)), None)


def _release(shared: _SharedEnvironment) -> None:
    if shared.process_id != process_id():
        return
    with _shared_lock:
        shared.handle_count -= 1
        if shared.handle_count == 0:
            _shared.pop(shared.folder, None)
            shared.close()


def _forget_after_fork() -> None:
    """In a child: leave the parent's environments alone, and never close them.

    Closing one would unlock the parent's snapshots, and a lock that another thread held at
    the fork would never be released here.
    """
    global _shared_lock  # noqa: PLW0603 -- a lock that crossed a fork cannot be mended
    _inherited.extend(_shared.values())
    _shared.clear()
    _open_files.clear()
    _shared_lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_after_fork)
