"""The file lock that lets a successor prove that an owner on this machine is dead.

The kernel drops the lock with the last process that holds its descriptor, however that
ends. So a lock file that is there and not locked, made under the running kernel, belongs to
an owner that is gone, and its claim may be taken over without being asked to.

A lock file gets its name after it was locked, and loses it while it is locked, by its owner
or by whoever tidies up. So one that is seen unlocked is of a dead owner, and a lock that
was got counts only if its file still has the name. To remove the file of an owner that
lives, or whose claim is open, is never unsafe: its death can then not be proved any more.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress

from weightstore.clock import Clock
from weightstore.errors import (
    InputRefusedError,
    StorageFailedError,
    StoreOwnedError,
    WeightStoreError,
)
from weightstore.ids import HEX128_PATTERN, SessionId
from weightstore.storage import machine
from weightstore.storage.blob_keys import LOCKS_FOLDER
from weightstore.storage.blobs import BlobStore
from weightstore.storage.durable import SYSCALLS, storage_error
from weightstore.storage.file_lock import try_lock
from weightstore.storage.folders import open_root, read_error
from weightstore.storage.local import LocalBlobStore

DEAD_LOCK_COUNT_MAX = 64
"""Files that one call of `remove_dead_locks` removes; the next one goes on."""

_SESSION = re.compile(HEX128_PATTERN.removesuffix("$"))
_LOCK_NAME = re.compile(r"([0-9a-f]{32})(\.[0-7])?")
"""A lock file, or one that was being made."""
_SESSION_LENGTH = 32
_MAKING_NAME_COUNT = 8
_FIRST_WAIT_S = 0.01
_LONGEST_WAIT_S = 0.5
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
            suppress(OSError, WeightStoreError),
            open_root(self._blobs.root, SYSCALLS, create=False).found((LOCKS_FOLDER,)) as folder,
        ):
            if folder is not None and _has_name(self._file, self._session, folder):
                os.unlink(self._session, dir_fd=folder)
        self.leave()

    def leave(self) -> None:
        """Give the lock up and leave its file, as proof that the owner is gone.

        After a crash: the file is there without a lock.
        """
        # Forgotten first: a number that is closed twice may be another thread's file by then.
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def acquire_owner_lock(
    blobs: BlobStore, session: SessionId, *, clock: Clock, try_count: int
) -> OwnerLock | None:
    """Lock `locks/<session>`, before the claim of this session is put.

    None for stores that are no directory of this machine, and for file systems without
    locks: there a successor must be told to take over.

    After a crash: the file is there without a lock, or not there.

    Args:
        blobs: The store.
        session: Of the launch; the file of an earlier launch is used again.
        clock: Waits while others look whether the lock of an earlier launch is held.
        try_count: Tries before those are waited for no more.

    Raises:
        StoreOwnedError: a process holds the lock of this session already.
        StoreReadOnlyError: files may not be made here.
        StorageFailedError: the system failed, or others look at the lock all the time.
    """
    if not isinstance(blobs, LocalBlobStore):
        return None
    _check_session(session)
    folders = open_root(blobs.root, SYSCALLS, create=False)
    with folders.made((LOCKS_FOLDER,), durable=False) as folder:
        try:
            file = _locked(session, folder, clock, try_count)
        except _NoLocksError:
            return None
        except OSError as error:
            raise storage_error(error, f"lock {LOCKS_FOLDER}/{session}") from error
    if file is None:
        raise StoreOwnedError(
            f"session {session} already runs on this machine",
            do="Give each launch a session of its own.",
            facts={"session": session},
        )
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
            return _is_unlocked(file, session, folder)
        finally:
            os.close(file)


def remove_dead_locks(blobs: BlobStore, open_session: Callable[[], SessionId | None]) -> None:
    """Remove the files of owners that are gone, except of the one that a proof is about.

    Best effort: what cannot be removed now is removed by the next call.

    After a crash: some of the files are removed.

    Args:
        blobs: The store.
        open_session: The session of the open claim, or None; asked once, and only if there
            are such files.
    """
    if not isinstance(blobs, LocalBlobStore):
        return
    with suppress(OSError, WeightStoreError), ExitStack() as at_end:
        folders = open_root(blobs.root, SYSCALLS, create=False)
        folder = at_end.enter_context(folders.found((LOCKS_FOLDER,), readable=True))
        if folder is None:
            return
        dead = _hold_unlocked(folder, at_end)
        # Asked only now: whoever died before is dead with its claim in the log already.
        needed = open_session() if dead else None
        for name, file in dead:
            if name[:_SESSION_LENGTH] != needed and _has_name(file, name, folder):
                os.unlink(name, dir_fd=folder)


class _NoLocksError(Exception):
    """This file system has no locks."""


def _locked(session: str, folder: int, clock: Clock, try_count: int) -> int | None:
    """The lock file of a session, open and locked; None if another process holds it.

    Whoever tidies up or examines the store shares the lock of a dead owner for as long as it
    reads the log: that is waited for, and is no owner.
    """
    for number in range(try_count):
        file = _locked_anew(session, f"{session}.{number % _MAKING_NAME_COUNT}", folder)
        if file is None:
            file = _locked_again(session, folder)
        if file is not None:
            return file
        if _is_owned(session, folder):
            return None
        clock.sleep(min(_FIRST_WAIT_S * 2**number, _LONGEST_WAIT_S))
    raise StorageFailedError(
        f"others look at {LOCKS_FOLDER}/{session} all the time",
        do="Repeat; examine the store or tidy up another time.",
        facts={"session": session},
    )


def _locked_anew(session: str, making: str, folder: int) -> int | None:
    """Make a file, lock it, and only then give it the session's name; None if it has one."""
    try:
        file = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o644, dir_fd=folder)
    except FileExistsError:
        return None
    named = False
    try:
        if _lock(file):
            # Gone, if somebody who tidies up has found it before it was locked.
            with suppress(FileExistsError, FileNotFoundError):
                os.link(making, session, src_dir_fd=folder, dst_dir_fd=folder)
                named = True
        return file if named else None
    finally:
        with suppress(OSError):
            os.unlink(making, dir_fd=folder)
        if not named:
            os.close(file)


def _locked_again(session: str, folder: int) -> int | None:
    """Lock the file that an earlier launch of the session has left; None if that fails."""
    try:
        file = os.open(session, os.O_RDWR | _OPEN, dir_fd=folder)
    except FileNotFoundError:
        return None
    is_ours = False
    try:
        is_ours = _lock(file) and _has_name(file, session, folder)
        return file if is_ours else None
    finally:
        if not is_ours:
            os.close(file)


def _is_owned(session: str, folder: int) -> bool:
    """Whether an owner holds the file of a session, rather than others who share its lock."""
    try:
        file = os.open(session, os.O_RDONLY | _OPEN, dir_fd=folder)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _has_name(file, session, folder)
    finally:
        os.close(file)
    return False


def _lock(file: int) -> bool:
    try:
        return try_lock(file)
    except OSError as error:
        raise _NoLocksError from error


def _hold_unlocked(folder: int, at_end: ExitStack) -> list[tuple[str, int]]:
    """Names and descriptors of files that no owner holds, locked until the end."""
    found: list[tuple[str, int]] = []
    for name in os.listdir(folder):
        if len(found) == DEAD_LOCK_COUNT_MAX:
            break
        if _LOCK_NAME.fullmatch(name):
            with suppress(OSError):
                file = os.open(name, os.O_RDONLY | _OPEN, dir_fd=folder)
                at_end.callback(os.close, file)
                if _is_unlocked(file, name, folder):
                    found.append((name, file))
    return found


def _is_unlocked(file: int, name: str, folder: int) -> bool:
    """Whether no owner holds a file that still has its name; then it is locked here."""
    try:
        # Shared, so that two who ask at once do not take each other for the owner.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return _has_name(file, name, folder)


def _has_name(file: int, name: str, folder: int) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    opened = os.fstat(file)
    return (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


def _check_session(session: str) -> None:
    if not _SESSION.fullmatch(session):
        raise InputRefusedError(
            f"{session[:80]!r} is no session", do="Give 32 lower-case hexadecimal digits."
        )
