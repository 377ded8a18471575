"""One agent at a path; a dead one's socket is replaced, anything else is left alone."""

from __future__ import annotations

import errno
import fcntl
import socket
import stat
from pathlib import Path

import pytest

from weightstore.errors import InputRefusedError, StorageFailedError, StoreBusyError
from weightstore.receiver.host_agent.socket_place import SocketPlace


def test_only_its_user_reaches_it(tmp_path: Path) -> None:
    place = SocketPlace.take(tmp_path / "agent")
    assert stat.S_IMODE(place.path.stat().st_mode) == 0o600
    place.leave()
    assert not place.path.exists()


def test_a_second_agent_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    place = SocketPlace.take(tmp_path / "agent")
    with pytest.raises(StoreBusyError):
        SocketPlace.take(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX) as found:
        found.connect(str(place.path))
    place.leave()
    SocketPlace.take(tmp_path / "agent").leave()


def test_the_socket_of_a_dead_agent_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "agent"))
    place = SocketPlace.take(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX) as found:
        found.connect(str(place.path))
    place.leave()


def test_a_lock_that_cannot_be_let_go_is_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_lock(*_: int) -> None:
        raise OSError(errno.EIO, "it failed")

    place = SocketPlace.take(tmp_path / "agent")
    with monkeypatch.context() as failed:
        failed.setattr(fcntl, "flock", failing_lock)
        with pytest.raises(OSError, match="it failed"):
            place.leave()
    SocketPlace.take(tmp_path / "agent").leave()


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "agent"
    path.write_text("mine")
    with pytest.raises(InputRefusedError, match="no socket"):
        SocketPlace.take(path)
    assert path.read_text() == "mine"
    path.unlink()
    SocketPlace.take(path).leave()


def test_paths_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefusedError, match="too long"):
        SocketPlace.take(tmp_path / ("a" * 200))
    with pytest.raises(StorageFailedError):
        SocketPlace.take(tmp_path / "nowhere" / "agent")
