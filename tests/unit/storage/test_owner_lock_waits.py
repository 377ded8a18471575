"""Who only looks at the lock of a dead owner is waited for, and who holds it is not."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from weightstore.errors import StorageFailedError, StoreOwnedError
from weightstore.ids import SessionId
from weightstore.storage import machine
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.owner_lock import (
    OwnerLock,
    acquire_owner_lock,
    is_owner_dead,
    remove_dead_locks,
)
from weightstore.testing.virtual_time import VirtualClock

SESSION = SessionId("0123456789abcdef" * 2)
BOOT = machine.boot_id()
TRY_COUNT = 32


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobStore:
    return LocalBlobStore(tmp_path / "store", create=True)


def _acquired(blobs: LocalBlobStore) -> OwnerLock:
    lock = acquire_owner_lock(blobs, SESSION, clock=VirtualClock(), try_count=1)
    assert lock is not None
    return lock


class LookingClock(VirtualClock):
    """Somebody looks at a lock file until this clock has slept so often."""

    def __init__(self, path: Path, sleep_count: int) -> None:
        super().__init__()
        self.sleep_count = 0
        self._last = sleep_count
        self._file = os.open(path, os.O_RDONLY)
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def sleep(self, duration_s: float, /) -> None:
        super().sleep(duration_s)
        self.sleep_count += 1
        if self.sleep_count == self._last:
            os.close(self._file)


@pytest.mark.parametrize("sleep_count", [1, 9, TRY_COUNT - 1])
def test_who_looks_at_a_dead_owners_lock_is_waited_for_and_no_owner(
    blobs: LocalBlobStore, sleep_count: int
) -> None:
    _acquired(blobs).leave()
    clock = LookingClock(blobs.root / "locks" / SESSION, sleep_count)
    lock = acquire_owner_lock(blobs, SESSION, clock=clock, try_count=TRY_COUNT)
    assert lock is not None
    assert clock.sleep_count == sleep_count
    assert not is_owner_dead(blobs, SESSION, BOOT)
    lock.release()


def test_the_tidying_up_of_another_launch_is_waited_for(blobs: LocalBlobStore) -> None:
    """It holds the lock while it reads the log, and then removes the file."""
    _acquired(blobs).leave()
    clock = VirtualClock()

    def read_the_log() -> SessionId | None:
        with pytest.raises(StorageFailedError, match="look at"):
            acquire_owner_lock(blobs, SESSION, clock=clock, try_count=3)
        return None

    remove_dead_locks(blobs, read_the_log)
    assert clock.slept_s > 0
    lock = acquire_owner_lock(blobs, SESSION, clock=clock, try_count=1)
    assert lock is not None
    lock.release()


def test_who_looks_for_ever_is_named_and_not_taken_for_an_owner(blobs: LocalBlobStore) -> None:
    _acquired(blobs).leave()
    clock = LookingClock(blobs.root / "locks" / SESSION, TRY_COUNT)
    with pytest.raises(StorageFailedError, match="look at"):
        acquire_owner_lock(blobs, SESSION, clock=clock, try_count=TRY_COUNT)
    assert clock.slept_s < 20


def test_a_living_owner_is_not_waited_for(blobs: LocalBlobStore) -> None:
    lock, clock = _acquired(blobs), VirtualClock()
    with pytest.raises(StoreOwnedError):
        acquire_owner_lock(blobs, SESSION, clock=clock, try_count=TRY_COUNT)
    assert clock.slept_s == 0
    lock.release()
