"""The index in LMDB: the contract, one environment a process, and every damage noticed first."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weightstore.errors import (
    CorruptObjectError,
    LimitError,
    StorageFailedError,
    StorageFullError,
    UnavailableError,
)
from weightstore.settings import KIB, MIB
from weightstore.storage import lmdb_environment, lmdb_index
from weightstore.storage.index_file import Expected, IndexFile
from weightstore.storage.lmdb_index import LmdbIndexFile
from weightstore.testing.index_contract import IndexFileContract

NEW = Expected(b"state", None)
ENTRIES = {b"state": b"1", **{b"%d" % number: bytes(1000) for number in range(500)}}


def opened(folder: Path) -> LmdbIndexFile:
    return LmdbIndexFile(folder, size_bytes_max=64 * MIB)


class TestLmdbIndex(IndexFileContract):
    @pytest.fixture
    def index(self, tmp_path: Path) -> Iterator[IndexFile]:
        index = opened(tmp_path / "index")
        yield index
        index.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of an index with entries that no handle has open."""
    index = opened(tmp_path / "index")
    assert index.put_many(ENTRIES, expected=NEW)
    index.close()
    return tmp_path / "index"


# --- one environment a process ---


def test_reading_makes_no_file(tmp_path: Path) -> None:
    index = opened(tmp_path / "index")
    assert index.get_many([b"state"]) == (None,)
    index.clear()
    assert not list(tmp_path.iterdir())


def test_two_handles_share_what_one_puts(tmp_path: Path) -> None:
    one, two = opened(tmp_path / "index"), opened(tmp_path / "index")
    assert one.put_many({b"state": b"1"}, expected=NEW)
    assert two.get_many([b"state"]) == (b"1",)
    one.close()
    assert two.put_many({b"state": b"2"}, expected=Expected(b"state", b"1"))
    two.close()
    assert opened(tmp_path / "index").get_many([b"state"]) == (b"2",)


def test_a_link_to_the_store_leads_to_the_same_environment(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    one, two = opened(tmp_path / "store" / "index"), opened(tmp_path / "link" / "index")
    assert one.put_many(ENTRIES, expected=NEW)
    assert two.get_many([b"state"]) == (b"1",)
    assert two.location == one.location


@pytest.mark.parametrize("what", ["store", "index"])
@pytest.mark.parametrize("is_made", [True, False])
def test_a_mount_of_the_store_leads_to_the_same_environment(
    tmp_path: Path, what: str, *, is_made: bool
) -> None:
    store, mounted = tmp_path / "store", tmp_path / "mounted"
    (store / "index").mkdir(parents=True)
    if not is_made and what == "store":
        (store / "index").rmdir()
    source, target = (store, mounted) if what == "store" else (store / "index", mounted / "index")
    target.mkdir(parents=True)
    mount = ["mount", "--bind", str(source), str(target)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user or container may not mount file systems")
    try:
        one, two = opened(store / "index"), opened(mounted / "index")
        assert one.put_many(ENTRIES, expected=NEW)
        assert two.get_many([b"state"]) == (b"1",)
        assert two.location == one.location
        one.close()
        assert two.get_many([b"499"]) == (bytes(1000),)
        two.close()
    finally:
        subprocess.run(["umount", str(target)], check=True)


def test_a_moved_index_has_no_second_environment_while_the_first_is_open(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    one = opened(tmp_path / "store" / "index")
    assert one.put_many(ENTRIES, expected=NEW)
    (tmp_path / "store").rename(tmp_path / "moved")
    two = opened(tmp_path / "moved" / "index")
    assert two.location == str(tmp_path / "moved" / "index")
    assert two.get_many([b"state"]) == (None,)
    assert not two.put_many({b"state": b"2"}, expected=Expected(b"state", b"1"))
    one.close()
    assert two.get_many([b"state"]) == (b"1",)
    assert two.put_many({b"state": b"2"}, expected=Expected(b"state", b"1"))
    two.close()
    assert not lmdb_index._open_files
    assert not (tmp_path / "store").exists()


def test_of_several_handles_the_largest_bound_counts(tmp_path: Path) -> None:
    small = LmdbIndexFile(tmp_path / "index", size_bytes_max=MIB)
    assert small.put_many({b"state": b"1"}, expected=NEW)
    many = {b"many%d" % number: bytes(1000) for number in range(5000)}
    with pytest.raises(LimitError):
        small.put_many(many, expected=Expected(b"state", b"1"))
    large = opened(tmp_path / "index")
    assert large.put_many(many, expected=Expected(b"state", b"1"))
    least = LmdbIndexFile(tmp_path / "index", size_bytes_max=MIB)
    assert least.put_many(
        {b"a" + key: many[key] for key in many}, expected=Expected(b"state", b"1")
    )
    for index in (small, large, least):
        assert index.get_many([b"many4999", b"amany4999"]) == (bytes(1000),) * 2
        index.close()


def test_a_handle_that_is_dropped_lets_go(tmp_path: Path) -> None:
    for number in range(5):
        index = opened(tmp_path / "index")
        old = str(number - 1).encode() if number else None
        assert index.put_many({b"state": b"%d" % number}, expected=Expected(b"state", old))
        del index


def test_many_threads_may_open_use_and_close(folder: Path) -> None:
    def use(_: int) -> None:
        index = opened(folder)
        assert index.get_many([b"state", b"499"]) == (b"1", bytes(1000))
        index.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(400)))


# --- what is not as it was left ---


def cut(data: Path) -> None:
    os.truncate(data, data.stat().st_size // 2)


def overwrite(data: Path) -> None:
    size_bytes = data.stat().st_size
    with data.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * (size_bytes - 8192))


def overwrite_one_byte(data: Path) -> None:
    with data.open("r+b") as file:
        file.seek(9000)
        file.write(b"\xa5")


def copy_in(data: Path) -> None:
    copy = data.with_name("copy")
    shutil.copy2(data, copy)
    copy.replace(data)


def empty(data: Path) -> None:
    data.write_bytes(b"")


DAMAGES = [cut, overwrite, overwrite_one_byte, copy_in, empty]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_file_that_somebody_changed_is_never_mapped(
    folder: Path, damage: Callable[[Path], None], *, is_open: bool
) -> None:
    index = opened(folder)
    if is_open:
        assert index.get_many([b"state"]) == (b"1",)
    damage(folder / "data.mdb")
    for _ in range(2):
        with pytest.raises(CorruptObjectError, match="not as its last writer left it"):
            index.get_many([b"state", b"499"])
    index.clear()
    assert index.get_many([b"state"]) == (None,)
    assert index.put_many(ENTRIES, expected=NEW)
    assert index.get_many([b"499"]) == (bytes(1000),)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_change_of_a_damaged_index_deletes_it(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    damage(folder / "data.mdb")
    index = opened(folder)
    with pytest.raises(CorruptObjectError):
        index.put_many({b"state": b"2"}, expected=Expected(b"state", b"1"))
    assert index.put_many({b"state": b"2"}, expected=NEW)
    assert index.get_many([b"state", b"499"]) == (b"2", None)


@pytest.mark.parametrize("name", ["data.mdb", "lock.mdb"])
def test_one_file_without_the_other_is_no_index(folder: Path, name: str) -> None:
    (folder / name).unlink()
    index = opened(folder)
    assert index.get_many([b"state"]) == (None,)
    assert index.put_many({b"state": b"2"}, expected=NEW)
    assert index.get_many([b"state", b"499"]) == (b"2", None)


def test_an_index_that_is_deleted_while_open_is_empty(folder: Path) -> None:
    index = opened(folder)
    for _ in range(3):
        assert index.get_many([b"state"]) == (b"1",)
        shutil.rmtree(folder)
        assert index.get_many([b"state"]) == (None,)
        assert index.put_many(ENTRIES, expected=NEW)


def test_an_index_that_is_replaced_while_open_is_read_anew(folder: Path, tmp_path: Path) -> None:
    index = opened(folder)
    assert index.get_many([b"state"]) == (b"1",)
    other = opened(tmp_path / "other")
    other.put_many({b"state": b"other"}, expected=NEW)
    other.close()
    shutil.rmtree(folder)
    (tmp_path / "other").rename(folder)
    assert index.get_many([b"state", b"499"]) == (b"other", None)


@pytest.mark.parametrize("what", ["folder", "data.mdb", "guard"])
def test_links_are_not_followed(tmp_path: Path, what: str) -> None:
    away = tmp_path / "away"
    away.mkdir()
    folder = tmp_path / "index"
    if what == "folder":
        folder.symlink_to(away)
    else:
        folder.mkdir()
        (folder / "lock.mdb").touch()
        (folder / what).symlink_to(away / "target")
        (away / "target").touch()
    index = opened(folder)
    with pytest.raises(UnavailableError):
        index.put_many(ENTRIES, expected=NEW)
    assert all(path.stat().st_size == 0 for path in away.iterdir())


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "index").touch()
    index = opened(tmp_path / "index")
    assert index.get_many([b"state"]) == (None,)
    with pytest.raises(UnavailableError):
        index.put_many(ENTRIES, expected=NEW)


def test_at_the_bound_what_is_there_stays(tmp_path: Path) -> None:
    index = LmdbIndexFile(tmp_path / "index", size_bytes_max=MIB)
    assert index.put_many({b"state": b"1"}, expected=NEW)
    many = {b"many%d" % number: bytes(1000) for number in range(5000)}
    with pytest.raises(LimitError):
        index.put_many(many, expected=Expected(b"state", b"1"))
    assert index.get_many([b"state", b"many0"]) == (b"1", None)
    index.close()
    assert opened(tmp_path / "index").get_many([b"state"]) == (b"1",)


def test_a_write_that_cannot_be_sealed_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seal cannot be set: what was written is thrown away."""

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(1, "not yours")

    index = opened(folder)
    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", fail)
        with pytest.raises(UnavailableError, match="seal"):
            index.put_many({b"state": b"2"}, expected=Expected(b"state", b"1"))
    assert index.get_many([b"state"]) == (None,)


def test_a_file_system_without_times_has_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = opened(tmp_path / "index")
    monkeypatch.setattr(os, "utime", lambda *_, **__: None)
    with pytest.raises(StorageFailedError, match="keeps no times"):
        index.put_many(ENTRIES, expected=NEW)
    assert index.get_many([b"state"]) == (None,)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user or container may not mount file systems")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_gets_its_space_back(small_disk: Path) -> None:
    index = opened(small_disk / "index")
    assert index.put_many({b"state": b"1"}, expected=NEW)
    # The system says ENOSPC; LMDB makes EIO of a write that was cut short.
    with pytest.raises((StorageFullError, StorageFailedError)):
        index.put_many(ENTRIES, expected=Expected(b"state", b"1"))
    assert index.get_many([b"state"]) == (None,)
    assert not (small_disk / "index" / "data.mdb").exists()
    assert index.put_many({b"state": b"2"}, expected=NEW)
    assert index.get_many([b"state"]) == (b"2",)
    index.close()


def test_a_folder_that_is_deleted_while_it_is_opened_is_an_error_of_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(lmdb_environment.Environment):
        def __init__(self, folder: Path, *, size_bytes_max: int) -> None:
            super().__init__(folder, size_bytes_max=size_bytes_max)
            shutil.rmtree(folder)

    monkeypatch.setattr(lmdb_environment, "Environment", Late)
    index = opened(folder)
    with pytest.raises(StorageFailedError):
        index.get_many([b"state"])
    assert index.get_many([b"state"]) == (None,)


def test_the_lock_file_has_its_space_before_it_is_mapped(folder: Path) -> None:
    """A hole that is written through a map ends the process when the disk is full (SIGBUS)."""
    found = (folder / "lock.mdb").stat()
    assert found.st_size == 64 * KIB
    assert found.st_blocks * 512 >= found.st_size
