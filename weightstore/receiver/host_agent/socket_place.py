"""The path that an agent listens at: one agent at a time, for its own user alone."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from weightstore.errors import InputRefusedError, StorageFailedError, StoreBusyError
from weightstore.storage.file_lock import try_lock, unlock
from weightstore.storage.machine import process_id

PATH_SIZE_BYTES_MAX = 107
"""Of a Unix socket, as the kernel has it."""
_BACKLOG_COUNT = 128
_OWN_ONLY = 0o600
_LOCK_SUFFIX = ".lock"


@dataclass(frozen=True, slots=True, eq=False)
class SocketPlace:
    """A path that this process holds, and the socket that listens there.

    A lock on a file beside it says that its agent lives; the kernel drops it with the
    process. So a socket whose lock can be got is a dead agent's.
    """

    path: Path
    lock_file: int
    listening: socket.socket
    owner: int

    @classmethod
    def take(cls, path: Path) -> SocketPlace:
        """Lock a path, remove a dead agent's socket from it, and listen.

        After a crash: a socket that nobody listens at and a lock that nobody holds.

        Raises:
            StoreBusyError: an agent serves there already.
            InputRefusedError: the path is too long, or something else lies there.
            StorageFailedError: the system does not let a socket be made there.
        """
        check_socket_path(path)
        try:
            lock_file = _locked(path)
            try:
                _remove_dead(path)
                listening = _listening(path)
            except BaseException:
                os.close(lock_file)
                raise
        except OSError as error:
            raise StorageFailedError(
                f"no socket can be made at {path}: {error.strerror or error}",
                do="Give a path in a directory of this machine that this user may write to.",
                facts={"path": str(path)},
            ) from error
        return cls(path, lock_file, listening, process_id())

    def interrupt(self) -> None:
        """Wake up the thread that takes connections; it gets an `OSError`."""
        self.listening.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """Remove the socket and let the place go. The lock file stays, and means nothing.

        After a crash: as before `take`, or a dead socket.
        """
        try:
            self.listening.close()
            self.path.unlink(missing_ok=True)
        finally:
            try:
                unlock(self.lock_file, self.owner)
            finally:
                os.close(self.lock_file)


def check_socket_path(path: Path) -> None:
    """Refuse a path that no socket can have.

    Raises:
        InputRefusedError: it is too long.
    """
    if len(os.fsencode(path)) > PATH_SIZE_BYTES_MAX:
        raise InputRefusedError(
            f"the path {path} is too long for a socket",
            do=f"Give a path of at most {PATH_SIZE_BYTES_MAX} bytes, such as /run/ws.sock.",
            facts={"path": str(path)},
        )


def _locked(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path.with_name(path.name + _LOCK_SUFFIX), flags, _OWN_ONLY)
    try:
        is_ours = try_lock(file)
    except BaseException:
        os.close(file)
        raise
    if is_ours:
        return file
    os.close(file)
    raise StoreBusyError(
        f"a host agent serves at {path} already",
        do="Use that one, or give another path.",
        facts={"path": str(path)},
    )


def _remove_dead(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise InputRefusedError(
            f"{path} is there and is no socket",
            do="Give a path where nothing is.",
            facts={"path": str(path)},
        )
    path.unlink()


def _listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.bind(os.fspath(path))
        # Before anybody can connect: nobody can until it listens.
        path.chmod(_OWN_ONLY)
        made.listen(_BACKLOG_COUNT)
    except BaseException:
        made.close()
        raise
    return made
