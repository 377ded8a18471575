"""Where baselines live: in private memory, or in a file that survives the process.

What a file holds is proven by digest before it is used, so it needs no durability.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import InputRefusedError
from weightstore.storage.durable import replace_durably, storage_error
from weightstore.trainer.baseline import Baseline, BaselineLayout

_HEADER_SIZE_BYTES = 4096
_MAGIC = b"weightstore-baseline-1\n"


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
    """Baselines in a memory-mapped file, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Take hold of the place.

        Raises:
            InputRefusedError: another process holds it, or it cannot be made.
        """
        self._path = path
        try:
            if path.is_dir():
                raise InputRefusedError(
                    f"baseline file {path} is a directory", do="Give the path of a file."
                )
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InputRefusedError(
                f"baseline file {path} cannot be made: {error.strerror}",
                do="Give a path in an existing directory that this process may write.",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise InputRefusedError(
                f"baseline file {path} is in use by another process",
                do="Give each trainer process a file of its own.",
            ) from error

    def close(self) -> None:
        """Let go of the place; the file stays for the next process."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def load(self, layout: BaselineLayout) -> Baseline | None:
        """The file's baseline, unproven; None if there is none of this layout.

        Raises:
            StorageFailedError: it is there and cannot be read, or not written.
        """
        size_bytes = _HEADER_SIZE_BYTES + layout.size_bytes
        with _typed("read", self._path):
            try:
                with self._path.open("rb") as file:
                    head = file.read(_HEADER_SIZE_BYTES)
            except FileNotFoundError:
                return None
            if head != _header(layout) or self._path.stat().st_size != size_bytes:
                return None
            return _mapped(self._path, layout)

    def create(self, layout: BaselineLayout) -> Baseline:
        """A new baseline beside the present one; `adopt` puts it in place.

        After a crash: the present file is as it was; a started one is written anew.

        Raises:
            StorageFullError: the file system has no room for it.
            StoreReadOnlyError, StorageFailedError: it cannot be made.
        """
        path = self._candidate()
        with _typed("make", path):
            path.unlink(missing_ok=True)
            with path.open("xb") as file, _removed_on_failure(path):
                os.posix_fallocate(file.fileno(), 0, _HEADER_SIZE_BYTES + layout.size_bytes)
                file.write(_header(layout))
                file.flush()
            return _mapped(path, layout)

    def adopt(self) -> None:
        """Make the created baseline the present one; its maps stay valid.

        After a crash: the old file or the new one.
        """
        replace_durably(self._candidate(), self._path)

    def _candidate(self) -> Path:
        return self._path.with_name(self._path.name + ".new")


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


def _mapped(path: Path, layout: BaselineLayout) -> Baseline:
    shape = (_HEADER_SIZE_BYTES + layout.size_bytes,)
    whole: NDArray[Any] = np.memmap(path, dtype=np.uint8, mode="r+", shape=shape)
    return Baseline(layout, np.asarray(whole)[_HEADER_SIZE_BYTES:])


def _header(layout: BaselineLayout) -> bytes:
    head = _MAGIC + layout.schema.id.encode("ascii") + b"\n"
    return head.ljust(_HEADER_SIZE_BYTES, b"\0")
