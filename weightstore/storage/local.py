"""Blobs as plain files below one directory of a local disk.

A blob is written in full and synced before it gets its name, and the name is synced before
the put returns. Linking a name fails when it is taken, whoever took it, in any process:
that is the condition on which commits rest.

Handles are safe to share between threads and to use on both sides of a fork: they keep no
descriptor, no lock and no buffer. The only thing remembered is which names are synced.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from typing_extensions import Buffer

from weightstore.clock import Entropy, SystemEntropy
from weightstore.errors import (
    BackendUnsuitableError,
    BlobExistsError,
    BlobNotFoundError,
    BlobOutcomeUnknownError,
    CorruptObjectError,
    InputRefusedError,
)
from weightstore.storage.blob_keys import check_hint_key, check_key, check_prefix
from weightstore.storage.blobs import BlobInfo
from weightstore.storage.buffers import byte_view
from weightstore.storage.durable import (
    FULL_ERRNOS,
    READ_ONLY_ERRNOS,
    SYSCALLS,
    UNSUPPORTED_ERRNOS,
    Syscalls,
    storage_error,
)
from weightstore.storage.file_copy import copy_file
from weightstore.storage.folders import Folders, irregular, open_root, read_error
from weightstore.storage.listing import listed, sweep, unlisted_name
from weightstore.storage.unfinished import (
    UnfinishedFile,
    has_unnamed_files,
    named_file,
    unnamed_file,
)

READ_SIZE_BYTES = 1 << 30
"""One system call reads less than 2 GiB."""

# O_NONBLOCK: opening a pipe that somebody put there must not hang. It is refused below.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# After these answers to a link the name is surely not there, or surely somebody else's.
_NOT_LINKED_ERRNOS = (
    FULL_ERRNOS | READ_ONLY_ERRNOS | UNSUPPORTED_ERRNOS | {errno.ENOENT, errno.EMLINK}
)


class LocalBlobStore:
    """A `BlobStore` in a directory of a local file system.

    Args:
        root: The directory; it may be reached through symbolic links, nothing in it may.
        create: Make it if it is missing.
        entropy: Names of temporary files.
        syscalls: How to change the disk; tests inject faults here.

    After a crash: with `create`, the directory is there or not; it is empty.

    Raises:
        NotAStoreError: there is no such directory.
        InputRefusedError: with `create`, a file is in the way.
        StoreReadOnlyError: with `create`, it may not be made.
    """

    def __init__(
        self,
        root: Path,
        *,
        create: bool = False,
        entropy: Entropy | None = None,
        syscalls: Syscalls = SYSCALLS,
    ) -> None:
        self._folders: Folders = open_root(root, syscalls, create=create)
        self._entropy: Entropy = entropy or SystemEntropy()
        self._syscalls = syscalls
        self._has_unnamed: bool | None = None

    @property
    def root(self) -> Path:
        """The store's directory, without links."""
        return self._folders.root

    @property
    def location(self) -> str:
        """The directory, for messages."""
        return str(self._folders.root)

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        """Read a whole blob; see `BlobStore.get`."""
        with self._opened(key) as (file, size_bytes):
            if size_bytes > max_size_bytes:
                raise CorruptObjectError(
                    f"{key} has {size_bytes} bytes, expected at most {max_size_bytes}",
                    do="Restore it from a copy of the store.",
                    facts={"key": key, "size_bytes": size_bytes},
                )
            return _read_whole(file, size_bytes, key)

    def read_into(self, key: str, offset: int, target: Buffer, /) -> None:
        """Fill a writable buffer from a range; see `BlobStore.read_into`."""
        view = byte_view(target)
        if offset < 0 or (view.readonly and view.nbytes):
            raise InputRefusedError(
                f"cannot read {key} at {offset}: the offset is below 0 or the buffer read-only",
                do="Give an offset from 0 and a writable buffer.",
            )
        with self._opened(key) as (file, size_bytes):
            if offset + view.nbytes > size_bytes:
                raise _too_short(key, offset + view.nbytes, size_bytes)
            done = 0
            while done < view.nbytes:
                part = view[done : done + READ_SIZE_BYTES]
                count = os.preadv(file, [part], offset + done)
                if count == 0:
                    raise _too_short(key, offset + view.nbytes, offset + done)
                done += count

    def size(self, key: str, /) -> int:
        """Size of a blob in bytes; see `BlobStore.size`."""
        names = check_key(key)
        with self._folders.found(names[:-1]) as folder:
            if folder is None:
                raise _missing(key)
            try:
                found = os.stat(_disk_name(names), dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                raise _missing(key) from None
            except OSError as error:
                raise read_error(error, f"look at {key}") from error
        if not stat.S_ISREG(found.st_mode):
            raise irregular(self._folders.shown(names))
        return found.st_size

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        """Create a blob, or leave everything as it was; see `BlobStore.put_if_absent`.

        After a crash: no blob, or the whole blob; never a part. A blob put without
        `durable` may lose any of its bytes or its name to a power loss.
        """
        self._create(key, lambda unfinished: unfinished.write(data), durable=durable)

    def put_stream_if_absent(self, key: str, chunks: Iterable[Buffer], /) -> int:
        """Create a large durable blob from chunks; see `BlobStore.put_stream_if_absent`.

        After a crash: as `put_if_absent`.
        """
        return self._create(
            key,
            lambda unfinished: sum(unfinished.write(chunk) for chunk in chunks),
            durable=True,
        )

    def put_file_if_absent(self, key: str, source: Path, /) -> int:
        """Create a durable blob from a local file; see `BlobStore.put_file_if_absent`.

        After a crash: as `put_if_absent`; the source is only read.

        Raises:
            InputRefusedError: the source is no regular file, cannot be read, or changed
                while it was copied.
        """
        return self._create(key, lambda unfinished: copy_file(source, unfinished), durable=True)

    def overwrite(self, key: str, data: Buffer, /) -> None:
        """Replace or create a hint; see `BlobStore.overwrite`.

        After a crash: the old blob or the new one; after power loss any or none.
        """
        names = check_hint_key(key)
        with (
            self._folders.made(names[:-1], durable=False) as folder,
            named_file(folder, self._syscalls, self._entropy) as unfinished,
        ):
            unfinished.write(data)
            try:
                unfinished.replace(_disk_name(names))
            except OSError as error:
                raise storage_error(error, f"overwrite {key}") from error

    def list(self, prefix: str, /) -> Iterator[BlobInfo]:
        """Blobs whose key starts with `prefix`, sorted; see `BlobStore.list`.

        Files that are no blobs are left out: temporary ones, links, pipes, devices.
        """
        folder, start = check_prefix(prefix)
        self._folders.check_alive()
        return listed(self._folders, folder, start)

    def delete(self, key: str, /) -> None:
        """Remove a blob; see `BlobStore.delete`.

        After a crash: the blob is there or not; power loss may bring it back, whole.
        """
        names = check_key(key)
        with self._folders.found(names[:-1]) as folder:
            if folder is None:
                return
            try:
                self._syscalls.unlink(_disk_name(names), folder)
            except FileNotFoundError:
                return
            except OSError as error:
                raise storage_error(error, f"delete {key}") from error

    def confirm_durable(self, prefix: str, /) -> None:
        """Sync the folder of a prefix; see `BlobStore.confirm_durable`.

        After a crash: as before, or durable.
        """
        folder, _ = check_prefix(prefix)
        self._folders.confirm(folder)

    def local_path(self, key: str, /) -> Path:
        """The file of a blob, for readers that map files.

        Raises:
            BlobNotFoundError: there is none.
            CorruptObjectError: it is no regular file.
        """
        self.size(key)
        return self._folders.root / key

    def unlisted_name(self) -> str | None:
        """Something in the store's directory itself that no listing shows, or None.

        Whoever makes a store asks: a directory of links, say, is not an empty place.
        """
        return unlisted_name(self._folders)

    def sweep_temporary(self) -> int:
        """Remove temporary files that dead processes left; how many.

        Files that are being written are locked by their writers and stay.

        After a crash: each file is there or not; none of them is a blob.
        """
        return sweep(self._folders, self._syscalls)

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        """A blob's descriptor and its size in bytes."""
        names = check_key(key)
        with self._folders.found(names[:-1]) as folder:
            file = -1 if folder is None else self._open_in(folder, names)
        if file < 0:
            raise _missing(key)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise irregular(self._folders.shown(names))
            yield file, found.st_size
        except OSError as error:
            raise read_error(error, f"read {key}") from error
        finally:
            os.close(file)

    def _open_in(self, folder: int, names: tuple[str, ...]) -> int:
        try:
            return os.open(_disk_name(names), _READ, dir_fd=folder)
        except FileNotFoundError:
            return -1
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO, errno.ENODEV}:
                raise irregular(self._folders.shown(names)) from None
            raise read_error(error, f"open {self._folders.shown(names)}") from error

    def _create(self, key: str, fill: Callable[[UnfinishedFile], int], *, durable: bool) -> int:
        names = check_key(key)
        with (
            self._folders.made(names[:-1], durable=durable) as folder,
            self._unfinished(folder) as unfinished,
        ):
            size_bytes = fill(unfinished)
            if durable:
                self._sync_bytes(unfinished, names)
            self._link(unfinished, names)
            if durable:
                self._sync_name(folder, names)
        return size_bytes

    def _unfinished(self, folder: int) -> AbstractContextManager[UnfinishedFile]:
        if self._has_unnamed is None:
            # Once per handle, before anything depends on it: can folders be synced here, and
            # is there a way to link a file that has no name yet?
            self._folders.check_syncs(folder)
            self._has_unnamed = has_unnamed_files(folder, self._syscalls, self._entropy)
        if self._has_unnamed:
            return unnamed_file(folder, self._syscalls)
        return named_file(folder, self._syscalls, self._entropy)

    def _sync_bytes(self, unfinished: UnfinishedFile, names: tuple[str, ...]) -> None:
        """Make the bytes durable before they get a name.

        After a crash: no blob.

        Raises:
            StorageFullError: delayed allocation found no space; nothing is visible.
            StorageFailedError: the fsync failed; nothing is visible, this handle is dead.
        """
        try:
            self._folders.sync(unfinished.file, names, survivable=FULL_ERRNOS)
        except OSError as error:
            raise storage_error(error, f"sync {'/'.join(names)}") from error

    def _link(self, unfinished: UnfinishedFile, names: tuple[str, ...]) -> None:
        key = "/".join(names)
        try:
            unfinished.link(_disk_name(names))
        except FileExistsError:
            raise BlobExistsError(f"{key} is already there", facts={"key": key}) from None
        except OSError as error:
            if error.errno in UNSUPPORTED_ERRNOS:
                raise BackendUnsuitableError(
                    f"the file system of {self.location} cannot link files: {error.strerror}",
                    do="Keep the store on a local disk with ext4, XFS or btrfs.",
                ) from error
            if error.errno in _NOT_LINKED_ERRNOS:
                raise storage_error(error, f"link {key}") from error
            raise BlobOutcomeUnknownError(
                f"linking {key} failed ({error.strerror}); it may be there or not",
                do="Read the key before anything else.",
                facts={"key": key},
            ) from error

    def _sync_name(self, folder: int, names: tuple[str, ...]) -> None:
        try:
            self._folders.sync(folder, names[:-1])
        except OSError as error:
            key = "/".join(names)
            raise BlobOutcomeUnknownError(
                f"{key} is visible, but its folder could not be synced: {error.strerror}",
                do="Check the disk, open the store again, and read the key.",
                facts={"key": key},
            ) from error


def _read_whole(file: int, size_bytes: int, key: str) -> bytes:
    parts: list[bytes] = []
    done = 0
    while done < size_bytes:
        part = os.read(file, min(size_bytes - done, READ_SIZE_BYTES))
        if not part:
            raise _too_short(key, size_bytes, done)
        parts.append(part)
        done += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _disk_name(names: tuple[str, ...]) -> str:
    """The last name as the system calls take it: UTF-8 on the disk under any locale."""
    return os.fsdecode(names[-1].encode("utf-8"))


def _missing(key: str) -> BlobNotFoundError:
    return BlobNotFoundError(f"no blob {key}", facts={"key": key})


def _too_short(key: str, expected: int, found: int) -> CorruptObjectError:
    return CorruptObjectError(
        f"{key} ends at byte {found}, expected at least {expected}",
        do="Restore it from a copy of the store.",
        facts={"key": key, "size_bytes": found},
    )
