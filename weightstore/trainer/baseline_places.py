"""Where baselines live: in private memory, or in a file that survives the process.

What a file holds is proven by digest before it is used, so it needs no durability.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import numpy as np

from weightstore.errors import InputRefusedError
from weightstore.storage.durable import SYSCALLS, replace_durably, storage_error
from weightstore.storage.file_lock import try_lock, unlock
from weightstore.storage.machine import process_id
from weightstore.storage.unfinished import NO_UNNAMED_ERRNOS, UnfinishedFile
from weightstore.trainer.baseline import Baseline, BaselineLayout

_HEADER_SIZE_BYTES = 4096
_MODE = 0o644
_MAGIC = b"weightstore-baseline-1\n"
# A link could lead to a file that is in use by another name, a FIFO would block.
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class BaselinePlace(Protocol):
    """Makes baselines; one is present, another may be in the making."""

    def load(self, layout: BaselineLayout) -> Baseline | None:
        """What an earlier process left here, unproven; None if nothing of this layout."""
        ...

    def create(self, layout: BaselineLayout) -> Baseline:
        """A new baseline of unset content beside the present one."""
        ...

    def adopt(self) -> None:
        """Make the created baseline the present one."""
        ...

    def close(self) -> None:
        """Let go of the place."""
        ...


class MemoryPlace:
    """Baselines in private memory."""

    def load(self, layout: BaselineLayout) -> Baseline | None:  # noqa: ARG002 -- of the protocol
        """Nothing survives a process."""
        return None

    def create(self, layout: BaselineLayout) -> Baseline:
        """A baseline of unset content."""
        return Baseline(layout, np.empty(layout.size_bytes, dtype=np.uint8))

    def adopt(self) -> None:
        """Nothing to do: whoever holds a baseline in memory has it."""

    def close(self) -> None:
        """Nothing to let go of."""


class FilePlace:
    """Baselines in a memory-mapped file, held by one trainer at a time.

    What is locked is the mapped file itself, whatever it is called: two names of one file
    would let two trainers write into one baseline. A lock file beside it holds the name.
    """

    def __init__(self, path: Path) -> None:
        """Take hold of the place.

        Raises:
            InputRefusedError: another trainer holds it, it cannot be made, or there is a
                file that is no baseline; nothing was changed.
            StorageFailedError: its file system cannot lock files.
        """
        self._path = path
        self._process = process_id()
        self._present: int | None = None
        self._made: int | None = None
        self._lock: int | None = None
        with ExitStack() as undo:
            undo.callback(self.close)
            self._present = _open_baseline(path)
            if self._present is not None:
                _lock(self._present, path)
            _check_replaceable(self._candidate())
            with _made_by_caller(path):
                self._lock = os.open(f"{path}.lock", _FLAGS | os.O_CREAT, _MODE)
            _lock(self._lock, path)
            _check_named(path, self._present)
            undo.pop_all()

    def close(self) -> None:
        """Let go of the place; the file stays for the next trainer."""
        held = [file for file in (self._present, self._made, self._lock) if file is not None]
        # Forgotten before they are closed: after an interrupt a number may be someone else's.
        self._present = self._made = self._lock = None
        with ExitStack() as at_end:
            for file in held:
                at_end.callback(os.close, file)
            # A map keeps a descriptor of its own, and whoever closed may still hold the map.
            for file in held:
                at_end.callback(unlock, file, self._process)

    def load(self, layout: BaselineLayout) -> Baseline | None:
        """The file's baseline, unproven; None if there is none of this layout.

        Raises:
            StorageFailedError: it is there and cannot be read.
        """
        if self._present is None:
            return None
        with _typed("read", self._path):
            head = os.pread(self._present, _HEADER_SIZE_BYTES, 0)
            size_bytes = os.fstat(self._present).st_size
            if head != _header(layout) or size_bytes != _HEADER_SIZE_BYTES + layout.size_bytes:
                return None
            return _mapped(self._present, layout)

    def create(self, layout: BaselineLayout) -> Baseline:
        """A new baseline beside the present one; `adopt` puts it in place.

        After a crash: the present file is as it was; a started one is written anew.

        Raises:
            InputRefusedError: a file that is no baseline has its name.
            StorageFullError: the file system has no room for it.
            StoreReadOnlyError, StorageFailedError: it cannot be made.
        """
        path = self._candidate()
        with _typed("make", path):
            _check_replaceable(path)
            path.unlink(missing_ok=True)
            file = _begun(path, _header(layout))
            old, self._made = self._made, file
            _let_go(old)
            with _removed_on_failure(path):
                os.posix_fallocate(file, 0, _HEADER_SIZE_BYTES + layout.size_bytes)
                baseline = _mapped(file, layout)
        _check_named(path, file)
        return baseline

    def adopt(self) -> None:
        """Make the created baseline the present one; its maps stay valid.

        After a crash: the old file or the new one.

        Raises:
            InputRefusedError: someone else has put another file in its place.
            StorageFailedError: it could not be put in place.
        """
        made = self._made
        _check_named(self._candidate(), made)
        _check_replaceable(self._path)
        replace_durably(self._candidate(), self._path)
        old, self._present, self._made = self._present, made, None
        _let_go(old)
        _check_named(self._path, made)

    def _candidate(self) -> Path:
        return self._path.with_name(self._path.name + ".new")


def _begun(path: Path, header: bytes) -> int:
    """A new, locked file that holds a header and no more; its descriptor.

    After a crash: no file, or one with the whole header, so that it is known as a baseline
    and can be replaced. Without files without a name, power loss may leave another one.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with ExitStack() as undo:
        undo.callback(os.close, folder)
        try:
            file = SYSCALLS.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, _MODE, folder)
        except OSError as error:
            if error.errno not in NO_UNNAMED_ERRNOS:
                raise
            is_named = True
            file = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, _MODE)
        else:
            is_named = False
        with ExitStack() as failed:
            failed.callback(os.close, file)
            _lock(file, path)
            begun = UnfinishedFile(file, folder, "", SYSCALLS)
            begun.write(header)
            SYSCALLS.fsync(file)
            if not is_named:
                begun.link(path.name)
            failed.pop_all()
        return file
    raise AssertionError("the block above returns or raises")


def _let_go(old: int | None) -> None:
    """Close a file that is replaced; a map of it keeps its lock for as long as it lives."""
    if old is not None:
        os.close(old)


def _open_baseline(path: Path) -> int | None:
    """Open a file that may be replaced; None if there is none.

    Raises:
        InputRefusedError: it is no regular file, or neither empty nor a baseline.
    """
    with _made_by_caller(path), ExitStack() as undo:
        try:
            file = os.open(path, _FLAGS)
        except FileNotFoundError:
            return None
        undo.callback(os.close, file)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _no_baseline(path, "no regular file")
        if os.pread(file, len(_MAGIC), 0) not in {b"", _MAGIC}:
            raise _no_baseline(path, "neither empty nor a baseline")
        undo.pop_all()
        return file
    raise AssertionError("the block above returns or raises")


def _check_replaceable(path: Path) -> None:
    file = _open_baseline(path)
    if file is not None:
        os.close(file)


def _check_named(path: Path, file: int | None) -> None:
    """Check that a name is that of an open file, or of none."""
    try:
        named = path.lstat()
    except FileNotFoundError:
        named = None
    except OSError as error:
        raise storage_error(error, f"look at the baseline file {path}") from error
    held = None if file is None else os.fstat(file)
    if (named and (named.st_dev, named.st_ino)) != (held and (held.st_dev, held.st_ino)):
        raise InputRefusedError(
            f"baseline file {path} was replaced by another process",
            do="Give each trainer a file of its own.",
            facts={"path": str(path)},
        )


def _lock(file: int, path: Path) -> None:
    with _typed("lock", path):
        is_ours = try_lock(file)
    if not is_ours:
        raise InputRefusedError(
            f"baseline file {path} is in use by another trainer, perhaps under another name",
            do="Give each trainer a file of its own.",
            facts={"path": str(path)},
        )


def _no_baseline(path: Path, what: str) -> InputRefusedError:
    return InputRefusedError(
        f"{path} is {what}, so no baseline may replace it",
        do="Give the path of a file that is not there yet.",
        facts={"path": str(path)},
    )


@contextmanager
def _made_by_caller(path: Path) -> Iterator[None]:
    """What the system refuses about a path is for whoever gave it to mend."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EISDIR:
            raise _no_baseline(path, "a directory") from error
        if error.errno == errno.ELOOP:
            raise _no_baseline(path, "a symbolic link") from error
        if error.errno == errno.ENXIO:
            raise _no_baseline(path, "no regular file") from error
        raise InputRefusedError(
            f"baseline file {path} cannot be made: {error.strerror}",
            do="Give a path in an existing directory that this process may write.",
        ) from error


@contextmanager
def _typed(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(error, f"{verb} the baseline file {path}") from error


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def _mapped(file: int, layout: BaselineLayout) -> Baseline:
    # The map has a descriptor of its own, and with it the lock.
    whole = mmap.mmap(file, _HEADER_SIZE_BYTES + layout.size_bytes)
    return Baseline(layout, np.frombuffer(whole, dtype=np.uint8)[_HEADER_SIZE_BYTES:])


def _header(layout: BaselineLayout) -> bytes:
    head = _MAGIC + layout.schema.id.encode("ascii") + b"\n"
    return head.ljust(_HEADER_SIZE_BYTES, b"\0")
