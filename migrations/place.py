"""Reading and adding files of a store in a local directory, durably.

A migration only adds: what is there is never changed, renamed or removed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TEMPORARY_MARK = "~tmp-"
_FILE_MODE = 0o444
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Place:
    """The directory of a store.

    Args:
        root: The directory; it must be there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve(strict=True)

    def read(self, key: str) -> bytes | None:
        """The bytes under a key, or None where there is nothing."""
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError:
            return None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Add a file, or leave everything as it was; whether it was added.

        After a crash: no file of that name, or the whole file; a temporary name may stay.
        Once this has returned, the file survives loss of power.
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
                return False
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        _sync(path.parent)
        return True

    def confirm(self, folder: str) -> None:
        """Make the names in a folder survive loss of power, whoever wrote them."""
        _sync(self.root / folder)

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
