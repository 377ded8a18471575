"""Adding to a store: whole files, durable names, and never over what is there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from migrations.place import Place


def test_a_file_is_added_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.read("a/b/c") is None
    assert place.put_if_absent("a/b/c", b"first")
    assert not place.put_if_absent("a/b/c", b"second")
    assert place.read("a/b/c") == b"first"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["c"]


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
    assert [b"%d" % number for number in won] == [Place(tmp_path).read("key")]


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
