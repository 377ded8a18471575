"""What a file needs to survive power loss, and the system calls that give it.

A file survives when its bytes are fsynced, and its name when the folder that holds it is,
up to the root. An fsync that failed is never repeated: the kernel may have dropped the
pages and would answer the second one with success.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import Buffer

from weightstore.errors import (
    BlobOutcomeUnknownError,
    InputRefusedError,
    StorageFailedError,
    StorageFullError,
    StoreReadOnlyError,
    UnavailableError,
)

FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
READ_ONLY_ERRNOS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
UNSUPPORTED_ERRNOS = frozenset(
    {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EXDEV, errno.ENOTTY}
)
"""What system calls say that a file system does not have."""

_FICLONE = 0x40049409


def _open(name: str, flags: int, mode: int, folder: int) -> int:
    return os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=folder)


def _make_folder(name: str, folder: int) -> None:
    os.mkdir(name, 0o777, dir_fd=folder)


def _link_open_file(file: int, name: str, folder: int) -> None:
    # linkat() of the descriptor itself needs a capability; by this name it does not.
    os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=folder, follow_symlinks=True)


def _link(source: str, name: str, folder: int) -> None:
    os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)


def _symlink(target: str, name: str, folder: int) -> None:
    os.symlink(target, name, dir_fd=folder)


def _rename(source: str, name: str, folder: int) -> None:
    os.replace(source, name, src_dir_fd=folder, dst_dir_fd=folder)


def _unlink(name: str, folder: int) -> None:
    os.unlink(name, dir_fd=folder)


def _clone(source: int, target: int) -> None:
    fcntl.ioctl(target, _FICLONE, source)


def _copy_range(source: int, target: int, size_bytes: int) -> int:
    return os.copy_file_range(source, target, size_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Syscalls:
    """The system calls that change a disk, as one value: each may be replaced by a test.

    `folder` is always an open directory; names are relative to it and hold no slash.
    """

    open: Callable[[str, int, int, int], int] = _open
    make_folder: Callable[[str, int], None] = _make_folder
    write: Callable[[int, Buffer], int] = os.write
    fsync: Callable[[int], None] = os.fsync
    link_open_file: Callable[[int, str, int], None] = _link_open_file
    link: Callable[[str, str, int], None] = _link
    symlink: Callable[[str, str, int], None] = _symlink
    rename: Callable[[str, str, int], None] = _rename
    unlink: Callable[[str, int], None] = _unlink
    clone: Callable[[int, int], None] = _clone
    copy_range: Callable[[int, int, int], int] = _copy_range


SYSCALLS = Syscalls()


def storage_error(error: OSError, what: str) -> UnavailableError:
    """The error of this library for one of the operating system, by what has to be mended.

    Args:
        error: What the system said.
        what: What was being done, such as `"write packs/x"`.
    """
    message = f"cannot {what}: {error.strerror or error}"
    facts = {"errno": error.errno}
    if error.errno in FULL_ERRNOS:
        return StorageFullError(message, do="Free space and repeat.", facts=facts)
    if error.errno in READ_ONLY_ERRNOS:
        return StoreReadOnlyError(
            message, do="Give this process write permission, or only read here.", facts=facts
        )
    return StorageFailedError(message, do="Mend the storage and repeat.", facts=facts)


def sync_path(path: Path, *, syscalls: Syscalls = SYSCALLS) -> None:
    """Make a file's bytes, or the names in a folder, survive power loss.

    After a crash: as before, or durable.

    Raises:
        StorageFailedError: the fsync failed; what was written may be lost, repeating the
            fsync would hide that.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            syscalls.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        raise storage_error(error, f"sync {path}") from error


def replace_durably(source: Path, target: Path, *, syscalls: Syscalls = SYSCALLS) -> None:
    """Rename a file or a folder to its final name, replacing a file of that name.

    Both must lie in the same folder. The files inside a folder are the caller's to sync.

    After a crash: the old file or the new one, whole; once this has returned, the new one.

    Raises:
        InputRefusedError: they lie in different folders.
        StorageFailedError: nothing was replaced; `StorageFullError` and
            `StoreReadOnlyError` say so too.
        BlobOutcomeUnknownError: replaced, but power loss may undo it.
    """
    with _synced_source(source, target, syscalls) as folder:
        _replace_in(folder, source, target, syscalls)


def link_durably(source: Path, target: Path, *, syscalls: Syscalls = SYSCALLS) -> None:
    """Give a file its final name, unless something has that name already.

    Both must lie in the same folder. On a file system without links the file is renamed
    after a look at the name; only there a file made at the same moment is replaced.

    After a crash: no file of that name or the whole one, which may have both names; once
    this has returned, the whole one.

    Raises:
        InputRefusedError: something has the name, or they lie in different folders.
        StorageFailedError: nothing was named; `StorageFullError` and `StoreReadOnlyError`
            say so too.
        BlobOutcomeUnknownError: named, but power loss may undo it.
    """
    with _synced_source(source, target, syscalls) as folder:
        try:
            syscalls.link(source.name, target.name, folder)
        except FileExistsError as error:
            raise _taken(target) from error
        except OSError as error:
            if error.errno not in UNSUPPORTED_ERRNOS:
                raise storage_error(error, f"link {source} to {target.name}") from error
            if os.path.lexists(target):
                raise _taken(target) from error
            _replace_in(folder, source, target, syscalls)
            return
        _sync_name(folder, target, syscalls)
        # The file is there for good; a first name that cannot be removed only lies about.
        with suppress(OSError):
            syscalls.unlink(source.name, folder)


@contextmanager
def _synced_source(source: Path, target: Path, syscalls: Syscalls) -> Iterator[int]:
    """The open folder of both names, after the source was synced."""
    if source.parent != target.parent:
        raise InputRefusedError(
            f"{source} and {target} lie in different folders",
            do="Write the new file beside the final name.",
        )
    sync_path(source, syscalls=syscalls)
    try:
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise storage_error(error, f"open {target.parent}") from error
    try:
        yield folder
    finally:
        os.close(folder)


def _taken(target: Path) -> InputRefusedError:
    return InputRefusedError(
        f"{target} is there already; it was left as it is",
        do="Name a place that does not exist yet.",
        facts={"path": str(target)},
    )


def _replace_in(folder: int, source: Path, target: Path, syscalls: Syscalls) -> None:
    try:
        syscalls.rename(source.name, target.name, folder)
    except OSError as error:
        raise storage_error(error, f"rename {source} to {target.name}") from error
    _sync_name(folder, target, syscalls)


def _sync_name(folder: int, target: Path, syscalls: Syscalls) -> None:
    try:
        syscalls.fsync(folder)
    except OSError as error:
        raise BlobOutcomeUnknownError(
            f"{target} has its name, but its folder could not be synced: {error.strerror}",
            do="Check the disk; read the file again after a restart of the machine.",
        ) from error
