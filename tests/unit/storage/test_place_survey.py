"""A survey sees what is there, who holds it, and changes nothing."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from weightstore.clock import SystemEntropy
from weightstore.ids import SessionId
from weightstore.storage import place_survey
from weightstore.storage.durable import SYSCALLS
from weightstore.storage.index_place import LOCAL_FILE_SYSTEMS, MOUNTS
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.owner_lock import acquire_owner_lock
from weightstore.storage.place_survey import LockFile, survey_place
from weightstore.storage.unfinished import named_file
from weightstore.testing.virtual_time import VirtualClock

SESSION = SessionId("a" * 32)
OTHER = SessionId("b" * 32)


def test_sizes_space_and_file_system_are_told(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.put_if_absent("packs/x", b"123")
    blobs.put_if_absent("log/y", b"45")
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "data.mdb").write_bytes(b"1234")
    found = survey_place(tmp_path)
    assert (found.size_bytes, found.index_size_bytes) == (9, 4)
    assert found.free_size_bytes > 0
    assert found.free_file_count is None or found.free_file_count > 0
    assert found.file_system
    assert not found.is_mounted_read_only
    assert found.unwritable == found.unreadable == found.irregular == ()
    assert found.locks == ()
    assert found.temporary == ()


def test_the_list_of_mounts_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type and locality are of one look, and cannot contradict each other."""
    read_text, read = Path.read_text, list[Path]()

    def noted(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        read.append(path)
        return read_text(path, encoding=encoding, errors=errors)

    monkeypatch.setattr(Path, "read_text", noted)
    found = survey_place(tmp_path)
    assert read == [MOUNTS]
    assert found.is_local == (found.file_system in LOCAL_FILE_SYSTEMS)


def test_locks_tell_the_living_from_the_dead(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    held = acquire_owner_lock(blobs, SESSION, clock=VirtualClock(), try_count=1)
    left = acquire_owner_lock(blobs, OTHER, clock=VirtualClock(), try_count=1)
    assert held is not None
    assert left is not None
    left.leave()
    found = survey_place(tmp_path)
    assert set(found.locks) == {LockFile(SESSION, is_held=True), LockFile(OTHER, is_held=False)}
    held.release()
    assert survey_place(tmp_path).locks == (LockFile(OTHER, is_held=False),)


def test_unfinished_files_are_told_with_whether_somebody_writes_them(tmp_path: Path) -> None:
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "~tmp-dead").write_bytes(b"12345")
    folder = os.open(tmp_path / "packs", os.O_RDONLY)
    try:
        with named_file(folder, SYSCALLS, SystemEntropy()) as living:
            living.write(b"123")
            found = {each.size_bytes: each for each in survey_place(tmp_path).temporary}
            # The look has let go of the writer's file at once.
            fcntl.flock(living.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)
    assert found[5].is_written is False
    assert found[5].path == "packs/~tmp-dead"
    assert found[3].is_written is True


def test_what_is_no_file_and_no_folder_is_named_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"1234567")
    place = tmp_path / "place"
    place.mkdir()
    (place / "link").symlink_to(outside)
    os.mkfifo(place / "pipe")
    found = survey_place(place)
    assert set(found.irregular) == {"link", "pipe"}
    assert found.size_bytes == 0


def test_what_this_process_may_not_do_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "0").write_bytes(b"1")
    access = os.access

    def refused(path: Path, mode: int) -> bool:
        """What the system says to somebody who is not root."""
        is_refused = (path.name, mode & os.W_OK) == ("log", os.W_OK) or path.name == "0"
        return not is_refused and access(path, mode)

    monkeypatch.setattr(os, "access", refused)
    found = survey_place(tmp_path)
    assert found.unwritable == ("log",)
    assert found.unreadable == ("log/0",)


def test_odd_names_are_told_without_odd_characters(tmp_path: Path) -> None:
    (tmp_path / "a\nb").symlink_to("nowhere")
    assert survey_place(tmp_path).irregular == ("a\\nb",)


def test_a_place_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        survey_place(tmp_path / "nowhere")


def test_what_a_sweep_deletes_under_the_look_is_not_called_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalBlobStore(tmp_path).put_if_absent("packs/x", b"123")

    def access(path: Path, mode: int) -> bool:
        (tmp_path / "packs" / "x").unlink(missing_ok=True)
        return real(path, mode)

    real = os.access
    entries = list((tmp_path / "packs").iterdir())
    look = place_survey._Look(tmp_path)
    monkeypatch.setattr(os, "access", access)
    look._note(entries[0])
    assert look.unreadable == []
