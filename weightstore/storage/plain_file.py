"""A file where others may have put anything: only a plain one is read, and all else gives way."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import ExitStack
from typing import BinaryIO

from weightstore.storage.durable import Syscalls

# So that no link is followed, and a pipe or a device that others put there is no wait.
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_PLAIN_FILE_ERRNOS = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
"""What the system says of a link, a folder, a socket and a device without a driver."""

_IS_FOLDER_ERRNOS = frozenset({errno.EISDIR, errno.EPERM})
"""What systems say when a folder is to be unlinked."""


def open_plain_file(name: str, folder: int) -> BinaryIO | None:
    """Open a file of an open folder for reading.

    Returns:
        It; None if what has the name is no plain file.

    Raises:
        OSError: what the system said; nothing is left open.
    """

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | _FLAGS, dir_fd=folder)

    with ExitStack() as failed:
        try:
            stream = failed.enter_context(open(name, "rb", opener=opened))
        except OSError as error:
            if error.errno in _NO_PLAIN_FILE_ERRNOS:
                return None
            raise
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            failed.pop_all()
            return stream
    return None


def clear_name(name: str, folder: int, syscalls: Syscalls) -> None:
    """Remove what has a name in an open folder, a folder with all that is in it.

    After a crash: it is there or not; a folder may be there in part.

    Raises:
        OSError: what the system said.
    """
    try:
        syscalls.unlink(name, folder)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in _IS_FOLDER_ERRNOS:
            raise
        shutil.rmtree(name, dir_fd=folder)
