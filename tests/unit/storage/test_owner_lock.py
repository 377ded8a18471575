"""A lock proves that an owner is dead, and never that a living one is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weightstore.errors import InputRefusedError, StoreOwnedError
from weightstore.ids import SessionId
from weightstore.storage import machine
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.storage.owner_lock import OwnerLock, acquire_owner_lock, is_owner_dead

SESSION = SessionId("0123456789abcdef" * 2)
OTHER = SessionId("f" * 32)
BOOT = machine.boot_id()

_OWNER = """
import os, sys
from pathlib import Path
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.owner_lock import acquire_owner_lock
lock = acquire_owner_lock(LocalBlobStore(Path(sys.argv[1])), sys.argv[2])
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
    lock = acquire_owner_lock(blobs, session)
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
        acquire_owner_lock(blobs, SESSION)
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
    assert acquire_owner_lock(blobs, SESSION) is None
    assert not is_owner_dead(blobs, SESSION, BOOT)


@pytest.mark.parametrize("session", ["", "../" + "a" * 29, "A" * 32, "a" * 31, "a" * 32 + "\n"])
def test_only_sessions_are_taken(blobs: LocalBlobStore, session: str) -> None:
    with pytest.raises(InputRefusedError):
        acquire_owner_lock(blobs, SessionId(session))
    with pytest.raises(InputRefusedError):
        is_owner_dead(blobs, SessionId(session), BOOT)
    assert not (blobs.root / "locks").exists()


def test_a_linked_lock_file_is_not_followed(blobs: LocalBlobStore, tmp_path: Path) -> None:
    (tmp_path / "outside").touch()
    (blobs.root / "locks").mkdir()
    (blobs.root / "locks" / SESSION).symlink_to(tmp_path / "outside")
    with pytest.raises(Exception, match="cannot"):
        is_owner_dead(blobs, SESSION, BOOT)
    with pytest.raises(Exception, match="cannot"):
        acquire_owner_lock(blobs, SESSION)
