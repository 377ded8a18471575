"""The folders of a local store: found without following links, made and synced in order.

Every path is walked name by name from the root, so that no symbolic link inside a store can
lead a read or a write out of it. Folders are never removed: what this process has once
synced stays named, and an empty folder costs less than the race of removing it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

from weightstore.errors import (
    BackendUnsuitableError,
    BlobOutcomeUnknownError,
    CorruptObjectError,
    InputRefusedError,
    NotAStoreError,
    StorageFailedError,
    StoreClosedError,
)
from weightstore.storage.durable import Syscalls, storage_error

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FOLDER_ERRNOS = frozenset({errno.ENOTDIR, errno.ELOOP})
_NO_SYNC_ERRNOS = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})

_Enter: TypeAlias = Callable[[int, tuple[str, ...]], int | None]


class Folders:
    """Every folder below one root, and whether this handle may still be used.

    Keeps no descriptor open, so it may be used on both sides of a fork: what it remembers,
    that names were synced, stays true in the child.
    """

    def __init__(self, root: Path, syscalls: Syscalls) -> None:
        self.root = root
        self._syscalls = syscalls
        found = root.stat()
        self._identity = (found.st_dev, found.st_ino)
        self._named: set[tuple[str, ...]] = set()
        self._is_root_named = False
        self._dead_because = ""

    def check_alive(self) -> None:
        """Refuse a handle whose fsync has failed.

        Raises:
            StoreClosedError: it did; what was written since may be lost.
        """
        if self._dead_because:
            raise StoreClosedError(
                f"this handle of {self.root} is dead: {self._dead_because}",
                do="Check the disk, then open the store again.",
            )

    @contextmanager
    def found(self, names: tuple[str, ...], *, readable: bool = False) -> Iterator[int | None]:
        """An existing folder, opened; None if there is none.

        Args:
            names: The path below the root.
            readable: Whether it will be listed, not only gone through.

        Raises:
            CorruptObjectError: something on the way is neither a folder nor a file.
            StorageFailedError: the root is gone, or the system failed.
            StoreClosedError: this handle is dead.
        """
        access = os.O_RDONLY if readable else os.O_PATH
        with self._walked(names, access, partial(self._find, access=access)) as folder:
            yield folder

    @contextmanager
    def made(self, names: tuple[str, ...], *, durable: bool) -> Iterator[int]:
        """A folder to write into, opened; it and those above it are made where missing.

        With `durable`, each name on the way is synced once by this handle, whoever made it:
        another process may have made a folder and not have synced it yet.

        After a crash: any number of the folders, outermost first; they are empty.

        Raises:
            CorruptObjectError: something on the way is neither a folder nor a file.
            StorageFailedError: the root is gone, or the system failed.
            StorageFullError: no space for a folder.
            StoreReadOnlyError: folders may not be made here.
            BackendUnsuitableError: folders cannot be synced here.
            StoreClosedError: this handle is dead.
        """
        self.check_alive()
        if durable:
            with self._nothing_visible_yet():
                self._name_root()
        enter = partial(self._make, durable=durable)
        with self._walked(names, os.O_RDONLY, enter) as folder:
            assert folder is not None
            yield folder

    def confirm(self, names: tuple[str, ...]) -> None:
        """Sync a folder and, once, all names that lead to it; a missing one needs none.

        After a crash: as before, or durable.

        Raises:
            BlobOutcomeUnknownError: an fsync failed; this handle is dead.
        """
        self.check_alive()
        try:
            self._name_root()
            with self._walked(names, os.O_RDONLY, self._find_named) as folder:
                if folder is not None:
                    self.sync(folder, names)
        except OSError as error:
            raise BlobOutcomeUnknownError(
                f"cannot sync {self.shown(names)}: {error.strerror}",
                do="Check the disk, then open the store again and read from it.",
            ) from error

    def check_syncs(self, folder: int) -> None:
        """Sync a folder that nothing depends on yet, to learn whether that can be done.

        After a crash: as before.

        Raises:
            BackendUnsuitableError: this file system has no such sync; this handle is dead.
            StorageFailedError: the fsync failed; this handle is dead.
        """
        with self._nothing_visible_yet():
            self.sync(folder, ())

    def sync(
        self, file: int, names: tuple[str, ...], *, survivable: frozenset[int] = frozenset()
    ) -> None:
        """Sync an open file or folder; after a failure this handle is dead.

        Args:
            file: Its descriptor.
            names: Its path below the root, for the message.
            survivable: Answers that leave the handle alive, since the caller throws the
                file away.

        Raises:
            OSError: what the system said; the caller knows what it means there.
        """
        try:
            self._syscalls.fsync(file)
        except OSError as error:
            # The kernel may have dropped the pages: a second fsync would answer that all is
            # well. Whoever needs the truth opens the store again and reads. (P6)
            if error.errno not in survivable:
                self._dead_because = f"fsync of {self.shown(names)} failed ({error.strerror})"
            raise
        if self._dead_because:
            # Another thread was told of an error that this one would have been told of too.
            raise OSError(errno.EIO, self._dead_because)

    def shown(self, names: tuple[str, ...]) -> str:
        """A path below the root, for messages."""
        return str(self.root.joinpath(*names))

    @contextmanager
    def _walked(self, names: tuple[str, ...], access: int, enter: _Enter) -> Iterator[int | None]:
        """The folder at the end of a path; at most two are open at a time."""
        self.check_alive()
        folder: int | None = self._open_root(access)
        try:
            for depth in range(1, len(names) + 1):
                assert folder is not None
                inner = enter(folder, names[:depth])
                # Forgotten first: whatever interrupts us here, a number is closed once, since
                # by the second time it may be another thread's file.
                outer, folder = folder, inner
                os.close(outer)
                if folder is None:
                    break
            yield folder
        finally:
            if folder is not None:
                os.close(folder)

    def _open_root(self, access: int) -> int:
        try:
            folder = os.open(self.root, access | _FOLDER)
        except OSError as error:
            raise read_error(error, f"open the store's directory {self.root}") from error
        found = os.fstat(folder)
        if (found.st_dev, found.st_ino) != self._identity:
            os.close(folder)
            # An unmounted disk leaves an empty folder: it must not look like an empty log.
            raise StorageFailedError(
                f"{self.root} is another directory than the one that was opened",
                do="Mount the store's disk again, or open the store again.",
            )
        return folder

    def _find(self, outer: int, names: tuple[str, ...], *, access: int) -> int | None:
        try:
            return os.open(names[-1], access | _FOLDER, dir_fd=outer)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in _NO_FOLDER_ERRNOS and self._is_only_a_file(outer, names):
                return None
            raise read_error(error, f"open {self.shown(names)}") from error

    def _find_named(self, outer: int, names: tuple[str, ...]) -> int | None:
        """Open a folder, and sync its name unless this handle has done so before."""
        inner = self._find(outer, names, access=os.O_RDONLY)
        if inner is not None:
            self._name(outer, inner, names)
        return inner

    def _make(self, outer: int, names: tuple[str, ...], *, durable: bool) -> int:
        try:
            inner = self._open_or_make(outer, names)
        except OSError as error:
            if error.errno in _NO_FOLDER_ERRNOS:
                self._is_only_a_file(outer, names)
            raise storage_error(error, f"make the folder {self.shown(names)}") from error
        if durable:
            with self._nothing_visible_yet():
                self._name(outer, inner, names)
        return inner

    def _open_or_make(self, outer: int, names: tuple[str, ...]) -> int:
        name = names[-1]
        with suppress(FileNotFoundError):
            return os.open(name, os.O_RDONLY | _FOLDER, dir_fd=outer)
        with suppress(FileExistsError):  # somebody else was faster, which is as good
            self._syscalls.make_folder(name, outer)
        return os.open(name, os.O_RDONLY | _FOLDER, dir_fd=outer)

    def _name(self, outer: int, inner: int, names: tuple[str, ...]) -> None:
        """Sync the name of a folder that is there, once; on failure it is closed."""
        if names in self._named:
            return
        try:
            self.sync(outer, names[:-1])
        except BaseException:
            os.close(inner)
            raise
        self._named.add(names)

    def _name_root(self) -> None:
        """Sync the names that lead to the root, once, as far as its file system reaches."""
        if self._is_root_named:
            return
        for parent in self.root.parents:
            try:
                folder = os.open(parent, os.O_RDONLY | _FOLDER)
            except PermissionError:
                # Whoever may not even list a folder has made no name in it.
                continue
            try:
                if os.fstat(folder).st_dev != self._identity[0]:
                    break
                self.sync(folder, ())
            finally:
                os.close(folder)
        self._is_root_named = True

    @contextmanager
    def _nothing_visible_yet(self) -> Iterator[None]:
        """What a failed sync means while nothing depends on it: nothing was written."""
        try:
            yield
        except OSError as error:
            if error.errno in _NO_SYNC_ERRNOS:
                raise BackendUnsuitableError(
                    f"the file system of {self.root} cannot sync folders: {error.strerror}",
                    do="Keep the store on a local disk with ext4, XFS or btrfs.",
                ) from error
            raise storage_error(error, f"sync a folder of {self.root}") from error

    def _is_only_a_file(self, outer: int, names: tuple[str, ...]) -> bool:
        """Whether what stands where a folder was looked for is a plain file, or gone by now.

        Raises:
            CorruptObjectError: it is neither; a symbolic link above all.
        """
        try:
            mode = os.stat(names[-1], dir_fd=outer, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return True
        if stat.S_ISREG(mode):
            return True
        raise irregular(self.shown(names))


def open_root(root: Path, syscalls: Syscalls, *, create: bool) -> Folders:
    """The folders of a store at a path; only the path itself may lead through links.

    After a crash: with `create`, the directory is there or not; it is empty.

    Raises:
        NotAStoreError: there is no directory.
        InputRefusedError: with `create`, a file is in the way.
        StoreReadOnlyError: with `create`, it may not be made.
    """
    try:
        if create:
            root.mkdir(parents=True, exist_ok=True)
        resolved = root.resolve(strict=True)
    except FileNotFoundError:
        raise _no_store(root, "there is no such directory") from None
    except FileExistsError:
        raise InputRefusedError(
            f"{root} is a file, so no store can be made there", do="Give another path."
        ) from None
    except (NotADirectoryError, RuntimeError) as error:
        raise _no_store(root, str(error)) from error
    except OSError as error:
        raise storage_error(error, f"open {root}") from error
    if not resolved.is_dir():
        raise _no_store(root, "it is no directory")
    return Folders(resolved, syscalls)


def irregular(where: str) -> CorruptObjectError:
    """The error for a link, pipe, device or folder where a blob or a folder should be."""
    return CorruptObjectError(
        f"{where} is a link, pipe, device or folder where none may be",
        do="Remove it: a store holds plain files in plain folders.",
        facts={"path": where},
    )


def read_error(error: OSError, what: str) -> StorageFailedError:
    """The error of this library for one of the operating system while reading."""
    return StorageFailedError(
        f"cannot {what}: {error.strerror or error}",
        do="Give this process permission to read, or mend the storage, and repeat.",
        facts={"errno": error.errno},
    )


def _no_store(root: Path, why: str) -> NotAStoreError:
    return NotAStoreError(
        f"no store at {root}: {why}",
        do="Check the path, or make a store with `weightstore init`.",
        facts={"path": str(root)},
    )
