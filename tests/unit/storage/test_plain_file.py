"""Whatever lies under a name: nothing is followed, waited for or left open."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.storage.plain_file import open_plain_file


def open_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    file = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield file
    os.close(file)


def test_a_plain_file_is_read(tmp_path: Path, folder: int) -> None:
    (tmp_path / "f").write_bytes(b"bytes")
    stream = open_plain_file("f", folder)
    assert stream is not None
    with stream:
        assert stream.read() == b"bytes"
        assert not os.get_inheritable(stream.fileno())


def test_nothing_else_is_opened(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to("f")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    # Bound by a short name: that of a socket is short.
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        before = open_count()
        for name in ("link", "folder", "pipe", "socket"):
            assert open_plain_file(name, folder) is None, name
        with pytest.raises(FileNotFoundError):
            open_plain_file("nothing", folder)
        assert open_count() == before


def test_nothing_stays_open_where_the_system_cannot_say_what_it_is(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: int) -> os.stat_result:
        raise OSError(errno.EIO, "it failed")

    (tmp_path / "f").write_bytes(b"bytes")
    before = open_count()
    with monkeypatch.context() as failed:
        failed.setattr(os, "fstat", failing)
        with pytest.raises(OSError, match="it failed"):
            open_plain_file("f", folder)
    assert open_count() == before
