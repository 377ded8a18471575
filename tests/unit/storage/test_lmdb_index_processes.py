"""The index in LMDB between processes: nobody waits, nothing is lost, killed ones harm nobody."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from weightstore.errors import CorruptObjectError, StoreClosedError, UnavailableError
from weightstore.settings import MIB
from weightstore.storage.index_file import Expected
from weightstore.storage.lmdb_index import LmdbIndexFile

NEW = Expected(b"state", None)
ENTRIES = {b"state": b"1", **{b"%d" % number: bytes(1000) for number in range(500)}}


def opened(folder: Path) -> LmdbIndexFile:
    return LmdbIndexFile(folder, size_bytes_max=64 * MIB)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of an index with entries that no handle has open."""
    index = opened(tmp_path / "index")
    assert index.put_many(ENTRIES, expected=NEW)
    index.close()
    return tmp_path / "index"


def test_nobody_waits_for_a_process_that_holds_the_guard(folder: Path) -> None:
    index = opened(folder)
    with (folder / "guard").open("rb") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        assert index.get_many([b"state"]) == (None,)
        assert not index.put_many({b"state": b"2"}, expected=Expected(b"state", b"1"))
        index.clear()
    assert index.get_many([b"state"]) == (b"1",)
    with (folder / "guard").open("rb") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        assert index.get_many([b"state"]) == (b"1",), "an open index needs no guard"


ADDER = """
import sys, time
from pathlib import Path
from weightstore.storage.index_file import Expected
from weightstore.storage.lmdb_index import LmdbIndexFile

index = LmdbIndexFile(Path(sys.argv[1]), size_bytes_max=1 << 26)
print("ready", flush=True)
sys.stdin.readline()
done, end_s = 0, time.monotonic() + 100
while done < 100 and time.monotonic() < end_s:
    old = index.get_many([b"state"])[0]
    if old is None and done:
        continue  # the other one is at it
    mine = b"%s%d" % (sys.argv[2].encode(), done)
    new = {b"state": b"%d" % (int(old or b"-1") + 1), mine: b"x" * 3000}
    done += index.put_many(new, expected=Expected(b"state", old))
print(done, flush=True)
"""


def test_two_processes_lose_no_change_of_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    adders = [
        subprocess.Popen(
            [sys.executable, "-c", ADDER, str(folder), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    for adder in adders:
        assert adder.stdout is not None
        assert adder.stdout.readline() == "ready\n"
    for adder in adders:
        assert adder.stdin is not None
        adder.stdin.write("go\n")
        adder.stdin.flush()
    told = [adder.communicate(timeout=120)[0] for adder in adders]
    assert told == ["100\n", "100\n"]
    keys = [b"%s%d" % (name, number) for name in (b"a", b"b") for number in range(100)]
    assert opened(folder).get_many([b"state", *keys]) == (b"199", *[b"x" * 3000] * 200)


KILLED = """
import os, sys
from pathlib import Path
from weightstore.storage import lmdb_environment
from weightstore.storage.index_file import Expected
from weightstore.storage.lmdb_index import LmdbIndexFile

def die(*_, **__):
    os.kill(os.getpid(), 9)

if sys.argv[2] == "before the commit":
    lmdb_environment.Environment.put_many = die
else:
    os.utime = die
index = LmdbIndexFile(Path(sys.argv[1]), size_bytes_max=1 << 26)
index.put_many({b"state": b"2"}, expected=Expected(b"state", b"1"))
"""


@pytest.mark.parametrize("when", ["before the commit", "before the seal"])
def test_a_writer_that_is_killed_leaves_an_index_that_heals(folder: Path, when: str) -> None:
    index = opened(folder)
    assert index.get_many([b"state"]) == (b"1",)
    command = [sys.executable, "-c", KILLED, str(folder), when]
    assert subprocess.run(command, check=False, timeout=120).returncode == -9
    if when == "before the commit":
        assert index.get_many([b"state"]) == (b"1",)
        return
    with pytest.raises(CorruptObjectError, match="last writer"):
        index.get_many([b"state"])
    index.clear()
    assert index.put_many(ENTRIES, expected=NEW)
    assert index.get_many([b"state"]) == (b"1",)


def in_child(call: Callable[[], bool]) -> bool:
    """Whether a forked child finds that a statement holds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if call() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_is_refused_and_its_parent_goes_on(folder: Path) -> None:
    index = opened(folder)
    assert index.get_many([b"state"]) == (b"1",)

    def is_refused() -> bool:
        try:
            index.get_many([b"state"])
        except StoreClosedError:
            index.close()
            return True
        return False

    assert in_child(is_refused)
    assert index.get_many([b"state"]) == (b"1",)
    assert index.put_many({b"state": b"2"}, expected=Expected(b"state", b"1"))


def test_a_child_may_open_what_its_parent_has_not(folder: Path) -> None:
    def reads_and_writes() -> bool:
        mine = opened(folder)
        is_read = mine.get_many([b"state"]) == (b"1",)
        return is_read and mine.put_many({b"state": b"2"}, expected=Expected(b"state", b"1"))

    assert in_child(reads_and_writes)
    assert opened(folder).get_many([b"state"]) == (b"2",)


def test_a_child_gets_an_error_or_right_answers_from_what_its_parent_has_open(
    folder: Path,
) -> None:
    index = opened(folder)
    assert index.get_many([b"state"]) == (b"1",)

    def is_safe() -> bool:
        try:
            return opened(folder).get_many([b"state"]) == (b"1",)
        except UnavailableError:
            return True

    assert in_child(is_safe)
    assert index.put_many({b"state": b"2"}, expected=Expected(b"state", b"1"))
