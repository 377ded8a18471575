"""Where the index goes: never where LMDB cannot work, and never into a read-only store."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from weightstore.ids import StoreId
from weightstore.storage.index_place import file_system_of, folder_ids, index_folder, is_local

STORE_ID = StoreId("a" * 32)


def mounts(tmp_path: Path, *points: tuple[Path, str]) -> Path:
    """A list of mounts as the kernel writes it, with a local root."""
    lines = ["22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"]
    for number, (point, kind) in enumerate(points, start=30):
        escaped = str(point).replace(" ", r"\040")
        lines.append(f"{number} 22 0:{number} / {escaped} rw master:1 - {kind} x rw")
    file = tmp_path / "mountinfo"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def in_cache(root: Path) -> str:
    place = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
    return f"{STORE_ID}-{place}"


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "fuse.sshfs", "9p", "new-and-unknown"]
)
def test_a_store_on_a_network_has_its_index_in_the_cache(tmp_path: Path, kind: str) -> None:
    store, cache = tmp_path / "my store", tmp_path / "cache"
    store.mkdir()
    listed = mounts(tmp_path, (store, kind))
    assert file_system_of(store / "index", mounts=listed) == kind
    found = index_folder(store, STORE_ID, cache, mounts=listed)
    assert found == cache / in_cache(store)


def test_two_copies_of_a_store_have_two_folders_in_the_cache(tmp_path: Path) -> None:
    listed = mounts(tmp_path, (tmp_path / "one", "nfs"), (tmp_path / "two", "nfs"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("one")
    one, two, link = (
        index_folder(tmp_path / name, STORE_ID, tmp_path, mounts=listed)
        for name in ("one", "two", "link")
    )
    assert one == link
    assert None is not one != two is not None


def test_a_folder_is_known_by_any_path_before_and_after_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    one, two = tmp_path / "store" / "index", tmp_path / "link" / "index"
    before = folder_ids(one)
    assert before == folder_ids(two) != set()
    one.mkdir()
    assert before < folder_ids(one) == folder_ids(two)
    (tmp_path / "other").mkdir()
    assert not folder_ids(one) & folder_ids(tmp_path / "other" / "index")
    one.rename(tmp_path / "other" / "moved")
    assert folder_ids(tmp_path / "other" / "moved") & (folder_ids(two) | before) == set()
    assert not folder_ids(tmp_path / "nowhere" / "index")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay"])
def test_a_local_store_has_its_index_inside(tmp_path: Path, kind: str) -> None:
    listed = mounts(tmp_path, (tmp_path, kind))
    assert index_folder(tmp_path, STORE_ID, tmp_path / "cache", mounts=listed) == tmp_path / "index"


def test_without_a_local_disk_there_is_no_index(tmp_path: Path) -> None:
    listed = mounts(tmp_path, (tmp_path, "nfs"))
    assert index_folder(tmp_path, STORE_ID, tmp_path / "cache", mounts=listed) is None
    unknown = tmp_path / "no such file"
    assert index_folder(tmp_path, STORE_ID, tmp_path / "cache", mounts=unknown) is None


@pytest.mark.parametrize("has_index", [True, False])
def test_a_read_only_store_has_its_index_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_index: bool
) -> None:
    if has_index:
        (tmp_path / "index").mkdir()
    asked: list[Path] = []

    def deny(path: Path, _mode: int) -> bool:
        asked.append(path)
        return False

    monkeypatch.setattr(os, "access", deny)  # root may write anywhere
    listed, cache = mounts(tmp_path), tmp_path / "cache"
    assert index_folder(tmp_path, STORE_ID, cache, mounts=listed) == cache / in_cache(tmp_path)
    assert asked == [tmp_path / "index" if has_index else tmp_path]


def test_the_innermost_and_newest_mount_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    listed = mounts(tmp_path, (inner, "nfs"), (tmp_path / "a", "xfs"), (inner, "tmpfs"))
    assert file_system_of(tmp_path, mounts=listed) == "ext4"
    assert file_system_of(tmp_path / "a" / "bc", mounts=listed) == "xfs"
    assert file_system_of(inner / "c", mounts=listed) == "tmpfs"


def test_a_link_is_followed(tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (tmp_path / "link").symlink_to(away)
    assert not is_local(tmp_path / "link", mounts=mounts(tmp_path, (away, "nfs")))


def test_this_machine_says_what_it_has(tmp_path: Path) -> None:
    assert file_system_of(tmp_path) != ""
    assert file_system_of(Path("/proc/self")) == "proc"
    assert not is_local(Path("/proc/self"))
