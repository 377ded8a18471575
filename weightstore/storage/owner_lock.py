"""The file lock that lets a successor prove that an owner on this machine is dead.

The kernel drops the lock with the last process that holds its descriptor, however that
ends. So a lock file that is there and not locked, made under the running kernel, belongs to
an owner that is gone, and its claim may be taken over without being asked to.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress

from weightstore.errors import InputRefusedError, StoreOwnedError
from weightstore.ids import HEX128_PATTERN, SessionId
from weightstore.storage import machine
from weightstore.storage.blob_keys import LOCKS_FOLDER
from weightstore.storage.blobs import BlobStore
from weightstore.storage.durable import SYSCALLS, storage_error
from weightstore.storage.folders import open_root, read_error
from weightstore.storage.local import LocalBlobStore

_SESSION = re.compile(HEX128_PATTERN.removesuffix("$"))
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OwnerLock:
    """A held lock. Made by `acquire_owner_lock`; may be released or left once or more.

    A process that was forked from the owner holds the lock too, until it ends or runs
    another program: the owner is then not yet provably dead, which errs on the safe side.
    """

    def __init__(self, blobs: LocalBlobStore, session: SessionId, file: int) -> None:
        self._blobs = blobs
        self._session = session
        self._file = file

    def release(self) -> None:
        """Give the lock up and remove its file; best effort, since the lock ends anyway.

        Only for a session that surely has no open claim: without the file nobody can prove
        any more that its owner is gone.

        After a crash: the file is there without a lock, or not there.
        """
        if self._file < 0:
            return
        # The name first: a file that is seen unlocked must belong to an owner that died.
        with (
            suppress(OSError),
            open_root(self._blobs.root, SYSCALLS, create=False).found((LOCKS_FOLDER,)) as folder,
        ):
            if folder is not None:
                os.unlink(self._session, dir_fd=folder)
        self.leave()

    def leave(self) -> None:
        """Give the lock up and leave its file, as proof that the owner is gone.

        After a crash: the file is there without a lock.
        """
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def acquire_owner_lock(blobs: BlobStore, session: SessionId) -> OwnerLock | None:
    """Lock `locks/<session>`, before the claim of this session is put.

    None for stores that are no directory of this machine, and for file systems without
    locks: there a successor must be told to take over.

    After a crash: the file is there without a lock, or not there.

    Raises:
        StoreOwnedError: a process holds the lock of this session already.
        StoreReadOnlyError: files may not be made here.
        StorageFailedError: the system failed.
    """
    if not isinstance(blobs, LocalBlobStore):
        return None
    _check_session(session)
    folders = open_root(blobs.root, SYSCALLS, create=False)
    with folders.made((LOCKS_FOLDER,), durable=False) as folder:
        try:
            file = os.open(session, os.O_RDWR | os.O_CREAT | _OPEN, 0o644, dir_fd=folder)
        except OSError as error:
            raise storage_error(error, f"lock {LOCKS_FOLDER}/{session}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise StoreOwnedError(
            f"session {session} already runs on this machine",
            do="Give each launch a session of its own.",
            facts={"session": session},
        ) from None
    except OSError:
        os.close(file)
        return None
    return OwnerLock(blobs, session, file)


def is_owner_dead(blobs: BlobStore, session: SessionId, boot_id: str) -> bool:
    """Whether the owner of a session is proven to be dead.

    Args:
        blobs: The store.
        session: The owner's, as its claim says.
        boot_id: The owner's, as its claim says: only locks under this kernel prove anything.

    Returns:
        True only with proof. False means "not known", not "alive".

    Raises:
        StorageFailedError: the lock file is there and cannot be read.
    """
    if not isinstance(blobs, LocalBlobStore) or not boot_id or boot_id != machine.boot_id():
        return False
    _check_session(session)
    with open_root(blobs.root, SYSCALLS, create=False).found((LOCKS_FOLDER,)) as folder:
        if folder is None:
            return False
        try:
            file = os.open(session, os.O_RDONLY | _OPEN, dir_fd=folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise read_error(error, f"open {LOCKS_FOLDER}/{session}") from error
    try:
        # Shared, so that two who ask at once do not take each other for the owner.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _check_session(session: str) -> None:
    if not _SESSION.fullmatch(session):
        raise InputRefusedError(
            f"{session[:80]!r} is no session", do="Give 32 lower-case hexadecimal digits."
        )
