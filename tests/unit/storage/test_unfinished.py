"""Files without a name, temporary names, and what a sweep may take."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.clock import SystemEntropy
from weightstore.storage.durable import SYSCALLS
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.unfinished import (
    has_unnamed_files,
    named_file,
    remove_abandoned,
    unnamed_file,
)
from weightstore.testing.disk import FaultyDisk, failing

ENTROPY = SystemEntropy()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path, os.O_RDONLY)
    yield opened
    os.close(opened)


def _names(path: Path) -> list[str]:
    return sorted(found.name for found in path.iterdir())


def test_an_unnamed_file_is_seen_only_once_it_is_linked(tmp_path: Path, folder: int) -> None:
    with unnamed_file(folder, SYSCALLS) as unfinished:
        assert unfinished.write(b"abc") == 3
        assert not _names(tmp_path)
        unfinished.link("x")
        with pytest.raises(FileExistsError):
            unfinished.link("x")
    with unnamed_file(folder, SYSCALLS) as unfinished:
        unfinished.write(b"dropped")
    assert _names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"abc"


def test_a_temporary_name_goes_whether_or_not_the_file_was_linked(
    tmp_path: Path, folder: int
) -> None:
    with named_file(folder, SYSCALLS, ENTROPY) as unfinished:
        unfinished.write(b"abc")
        unfinished.link("x")
        assert len(_names(tmp_path)) == 2
    with named_file(folder, SYSCALLS, ENTROPY) as unfinished:
        unfinished.write(b"new")
        unfinished.replace("x")
    with (
        pytest.raises(ZeroDivisionError),
        named_file(folder, SYSCALLS, ENTROPY) as unfinished,
    ):
        raise ZeroDivisionError
    assert _names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_bytes() == b"new"
    assert (tmp_path / "x").stat().st_nlink == 1


def test_blobs_cannot_be_written_by_a_slip(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.put_if_absent("log/1", b"1")
    blobs.overwrite("head", b"1")
    assert [(tmp_path / key).stat().st_mode & 0o222 for key in ("log/1", "head")] == [0, 0]


def test_finding_out_leaves_nothing_behind(tmp_path: Path, folder: int) -> None:
    assert has_unnamed_files(folder, SYSCALLS, ENTROPY)
    for code in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
        disk = FaultyDisk(before=failing("open", code))
        assert not has_unnamed_files(folder, disk.syscalls, ENTROPY)
    for code in (errno.EPERM, errno.ENOENT, errno.EOPNOTSUPP):
        disk = FaultyDisk(before=failing("link_open_file", code))
        assert not has_unnamed_files(folder, disk.syscalls, ENTROPY)
    assert not _names(tmp_path)


def test_a_sweep_takes_what_the_dead_left_and_nothing_that_is_written(
    tmp_path: Path, folder: int
) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.put_if_absent("log/1", b"1")
    left = [tmp_path / "~tmp-1", tmp_path / "log" / "~tmp-2"]
    for path in left:
        path.write_bytes(b"left")
    with named_file(folder, SYSCALLS, ENTROPY) as unfinished:
        unfinished.write(b"alive")
        assert blobs.sweep_temporary() == 2
        assert blobs.sweep_temporary() == 0
        unfinished.link("head")
    assert not any(path.exists() for path in left)
    assert [info.key for info in blobs.list("")] == ["head", "log/1"]


def test_a_sweep_leaves_alone_what_it_does_not_know(tmp_path: Path, folder: int) -> None:
    """Links above all: their target may lie anywhere."""
    (tmp_path / "target").touch()
    (tmp_path / "~tmp-link").symlink_to(tmp_path / "target")
    assert not remove_abandoned("~tmp-link", folder, SYSCALLS)
    assert not remove_abandoned("~tmp-missing", folder, SYSCALLS)
    assert (tmp_path / "target").exists()
    assert (tmp_path / "~tmp-link").is_symlink()


def test_a_file_that_a_sweep_takes_at_birth_is_made_anew(tmp_path: Path, folder: int) -> None:
    """Between its creation and its lock a sweep may find it."""
    swept: list[str] = []

    def sweep_once(name: str, flags: int, mode: int, at: int) -> int:
        file = SYSCALLS.open(name, flags, mode, at)
        if not swept:
            swept.append(name)
            assert remove_abandoned(name, at, SYSCALLS)
        return file

    syscalls = FaultyDisk().syscalls
    object.__setattr__(syscalls, "open", sweep_once)
    with named_file(folder, syscalls, ENTROPY) as unfinished:
        assert unfinished.temporary_name not in swept
        unfinished.link("x")
    assert _names(tmp_path) == ["x"]


def test_where_there_are_no_locks_a_file_is_written_all_the_same(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with named_file(folder, SYSCALLS, ENTROPY) as unfinished:
        assert not remove_abandoned(unfinished.temporary_name, folder, SYSCALLS)
        unfinished.link("x")
    assert _names(tmp_path) == ["x"]
