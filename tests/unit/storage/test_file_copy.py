"""A user's file is copied whole or refused, in every way that a disk offers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from typing_extensions import Buffer

from weightstore.errors import InputRefusedError, StorageFailedError
from weightstore.storage import file_copy
from weightstore.storage.durable import SYSCALLS, Syscalls
from weightstore.storage.local import LocalBlobStore

DATA = os.urandom(1000) * 300
KEY = "anchors/a/model.safetensors"


def _unsupported(*_: int) -> NoReturn:
    raise OSError(errno.EOPNOTSUPP, "not here")


def _clone(source: int, target: int) -> None:
    """What a disk that shares blocks does, as far as anybody can see."""
    os.pwrite(target, os.pread(source, len(DATA), 0), 0)


def _copy_a_little(source: int, target: int, size_bytes: int) -> int:
    return SYSCALLS.copy_range(source, target, min(size_bytes, 77_777))


def _copy_once_then_refuse() -> Callable[[int, int, int], int]:
    has_copied = False

    def copy(source: int, target: int, size_bytes: int) -> int:
        nonlocal has_copied
        if has_copied:
            return _unsupported()
        has_copied = True
        return SYSCALLS.copy_range(source, target, min(size_bytes, 10_001))

    return copy


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


def _store(tmp_path: Path, syscalls: Syscalls) -> LocalBlobStore:
    return LocalBlobStore(tmp_path / "store", create=True, syscalls=syscalls)


@pytest.mark.parametrize(
    "syscalls",
    [
        SYSCALLS,
        replace(SYSCALLS, clone=_clone, copy_range=_unsupported),
        replace(SYSCALLS, clone=_unsupported),
        replace(SYSCALLS, clone=_unsupported, copy_range=_copy_a_little),
        replace(SYSCALLS, clone=_unsupported, copy_range=_unsupported),
        replace(SYSCALLS, clone=_unsupported, copy_range=_copy_once_then_refuse()),
    ],
    ids=["as it is", "shared", "copied", "in parts", "read and written", "both"],
)
def test_every_way_gives_the_same_bytes(tmp_path: Path, source: Path, syscalls: Syscalls) -> None:
    blobs = _store(tmp_path, syscalls)
    assert blobs.put_file_if_absent(KEY, source) == len(DATA)
    assert blobs.get(KEY, max_size_bytes=len(DATA)) == DATA


@pytest.mark.parametrize("way", ["copy_range", "read_and_write"])
@pytest.mark.parametrize(
    "edit",
    [
        lambda path: os.truncate(path, 100),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(DATA + b"more"),
        lambda path: os.utime(path, ns=(1, 1)),
    ],
    ids=["shorter", "empty", "longer", "rewritten"],
)
def test_a_file_that_changes_while_it_is_copied_is_refused(
    tmp_path: Path, source: Path, edit: Callable[[Path], object], way: str
) -> None:
    """At its first bytes; the mark of a rewrite in place is the file's time."""
    is_edited = False

    def once() -> None:
        nonlocal is_edited
        if not is_edited:
            is_edited = True
            edit(source)

    def copy_range(file: int, target: int, size_bytes: int) -> int:
        if way == "read_and_write":
            return _unsupported()
        count = SYSCALLS.copy_range(file, target, min(size_bytes, 1000))
        once()
        return count

    def write(file: int, data: Buffer) -> int:
        once()
        return os.write(file, data)

    syscalls = replace(SYSCALLS, clone=_unsupported, copy_range=copy_range, write=write)
    blobs = _store(tmp_path, syscalls)
    with pytest.raises(InputRefusedError, match="changed while it was copied"):
        blobs.put_file_if_absent(KEY, source)
    assert not list(blobs.list(""))


@pytest.mark.parametrize(
    "syscalls",
    [
        replace(SYSCALLS, clone=lambda _, target: os.truncate(target, 5)),
        replace(SYSCALLS, clone=_unsupported, copy_range=lambda *_: 0),
    ],
    ids=["shared", "copied"],
)
def test_a_copy_that_is_too_short_is_refused(
    tmp_path: Path, source: Path, syscalls: Syscalls
) -> None:
    """Some file systems say that all is copied, and copy nothing."""
    blobs = _store(tmp_path, syscalls)
    with pytest.raises(InputRefusedError, match="copied"):
        blobs.put_file_if_absent(KEY, source)
    assert not list(blobs.list(""))


def test_a_disk_that_fails_while_copying_leaves_no_blob(tmp_path: Path, source: Path) -> None:
    def fail(*_: int) -> int:
        raise OSError(errno.EIO, "broken")

    blobs = _store(tmp_path, replace(SYSCALLS, clone=_unsupported, copy_range=fail))
    with pytest.raises(StorageFailedError, match=r"cannot copy .*source"):
        blobs.put_file_if_absent(KEY, source)
    assert not list(blobs.list(""))


def test_large_files_are_copied_in_steps(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_copy, "COPY_SIZE_BYTES", 4096)
    monkeypatch.setattr(file_copy, "READ_SIZE_BYTES", 1000)
    for number, copy_range in enumerate((SYSCALLS.copy_range, _unsupported)):
        syscalls = replace(SYSCALLS, clone=_unsupported, copy_range=copy_range)
        blobs = _store(tmp_path, syscalls)
        blobs.put_file_if_absent(f"{KEY}-{number}", source)
        assert blobs.get(f"{KEY}-{number}", max_size_bytes=len(DATA)) == DATA
