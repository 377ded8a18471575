"""A followed directory in which somebody else has put links and pipes, and a forked follower."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from weightstore.errors import StorageFailedError, StoreClosedError
from weightstore.receiver.host_files import disk_steps
from weightstore.receiver.host_files.file_writes import write_parts
from weightstore.receiver.host_files.redo_journal import JOURNAL_NAME
from weightstore.receiver.live_state import Way
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.testing.store_lab import store_on, tree
from weightstore.testing.trainer_lab import changed, small_weights


@pytest.fixture
def store() -> Iterator[WeightStore]:
    with store_on(MemoryBlobStore()) as opened:
        weights = small_weights()
        for step in (1, 2):
            opened.put_step(step, weights)
            weights = changed(weights, step)
        yield opened


@pytest.mark.parametrize("is_open", [False, True])
def test_files_behind_a_swapped_folder_are_never_written(
    store: WeightStore, tmp_path: Path, *, is_open: bool
) -> None:
    folder = tmp_path / ".live.weightstore" / "data-0"
    files = store.host_files(tmp_path / "live")
    files.refit(1)
    if not is_open:
        files.close()
    shutil.move(folder, tmp_path / "others")
    folder.symlink_to(tmp_path / "others")
    before = tree(tmp_path / "others")
    if not is_open:
        files = store.host_files(tmp_path / "live")
    with files:
        assert files.refit(2).way is Way.FULL
        files.verify()
    assert tree(tmp_path / "others") == before


def test_a_journal_over_files_that_are_gone_is_given_up(store: WeightStore, tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def killed(*_: object, **__: object) -> None:
        raise KilledError

    with store.host_files(tmp_path / "live") as files:
        files.refit(1)
        files._steps._write = killed  # type: ignore[method-assign]
        with pytest.raises(KilledError):
            files.refit(2)
    assert (tmp_path / ".live.weightstore" / "journal").exists()
    shutil.rmtree(tmp_path / ".live.weightstore" / "data-0")
    with store.host_files(tmp_path / "live") as files:
        assert files.last_recovery.version is None
        assert files.refit(2).way is Way.FULL
        files.verify()


def test_a_journal_that_cannot_be_read_now_is_not_none(
    store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the only thing that says what the files are a mixture of."""

    def cut(*given: object, **named: object) -> NoReturn:
        write_parts(*given, **named)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with store.host_files(tmp_path / "live") as files, monkeypatch.context() as patched:
        files.refit(1)
        patched.setattr(disk_steps, "write_parts", cut)
        with pytest.raises(KeyboardInterrupt):
            files.refit(2)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", opening_fails(JOURNAL_NAME))
        with pytest.raises(StorageFailedError):
            store.host_files(tmp_path / "live")
    with store.host_files(tmp_path / "live") as files:
        assert files.last_recovery.is_redo
        assert files.version == 2
        files.verify()


def opening_fails(name: str) -> Callable[..., int]:
    """`os.open`, but for one name the process has too many files."""
    opened = os.open

    def fails(path: object, *given: object, **named: object) -> int:
        if path == name:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path, *given, **named)  # type: ignore[arg-type]

    return fails


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "sparse file"])
def test_what_others_put_in_the_place_of_the_journal_is_no_wait(
    store: WeightStore, tmp_path: Path, kind: str
) -> None:
    with store.host_files(tmp_path / "live") as files:
        files.refit(1)
    journal = tmp_path / ".live.weightstore" / "journal"
    if kind == "pipe":
        os.mkfifo(journal)
    elif kind == "link":
        journal.symlink_to("/dev/zero")
    elif kind == "folder":
        journal.mkdir()
    else:
        with journal.open("wb") as file:
            file.write(b"WSREDO01")
            file.truncate(1 << 40)
    with store.host_files(tmp_path / "live") as files:
        assert files.version == 1
        files.refit(2)
        files.verify()


def test_a_forked_child_does_not_write_beside_its_parent(
    store: WeightStore, tmp_path: Path
) -> None:
    with store.host_files(tmp_path / "live") as files:
        files.refit(1)
        child = os.fork()
        if not child:
            try:
                for ask in (files.refit, files.verify):
                    with pytest.raises(StoreClosedError, match="forked child"):
                        ask()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert files.refit(2).way is Way.CHANGE
        files.verify()


def test_a_folder_in_the_place_of_a_file_that_is_being_made_gives_way(
    store: WeightStore, tmp_path: Path
) -> None:
    with store.host_files(tmp_path / "live") as files:
        files.refit(1)
        for name in ("state.new", f"{JOURNAL_NAME}.new"):
            (tmp_path / ".live.weightstore" / name / "deep").mkdir(parents=True)
        files.refit(2)
        files.verify()
