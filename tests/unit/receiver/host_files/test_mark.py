"""The mark of a followed directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from weightstore.errors import CorruptObjectError, StorageFailedError
from weightstore.history.delta_path import VersionRef
from weightstore.ids import Sha256, StoreId, VersionId
from weightstore.receiver.host_files.mark import Mark, foreign_change, mark_file, parse_mark


def mark_of(folder: Path) -> Mark:
    paths = sorted(folder.iterdir())
    return Mark(
        change_id="0" * 32,
        store_id=StoreId("s"),
        version=VersionId(3),
        digest=Sha256("a" * 64),
        schema_id=Sha256("b" * 64),
        folder="data-0",
        files=tuple(mark_file(path, 4 if path.suffix == ".w" else None) for path in paths),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/one.w").write_bytes(b"head, then tensors")
    (tmp_path / "data/config.json").write_bytes(b"{}")
    return tmp_path / "data"


def test_it_comes_back_and_moves_on(folder: Path) -> None:
    mark = mark_of(folder)
    assert parse_mark(mark.to_bytes()) == mark
    moved = mark.at(VersionRef(VersionId(4), Sha256("c" * 64)), "1" * 32)
    assert (moved.version, moved.ref.digest, moved.files) == (4, "c" * 64, mark.files)
    assert parse_mark(moved.to_bytes()) == moved
    assert moved.at(mark.ref, "2" * 32) != mark


def test_anything_else_is_refused(folder: Path) -> None:
    data = mark_of(folder).to_bytes()
    for size in range(len(data)):
        with pytest.raises(CorruptObjectError):
            parse_mark(data[:size])
    for old, new in (
        (b"data-0", b"data-9"),
        (b"one.w", b"../.w"),
        (b"one.w", b".."),
        (b"aaa", b"a"),
    ):
        with pytest.raises(CorruptObjectError):
            parse_mark(data.replace(old, new, 1))


def test_tensors_may_change_and_nothing_else(folder: Path) -> None:
    mark = mark_of(folder)
    (folder / "one.w").write_bytes(b"head, THEN TENSORS")
    assert not foreign_change(folder, mark)
    (folder / "one.w").write_bytes(b"HEAD, then tensors")
    assert "header" in foreign_change(folder, mark)
    assert not foreign_change(folder, mark, sizes_only=True)
    (folder / "one.w").write_bytes(b"head, then tensor")
    assert "size" in foreign_change(folder, mark, sizes_only=True)
    (folder / "one.w").unlink()
    assert "came or went" in foreign_change(folder, mark)
    assert "cannot be read" in foreign_change(folder / "nowhere", mark)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageFailedError):
        mark_file(tmp_path / "nothing", None)
