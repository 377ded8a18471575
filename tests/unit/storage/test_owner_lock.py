"""A lock proves that an owner is dead, and never that a living one is."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weightstore.errors import InputRefusedError, StorageFailedError, StoreOwnedError
from weightstore.ids import SessionId
from weightstore.storage import machine, owner_lock
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.storage.owner_lock import (
    OwnerLock,
    acquire_owner_lock,
    is_owner_dead,
    remove_dead_locks,
)
from weightstore.testing.virtual_time import VirtualClock

SESSION = SessionId("0123456789abcdef" * 2)
OTHER = SessionId("f" * 32)
BOOT = machine.boot_id()
TRY_COUNT = 32

_OWNER = """
import os, sys
from pathlib import Path
from weightstore.storage.local import LocalBlobStore
from weightstore.clock import SystemClock
from weightstore.storage.owner_lock import acquire_owner_lock
blobs = LocalBlobStore(Path(sys.argv[1]))
lock = acquire_owner_lock(blobs, sys.argv[2], clock=SystemClock(), try_count=1)
print("locked", flush=True)
command = sys.stdin.readline()
if command == "release\\n":
    lock.release()
    print("released", flush=True)
if command == "fork\\n" and os.fork() != 0:
    print("forked", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobStore:
    return LocalBlobStore(tmp_path / "store", create=True)


def _acquired(blobs: LocalBlobStore, session: SessionId = SESSION) -> OwnerLock:
    lock = acquire_owner_lock(blobs, session, clock=VirtualClock(), try_count=TRY_COUNT)
    assert lock is not None
    return lock


@contextmanager
def _owner(blobs: LocalBlobStore) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that holds the lock."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(blobs.root), SESSION],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "locked\n"
        try:
            yield owner
        finally:
            owner.kill()


def _tell(owner: subprocess.Popen[str], command: str) -> str:
    assert owner.stdin is not None
    assert owner.stdout is not None
    owner.stdin.write(command + "\n")
    owner.stdin.flush()
    return owner.stdout.readline()


def test_a_killed_owner_is_dead_and_a_living_one_is_not(blobs: LocalBlobStore) -> None:
    with _owner(blobs) as owner:
        for _ in range(3):
            assert not is_owner_dead(blobs, SESSION, BOOT)
        owner.kill()
        owner.wait()
        for _ in range(3):
            assert is_owner_dead(blobs, SESSION, BOOT)


def test_a_lock_of_another_boot_or_machine_proves_nothing(blobs: LocalBlobStore) -> None:
    with _owner(blobs) as owner:
        owner.kill()
        owner.wait()
    assert not is_owner_dead(blobs, SESSION, "00000000-0000-0000-0000-000000000000")
    assert not is_owner_dead(blobs, SESSION, "")
    assert not is_owner_dead(blobs, OTHER, BOOT)
    assert is_owner_dead(blobs, SESSION, BOOT)


def test_an_unknown_boot_id_proves_nothing(
    blobs: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the kernel tells none, two owners would both have the empty one."""
    with _owner(blobs) as owner:
        owner.kill()
        owner.wait()
    monkeypatch.setattr(machine, "boot_id", lambda: "")
    assert not is_owner_dead(blobs, SESSION, "")


def test_an_owner_that_has_released_leaves_no_file_and_no_proof(blobs: LocalBlobStore) -> None:
    with _owner(blobs) as owner:
        assert _tell(owner, "release") == "released\n"
        assert not (blobs.root / "locks" / SESSION).exists()
        assert not is_owner_dead(blobs, SESSION, BOOT)
    assert not is_owner_dead(blobs, SESSION, BOOT)


def test_an_owner_that_has_left_is_provably_gone(blobs: LocalBlobStore) -> None:
    lock = _acquired(blobs)
    lock.leave()
    lock.leave()
    lock.release()
    assert is_owner_dead(blobs, SESSION, BOOT)


def test_a_process_that_asks_about_its_own_lock_keeps_it(blobs: LocalBlobStore) -> None:
    lock = _acquired(blobs)
    assert not is_owner_dead(blobs, SESSION, BOOT)
    with pytest.raises(StoreOwnedError):
        acquire_owner_lock(blobs, SESSION, clock=VirtualClock(), try_count=TRY_COUNT)
    lock.release()
    lock.release()
    _acquired(blobs).release()


def test_locks_of_two_sessions_do_not_meet(blobs: LocalBlobStore) -> None:
    first, second = _acquired(blobs), _acquired(blobs, OTHER)
    first.release()
    assert not is_owner_dead(blobs, OTHER, BOOT)
    second.release()


def test_a_forked_child_keeps_its_parents_lock_until_it_ends(blobs: LocalBlobStore) -> None:
    """Errs on the safe side: as long as anybody may hold the session, it is not dead."""
    with _owner(blobs) as owner:
        assert _tell(owner, "fork") == "forked\n"
        owner.kill()
        owner.wait()
        assert not is_owner_dead(blobs, SESSION, BOOT)


def test_locks_are_no_blobs(blobs: LocalBlobStore) -> None:
    lock = _acquired(blobs)
    assert not list(blobs.list(""))
    lock.release()


def test_a_store_without_a_directory_has_no_locks() -> None:
    blobs = MemoryBlobStore()
    assert acquire_owner_lock(blobs, SESSION, clock=VirtualClock(), try_count=TRY_COUNT) is None
    assert not is_owner_dead(blobs, SESSION, BOOT)


@pytest.mark.parametrize("session", ["", "../" + "a" * 29, "A" * 32, "a" * 31, "a" * 32 + "\n"])
def test_only_sessions_are_taken(blobs: LocalBlobStore, session: str) -> None:
    with pytest.raises(InputRefusedError):
        acquire_owner_lock(blobs, SessionId(session), clock=VirtualClock(), try_count=TRY_COUNT)
    with pytest.raises(InputRefusedError):
        is_owner_dead(blobs, SessionId(session), BOOT)
    assert not (blobs.root / "locks").exists()


def test_a_linked_lock_file_is_not_followed(blobs: LocalBlobStore, tmp_path: Path) -> None:
    (tmp_path / "outside").touch()
    (blobs.root / "locks").mkdir()
    (blobs.root / "locks" / SESSION).symlink_to(tmp_path / "outside")
    with pytest.raises(StorageFailedError, match="cannot"):
        is_owner_dead(blobs, SESSION, BOOT)
    with pytest.raises(StorageFailedError, match="cannot"):
        acquire_owner_lock(blobs, SESSION, clock=VirtualClock(), try_count=TRY_COUNT)


def _nobody() -> SessionId | None:
    """No claim is open."""
    return None


def _lock_names(blobs: LocalBlobStore) -> set[str]:
    return {path.name for path in (blobs.root / "locks").iterdir()}


def test_locks_of_the_dead_are_removed_and_those_of_the_living_stay(blobs: LocalBlobStore) -> None:
    with _owner(blobs) as owner:
        _acquired(blobs, OTHER).leave()
        (blobs.root / "locks" / f"{'a' * 32}.3").touch()
        (blobs.root / "locks" / "README").touch()
        remove_dead_locks(blobs, _nobody)
        assert _lock_names(blobs) == {SESSION, "README"}
        assert not is_owner_dead(blobs, SESSION, BOOT)
        owner.kill()
        owner.wait()
        remove_dead_locks(blobs, _nobody)
    assert _lock_names(blobs) == {"README"}
    assert not is_owner_dead(blobs, SESSION, BOOT)


def test_the_lock_of_the_open_claim_stays_as_proof(blobs: LocalBlobStore) -> None:
    for session in (SESSION, OTHER):
        _acquired(blobs, session).leave()
    remove_dead_locks(blobs, lambda: SESSION)
    assert _lock_names(blobs) == {SESSION}
    assert is_owner_dead(blobs, SESSION, BOOT)


def test_the_open_claim_is_asked_for_when_the_dead_are_known_to_be_dead(
    blobs: LocalBlobStore,
) -> None:
    """An owner that claims and dies between the two must keep its proof."""
    lock = _acquired(blobs)

    def claim_and_die() -> SessionId:
        raise AssertionError("asked although nobody is dead")

    remove_dead_locks(blobs, claim_and_die)
    lock.leave()
    asked: list[str] = []

    def claimed() -> SessionId:
        asked.append("once")
        # Held by now, so that no owner of this name can come to life unseen.
        assert acquire_owner_lock_or_none(blobs) is None
        return SESSION

    remove_dead_locks(blobs, claimed)
    assert asked == ["once"]
    assert is_owner_dead(blobs, SESSION, BOOT)


def acquire_owner_lock_or_none(blobs: LocalBlobStore) -> OwnerLock | None:
    try:
        return acquire_owner_lock(blobs, SESSION, clock=VirtualClock(), try_count=TRY_COUNT)
    except StoreOwnedError:
        return None


def test_a_log_that_cannot_be_read_removes_nothing(blobs: LocalBlobStore) -> None:
    _acquired(blobs).leave()

    def unreadable() -> SessionId:
        raise StorageFailedError("the log is gone")

    remove_dead_locks(blobs, unreadable)
    assert _lock_names(blobs) == {SESSION}


def test_no_more_than_a_bounded_number_goes_at_once(
    blobs: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner_lock, "DEAD_LOCK_COUNT_MAX", 4)
    for number in range(10):
        _acquired(blobs, SessionId(f"{number:032x}")).leave()
    for left in (6, 2, 0, 0):
        remove_dead_locks(blobs, _nobody)
        assert len(_lock_names(blobs)) == left


def test_a_lock_counts_only_if_its_file_still_has_the_name(
    blobs: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who tidies up removes the file between the opening and the lock."""
    _acquired(blobs).leave()
    lock_file = fcntl.flock
    removed: list[int] = []

    def late(file: int, flags: int) -> None:
        if not removed and os.path.samestat(
            os.fstat(file), (blobs.root / "locks" / SESSION).stat()
        ):
            removed.append(file)
            (blobs.root / "locks" / SESSION).unlink()
        lock_file(file, flags)

    monkeypatch.setattr(fcntl, "flock", late)
    lock = _acquired(blobs)
    monkeypatch.undo()
    assert removed
    assert _lock_names(blobs) == {SESSION}
    assert not is_owner_dead(blobs, SESSION, BOOT)
    with pytest.raises(StoreOwnedError):
        acquire_owner_lock(blobs, SESSION, clock=VirtualClock(), try_count=TRY_COUNT)
    lock.release()
    assert _lock_names(blobs) == set()


def test_a_new_lock_is_never_seen_unlocked(
    blobs: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tidies up right before a new file is locked finds no file of a session."""
    lock_file = fcntl.flock
    found: list[set[str]] = []

    def early(file: int, flags: int) -> None:
        if not found:
            found.append(_lock_names(blobs))
            remove_dead_locks(blobs, _nobody)
        lock_file(file, flags)

    monkeypatch.setattr(fcntl, "flock", early)
    lock = _acquired(blobs)
    monkeypatch.undo()
    assert found == [{f"{SESSION}.0"}]
    assert _lock_names(blobs) == {SESSION}
    lock.release()


def test_a_file_system_without_locks_is_left_without_files(
    blobs: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert acquire_owner_lock(blobs, SESSION, clock=VirtualClock(), try_count=TRY_COUNT) is None
    assert _lock_names(blobs) == set()


def test_a_released_lock_removes_no_file_of_another(blobs: LocalBlobStore) -> None:
    lock = _acquired(blobs)
    (blobs.root / "locks" / SESSION).unlink()
    (blobs.root / "locks" / SESSION).touch()
    lock.release()
    assert _lock_names(blobs) == {SESSION}


def test_an_interrupted_leave_closes_no_file_of_anybody_else(
    blobs: LocalBlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = os.close
    taken: list[int] = []

    def interrupted(file: int) -> None:
        close(file)
        taken.append(os.open(tmp_path / "victim", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))
        raise KeyboardInterrupt

    lock = _acquired(blobs)
    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.leave()
    monkeypatch.undo()
    lock.leave()
    assert os.write(taken[0], b"still open") == len(b"still open")
    os.close(taken[0])
