"""Opening a file where others may have put anything: only a plain one is read."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from typing import BinaryIO

# So that no link is followed, and a pipe or a device that others put there is no wait.
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_PLAIN_FILE_ERRNOS = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})
"""What the system says of a link, a folder, a socket and a device without a driver."""


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
