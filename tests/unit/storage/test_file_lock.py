"""One holder at a time, also among descriptors of one process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weightstore.storage import machine
from weightstore.storage.file_lock import try_lock, try_lock_by_name, unlock


def test_one_holds_it_until_its_file_is_closed(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    first, second = (os.open(tmp_path / "lock", os.O_RDWR) for _ in range(2))
    assert try_lock(first)
    assert try_lock(first)  # its own
    assert not try_lock(second)
    os.close(first)
    assert try_lock(second)
    os.close(second)


def test_what_is_no_open_file_is_an_error_and_not_somebody_else(tmp_path: Path) -> None:
    file = os.open(tmp_path, os.O_RDONLY)
    os.close(file)
    with pytest.raises(OSError, match="Bad file"):
        try_lock(file)


def test_who_holds_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    first, second = (os.open(tmp_path / "lock", os.O_RDWR) for _ in range(2))
    os.write(second, b"what an earlier holder has said, which is longer than what comes now" * 9)
    assert try_lock_by_name(first) is None
    assert try_lock_by_name(second) == f"process {os.getpid()} on {machine.host_name()}"
    os.truncate(tmp_path / "lock", 0)
    assert try_lock_by_name(second) == "another process"
    os.close(first)
    os.close(second)


def test_it_is_let_go_by_its_owner_alone_and_also_while_a_copy_is_open(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    first, second = (os.open(tmp_path / "lock", os.O_RDWR) for _ in range(2))
    assert try_lock(first)
    copy = os.dup(first)  # as a forked child has one
    unlock(first, os.getpid() + 1)
    os.close(first)
    assert not try_lock(second)
    unlock(copy, os.getpid())
    assert try_lock(second)
    os.close(copy)
    os.close(second)
