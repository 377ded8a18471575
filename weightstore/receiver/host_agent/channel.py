"""Messages over a Unix socket: length, bytes, and at most one file descriptor; with deadlines."""

from __future__ import annotations

import os
import socket
import struct
from types import TracebackType
from typing import Self

from weightstore.clock import Clock

_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")
_FD_COUNT_MAX = 4
"""More than one is wrong; room for some of them lets them be closed."""


class ChannelError(Exception):
    """The other side is gone, late, or breaks the rules: the channel is of no use any more."""


class LateError(ChannelError):
    """The other side did not send or take a message in time."""


class Channel:
    """One side of a connection. One thread at a time.

    Args:
        connected: The socket; owned from now on.
        clock: For deadlines.
        size_bytes_max: Of one message; a longer one is refused before it is read.
    """

    def __init__(self, connected: socket.socket, *, clock: Clock, size_bytes_max: int) -> None:
        self._socket = connected
        self._clock = clock
        self._size_bytes_max = size_bytes_max

    def close(self) -> None:
        """Hang up. A second call does nothing."""
        self._socket.close()

    def interrupt(self) -> None:
        """Wake up a thread that waits here, from another one; it gets a `ChannelError`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It has hung up already.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def peer_user(self) -> int:
        """The user that the process on the other side runs as, said by the kernel.

        Raises:
            ChannelError: the kernel does not say it.
        """
        try:
            said = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError as error:
            raise ChannelError(f"the peer is unknown: {error}") from error
        return int(_CREDENTIALS.unpack(said)[1])

    def send(self, data: bytes, *, timeout_s: float, file: int | None = None) -> None:
        """Send one message.

        Args:
            data: The message.
            timeout_s: For all of it.
            file: A file descriptor to send with it; stays open here.

        Raises:
            ChannelError: the message is too long, or it could not be sent in time.
        """
        if len(data) > self._size_bytes_max:
            raise ChannelError(f"a message of {len(data)} bytes is too long to be sent")
        frame = memoryview(_LENGTH.pack(len(data)) + data)
        deadline_s = self._clock.monotonic_s() + timeout_s
        try:
            if file is not None:
                self._wait_until(deadline_s)
                frame = frame[socket.send_fds(self._socket, [frame], [file]) :]
            while frame:
                self._wait_until(deadline_s)
                frame = frame[self._socket.send(frame) :]
        except OSError as error:
            raise _explained("a message could not be sent", error) from error

    def receive(
        self, *, timeout_s: float, first_timeout_s: float | None = None, with_file: bool = False
    ) -> tuple[bytes, int | None]:
        """Take one message.

        Args:
            timeout_s: From its first byte to its last.
            first_timeout_s: Until its first byte; None waits as long as it takes.
            with_file: Whether a file descriptor may come with it.

        Returns:
            The message, and the descriptor, which the caller owns.

        Raises:
            ChannelError: the other side is gone or late, the message is too long, or
                descriptors come that nobody asked for.
        """
        files: list[int] = []
        try:
            self._socket.settimeout(first_timeout_s)
            head = self._take(1, files)
            deadline_s = self._clock.monotonic_s() + timeout_s
            head += self._take_all(_LENGTH.size - 1, deadline_s, files)
            (size_bytes,) = _LENGTH.unpack(head)
            _check(size_bytes <= self._size_bytes_max, f"a message would have {size_bytes} bytes")
            data = self._take_all(size_bytes, deadline_s, files)
            _check(len(files) <= with_file, f"{len(files)} file descriptors came with a message")
        except BaseException as error:
            for file in files:
                os.close(file)
            if isinstance(error, OSError):
                raise _explained("no message came", error) from error
            raise
        return data, files[0] if files else None

    def _take_all(self, size_bytes: int, deadline_s: float, files: list[int]) -> bytes:
        found = bytearray()
        while len(found) < size_bytes:
            self._wait_until(deadline_s)
            found += self._take(size_bytes - len(found), files)
        return bytes(found)

    def _take(self, size_bytes: int, files: list[int]) -> bytes:
        data, more, flags, _ = socket.recv_fds(
            self._socket, size_bytes, _FD_COUNT_MAX, socket.MSG_CMSG_CLOEXEC
        )
        files += more
        if flags & socket.MSG_CTRUNC:
            raise ChannelError("too many file descriptors came with a message")
        if not data:
            raise ChannelError("the other side has hung up")
        return data

    def _wait_until(self, deadline_s: float) -> None:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise LateError("the other side is too slow")
        self._socket.settimeout(left_s)


def _check(is_so: bool, message: str) -> None:  # noqa: FBT001 -- a condition, as in `assert`
    if not is_so:
        raise ChannelError(message)


def _explained(what: str, error: OSError) -> ChannelError:
    kind = LateError if isinstance(error, TimeoutError) else ChannelError
    return kind(f"{what}: {error}")
