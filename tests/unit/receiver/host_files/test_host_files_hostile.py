"""A followed directory in which somebody else has put links and pipes, and a forked follower."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.errors import StoreClosedError
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


def test_a_pipe_in_the_place_of_the_journal_is_no_wait(store: WeightStore, tmp_path: Path) -> None:
    with store.host_files(tmp_path / "live") as files:
        files.refit(1)
    os.mkfifo(tmp_path / ".live.weightstore" / "journal")
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
