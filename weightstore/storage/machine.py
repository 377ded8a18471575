"""Who and where this process is: for messages, and for the proof that an owner is dead."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_name() -> str:
    """Name of this machine, for people to read."""
    return os.uname().nodename


def process_id() -> int:
    """Number of this process, for people to read: containers count their own."""
    return os.getpid()


def boot_id() -> str:
    """Id of this run of this machine's kernel, or an empty text where it tells none.

    Containers of one machine share it, as they share its file locks.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
