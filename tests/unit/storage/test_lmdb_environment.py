"""LMDB's own hazards, met at the seam: a full map, a map that others grew, dead readers, EIO."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.errors import (
    CorruptObjectError,
    LimitError,
    StorageFailedError,
    UnavailableError,
)
from weightstore.settings import MIB
from weightstore.storage.index_file import Expected
from weightstore.storage.lmdb_environment import Environment

NEW = Expected(b"state", None)
ENTRIES = {b"%d" % number: bytes(1000) for number in range(500)}

# Each runs in a process of its own: LMDB opens a file once in a process.
OTHER = """
import os, resource, signal, sys
from pathlib import Path
from weightstore.errors import WeightStoreError
from weightstore.settings import MIB
from weightstore.storage.index_file import Expected
from weightstore.storage.lmdb_environment import Environment

other = Environment(Path(sys.argv[1]), size_bytes_max=64 * MIB)
entries = {b"other%d" % number: bytes(1000) for number in range(4000)}
"""
GROW = OTHER + "assert other.put_many(entries, Expected(b'state', None))"
DIE_WHILE_READING = OTHER + "held = other._began(write=False); os.kill(os.getpid(), 9)"
DIE_WHILE_WRITING = (
    OTHER + "held = other._began(write=True); held.put(b'state', b'half'); os.kill(os.getpid(), 9)"
)
WRITE_ERROR = (
    OTHER
    + """
old = other.get_many([b"1"])
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, resource.RLIM_INFINITY))
try:
    other.put_many(entries, Expected(b"state", None))
except WeightStoreError as error:
    print(type(error).__name__, other.get_many([b"1"]) == old)
"""
)


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Environment]:
    """With a map for a few entries only."""
    environment = Environment(tmp_path, size_bytes_max=4 * MIB, first_map_size_bytes=64 * 1024)
    yield environment
    environment.close()


def test_a_map_that_is_full_in_the_middle_of_a_change_is_enlarged(small: Environment) -> None:
    assert small.put_many(ENTRIES, NEW)
    assert small.get_many(list(ENTRIES)) == tuple(ENTRIES.values())
    assert small.put_many({b"state": b"1", **ENTRIES}, NEW)


def test_above_the_bound_nothing_is_changed(small: Environment) -> None:
    assert small.put_many({b"state": b"1"}, NEW)
    many = {b"many%d" % number: bytes(1000) for number in range(10_000)}
    for _ in range(2):
        with pytest.raises(LimitError, match="bound of 4194304 bytes"):
            small.put_many({**many, b"state": b"2"}, Expected(b"state", b"1"))
        assert small.get_many([b"state", b"many0"]) == (b"1", None)
    assert small.put_many(ENTRIES, Expected(b"state", b"1"))


def test_a_map_that_another_process_enlarged_is_taken_over(
    small: Environment, tmp_path: Path
) -> None:
    small.put_many({b"mine": b"1"}, NEW)
    assert run(GROW, tmp_path).returncode == 0
    assert small.get_many([b"mine", b"other3999"]) == (b"1", bytes(1000))
    assert small.put_many({b"mine": b"2"}, Expected(b"mine", b"1"))


def test_a_reader_that_was_killed_is_forgotten(small: Environment, tmp_path: Path) -> None:
    small.put_many(ENTRIES, NEW)
    assert run(DIE_WHILE_READING, tmp_path).returncode == -signal.SIGKILL
    assert "no active readers" not in small._lmdb.readers()
    small.forget_dead_readers()
    assert "no active readers" in small._lmdb.readers()


def test_a_writer_that_was_killed_has_changed_nothing(small: Environment, tmp_path: Path) -> None:
    small.put_many(ENTRIES, NEW)
    assert run(DIE_WHILE_WRITING, tmp_path).returncode == -signal.SIGKILL
    assert small.get_many([b"state"]) == (None,)
    assert small.put_many({b"state": b"1"}, NEW)


def test_a_failed_write_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    environment = Environment(tmp_path, size_bytes_max=MIB)
    environment.put_many({b"1": b"1"}, NEW)
    environment.close()
    done = run(WRITE_ERROR, tmp_path)
    assert done.stdout.split() == ["StorageFailedError", "True"], done.stderr


OPEN = """
import sys
from pathlib import Path
from weightstore.storage.lmdb_environment import Environment

opened = Environment(Path(sys.argv[1]), size_bytes_max=1 << 24)
print(len(opened.get_many([b"state", b"499"])))
"""


def test_a_file_that_is_shorter_than_its_pages_is_damage_and_kills_nobody(tmp_path: Path) -> None:
    environment = Environment(tmp_path, size_bytes_max=4 * MIB)
    assert environment.put_many({**ENTRIES, b"state": b"1"}, NEW)
    environment.close()
    data = tmp_path / "data.mdb"
    whole = data.read_bytes()
    assert run(OPEN, tmp_path).stdout == "2\n"
    for size_bytes in (len(whole) - 1, 8192, 8191, 4096, 100):
        data.write_bytes(whole[:size_bytes])
        done = run(OPEN, tmp_path)
        assert done.returncode == 1, (size_bytes, done.returncode)
        assert "CorruptObjectError" in done.stderr
        assert "is cut short" in done.stderr


@pytest.mark.parametrize(("offset", "value"), [(40, 8192), (40, 0), (4096 + 136, 1 << 40)])
def test_meta_pages_that_disagree_with_the_file_are_damage(
    tmp_path: Path, offset: int, value: int
) -> None:
    environment = Environment(tmp_path, size_bytes_max=4 * MIB)
    assert environment.put_many(ENTRIES, NEW)
    environment.close()
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    field = struct.pack("=Q" if offset > 4096 else "=I", value)
    data[offset : offset + len(field)] = field
    (tmp_path / "data.mdb").write_bytes(data)
    with pytest.raises(CorruptObjectError, match="is cut short, or is no index"):
        Environment(tmp_path, size_bytes_max=4 * MIB)


def test_a_file_that_lmdb_leaves_short_is_filled_up(small: Environment, tmp_path: Path) -> None:
    assert small.put_many({**ENTRIES, b"state": b"1"}, NEW)
    data = tmp_path / "data.mdb"
    size_bytes = data.stat().st_size
    os.truncate(data, size_bytes - 1)
    assert small.put_many({}, Expected(b"state", b"1"))
    assert data.stat().st_size == size_bytes


@pytest.mark.parametrize("data", [b"\xff" * 8192, b"short", bytes(4096)])
def test_a_file_that_is_no_environment_is_damage(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(data)
    with pytest.raises((CorruptObjectError, UnavailableError)):
        Environment(tmp_path, size_bytes_max=MIB)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailedError, match="cannot open"):
        Environment(tmp_path / "file", size_bytes_max=MIB)
