"""Tensors of safetensors files as input of a put, read range by range from the files.

A file stays open from its plan to the end of the put, so that another one that takes its
name meanwhile is not read; one that is changed in place is noticed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from typing_extensions import Buffer

from weightstore.errors import InputRefusedError
from weightstore.format.safetensors_header import StoredTensor
from weightstore.history.import_plan import ImportFile, plan_import
from weightstore.layout.tensors import Units
from weightstore.settings import Limits
from weightstore.storage.durable import storage_error
from weightstore.trainer.inputs import InputTensor

_READ_SIZE_BYTES_MAX = 1 << 30


def open_files(path: Path, limits: Limits, at_end: ExitStack) -> Iterator[tuple[str, InputTensor]]:
    """The tensors of a safetensors file, or of a checkpoint directory.

    Files are read when their tensors are, so they must stay as they are until then.

    Args:
        path: A `.safetensors` file, or a directory.
        limits: Bounds on headers.
        at_end: Given what closes the files.

    Raises:
        InputRefusedError: no such file, no safetensors in it, a damaged one, or one that
            is changed meanwhile.
        StorageFailedError: a file cannot be read.
    """
    planned = [file for file in plan_import(path, limits).files if file.header]
    for index, file in enumerate(planned):
        source = _Source(file)
        if index < limits.open_file_count:
            source.keep_open(at_end)
        for tensor in file.tensors:
            yield tensor.spec.name, InputTensor(tensor.spec, _reader(source, tensor))


def _reader(source: _Source, tensor: StoredTensor) -> Callable[[int, int], Units]:
    dtype = tensor.spec.dtype.unit_dtype

    def read(first: int, count: int) -> Units:
        # Not mapped: a file that is cut short meanwhile must be an error, not a signal.
        units = np.empty(count, dtype=dtype)
        target = units.data.cast("B")
        source.read_into(tensor.file_offset + first * dtype.itemsize, target, tensor.spec.name)
        return units

    return read


class _Source:
    """A weight file as it was planned. Safe to read from several threads."""

    def __init__(self, file: ImportFile) -> None:
        """Look at the file.

        Raises:
            InputRefusedError: it is not the file of the plan any more.
            StorageFailedError: it cannot be read.
        """
        self._planned = file
        self._kept: int | None = None
        with self._errors_of("its header"), self._opened() as opened:
            self._stamp = _stamp(opened)
            self._check_head(opened)

    def keep_open(self, at_end: ExitStack) -> None:
        """Read from one descriptor from now on."""
        with self._errors_of("its header"):
            opened = at_end.enter_context(self._opened())
            self._check_stamp(opened, "its header")
        self._kept = opened

    def read_into(self, offset: int, target: memoryview, name: str) -> None:
        """Read a range of a tensor."""
        what = f"tensor {name!r}"
        with self._errors_of(what):
            if self._kept is not None:
                self._read_range(self._kept, offset, target, what)
                return
            with self._opened() as opened:
                self._read_range(opened, offset, target, what)

    def _read_range(self, opened: int, offset: int, target: memoryview, what: str) -> None:
        done = 0
        while done < target.nbytes:
            part: Buffer = target[done : done + _READ_SIZE_BYTES_MAX]
            size = os.preadv(opened, [part], offset + done)
            if not size:
                raise self._changed(what)
            done += size
        # What was changed before or while it was read shows in the stamp.
        self._check_stamp(opened, what)

    def _check_head(self, opened: int) -> None:
        header = self._planned.header
        assert header is not None
        head = os.pread(opened, header.data_offset, 0)
        same = hashlib.sha256(head).hexdigest() == self._planned.head_sha256
        if not same or os.fstat(opened).st_size != self._planned.size_bytes:
            raise self._changed("its header")

    def _check_stamp(self, opened: int, what: str) -> None:
        if _stamp(opened) != self._stamp:
            raise self._changed(what)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        opened = os.open(self._planned.source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            yield opened
        finally:
            os.close(opened)

    @contextmanager
    def _errors_of(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise self._changed(what) from error
        except OSError as error:
            raise storage_error(error, f"read {what} of {self._planned.source}") from error

    def _changed(self, what: str) -> InputRefusedError:
        return InputRefusedError(
            f"{self._planned.source} was changed while {what} was read from it",
            do="Put again once the file is complete.",
            facts={"path": str(self._planned.source), "read": what},
        )


def _stamp(opened: int) -> tuple[int, int, int, int]:
    """What changes with a file's bytes, or with the file behind a name."""
    found = os.fstat(opened)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
