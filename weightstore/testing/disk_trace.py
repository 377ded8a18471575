"""A real directory whose changes are written down as events of a model of the disk.

The system calls of the product are seen as they are made, fsync above all. What was done
past them (a file written by plain Python, a map that was stored to) is found by comparing
the directory with what is known of it, before each call.
"""

from __future__ import annotations

import enum
import errno
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from typing_extensions import Buffer

from weightstore.storage.durable import SYSCALLS, Syscalls
from weightstore.testing.disk_model import (
    EMPTY,
    FOLDER,
    ROOT,
    Contents,
    Event,
    Made,
    Named,
    Synced,
    Told,
    Written,
    link_bytes,
)
from weightstore.testing.faults import PowerCut

_PACKAGE = str(Path(__file__).parents[1]) + "/"
_KIT = str(Path(__file__).parent) + "/"
_STORAGE = _PACKAGE + "storage/"
_PASSED_THROUGH = {"Folders.sync", "Folders._walked"}


class Lack(enum.Enum):
    """What some file systems do not have."""

    UNNAMED = "files without a name"
    LINKS = "a second name for a file"


@dataclass(frozen=True, slots=True)
class Call:
    """A system call of one process: its number from 0, its field of `Syscalls`, and the path."""

    index: int
    name: str
    path: str


AtCall: TypeAlias = Callable[[Call], bool]
Skips: TypeAlias = Callable[[Synced], bool]


def at_no_call(call: Call) -> bool:
    """At none."""
    del call
    return False


def no_fsync(event: Synced) -> bool:
    """None is left out."""
    del event
    return False


class TracedDisk:
    """Writes down what happens below a directory.

    Args:
        base: The directory.
        contents: Numbers its bytes.
        lacks: What this file system does not have: `O_TMPFILE`, links.
        skips: Which fsyncs do nothing, as if the product had none there.

    Attributes:
        base: The directory.
        before: What had happened, and is durable, when `settle` was called last.
        events: What has happened since, in order.
        calls: The system calls of this process so far.
    """

    def __init__(
        self,
        base: Path,
        contents: Contents,
        *,
        lacks: frozenset[Lack] = frozenset(),
        skips: Skips = no_fsync,
    ) -> None:
        self.base = base
        self.contents = contents
        self.before: list[Event] = []
        self.events: list[Event] = []
        self.calls: list[Call] = []
        self._lacks = lacks
        self._skips = skips
        self._cut: AtCall = at_no_call
        self._lost: AtCall = at_no_call
        self._is_dead = False
        self._names: dict[int, dict[str, int]] = {ROOT: {}}
        self._holds: dict[int, int] = {ROOT: FOLDER}
        found = base.stat()
        self._ids: dict[int, tuple[int, int]] = {ROOT: (found.st_dev, found.st_ino)}
        self._inodes = {inode: number for number, inode in self._ids.items()}
        self._lock = threading.RLock()
        self._original = Syscalls(**{each.name: getattr(SYSCALLS, each.name) for each in _FIELDS})

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Write down what this process does until the end of the block.

        Exporting, baselines and locks have no argument for system calls: the one value that
        everything uses is changed in place.
        """
        try:
            for each in _FIELDS:
                object.__setattr__(SYSCALLS, each.name, partial(self._call, each.name))
            yield
        finally:
            for each in _FIELDS:
                object.__setattr__(SYSCALLS, each.name, getattr(self._original, each.name))

    def begin(self, *, cut: AtCall = at_no_call, lost: AtCall = at_no_call) -> None:
        """Begin a process: its system calls are counted from 0.

        Args:
            cut: The call that it dies before; what it did stays visible, since the power
                is on.
            lost: The call that has its effect and reports an error.
        """
        self.calls.clear()
        self._cut, self._lost, self._is_dead = cut, lost, False

    def settle(self) -> None:
        """Take everything so far for durable, and begin to write down."""
        self._compare()
        self.before += self.events
        self.events.clear()

    def note(self) -> int:
        """Write down what was done past the system calls; how many events there are."""
        with self._lock:
            self._compare()
            return len(self.events)

    def tell(self, what: object) -> None:
        """Write down that somebody relies on something from now on."""
        with self._lock:
            self._compare()
            self.events.append(Told(what))

    def move(self, source: Path, target: Path) -> None:
        """Rename something as a user does, without any fsync."""
        with self._lock:
            self._compare()
            source.rename(target)
            old, new = (self._inodes[_id(one.parent.stat())] for one in (source, target))
            inode = self._names[old][source.name]
            self._name(old, source.name, None)
            self._name(new, target.name, inode)

    def _call(self, name: str, *given: Any) -> Any:  # noqa: ANN401 -- any field of `Syscalls`
        """Make one system call, unless the process dies of it."""
        with self._lock:
            call = Call(len(self.calls), name, self._shown(name, given))
            self._is_dead = self._is_dead or self._cut(call)
            if self._is_dead:
                raise PowerCut
            self.calls.append(call)
            self._compare()
            result = getattr(self, f"_{name}")(*given)
            if self._lost(call):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return result

    def _shown(self, name: str, given: tuple[Any, ...]) -> str:
        """Path of what a call is made on, below the directory."""
        if name in {"write", "fsync", "clone", "copy_range"}:
            return self._path(given[0] if name in {"write", "fsync"} else given[1])
        called = next(one for one in reversed(given) if isinstance(one, str))
        return f"{self._path(given[-1])}/{called}"

    def _path(self, file: int) -> str:
        path = str(Path(f"/proc/self/fd/{file}").readlink())
        return path.removeprefix(f"{self.base}/").removesuffix(" (deleted)")

    # --- The system calls, by the names of the fields of `Syscalls` ---------------------

    def _open(self, name: str, flags: int, mode: int, folder: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE and Lack.UNNAMED in self._lacks:
            raise _unsupported()
        file = self._original.open(name, flags, mode, folder)
        inode = self._make(os.fstat(file), is_folder=False)
        if flags & os.O_TMPFILE != os.O_TMPFILE:
            self._name(self._number(folder), name, inode)
        return file

    def _make_folder(self, name: str, folder: int) -> None:
        self._original.make_folder(name, folder)
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        self._name(self._number(folder), name, self._make(found, is_folder=True))

    def _write(self, file: int, data: Buffer) -> int:
        count = self._original.write(file, data)
        self._hold(file)
        return count

    def _fsync(self, file: int) -> None:
        inode = self._inodes.get(_id(os.fstat(file)))
        if inode is None:
            return  # a folder above all that is traced
        event = Synced(inode, _site(), self._path(file))
        if not self._skips(event):
            self._original.fsync(file)
            self.events.append(event)

    def _link_open_file(self, file: int, name: str, folder: int) -> None:
        self._original.link_open_file(file, name, folder)
        self._name(self._number(folder), name, self._number(file))

    def _link(self, source: str, name: str, folder: int) -> None:
        if Lack.LINKS in self._lacks:
            raise _unsupported()
        self._original.link(source, name, folder)
        number = self._number(folder)
        self._name(number, name, self._names[number][source])

    def _symlink(self, target: str, name: str, folder: int) -> None:
        self._original.symlink(target, name, folder)
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        self._name(self._number(folder), name, self._make_link(found, target))

    def _rename(self, source: str, name: str, folder: int) -> None:
        self._original.rename(source, name, folder)
        number = self._number(folder)
        inode = self._names[number][source]
        self._name(number, source, None)
        self._name(number, name, inode)

    def _unlink(self, name: str, folder: int) -> None:
        self._original.unlink(name, folder)
        self._name(self._number(folder), name, None)

    def _clone(self, source: int, target: int) -> None:
        self._original.clone(source, target)
        self._hold(target)

    def _copy_range(self, source: int, target: int, size_bytes: int) -> int:
        count = self._original.copy_range(source, target, size_bytes)
        self._hold(target)
        return count

    # --- What is known of the directory -------------------------------------------------

    def _make_link(self, found: os.stat_result, target: str) -> int:
        content = self.contents.number_of(link_bytes(target))
        return self._make(found, is_folder=False, content=content)

    def _make(self, found: os.stat_result, *, is_folder: bool, content: int = EMPTY) -> int:
        number = len(self._holds)
        self._holds[number] = FOLDER if is_folder else content
        if is_folder:
            self._names[number] = {}
        # The number of an inode that is gone is used again.
        self._ids[number] = _id(found)
        self._inodes[_id(found)] = number
        self.events.append(Made(number, is_folder, content))
        return number

    def _name(self, folder: int, name: str, inode: int | None) -> None:
        if inode is None:
            del self._names[folder][name]
        else:
            self._names[folder][name] = inode
        self.events.append(Named(folder, name, inode))

    def _number(self, file: int) -> int:
        return self._inodes[_id(os.fstat(file))]

    def _hold(self, file: int) -> None:
        self._see(self._number(file), os.pread(file, os.fstat(file).st_size, 0))

    def _see(self, inode: int, data: bytes) -> None:
        content = self.contents.number_of(data)
        if content != self._holds[inode]:
            self._holds[inode] = content
            self.events.append(Written(inode, content))

    def _compare(self) -> None:
        """Write down what was done past the system calls."""
        pending = [(self.base, ROOT)]
        while pending:
            path, folder = pending.pop()
            with os.scandir(path) as entries:
                found = {entry.name: entry for entry in entries}
            for name in [name for name in self._names[folder] if name not in found]:
                self._name(folder, name, None)
            for name, entry in found.items():
                inode = self._known(folder, path / name, entry.stat(follow_symlinks=False))
                if self._holds[inode] == FOLDER:
                    pending.append((path / name, inode))
                elif not entry.is_symlink():
                    self._see(inode, (path / name).read_bytes())

    def _known(self, folder: int, path: Path, found: os.stat_result) -> int:
        inode = self._names[folder].get(path.name)
        if inode is None or self._ids[inode] != _id(found):
            if stat.S_ISLNK(found.st_mode):
                inode = self._make_link(found, str(path.readlink()))
            else:
                inode = self._make(found, is_folder=stat.S_ISDIR(found.st_mode))
            self._name(folder, path.name, inode)
        return inode


_FIELDS = fields(Syscalls)


def _id(found: os.stat_result) -> tuple[int, int]:
    return (found.st_dev, found.st_ino)


def _unsupported() -> OSError:
    return OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def _site() -> str:
    """The functions that led to a system call: those of the storage, and who called them.

    A `LocalBlobStore` has one way for every caller, so the caller is left out there.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 -- no other way to tell who called
    names: list[str] = []
    while frame is not None:
        code = frame.f_code
        path, name = code.co_filename, code.co_qualname
        if path.startswith(_PACKAGE) and not path.startswith(_KIT):
            names.append(name if "." in name else f"{Path(path).stem}.{name}")
            if name.startswith("LocalBlobStore.") or not path.startswith(_STORAGE):
                break
        frame = frame.f_back
    return " < ".join(name for name in names if name not in _PASSED_THROUGH)
