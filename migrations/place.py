"""Reading and adding files of a store in a local directory, durably.

A migration only adds: what is there is never changed, renamed or removed. What is read may
have been put there by anybody.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path, PurePosixPath

from .failures import DamagedStoreError

TEMPORARY_MARK = "~tmp-"
_FILE_MODE = 0o444
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe that somebody put there must not hang.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# What opening says of a link, of a file for a folder, and of a socket.
_IRREGULAR_ERRNOS = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO})


class Place:
    """The directory of a store.

    Args:
        root: The directory; it must be there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve(strict=True)

    def read(self, key: str, *, size_bytes_max: int) -> bytes | None:
        """The bytes under a key, or None where there is nothing.

        Raises:
            DamagedStoreError: no plain file in plain folders is there, or a larger one.
        """
        try:
            file = self._open(PurePosixPath(key).parts)
        except FileNotFoundError:
            return None
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise DamagedStoreError(f"{key} of {self.root} is no plain file")
            # One byte more than there may be: the file may grow while it is read.
            with os.fdopen(file, "rb", closefd=False) as opened:
                data = opened.read(size_bytes_max + 1)
        finally:
            os.close(file)
        if len(data) > size_bytes_max:
            raise DamagedStoreError(f"{key} of {self.root} is larger than {size_bytes_max} bytes")
        return data

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Add a file, or leave everything as it was; whether it was added.

        After a crash: no file of that name, or the whole file; a temporary name may stay.
        Once this has returned, the name survives loss of power, whoever put it there.
        """
        path = self.root / key
        self._make_folder(path.parent)
        temporary = path.with_name(TEMPORARY_MARK + os.urandom(16).hex())
        try:
            _write(temporary, data)
            try:
                # The condition that commits rest on: a name that is taken is left alone.
                os.link(temporary, path)
            except FileExistsError:
                # Whoever put it may not have come to this, and what is built on it must last.
                _sync(path.parent)
                return False
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        _sync(path.parent)
        return True

    def confirm(self, folder: str) -> None:
        """Make the names in a folder survive loss of power, whoever wrote them."""
        _sync(self.root / folder)

    def _open(self, names: tuple[str, ...]) -> int:
        """A descriptor of what is at a path; no part of the path is a link."""
        folder = os.open(self.root, _FOLDER)
        try:
            for name in names[:-1]:
                inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            return os.open(names[-1], _READ, dir_fd=folder)
        except OSError as error:
            if error.errno in _IRREGULAR_ERRNOS:
                raise DamagedStoreError(
                    f"{'/'.join(names)} of {self.root} is no plain file in plain folders"
                ) from error
            raise
        finally:
            os.close(folder)

    def _make_folder(self, folder: Path) -> None:
        for each in reversed([folder, *folder.parents]):
            if each != self.root and each.is_relative_to(self.root):
                with suppress(FileExistsError):
                    each.mkdir()
                _sync(each.parent)


def _write(path: Path, data: bytes) -> None:
    file = os.open(path, _NEW, _FILE_MODE)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def _sync(folder: Path) -> None:
    opened = os.open(folder, _FOLDER)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
