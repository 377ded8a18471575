"""Descriptors of folders: each is closed once, whatever interrupts the walk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from weightstore.errors import BlobOutcomeUnknownError
from weightstore.storage.durable import SYSCALLS
from weightstore.storage.folders import Folders, open_root
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.open_files import all_files_closed


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    LocalBlobStore(tmp_path).put_if_absent("packs/a-1/1", b"x", durable=False)
    return open_root(tmp_path, SYSCALLS, create=False)


def _interrupted_after_close(victim: Path, taken: list[int]) -> Callable[[int], None]:
    """A close that hands the freed number to another file and is then interrupted, once."""
    close = os.close

    def interrupted(file: int) -> None:
        close(file)
        if not taken:
            taken.append(os.open(victim, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))
            assert taken == [file], "the number is another file's now"
            raise KeyboardInterrupt

    return interrupted


def test_an_interrupted_walk_closes_no_file_of_anybody_else(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(os, "close", _interrupted_after_close(tmp_path / "victim", taken))
    with pytest.raises(KeyboardInterrupt), folders.found(("packs", "a-1")):
        pass
    monkeypatch.undo()
    assert os.write(taken[0], b"still open") == len(b"still open")
    os.close(taken[0])


def test_a_walk_that_is_interrupted_while_it_syncs_leaves_nothing_open(tmp_path: Path) -> None:
    def interrupted(_file: int) -> None:
        raise KeyboardInterrupt

    LocalBlobStore(tmp_path).put_if_absent("packs/a-1/1", b"x", durable=False)
    folders = open_root(tmp_path, replace(SYSCALLS, fsync=interrupted), create=False)
    folders._is_root_named = True
    with all_files_closed(), pytest.raises(KeyboardInterrupt):
        folders.confirm(("packs", "a-1"))


def test_a_walk_whose_sync_fails_closes_each_folder_once(tmp_path: Path) -> None:
    def failing(_file: int) -> None:
        raise OSError(errno.EIO, "injected")

    LocalBlobStore(tmp_path).put_if_absent("packs/a-1/1", b"x", durable=False)
    folders = open_root(tmp_path, replace(SYSCALLS, fsync=failing), create=False)
    with all_files_closed(), pytest.raises(BlobOutcomeUnknownError, match="injected"):
        folders.confirm(("packs", "a-1"))
