"""Real file systems that are full or may not be written; needs the right to mount."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.errors import (
    BlobNotFoundError,
    StorageFailedError,
    StorageFullError,
    StoreReadOnlyError,
)
from weightstore.storage.local import LocalBlobStore

DISK_SIZE_BYTES = 1024 * 1024


def _mount(*arguments: str) -> bool:
    mounted = subprocess.run(["mount", *arguments], check=False, capture_output=True)
    return mounted.returncode == 0


def _unmount(disk: Path) -> None:
    subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = _mount("-t", "tmpfs", "-o", f"size={DISK_SIZE_BYTES}", "none", str(disk))
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this user may not mount a file system")
    try:
        yield disk
    finally:
        if disk.is_mount():
            _unmount(disk)


def test_a_full_disk_is_told_and_works_again_when_space_is_freed(
    small_disk: Path, tmp_path: Path
) -> None:
    blobs = LocalBlobStore(small_disk / "store", create=True)
    blobs.put_if_absent("log/0", b"0")
    blobs.put_if_absent("packs/a-1/0", bytes(DISK_SIZE_BYTES // 2))
    source = tmp_path / "source"
    source.write_bytes(bytes(DISK_SIZE_BYTES))
    chunk = bytes(DISK_SIZE_BYTES // 4)
    for put in (
        lambda: blobs.put_if_absent("packs/a-1/1", bytes(DISK_SIZE_BYTES)),
        lambda: blobs.put_if_absent("packs/a-1/1", bytes(DISK_SIZE_BYTES), durable=False),
        lambda: blobs.put_stream_if_absent("packs/a-1/1", [chunk] * 4),
        lambda: blobs.put_file_if_absent("packs/a-1/1", source),
    ):
        with pytest.raises(StorageFullError):
            put()
        with pytest.raises(BlobNotFoundError):
            blobs.size("packs/a-1/1")
    assert [info.key for info in blobs.list("")] == ["log/0", "packs/a-1/0"]
    # Nothing of the failed puts takes space: as much as before fits in.
    blobs.put_if_absent("packs/a-1/1", chunk)
    blobs.delete("packs/a-1/0")
    blobs.put_if_absent("packs/a-1/2", bytes(DISK_SIZE_BYTES // 2))
    assert blobs.get("log/0", max_size_bytes=1) == b"0"


def test_a_read_only_disk_is_read_confirmed_and_never_written(small_disk: Path) -> None:
    LocalBlobStore(small_disk / "store", create=True).put_if_absent("log/0", b"0")
    if not _mount("-o", "remount,ro", str(small_disk)):
        pytest.skip("this user may not make a mount read-only")
    blobs = LocalBlobStore(small_disk / "store")
    assert blobs.get("log/0", max_size_bytes=1) == b"0"
    assert [info.key for info in blobs.list("")] == ["log/0"]
    blobs.confirm_durable("log/")
    for write in (
        lambda: blobs.put_if_absent("log/1", b"1"),
        lambda: blobs.put_if_absent("packs/a-1/1", b"1", durable=False),
        lambda: blobs.put_stream_if_absent("log/1", [b"1"]),
        lambda: blobs.put_file_if_absent("log/1", small_disk / "store" / "log" / "0"),
        lambda: blobs.overwrite("head", b"1"),
        lambda: blobs.delete("log/0"),
    ):
        with pytest.raises(StoreReadOnlyError):
            write()
    with pytest.raises(StoreReadOnlyError):
        LocalBlobStore(small_disk / "other", create=True)
    assert blobs.get("log/0", max_size_bytes=1) == b"0"


def test_a_disk_that_was_unmounted_is_not_an_empty_store(small_disk: Path) -> None:
    """The store is the mount point itself, which stays behind as an empty folder."""
    blobs = LocalBlobStore(small_disk)
    blobs.put_if_absent("log/0", b"0")
    _unmount(small_disk)
    with pytest.raises(StorageFailedError, match="another directory"):
        blobs.get("log/0", max_size_bytes=1)
    with pytest.raises(StorageFailedError, match="another directory"):
        blobs.put_if_absent("log/0", b"0")
    assert not list(small_disk.iterdir())
