"""Files that are being written and have no name yet, or one that nobody reads.

Where the file system has them, files without any name are used (`O_TMPFILE`): what is not
linked vanishes with its process. Elsewhere a file gets a temporary name of its own, which
listings leave out, and is locked while it is written, so that a sweep can tell it from what
a dead process left.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from typing_extensions import Buffer

from weightstore.clock import Entropy
from weightstore.errors import StorageFailedError
from weightstore.storage.blob_keys import TEMPORARY_MARK
from weightstore.storage.buffers import byte_view
from weightstore.storage.durable import UNSUPPORTED_ERRNOS, Syscalls, storage_error

WRITE_SIZE_BYTES = 1 << 30
"""One system call writes less than 2 GiB."""
CREATE_TRY_COUNT = 8
NO_UNNAMED_ERRNOS = UNSUPPORTED_ERRNOS | {errno.EISDIR, errno.ENOENT, errno.EACCES, errno.ELOOP}
"""What a system says that has no files without a name, or cannot link them."""

# Blobs never change: the mode keeps an editor's slip from doing what nothing here does.
_BLOB_MODE = 0o444
_ACCESS = os.O_RDWR | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class UnfinishedFile:
    """An open file that is no blob yet.

    Attributes:
        file: Its descriptor.
        folder: Descriptor of the folder that it will be linked in.
        temporary_name: Its name until then; empty where it needs none.
        syscalls: How to change the disk.
    """

    file: int
    folder: int
    temporary_name: str
    syscalls: Syscalls

    def write(self, data: Buffer) -> int:
        """Append bytes; their number.

        Raises:
            StorageFullError: no space; nothing is visible.
            StorageFailedError: the system failed; nothing is visible.
        """
        try:
            return write_all(self.file, data, self.syscalls)
        except OSError as error:
            raise storage_error(error, "write a file of the store") from error

    def link(self, name: str) -> None:
        """Give the file its name, unless there is a file of that name.

        After a crash: the name is there with all bytes, or not at all; after power loss
        too, if the file was synced before.

        Raises:
            FileExistsError: someone was first.
            OSError: what the system said.
        """
        if not self.temporary_name:
            self.syscalls.link_open_file(self.file, name, self.folder)
            return
        try:
            self.syscalls.link(self.temporary_name, name, self.folder)
        except FileExistsError:
            # A network file system repeats a call whose answer was lost, and the repeat
            # finds the name made by the first. Two names mean that one of them is ours. (P11)
            if os.fstat(self.file).st_nlink != 2:  # noqa: PLR2004 -- the two names
                raise

    def replace(self, name: str) -> None:
        """Give the file its name, taking the place of a file of that name.

        After a crash: the old file or this one; after power loss perhaps none.

        Raises:
            OSError: what the system said.
        """
        self.syscalls.rename(self.temporary_name, name, self.folder)


def write_all(file: int, data: Buffer, syscalls: Syscalls) -> int:
    """Write bytes where an open file stands, however few of them a call takes; their number.

    After a crash: any number of them is written.

    Raises:
        OSError: what the system said.
    """
    view, done = byte_view(data), 0
    while done < view.nbytes:
        done += syscalls.write(file, view[done : done + WRITE_SIZE_BYTES])
    return done


@contextmanager
def unnamed_file(folder: int, syscalls: Syscalls) -> Iterator[UnfinishedFile]:
    """A new file without a name, gone at the end unless it was linked.

    After a crash: nothing, or what was linked.

    Raises:
        StorageFullError: no space; nothing is visible.
        StoreReadOnlyError: files may not be made here.
        StorageFailedError: the system failed; nothing is visible.
    """
    try:
        file = _open_unnamed(folder, syscalls)
    except OSError as error:
        raise storage_error(error, "create a file of the store") from error
    try:
        yield UnfinishedFile(file, folder, "", syscalls)
    finally:
        os.close(file)


@contextmanager
def named_file(folder: int, syscalls: Syscalls, entropy: Entropy) -> Iterator[UnfinishedFile]:
    """A new file under a temporary name, which is removed at the end.

    After a crash: the temporary name may stay; `remove_abandoned` finds it.

    Raises:
        StorageFullError: no space; nothing is visible.
        StoreReadOnlyError: files may not be made here.
        StorageFailedError: the system failed; nothing is visible.
    """
    try:
        name, file = _create_locked(folder, syscalls, entropy)
    except OSError as error:
        raise storage_error(error, "create a file of the store") from error
    try:
        yield UnfinishedFile(file, folder, name, syscalls)
    finally:
        try:
            with suppress(OSError):  # renamed, or left for a sweep
                syscalls.unlink(name, folder)
        finally:
            os.close(file)


def has_unnamed_files(folder: int, syscalls: Syscalls, entropy: Entropy) -> bool:
    """Whether files without a name can be made and linked here; found out by doing it.

    After a crash: a temporary name may stay; `remove_abandoned` finds it.

    Raises:
        StorageFullError: no space; nothing is visible.
        StoreReadOnlyError: files may not be made here.
        StorageFailedError: the system failed in another way than not having such files.
    """
    name = TEMPORARY_MARK + entropy.hex128()
    try:
        file = _open_unnamed(folder, syscalls)
        try:
            syscalls.link_open_file(file, name, folder)
        finally:
            os.close(file)
        with suppress(FileNotFoundError):
            syscalls.unlink(name, folder)
    except OSError as error:
        if error.errno in NO_UNNAMED_ERRNOS:
            return False
        raise storage_error(error, "create a file of the store") from error
    return True


def remove_abandoned(name: str, folder: int, syscalls: Syscalls) -> bool:
    """Remove a temporary file that no living process writes; whether it was.

    After a crash: the file is there or not; it is no blob either way.
    """
    try:
        file = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        syscalls.unlink(name, folder)
    except OSError:
        # Locked by its writer, gone, or on a file system that cannot tell: all the same.
        return False
    finally:
        os.close(file)
    return True


def _open_unnamed(folder: int, syscalls: Syscalls) -> int:
    return syscalls.open(".", os.O_TMPFILE | _ACCESS, _BLOB_MODE, folder)


def _create_locked(folder: int, syscalls: Syscalls, entropy: Entropy) -> tuple[str, int]:
    for _ in range(CREATE_TRY_COUNT):
        name = TEMPORARY_MARK + entropy.hex128()
        file = syscalls.open(name, os.O_CREAT | os.O_EXCL | _ACCESS, _BLOB_MODE, folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)  # a sweep has found it in between, and removes it
            continue
        except OSError:
            return name, file  # no locks here, so nobody can sweep either
        if os.fstat(file).st_nlink:
            return name, file
        os.close(file)
    raise StorageFailedError(
        "every temporary file was swept while it was made", do="Repeat; run one sweep at a time."
    )
