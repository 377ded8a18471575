"""Replacing files durably, and what the system's errors become."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from weightstore.errors import (
    BlobOutcomeUnknownError,
    InputRefusedError,
    StorageFailedError,
    StorageFullError,
    StoreReadOnlyError,
    WeightStoreError,
)
from weightstore.storage.durable import link_durably, replace_durably, storage_error, sync_path
from weightstore.testing.disk import FaultyDisk, failing
from weightstore.testing.faults import PowerCut, When


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    return tmp_path


def test_the_bytes_are_synced_before_the_name_and_the_folder_after(folder: Path) -> None:
    disk = FaultyDisk()
    replace_durably(folder / "new", folder / "old", syscalls=disk.syscalls)
    assert [(call.name, call.path) for call in disk.calls] == [
        ("fsync", f"{folder}/new"),
        ("rename", f"{folder}/old"),
        ("fsync", str(folder)),
    ]
    assert (folder / "old").read_bytes() == b"new"
    assert not (folder / "new").exists()


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("index", range(3))
def test_a_cut_leaves_the_old_file_or_the_new_one(folder: Path, index: int, when: When) -> None:
    disk = FaultyDisk(cut=(index, when))
    with pytest.raises(PowerCut):
        replace_durably(folder / "new", folder / "old", syscalls=disk.syscalls)
    is_renamed = index > 1 or (index == 1 and when is When.AFTER)
    assert (folder / "old").read_bytes() == (b"new" if is_renamed else b"old")


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("fsync", errno.EIO, StorageFailedError),
        ("rename", errno.ENOSPC, StorageFullError),
        ("rename", errno.EROFS, StoreReadOnlyError),
    ],
)
def test_a_failure_before_the_rename_leaves_the_old_file(
    folder: Path, name: str, code: int, expected: type[WeightStoreError]
) -> None:
    disk = FaultyDisk(before=failing(name, code))
    with pytest.raises(expected):
        replace_durably(folder / "new", folder / "old", syscalls=disk.syscalls)
    assert (folder / "old").read_bytes() == b"old"


def test_a_failure_after_the_rename_is_an_unknown_outcome(folder: Path) -> None:
    disk = FaultyDisk(before=failing("fsync", errno.EIO, path_end=folder.name))
    with pytest.raises(BlobOutcomeUnknownError):
        replace_durably(folder / "new", folder / "old", syscalls=disk.syscalls)
    assert (folder / "old").read_bytes() == b"new"


def test_a_folder_is_named_durably_too(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "x").touch()
    replace_durably(tmp_path / "new", tmp_path / "final")
    assert (tmp_path / "final" / "x").exists()


def test_both_names_lie_in_one_folder(folder: Path) -> None:
    (folder / "below").mkdir()
    with pytest.raises(InputRefusedError):
        replace_durably(folder / "new", folder / "below" / "old")
    assert (folder / "new").exists()


def test_what_is_not_there_cannot_be_synced_or_renamed(tmp_path: Path) -> None:
    with pytest.raises(StorageFailedError):
        sync_path(tmp_path / "missing")
    with pytest.raises(StorageFailedError):
        replace_durably(tmp_path / "missing", tmp_path / "x")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StorageFailedError):
        sync_path(tmp_path / "link")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EROFS, StoreReadOnlyError),
        (errno.EACCES, StoreReadOnlyError),
        (errno.EPERM, StoreReadOnlyError),
        (errno.EIO, StorageFailedError),
        (errno.ESTALE, StorageFailedError),
        (errno.EMFILE, StorageFailedError),
    ],
)
def test_errors_are_sorted_by_what_has_to_be_mended(
    code: int, expected: type[WeightStoreError]
) -> None:
    error = storage_error(OSError(code, os.strerror(code)), "write packs/x")
    assert type(error) is expected
    assert error.facts == {"errno": code}
    assert str(error).startswith(f"cannot write packs/x: {os.strerror(code)}")
    assert error.do


def test_a_link_comes_after_the_bytes_and_before_the_first_name_goes(folder: Path) -> None:
    disk = FaultyDisk()
    link_durably(folder / "new", folder / "final", syscalls=disk.syscalls)
    assert [call.name for call in disk.calls] == ["fsync", "link", "fsync", "unlink"]
    assert sorted(path.name for path in folder.iterdir()) == ["final", "old"]
    assert (folder / "final").read_bytes() == b"new"


@pytest.mark.parametrize("code", [errno.EEXIST, errno.EOPNOTSUPP])
def test_a_name_that_is_taken_stays_as_it_is(folder: Path, code: int) -> None:
    disk = FaultyDisk(before=failing("link", code))
    with pytest.raises(InputRefusedError, match="is there already"):
        link_durably(folder / "new", folder / "old", syscalls=disk.syscalls)
    assert (folder / "old").read_bytes() == b"old"
    assert (folder / "new").read_bytes() == b"new"


def test_a_file_system_without_links_renames(folder: Path) -> None:
    disk = FaultyDisk(before=failing("link", errno.EPERM))
    link_durably(folder / "new", folder / "final", syscalls=disk.syscalls)
    assert sorted(path.name for path in folder.iterdir()) == ["final", "old"]


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("index", range(4))
def test_a_cut_leaves_no_file_or_the_whole_one(folder: Path, index: int, when: When) -> None:
    disk = FaultyDisk(cut=(index, when))
    with pytest.raises(PowerCut):
        link_durably(folder / "new", folder / "final", syscalls=disk.syscalls)
    is_linked = index > 1 or (index == 1 and when is When.AFTER)
    assert (folder / "final").exists() == is_linked
    assert not is_linked or (folder / "final").read_bytes() == b"new"


def test_links_that_fail_are_typed(folder: Path) -> None:
    disk = FaultyDisk(before=failing("link", errno.ENOSPC))
    with pytest.raises(StorageFullError):
        link_durably(folder / "new", folder / "final", syscalls=disk.syscalls)
    disk = FaultyDisk(before=failing("fsync", errno.EIO, path_end=folder.name))
    with pytest.raises(BlobOutcomeUnknownError):
        link_durably(folder / "new", folder / "final", syscalls=disk.syscalls)
