"""The lock of an open file, which the kernel lets go with the last process that has it open.

So a forked child that lives on keeps what a parent held that was killed: the next one is told that
it is busy, which errs on the safe side.
"""

from __future__ import annotations

import fcntl
import os

from weightstore.storage import machine

_HOLDER_SIZE_BYTES_MAX = 512


def try_lock(file: int) -> bool:
    """Lock an open file against everybody else, or say that somebody holds it.

    After a crash: nobody holds it.

    Raises:
        OSError: what the system said; some file systems have no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def try_lock_by_name(file: int) -> str | None:
    """As `try_lock`, and the file then says who holds it.

    Returns:
        None if it is held now; else who holds it, for a message.

    Raises:
        OSError: as `try_lock`.
    """
    if not try_lock(file):
        said = os.pread(file, _HOLDER_SIZE_BYTES_MAX, 0).decode("utf-8", errors="replace")
        return said or "another process"
    holder = f"process {machine.process_id()} on {machine.host_name()}"
    os.ftruncate(file, 0)
    os.pwrite(file, holder.encode("utf-8")[:_HOLDER_SIZE_BYTES_MAX], 0)
    return None


def unlock(file: int, owner: int) -> None:
    """Let a lock go before its file is closed: a forked child may have the file open for longer.

    Args:
        file: Locked by `try_lock`.
        owner: The process that did; in any other nothing is done, since the lock is the owner's.

    Raises:
        OSError: what the system said.
    """
    if machine.process_id() == owner:
        fcntl.flock(file, fcntl.LOCK_UN)
