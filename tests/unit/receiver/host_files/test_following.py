"""Following: each version that is seen, and what hinders it, on virtual time."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from weightstore.errors import (
    BlobOutcomeUnknownError,
    InputRefusedError,
    StorageFailedError,
    VersionNotFoundError,
)
from weightstore.receiver.host_files.following import WAIT_S_MAX, Hindrance, follow
from weightstore.receiver.host_files.host_files import HostFiles
from weightstore.receiver.live_state import Way
from weightstore.storage.durable import SYSCALLS
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.testing.faults import Call, Fault, LossyBlobs
from weightstore.testing.store_lab import store_on
from weightstore.testing.trainer_lab import changed, lab_settings, small_weights
from weightstore.testing.virtual_time import VirtualClock

SETTINGS = lab_settings(full_after_chain_ratio=1e6)
LOOK_COUNT_MAX = 50


class Looks:
    """Ends after so many looks."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self) -> bool:
        self.left -= 1
        return self.left >= 0


@pytest.fixture
def store() -> Iterator[WeightStore]:
    with store_on(MemoryBlobStore(), settings=SETTINGS) as opened:
        yield opened


@pytest.fixture
def files(store: WeightStore, tmp_path: Path) -> Iterator[HostFiles]:
    with store.host_files(tmp_path / "live") as opened:
        yield opened


def test_each_new_version_is_brought_and_told_once(store: WeightStore, files: HostFiles) -> None:
    weights, clock, seen = small_weights(), VirtualClock(), []
    store.put_step(1, weights)
    for report in follow(files, "latest", clock=clock, poll_s=2.0, is_wanted=Looks(LOOK_COUNT_MAX)):
        assert not isinstance(report, Hindrance)
        seen.append((report.target, report.way))
        if report.target < 3:
            weights = changed(weights, report.target)
            store.put_step(report.target + 1, weights)
    assert seen == [(1, Way.FULL), (2, Way.CHANGE), (3, Way.CHANGE)]
    assert clock.slept_s <= 2.0 * LOOK_COUNT_MAX


def test_a_store_without_a_version_is_waited_for(store: WeightStore, files: HostFiles) -> None:
    clock, seen = VirtualClock(), []
    for report in follow(files, "latest", clock=clock, poll_s=1.0, is_wanted=Looks(20)):
        seen.append(report)
        if isinstance(report, Hindrance):
            assert isinstance(report.error, VersionNotFoundError)
            assert report.wait_s == 2.0
            store.put_step(1, small_weights())
    assert len(seen) == 2
    assert files.version == 1


def test_a_storage_that_fails_is_told_once_and_asked_less_and_less(tmp_path: Path) -> None:
    inner, is_down = MemoryBlobStore(), [False]

    def fault(call: Call) -> Fault | None:
        del call
        return Fault.UNAVAILABLE if is_down[0] else None

    with store_on(LossyBlobs(inner, fault), settings=SETTINGS) as store:
        store.put_step(1, small_weights())
        with store.host_files(tmp_path / "live") as files:
            clock = VirtualClock()
            is_down[0] = True
            wanted = Looks(12)
            seen = list(follow(files, "latest", clock=clock, poll_s=1.0, is_wanted=wanted))
            assert 0 < len(seen) <= 3  # a message may name the slot that could not be read
            assert all(isinstance(each, Hindrance) for each in seen)
            assert isinstance(seen[0], Hindrance)
            assert isinstance(seen[0].error, StorageFailedError)
            assert WAIT_S_MAX < clock.slept_s <= 12 * WAIT_S_MAX
            is_down[0] = False
            (report,) = follow(files, "latest", clock=clock, poll_s=1.0, is_wanted=Looks(3))
            assert not isinstance(report, Hindrance)
            assert report.target == 1


@pytest.mark.parametrize("at", ["journal", "state", "live"])
def test_a_step_on_the_disk_that_nobody_knows_of_is_told_and_tried_again(
    store: WeightStore, tmp_path: Path, at: str
) -> None:
    armed = [False]

    def rename(old: str, new: str, folder: int) -> None:
        SYSCALLS.rename(old, new, folder)
        armed[0] |= is_armed and new == at

    def fsync(file: int) -> None:
        if armed[0] and not failed:
            failed.append(file)
            raise OSError(errno.EIO, "the disk failed")
        SYSCALLS.fsync(file)

    is_armed, failed = False, list[int]()
    weights = small_weights()
    store.put_step(1, weights)
    with store.host_files(tmp_path / "live") as files:
        files.refit()
        files._held._syscalls = replace(SYSCALLS, rename=rename, fsync=fsync)
        is_armed = True
        store.put_step(2, changed(weights, 1))
        told, report = follow(files, "latest", clock=VirtualClock(), poll_s=1.0, is_wanted=Looks(4))
        assert isinstance(told, Hindrance)
        kind = StorageFailedError if at == "live" else BlobOutcomeUnknownError
        assert isinstance(told.error, kind)
        assert not isinstance(report, Hindrance)
        assert (len(failed), files.verify().version) == (1, 2)


@pytest.mark.parametrize("poll_s", [0, -1, float("nan"), float("inf"), 1e9, True, "1"])
def test_a_time_that_nobody_can_wait_is_refused(files: HostFiles, poll_s: float) -> None:
    with pytest.raises(InputRefusedError, match="poll_s"):
        next(follow(files, "latest", clock=VirtualClock(), poll_s=poll_s, is_wanted=Looks(1)))
