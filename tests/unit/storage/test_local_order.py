"""What is synced when: the calls that a put makes, in their order."""

from __future__ import annotations

from pathlib import Path

import pytest

from weightstore.storage.local import LocalBlobStore
from weightstore.testing.disk import UNNAMED, FaultyDisk, without_unnamed_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def _calls(disk: FaultyDisk, root: Path, since: int = 0) -> list[tuple[str, str]]:
    """The calls below the root's parent, by paths relative to it."""
    start = f"{root.parent}/"
    return [
        (call.name, call.path.removeprefix(start))
        for call in disk.calls[since:]
        if call.path.startswith(start)
    ]


def _opened(root: Path, disk: FaultyDisk) -> LocalBlobStore:
    """A store that has made its first put, which also finds out what the disk can do."""
    blobs = LocalBlobStore(root, create=True, syscalls=disk.syscalls)
    blobs.put_if_absent("FORMAT", b"x")
    return blobs


def test_a_durable_put_syncs_bytes_then_name(root: Path) -> None:
    disk = FaultyDisk()
    blobs = _opened(root, disk)
    blobs.put_if_absent("log/0", b"0")
    since = len(disk.calls)
    blobs.put_if_absent("log/1", b"1")
    assert _calls(disk, root, since) == [
        ("open", f"store/log/{UNNAMED}"),
        ("write", f"store/log/{UNNAMED}"),
        ("fsync", f"store/log/{UNNAMED}"),
        ("link_open_file", "store/log/1"),
        ("fsync", "store/log"),
    ]


def test_under_temporary_names_the_order_is_the_same(root: Path) -> None:
    disk = FaultyDisk(before=without_unnamed_files)
    blobs = _opened(root, disk)
    blobs.put_if_absent("log/0", b"0")
    since = len(disk.calls)
    blobs.put_if_absent("log/1", b"1")
    calls = _calls(disk, root, since)
    temporary = calls[0][1]
    assert temporary.startswith("store/log/~tmp-")
    assert calls == [
        ("open", temporary),
        ("write", temporary),
        ("fsync", temporary),
        ("link", "store/log/1"),
        ("fsync", "store/log"),
        ("unlink", temporary),
    ]


def test_streams_and_files_are_synced_like_any_blob(root: Path, tmp_path: Path) -> None:
    disk = FaultyDisk()
    blobs = _opened(root, disk)
    source = tmp_path / "source"
    source.write_bytes(b"x" * 10)
    for key in ("packs/a-1/1", "packs/a-1/2"):
        since = len(disk.calls)
        if key.endswith("1"):
            blobs.put_stream_if_absent(key, [b"a", b"b"])
        else:
            blobs.put_file_if_absent(key, source)
        assert _calls(disk, root, since)[-3:] == [
            ("fsync", f"store/packs/a-1/{UNNAMED}"),
            ("link_open_file", f"store/{key}"),
            ("fsync", "store/packs/a-1"),
        ]


def test_folders_on_the_way_are_synced_before_the_blob_is_visible(root: Path) -> None:
    disk = FaultyDisk()
    blobs = LocalBlobStore(root, create=True, syscalls=disk.syscalls)
    blobs.put_if_absent("packs/a-1/1", b"1")
    calls = _calls(disk, root)
    linked = calls.index(("link_open_file", "store/packs/a-1/1"))
    for made, outer in (("store/packs", "store"), ("store/packs/a-1", "store/packs")):
        assert calls.index(("make_folder", made)) < calls.index(("fsync", outer)) < linked
    # The names of the root and of what it lies in, as far as the file system reaches.
    synced = [call.path for call in disk.calls if call.name == "fsync"]
    assert synced[0] == str(root.parent)
    assert set(synced) >= {
        str(parent) for parent in root.parents if parent.stat().st_dev == root.stat().st_dev
    }


def test_a_folder_made_by_another_process_is_synced_all_the_same(root: Path) -> None:
    (root / "packs" / "a-1").mkdir(parents=True)
    disk = FaultyDisk()
    blobs = LocalBlobStore(root, syscalls=disk.syscalls)
    blobs.put_if_absent("packs/a-1/1", b"1")
    calls = _calls(disk, root)
    linked = calls.index(("link_open_file", "store/packs/a-1/1"))
    assert {("fsync", "store"), ("fsync", "store/packs")} <= set(calls[:linked])
    assert not [call for call in calls if call[0] == "make_folder"]


def test_each_name_on_the_way_is_synced_once_by_a_handle(root: Path) -> None:
    disk = FaultyDisk()
    blobs = _opened(root, disk)
    blobs.put_if_absent("packs/a-1/1", b"1")
    since = len(disk.calls)
    blobs.put_if_absent("packs/a-1/2", b"2")
    synced = [path for name, path in _calls(disk, root, since) if name == "fsync"]
    assert synced == [f"store/packs/a-1/{UNNAMED}", "store/packs/a-1"]


def test_what_a_put_without_durability_has_made_is_synced_by_the_first_with_it(
    root: Path,
) -> None:
    disk = FaultyDisk()
    blobs = _opened(root, disk)
    since = len(disk.calls)
    blobs.put_if_absent("packs/a-1/1", b"1", durable=False)
    assert "fsync" not in [call.name for call in disk.calls[since:]]
    since = len(disk.calls)
    blobs.put_if_absent("packs/a-1/2", b"2")
    synced = [path for name, path in _calls(disk, root, since) if name == "fsync"]
    assert synced[:2] == ["store", "store/packs"]


def test_hints_and_deletions_are_not_synced(root: Path) -> None:
    disk = FaultyDisk()
    blobs = _opened(root, disk)
    since = len(disk.calls)
    blobs.overwrite("head", b"1")
    blobs.overwrite("receivers/1", b"1")
    blobs.delete("head")
    assert "fsync" not in [call.name for call in disk.calls[since:]]


def test_confirming_syncs_the_folder_each_time_and_its_names_once(root: Path) -> None:
    LocalBlobStore(root, create=True).put_if_absent("packs/a-1/1", b"1", durable=False)
    disk = FaultyDisk()
    reader = LocalBlobStore(root, syscalls=disk.syscalls)
    reader.confirm_durable("packs/a-1/")
    assert _calls(disk, root) == [
        ("fsync", "store"),
        ("fsync", "store/packs"),
        ("fsync", "store/packs/a-1"),
    ]
    since = len(disk.calls)
    reader.confirm_durable("packs/a-1/9")
    assert _calls(disk, root, since) == [("fsync", "store/packs/a-1")]


def test_confirming_a_folder_before_it_is_made_claims_nothing_about_it(root: Path) -> None:
    writer = LocalBlobStore(root, create=True)
    disk = FaultyDisk()
    reader = LocalBlobStore(root, syscalls=disk.syscalls)
    reader.confirm_durable("log/")
    writer.put_if_absent("log/1", b"1", durable=False)
    since = len(disk.calls)
    reader.confirm_durable("log/")
    assert _calls(disk, root, since) == [("fsync", "store"), ("fsync", "store/log")]


def test_readers_change_nothing(root: Path) -> None:
    LocalBlobStore(root, create=True).put_if_absent("log/1", b"1")
    disk = FaultyDisk()
    blobs = LocalBlobStore(root, syscalls=disk.syscalls)
    blobs.get("log/1", max_size_bytes=1)
    blobs.read_into("log/1", 0, bytearray(1))
    blobs.size("log/1")
    blobs.local_path("log/1")
    assert len(list(blobs.list(""))) == 1
    assert not disk.calls
