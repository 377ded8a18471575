"""What the operating system says about a store's directory; looks, and changes nothing."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weightstore.storage.blob_keys import INDEX_FOLDER, LOCKS_FOLDER, TEMPORARY_MARK
from weightstore.storage.index_place import LOCAL_FILE_SYSTEMS, file_system_of

_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class LockFile:
    """A file of `locks/`.

    Attributes:
        session: Its name.
        is_held: Whether a living process holds it; None where that cannot be told.
    """

    session: str
    is_held: bool | None


@dataclass(frozen=True, slots=True)
class TemporaryFile:
    """A file that was being written.

    Attributes:
        path: Below the store's directory.
        size_bytes: Of what was written so far.
        is_written: Whether a living process still writes it; None where that cannot be told.
    """

    path: str
    size_bytes: int
    is_written: bool | None


@dataclass(frozen=True, slots=True)
class PlaceSurvey:
    """A store's directory as the operating system sees it.

    Attributes:
        file_system: Its type as the kernel names it, such as `ext4`; empty if not known.
        is_local: Whether it is a type that is known to be this machine's own.
        is_mounted_read_only: Whether nobody can write there.
        free_size_bytes: Space that this process may still use.
        free_file_count: Files that may still be made; None where there is no such bound.
        size_bytes: All files together.
        index_size_bytes: Those of the local index among them.
        unwritable: Folders that this process may not make files in.
        unreadable: Files and folders that it may not read.
        irregular: Links, pipes, devices and sockets: a store has none of them.
        locks: Files of owners.
        temporary: Files that were being written.
    """

    file_system: str
    is_local: bool
    is_mounted_read_only: bool
    free_size_bytes: int
    free_file_count: int | None
    size_bytes: int
    index_size_bytes: int
    unwritable: tuple[str, ...]
    unreadable: tuple[str, ...]
    irregular: tuple[str, ...]
    locks: tuple[LockFile, ...]
    temporary: tuple[TemporaryFile, ...]


def survey_place(root: Path) -> PlaceSurvey:
    """Look at a directory and at everything in it.

    Raises:
        OSError: the directory itself cannot be looked at.
    """
    root = root.resolve(strict=True)
    found = os.statvfs(root)
    file_system = file_system_of(root)
    look = _Look(root)
    look.walk()
    return PlaceSurvey(
        file_system=file_system,
        is_local=file_system in LOCAL_FILE_SYSTEMS,
        is_mounted_read_only=bool(found.f_flag & os.ST_RDONLY),
        free_size_bytes=found.f_bavail * found.f_frsize,
        free_file_count=found.f_favail if found.f_files else None,
        size_bytes=look.size_bytes,
        index_size_bytes=look.index_size_bytes,
        unwritable=tuple(look.unwritable),
        unreadable=tuple(look.unreadable),
        irregular=tuple(look.irregular),
        locks=tuple(look.locks),
        temporary=tuple(look.temporary),
    )


class _Look:
    """One walk through a directory, which may change meanwhile."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.size_bytes = 0
        self.index_size_bytes = 0
        self.unwritable: list[str] = []
        self.unreadable: list[str] = []
        self.irregular: list[str] = []
        self.locks: list[LockFile] = []
        self.temporary: list[TemporaryFile] = []

    def walk(self) -> None:
        """Look at everything below the root."""
        folders = [self._root]
        while folders:
            folder = folders.pop()
            if not _may(folder, os.W_OK | os.X_OK):
                self.unwritable.append(self._said(folder))
            try:
                entries = sorted(_entries(folder), key=lambda entry: entry.name)
            except FileNotFoundError:
                continue
            except OSError:
                self.unreadable.append(self._said(folder))
                continue
            for entry in entries:
                path = folder / entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                else:
                    self._note(path)

    def _note(self, path: Path) -> None:
        try:
            found = path.lstat()
        except FileNotFoundError:
            return
        said = self._said(path)
        if not stat.S_ISREG(found.st_mode):
            self.irregular.append(said)
            return
        self.size_bytes += found.st_size
        if path.is_relative_to(self._root / INDEX_FOLDER):
            self.index_size_bytes += found.st_size
        if not _may(path, os.R_OK):
            self.unreadable.append(said)
        elif path.parent == self._root / LOCKS_FOLDER:
            self.locks.append(LockFile(path.name, _is_locked(path)))
        elif path.name.startswith(TEMPORARY_MARK):
            self.temporary.append(TemporaryFile(said, found.st_size, _is_locked(path)))

    def _said(self, path: Path) -> str:
        return ascii(path.relative_to(self._root).as_posix())[1:-1]


def _may(path: Path, access: int) -> bool:
    """Whether this process has access, or there is nothing any more: a sweep may run beside it."""
    return os.access(path, access) or not os.path.lexists(path)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


def _is_locked(path: Path) -> bool | None:
    """Whether another process holds a file's lock. Asks for a shared one, for a moment."""
    try:
        file = os.open(path, _LOOK)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(file)
    return False
