"""A folder that others reach by a link alone, which is there only while the folder is whole.

Beside the link `<name>` lies the place `.<name>.weightstore` with everything else: folders of
which the link names one, small files, and a lock. A load through the link fails cleanly while
the link is gone. What is done to the link is durable once its call has returned.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from typing_extensions import Buffer

from weightstore.errors import (
    CorruptObjectError,
    FolderBusyError,
    InputRefusedError,
    StorageFailedError,
)
from weightstore.storage.durable import SYSCALLS, Syscalls, replace_durably, storage_error
from weightstore.storage.file_lock import try_lock_by_name, unlock
from weightstore.storage.machine import process_id
from weightstore.storage.plain_file import clear_name, open_plain_file
from weightstore.storage.unfinished import write_all

LOCK_NAME = "lock"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OWN_FOLDER = _FOLDER | os.O_NOFOLLOW
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC


class LinkedFolder:
    """The link and its place, held by this process alone. Use `LinkedFolder.acquire`.

    Attributes:
        link: Absolute path of the link.
        place: The folder beside it that holds everything else.
    """

    def __init__(self, link: Path, lock: int, syscalls: Syscalls) -> None:
        self.link = link
        self.place = _place_of(link)
        self._lock = lock
        self._syscalls = syscalls
        self._process = process_id()

    @classmethod
    def acquire(cls, link: Path, *, syscalls: Syscalls = SYSCALLS) -> Self:
        """Take hold of a link's place; it is made where it is missing.

        After a crash: no place, or one that is empty but for the lock; the lock is free.

        Args:
            link: Absolute; nothing, or a link that leads into the place. Its parent is there.
            syscalls: How to change the disk.

        Raises:
            InputRefusedError: something else has the name, or that of the place; or the parent is
                no directory.
            FolderBusyError: another process holds it; names the process.
            StorageFailedError, StorageFullError, StoreReadOnlyError: the system failed.
        """
        if not link.parent.is_dir():
            raise InputRefusedError(
                f"{link.parent} is no directory",
                do="Create it first, or name another place.",
                facts={"path": str(link)},
            )
        place = _place_of(link)
        _linked(link)  # refused before anything is made
        if place.is_symlink():
            # Everything in the place is this class's own, to be removed: not what a link leads to.
            raise _not_ours(place, "is a link")
        try:
            # Its name is synced with the first link into it.
            with _opened(link.parent) as parent, suppress(FileExistsError):
                syscalls.make_folder(place.name, parent)
            lock = _locked(place)
        except OSError as error:
            raise storage_error(error, f"use {place}") from error
        held = cls(link, lock, syscalls)
        try:
            held.sync()
        except BaseException:
            held.close()
            raise
        return held

    def close(self) -> None:
        """Let others have it. A second call does nothing."""
        # Forgotten first: a number that is closed twice may be another thread's file by then.
        lock, self._lock = self._lock, -1
        if lock >= 0:
            try:
                unlock(lock, self._process)
            finally:
                os.close(lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def linked(self) -> str | None:
        """The name of the folder that the link leads to; None where there is no link.

        Raises:
            InputRefusedError: what has the name is no link into the place.
            StorageFailedError: nobody can tell.
        """
        return _linked(self.link)

    def unlink(self) -> None:
        """Remove the link, for good before this returns.

        After a crash: the link is there or not; once this has returned, not.

        Raises:
            StorageFailedError, StoreReadOnlyError: it may be there still.
        """
        try:
            with _opened(self.link.parent) as parent:
                with suppress(FileNotFoundError):
                    self._syscalls.unlink(self.link.name, parent)
                # Also where nothing was there: whoever removed it may have been killed since.
                self._syscalls.fsync(parent)
        except OSError as error:
            raise storage_error(error, f"remove {self.link}") from error

    def link_to(self, name: str) -> None:
        """Let the link lead to a folder of the place, whatever it led to before.

        After a crash: the old link or none, or the new one; once this has returned, the new one.

        Raises:
            StorageFailedError, StorageFullError, StoreReadOnlyError: it may be the old one still.
        """
        making = f"{self.place.name}-link"
        try:
            with _opened(self.link.parent) as parent:
                with suppress(FileNotFoundError):
                    self._syscalls.unlink(making, parent)
                if self.linked() != name:
                    self._syscalls.symlink(f"{self.place.name}/{name}", making, parent)
                    self._syscalls.rename(making, self.link.name, parent)
                self._syscalls.fsync(parent)
        except OSError as error:
            raise storage_error(error, f"link {self.link}") from error

    def sync(self) -> None:
        """Make the names in the place durable, whoever gave them.

        Raises:
            StorageFailedError: the fsync failed.
        """
        try:
            with _opened(self.place, _OWN_FOLDER) as place:
                self._syscalls.fsync(place)
        except OSError as error:
            raise storage_error(error, f"sync {self.place}") from error

    def read_file(self, name: str, *, max_size_bytes: int) -> bytes | None:
        """A small file of the place; None where there is none.

        Raises:
            CorruptObjectError: it is larger than allowed, or no plain file.
            StorageFailedError: it cannot be read.
        """
        stream = self.open_file(name)
        if stream is None:
            return None
        path = self.place / name
        try:
            with stream:
                if os.fstat(stream.fileno()).st_size > max_size_bytes:
                    raise CorruptObjectError(f"{path} is larger than {max_size_bytes} bytes")
                return stream.read(max_size_bytes)
        except OSError as error:
            raise storage_error(error, f"read {path}") from error

    def open_file(self, name: str) -> BinaryIO | None:
        """Open a file of the place for reading; None where there is none.

        Raises:
            CorruptObjectError: it is no plain file; a link is not followed.
            StorageFailedError: it cannot be opened.
        """
        path = self.place / name
        try:
            with _opened(self.place, _OWN_FOLDER) as place:
                stream = open_plain_file(name, place)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error, f"read {path}") from error
        if stream is None:
            raise CorruptObjectError(f"{path} is no plain file")
        return stream

    def put_file(self, name: str, chunks: Iterable[Buffer], *, unlinked: bool = False) -> None:
        """Write a file of the place, taking the place of one of that name.

        After a crash: the old file or none, or the new one, whole; once this has returned, the
        new one.

        Args:
            name: Of the file.
            chunks: Its bytes.
            unlinked: Remove the link once the bytes are written, before they have their name.

        Raises:
            StorageFailedError, StorageFullError, StoreReadOnlyError: nothing was replaced.
            BlobOutcomeUnknownError: replaced, but power loss may undo it.
        """
        making = f"{name}.new"
        try:
            with _opened(self.place, _OWN_FOLDER) as place:
                clear_name(making, place, self._syscalls)
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE
                file = self._syscalls.open(making, flags, 0o644, place)
                try:
                    for chunk in chunks:
                        write_all(file, chunk, self._syscalls)
                finally:
                    os.close(file)
        except OSError as error:
            with suppress(OSError):
                (self.place / making).unlink()
            raise storage_error(error, f"write {self.place / making}") from error
        if unlinked:
            self.unlink()
        replace_durably(self.place / making, self.place / name, syscalls=self._syscalls)

    def remove_file(self, name: str) -> None:
        """Remove a file of the place; best effort, and not yet durable.

        After a crash: it is there or not.
        """
        with suppress(OSError), _opened(self.place, _OWN_FOLDER) as place:
            self._syscalls.unlink(name, place)

    def keep_only(self, names: Collection[str]) -> None:
        """Remove everything from the place but the lock and what is named; best effort.

        After a crash: any part of the rest is there, perhaps again what was removed.
        """
        with suppress(OSError), _opened(self.place, _OWN_FOLDER) as place:
            with os.scandir(place) as found:
                others = [each for each in found if each.name not in {LOCK_NAME, *names}]
            for each in others:
                if each.is_dir(follow_symlinks=False):
                    shutil.rmtree(each.name, ignore_errors=True, dir_fd=place)
                else:
                    self.remove_file(each.name)

    @contextmanager
    def patching(self, name: str, file_name: str) -> Iterator[FilePatches]:
        """Open a file of a folder to change bytes of it in place.

        Raises:
            StorageFailedError: it cannot be opened.
        """
        path = self.place / name / file_name
        try:
            # Step by step: a folder that was swapped for a link would lead to others' files.
            with (
                _opened(self.place, _OWN_FOLDER) as place,
                _opened(name, _OWN_FOLDER, at=place) as folder,
            ):
                file = os.open(file_name, os.O_RDWR | _FILE, dir_fd=folder)
        except OSError as error:
            raise storage_error(error, f"open {path}") from error
        try:
            yield FilePatches(file, path, self._syscalls)
        finally:
            os.close(file)


class FilePatches:
    """Changes bytes of one open file in place; its size stays."""

    def __init__(self, file: int, path: Path, syscalls: Syscalls) -> None:
        self._file = file
        self._path = path
        self._syscalls = syscalls
        self.size_bytes = os.fstat(file).st_size

    def read(self, offset: int, size_bytes: int) -> bytearray:
        """Bytes of the file.

        Raises:
            StorageFailedError: they cannot be read, or the file ends before.
        """
        found = bytearray(size_bytes)
        view, done = memoryview(found), 0
        try:
            while done < size_bytes and (
                count := os.preadv(self._file, [view[done:]], offset + done)
            ):
                done += count
        except OSError as error:
            raise storage_error(error, f"read {self._path}") from error
        if done < size_bytes:
            raise StorageFailedError(f"{self._path} ends before byte {offset + size_bytes}")
        return found

    def write(self, offset: int, data: Buffer) -> None:
        """Overwrite bytes.

        After a crash: each byte is the old or the new one.

        Raises:
            StorageFailedError, StorageFullError: some of them may be written.
        """
        try:
            os.lseek(self._file, offset, os.SEEK_SET)
            write_all(self._file, data, self._syscalls)
        except OSError as error:
            raise storage_error(error, f"write {self._path}") from error

    def sync(self) -> None:
        """Make what was written durable.

        Raises:
            StorageFailedError: nobody knows what is on the disk now.
        """
        try:
            self._syscalls.fsync(self._file)
        except OSError as error:
            raise storage_error(error, f"sync {self._path}") from error


def _place_of(link: Path) -> Path:
    return link.with_name(f".{link.name}.weightstore")


def _linked(link: Path) -> str | None:
    try:
        found = str(link.readlink())
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise _not_ours(link, "is there already and no link") from error
        raise storage_error(error, f"look at {link}") from error
    folder, _, name = found.partition("/")
    if folder != _place_of(link).name or not name or "/" in name:
        raise _not_ours(link, f"leads to {found}")
    return name


def _not_ours(link: Path, what: str) -> InputRefusedError:
    return InputRefusedError(
        f"{link} {what}; it was left as it is",
        do="Name a place that does not exist yet.",
        facts={"path": str(link)},
    )


@contextmanager
def _opened(path: Path | str, flags: int = _FOLDER, *, at: int | None = None) -> Iterator[int]:
    folder = os.open(path, flags, dir_fd=at)
    try:
        yield folder
    finally:
        os.close(folder)


def _locked(place: Path) -> int:
    """The open lock file, which says who holds it."""
    with _opened(place, _OWN_FOLDER) as folder:
        file = os.open(LOCK_NAME, os.O_RDWR | os.O_CREAT | _FILE, 0o644, dir_fd=folder)
    try:
        holder = try_lock_by_name(file)
    except BaseException:
        os.close(file)
        raise
    if holder is None:
        return file
    os.close(file)
    raise FolderBusyError(
        f"{holder} follows into {place} already",
        do="End that process first, or name another directory.",
        facts={"place": str(place), "holder": holder},
    )
