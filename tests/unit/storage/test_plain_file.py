"""Whatever lies under a name: nothing is followed, waited for or left open."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from weightstore.storage.durable import SYSCALLS
from weightstore.storage.plain_file import clear_name, open_plain_file
from weightstore.testing.open_files import all_files_closed


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
        with all_files_closed():
            for name in ("link", "folder", "pipe", "socket"):
                assert open_plain_file(name, folder) is None, name
            with pytest.raises(FileNotFoundError):
                open_plain_file("nothing", folder)


def test_nothing_stays_open_where_the_system_cannot_say_what_it_is(
    tmp_path: Path, folder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: int) -> os.stat_result:
        raise OSError(errno.EIO, "it failed")

    (tmp_path / "f").write_bytes(b"bytes")
    with all_files_closed(), monkeypatch.context() as failed:
        failed.setattr(os, "fstat", failing)
        with pytest.raises(OSError, match="it failed"):
            open_plain_file("f", folder)


@pytest.mark.parametrize("kind", ["nothing", "file", "link", "folder"])
def test_whatever_has_a_name_gives_way(tmp_path: Path, folder: int, kind: str) -> None:
    path, kept = tmp_path / "name", tmp_path / "kept"
    kept.mkdir()
    (kept / "inside").write_bytes(b"bytes")
    match kind:
        case "file":
            path.write_bytes(b"bytes")
        case "link":
            path.symlink_to(kept)
        case "folder":
            (path / "deep").mkdir(parents=True)
            (path / "deep" / "link").symlink_to(kept)
        case _:
            assert kind == "nothing"
    clear_name("name", folder, SYSCALLS)
    assert not os.path.lexists(path)
    assert (kept / "inside").read_bytes() == b"bytes"


def test_what_cannot_be_removed_is_an_error(tmp_path: Path, folder: int) -> None:
    def refused(*_: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    (tmp_path / "name").mkdir()
    with pytest.raises(OSError, match="Read-only"):
        clear_name("name", folder, replace(SYSCALLS, unlink=refused))
    assert (tmp_path / "name").is_dir()
