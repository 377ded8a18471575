"""A disk that writes down what is done to it, and fails or loses power where a test says so."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from typing_extensions import Buffer

from weightstore.storage.durable import SYSCALLS, Syscalls
from weightstore.testing.faults import PowerCut, When

UNNAMED = "(unnamed)"

_UNNAMED = re.compile(r"/#\d+( \(deleted\))?\Z")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class DiskCall:
    """One system call: its number from 0, its field of `Syscalls`, and what it was made on.

    `path` is absolute; that of a file without a name ends in `UNNAMED`. A link or a rename
    is told by its new name.
    """

    index: int
    name: str
    path: str


Fault: TypeAlias = Callable[[DiskCall], OSError | None]


def no_fault(call: DiskCall) -> OSError | None:
    """Let every call go well."""
    del call
    return None


class FaultyDisk:
    """System calls for a `LocalBlobStore`, each written down before it is made.

    Args:
        before: The error that a call fails with, without its effect; None to let it be.
        after: The error that a call reports although it had its effect.
        cut: The call that the power is cut at, and the side; every later call is refused.

    Attributes:
        calls: What was called so far, in order.
    """

    def __init__(
        self,
        *,
        before: Fault = no_fault,
        after: Fault = no_fault,
        cut: tuple[int, When] | None = None,
    ) -> None:
        self.calls: list[DiskCall] = []
        self._before = before
        self._after = after
        self._cut = cut
        self._is_dead = False

    @property
    def is_cut(self) -> bool:
        """Whether the power is gone."""
        return self._is_dead

    @property
    def syscalls(self) -> Syscalls:
        """What a store takes."""
        return Syscalls(
            open=self._open,
            make_folder=lambda name, folder: self._call(
                "make_folder", _in(folder, name), lambda: SYSCALLS.make_folder(name, folder)
            ),
            write=self._write,
            fsync=lambda file: self._call("fsync", _of(file), lambda: SYSCALLS.fsync(file)),
            link_open_file=lambda file, name, folder: self._call(
                "link_open_file",
                _in(folder, name),
                lambda: SYSCALLS.link_open_file(file, name, folder),
            ),
            link=lambda source, name, folder: self._call(
                "link", _in(folder, name), lambda: SYSCALLS.link(source, name, folder)
            ),
            symlink=lambda target, name, folder: self._call(
                "symlink", _in(folder, name), lambda: SYSCALLS.symlink(target, name, folder)
            ),
            rename=lambda source, name, folder: self._call(
                "rename", _in(folder, name), lambda: SYSCALLS.rename(source, name, folder)
            ),
            unlink=lambda name, folder: self._call(
                "unlink", _in(folder, name), lambda: SYSCALLS.unlink(name, folder)
            ),
            clone=lambda source, target: self._call(
                "clone", _of(target), lambda: SYSCALLS.clone(source, target)
            ),
            copy_range=lambda source, target, size_bytes: self._call(
                "copy_range",
                _of(target),
                lambda: SYSCALLS.copy_range(source, target, size_bytes),
            ),
        )

    def _open(self, name: str, flags: int, mode: int, folder: int) -> int:
        path = _in(folder, UNNAMED if flags & os.O_TMPFILE == os.O_TMPFILE else name)
        return self._call("open", path, lambda: SYSCALLS.open(name, flags, mode, folder))

    def _write(self, file: int, data: Buffer) -> int:
        return self._call("write", _of(file), lambda: SYSCALLS.write(file, data))

    def _call(self, name: str, path: str, effect: Callable[[], _Result]) -> _Result:
        call = DiskCall(len(self.calls), name, path)
        self.calls.append(call)
        self._lose_power(call, When.BEFORE)
        try:
            _raise(self._before(call))
            result = effect()
            _raise(self._after(call))
        finally:
            # The cut comes whatever the answer would have been, an error too.
            self._lose_power(call, When.AFTER)
        return result

    def _lose_power(self, call: DiskCall, when: When) -> None:
        if self._is_dead or self._cut == (call.index, when):
            self._is_dead = True
            raise PowerCut


def failing(name: str, code: int, *, path_end: str = "") -> Fault:
    """A fault that every call of a name has, or only those on paths of an ending."""
    return lambda call: (
        OSError(code, os.strerror(code))
        if call.name == name and call.path.endswith(path_end)
        else None
    )


def failing_at(index: int, code: int) -> Fault:
    """A fault of one call, by its number."""
    return lambda call: OSError(code, os.strerror(code)) if call.index == index else None


def without_unnamed_files(call: DiskCall) -> OSError | None:
    """The fault of a file system that has no files without a name."""
    if call.name == "open" and call.path.endswith(UNNAMED):
        return OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    return None


def _raise(error: OSError | None) -> None:
    if error is not None:
        raise error


def _of(file: int) -> str:
    """Path of an open file; Linux shows one without a name under its inode's number."""
    return _UNNAMED.sub(f"/{UNNAMED}", str(Path(f"/proc/self/fd/{file}").readlink()))


def _in(folder: int, name: str) -> str:
    return f"{_of(folder)}/{name}"
