"""Real processes that follow into a directory, killed by SIGKILL at every storage call.

Whatever the moment, the link leads to one whole version or is not there; the next process heals
it, also when it is killed itself; and what was acknowledged is there or on its way to the next.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from weightstore.testing import totals
from weightstore.testing.faults import When
from weightstore.testing.host_file_lab import wrong_end
from weightstore.testing.kill_host_files import FOLLOWING, LINK
from weightstore.testing.kill_points import Kill
from weightstore.testing.kill_server import PREPARE, Ended, KillServer
from weightstore.testing.store_lab import tree

pytestmark = pytest.mark.crash

RECOVERY_STRIDE = 31
CALL_COUNT_MAX = 2000
SOME_CALLS = {
    When.BEFORE: range(1, CALL_COUNT_MAX, 23),
    When.AFTER: range(3, CALL_COUNT_MAX, 7),
}
"""Fewer calls count after their effect than before it, see `KillPoints`."""


@pytest.fixture(scope="module")
def server() -> Iterator[KillServer]:
    with KillServer() as running:
        yield running


class Scene:
    """One operation: what it starts from, its copies, and what must be true of them.

    Attributes:
        kill_count: How many processes have died in it.
        redo_count: How many of them left a journal.
        away_count: How many of them left no link.
    """

    def __init__(self, server: KillServer, folder: Path, name: str) -> None:
        self.kill_count = self.redo_count = self.away_count = 0
        self._name = name
        self._server = server
        self._start = folder / "start"
        self._numbers = count()
        prepared = server.run(PREPARE + name, self._start)
        assert prepared.exit_code == 0, prepared
        self._known = {
            int(path.name): tree(path) for path in sorted((self._start / "given").iterdir())
        }
        self.end = int(str(FOLLOWING[name].acknowledged[-1][1]))

    def copy(self, of: Path | None = None) -> Path:
        place = self._start.with_name(f"copy-{next(self._numbers)}")
        shutil.copytree(of or self._start, place, symlinks=True)
        return place

    def kill(self, place: Path, kill: Kill) -> Ended:
        """Let a child begin; it dies, or comes to its end."""
        ended = self._server.run(self._name, place, kill)
        assert not ended.all_of("error"), ended
        if ended.was_killed:
            self.kill_count += 1
            held = self.held(place)
            said = [int(str(one[1])) for one in ended.acknowledged]
            # What was acknowledged is there, or the change to the next version has begun.
            assert held is None or not said or held >= said[-1] or held == self.end, (ended, held)
            self.away_count += held is None
            self.redo_count += (place / f"out/.{LINK}.weightstore/journal").exists()
        return ended

    def held(self, place: Path) -> int | None:
        """The version that the link leads to, whole; None where it is not there."""
        link = place / "out" / LINK
        if not link.exists():
            assert not link.is_symlink(), "the link leads to nothing"
            return None
        found = tree(link.resolve())
        held = [version for version, files in self._known.items() if files == found]
        assert held, "the link leads to a mixture"
        return held[0]

    def finish(self, place: Path) -> Ended:
        """Let a child do all of it, and look where it ends."""
        ended = self._server.run(self._name, place)
        assert ended.exit_code == 0, ended
        assert not wrong_end(place / "out", self._known[self.end])
        return ended


def kill_and_finish(scene: Scene, kill: Kill) -> bool:
    """One kill, and the process after it; whether anything was killed."""
    place = scene.copy()
    was_killed = scene.kill(place, kill).was_killed
    if was_killed:
        scene.finish(place)
    shutil.rmtree(place)
    return was_killed


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("name", FOLLOWING)
def test_a_kill_at_some_storage_calls_heals(
    server: KillServer, folder: Path, name: str, when: When
) -> None:
    scene = Scene(server, folder, name)
    for at in SOME_CALLS[when]:
        if not kill_and_finish(scene, Kill(at, when)):
            break
    else:
        raise AssertionError(f"{name} has made {CALL_COUNT_MAX} storage calls and does not end")
    assert scene.kill_count > 2
    totals.add("sigkills", scene.kill_count)


@pytest.mark.slow
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("name", FOLLOWING)
def test_a_kill_at_every_storage_call_heals(
    server: KillServer, folder: Path, name: str, when: When
) -> None:
    scene = Scene(server, folder, name)
    for at in range(CALL_COUNT_MAX):
        if not kill_and_finish(scene, Kill(at, when)):
            break
    assert scene.kill_count == at > 0
    in_place = name in {"follow a change", "follow a chain"}
    assert not in_place or min(scene.away_count, scene.redo_count) > 0
    totals.add("sigkills", scene.kill_count)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLLOWING)
def test_a_kill_in_the_recovery_heals_too(server: KillServer, folder: Path, name: str) -> None:
    """Each recovery dies at other calls than the one before."""
    scene = Scene(server, folder, name)
    for turn, at in enumerate(range(0, CALL_COUNT_MAX, 5)):
        left = scene.copy()
        if not scene.kill(left, Kill(at, When.AFTER if turn % 2 else When.BEFORE)).was_killed:
            break
        for again in range(turn % RECOVERY_STRIDE, CALL_COUNT_MAX, RECOVERY_STRIDE):
            place = scene.copy(left)
            was_killed = scene.kill(place, Kill(again)).was_killed
            scene.finish(place)
            shutil.rmtree(place)
            if not was_killed:
                break
        shutil.rmtree(left)
    assert scene.kill_count > 10
    totals.add("sigkills", scene.kill_count)
