"""Adding to a store: whole files, durable names, and never over what is there."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from migrations.failures import DamagedStoreError
from migrations.place import Place
from weightstore.testing.open_files import all_files_closed


def test_a_file_is_added_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.read("a/b/c", size_bytes_max=9) is None
    assert place.put_if_absent("a/b/c", b"first")
    assert not place.put_if_absent("a/b/c", b"second")
    assert place.read("a/b/c", size_bytes_max=9) == b"first"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["c"]


def test_no_more_is_read_than_there_may_be(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"12345")
    assert Place(tmp_path).read("key", size_bytes_max=5) == b"12345"
    with pytest.raises(DamagedStoreError, match=r"key of .* is larger than 4 bytes"):
        Place(tmp_path).read("key", size_bytes_max=4)


@pytest.mark.parametrize(
    "kind", ["link", "dangling", "folder", "pipe", "socket", "file for folder", "folder link"]
)
def test_what_is_no_plain_file_in_plain_folders_is_refused_at_once(
    tmp_path: Path, kind: str
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
    (outside / "key").write_bytes(b"1")
    if kind == "file for folder":
        (root / "log").touch()
    elif kind == "folder link":
        (root / "log").symlink_to(outside)
    else:
        (root / "log").mkdir()
        put_irregular(kind, root / "log" / "key", outside / "key")
    with pytest.raises(DamagedStoreError, match=r"log/key of .* is no plain file"):
        Place(root).read("log/key", size_bytes_max=9)


def put_irregular(kind: str, path: Path, outside: Path) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as opened, contextlib.chdir(path.parent):
            opened.bind(path.name)
    else:
        path.symlink_to(outside if kind == "link" else "nowhere")


def test_reading_keeps_no_descriptor(tmp_path: Path) -> None:
    with all_files_closed():
        (tmp_path / "log").mkdir()
        (tmp_path / "log" / "folder").mkdir()
        (tmp_path / "log" / "key").write_bytes(b"1")
        place = Place(tmp_path)
        assert place.read("log/key", size_bytes_max=1) == b"1"
        assert place.read("log/missing", size_bytes_max=1) is None
        for name in ("folder", "key/inner"):
            with pytest.raises(DamagedStoreError, match="no plain file"):
                place.read(f"log/{name}", size_bytes_max=1)


def test_of_many_writers_one_wins(tmp_path: Path) -> None:
    won: list[int] = []

    def put(number: int) -> None:
        if Place(tmp_path).put_if_absent("key", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [b"%d" % number for number in won] == [Place(tmp_path).read("key", size_bytes_max=9)]


def test_file_name_and_every_folder_are_synced_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, link = os.fsync, os.link

    def noted_fsync(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        is_file = path.name.startswith("~tmp-")
        events.append("bytes" if is_file else f"names {path.relative_to(tmp_path)}")
        fsync(file)

    def noted_link(source: Path, target: Path) -> None:
        events.append("link")
        link(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    Place(tmp_path).put_if_absent("a/b", b"x")
    assert events == ["names .", "bytes", "link", "names a"]
    events.clear()
    # Of another process, which may have been cut before it came to this.
    assert not Place(tmp_path).put_if_absent("a/b", b"y")
    assert events[-1] == "names a"
