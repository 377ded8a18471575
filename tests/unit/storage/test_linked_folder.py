"""The link and its place."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from weightstore.errors import (
    CorruptObjectError,
    FolderBusyError,
    InputRefusedError,
    StorageFailedError,
    StorageFullError,
)
from weightstore.storage.linked_folder import LOCK_NAME, LinkedFolder
from weightstore.testing.disk import FaultyDisk, failing


@pytest.fixture
def link(tmp_path: Path) -> Path:
    return tmp_path / "live"


def test_the_link_leads_where_it_is_told_or_is_not_there(link: Path) -> None:
    with LinkedFolder.acquire(link) as held:
        assert held.linked() is None
        for name in ("a", "b"):
            (held.place / name).mkdir()
            (held.place / name / "file").write_text(name)
        for name in ("a", "a", "b"):
            held.link_to(name)
            assert held.linked() == name
            assert (link / "file").read_text() == name
        held.unlink()
        held.unlink()
        assert not link.is_symlink()
        # Relative, so that both may be moved together.
        held.link_to("a")
        assert link.readlink() == Path(held.place.name) / "a"
    assert sorted(path.name for path in link.parent.iterdir()) == [held.place.name, "live"]


def test_files_are_replaced_whole(link: Path) -> None:
    with LinkedFolder.acquire(link) as held:
        assert held.read_file("f", max_size_bytes=10) is None
        held.put_file("f", [b"one", b"", b"two"])
        assert held.read_file("f", max_size_bytes=6) == b"onetwo"
        (held.place / "f.new").write_text("left by somebody who was killed")
        held.put_file("f", [b"3"])
        assert held.read_file("f", max_size_bytes=6) == b"3"
        held.link_to("folder")
        held.put_file("f", [b"3"], unlinked=True)
        assert held.linked() is None
        with pytest.raises(CorruptObjectError):
            held.read_file("f", max_size_bytes=0)
        (held.place / "folder").mkdir()
        (held.place / "folder" / "x").write_text("x")
        (held.place / "l").symlink_to("f")
        for name in ("l", "folder"):
            with pytest.raises(CorruptObjectError, match="no plain file"):
                held.read_file(name, max_size_bytes=9)
            with pytest.raises(CorruptObjectError, match="no plain file"):
                held.open_file(name)
        with pytest.raises(StorageFailedError, match="File name too long"):
            held.open_file("n" * 300)
        held.remove_file("nothing")
        held.keep_only({"f"})
        assert {path.name for path in held.place.iterdir()} == {LOCK_NAME, "f"}


def test_bytes_are_changed_in_place(link: Path) -> None:
    with LinkedFolder.acquire(link) as held:
        (held.place / "d").mkdir()
        (held.place / "d" / "f").write_bytes(b"0123456789")
        with held.patching("d", "f") as patches:
            assert patches.size_bytes == 10
            assert bytes(patches.read(2, 3)) == b"234"
            patches.write(8, b"xy")
            patches.write(0, b"z")
            patches.sync()
            with pytest.raises(StorageFailedError, match="ends before"):
                patches.read(8, 3)
        assert (held.place / "d" / "f").read_bytes() == b"z1234567xy"
        with pytest.raises(StorageFailedError), held.patching("d", "g"):
            pass


def test_a_lock_that_cannot_be_let_go_is_closed_all_the_same(
    link: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_lock(*_: int) -> None:
        raise OSError(errno.EIO, "it failed")

    held = LinkedFolder.acquire(link)
    with monkeypatch.context() as failed:
        failed.setattr(fcntl, "flock", failing_lock)
        with pytest.raises(OSError, match="it failed"):
            held.close()
    LinkedFolder.acquire(link).close()


def test_one_process_holds_it(link: Path) -> None:
    with LinkedFolder.acquire(link) as held:
        with pytest.raises(FolderBusyError, match=str(os.getpid())):
            LinkedFolder.acquire(link)
        held.close()
        held.close()
        LinkedFolder.acquire(link).close()


def test_a_lock_of_a_dead_process_is_free_and_one_that_says_nothing_holds(link: Path) -> None:
    LinkedFolder.acquire(link).close()
    with LinkedFolder.acquire(link) as held:
        (held.place / LOCK_NAME).write_text("")
        with pytest.raises(FolderBusyError, match="another process"):
            LinkedFolder.acquire(link)


def test_what_is_no_place_is_told(link: Path) -> None:
    with pytest.raises(InputRefusedError, match="no directory"):
        LinkedFolder.acquire(link / "below")
    link.with_name(".live.weightstore").write_text("a file")
    with pytest.raises(StorageFailedError):
        LinkedFolder.acquire(link)


@pytest.mark.parametrize("name", ["open", "write", "fsync", "rename", "unlink", "symlink"])
def test_what_the_disk_says_becomes_a_typed_error(link: Path, name: str) -> None:
    LinkedFolder.acquire(link).close()
    disk = FaultyDisk(before=failing(name, errno.ENOSPC, path_end="")).syscalls
    if name == "fsync":
        with pytest.raises(StorageFullError):
            LinkedFolder.acquire(link, syscalls=disk)
        return
    with LinkedFolder.acquire(link, syscalls=disk) as held:
        puts = name in {"open", "write", "rename"}
        with pytest.raises(StorageFullError):
            held.put_file("f", [b"x"]) if puts else held.link_to("a")
        # What is left of a file that was not named is replaced by the next one.
        assert {path.name for path in held.place.iterdir()} <= {LOCK_NAME, "f.new"}
        assert not link.is_symlink()


def test_a_place_that_is_a_link_is_left_with_everything_in_it(link: Path, tmp_path: Path) -> None:
    others = tmp_path / "others"
    (others / "folder").mkdir(parents=True)
    (others / "file").write_text("theirs")
    link.with_name(".live.weightstore").symlink_to(others)
    with pytest.raises(InputRefusedError, match="is a link"):
        LinkedFolder.acquire(link)
    assert sorted(path.name for path in others.iterdir()) == ["file", "folder"]


def test_nothing_is_done_through_a_folder_that_was_swapped_for_a_link(
    link: Path, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "f").write_text("theirs")
    with LinkedFolder.acquire(link) as held:
        (held.place / "d").symlink_to(others)
        with pytest.raises(StorageFailedError), held.patching("d", "f"):
            pass
        held.keep_only(set())
        assert [path.name for path in held.place.iterdir()] == [LOCK_NAME]
        held.place.rename(tmp_path / "elsewhere")
        held.place.symlink_to(others)
        with pytest.raises(StorageFailedError):
            held.put_file("state", [b"x"])
        with pytest.raises(StorageFailedError):
            held.read_file("f", max_size_bytes=10)
        with pytest.raises(StorageFailedError):
            held.open_file("f")
        held.keep_only(set())
        held.remove_file("f")
    assert (others / "f").read_text() == "theirs"
    assert [path.name for path in others.iterdir()] == ["f"]
