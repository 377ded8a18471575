"""Who and where this process is: for messages, and for the proof that an owner is dead."""

from __future__ import annotations

import os
from pathlib import Path

from weightstore.errors import StoreClosedError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_name() -> str:
    """Name of this machine, for people to read."""
    return os.uname().nodename


def process_id() -> int:
    """Number of this process, for people to read: containers count their own."""
    return os.getpid()


def refuse_fork(owner: int, what: str, do: str) -> None:
    """Let only the process that made something use it.

    A forked child has copies of locks that nobody may be left to release, and no background
    threads. So this is asked before any lock is taken.

    Args:
        owner: The process that made it.
        what: It, for the message.
        do: What the child does instead.

    Raises:
        StoreClosedError: this is another process.
    """
    process = process_id()
    if process != owner:
        raise StoreClosedError(
            f"{what} belongs to process {owner}, not to its forked child {process}",
            do=do,
            facts={"owner_process": owner, "process": process},
        )


def boot_id() -> str:
    """Id of this run of this machine's kernel, or an empty text where it tells none.

    Containers of one machine share it, as they share its file locks.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
