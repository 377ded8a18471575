"""Receivers that follow, and whom they follow, as real processes that are killed by SIGKILL.

Every version that was served was committed and active, with its exact bits; nobody goes back
behind an activation that it has served by; and a killed process is replaced by one that ends where
one that was never killed ends.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest

from weightstore.history.members import list_members
from weightstore.storage.local import LocalBlobStore
from weightstore.testing import totals
from weightstore.testing.faults import When
from weightstore.testing.history_check import Acknowledged, History, check_history
from weightstore.testing.kill_operations import RUN, SETTINGS, opened
from weightstore.testing.kill_points import Kill
from weightstore.testing.kill_receivers import (
    FIRST_ACTIVE,
    VERSION_COUNT,
    sha256_of_step,
)
from weightstore.testing.kill_server import PREPARE, Ended, KillServer

pytestmark = pytest.mark.crash

STRIDE = 41
RECEIVER_COUNT = 3
CALL_COUNT_MAX = 3000
PART_COUNT = 4
JOIN_TIMEOUT_S = 110


@pytest.fixture(scope="module")
def server() -> Iterator[KillServer]:
    with KillServer() as running:
        yield running


def served(ended: Ended) -> list[int]:
    """The versions that a child has served, each checked against what was active and its bits."""
    slots = [int(str(slot)) for _, _, slot, _ in ended.all_of("served")]
    assert all(before <= after for before, after in pairwise(slots))
    versions = []
    for version, active, _, sha256 in ended.all_of("served"):
        assert version == active, ended
        assert sha256 == sha256_of_step(int(str(version))), ended
        versions.append(int(str(version)))
    return versions


def check_store(place: Path, *ended: Ended) -> None:
    """The log holds what was acknowledged, and no member object is half written."""
    blobs = LocalBlobStore(place / "store")
    assert not list_members(blobs, SETTINGS.limits).unreadable
    acknowledged = {
        (int(str(one[0])), int(str(one[1])))
        for each in ended
        for one in each.acknowledged
        if one[0] != "active"
    }
    history = History(
        acknowledged=tuple(
            Acknowledged(version=version, run=RUN, step=step) for step, version in acknowledged
        )
    )
    check_history(blobs, history, limits=SETTINGS.limits)


class Scene:
    """A store that a receiver follows, and its copies."""

    def __init__(self, server: KillServer, folder: Path) -> None:
        self._server = server
        self._start = folder / "start"
        self._numbers = count()
        prepared = server.run(PREPARE + "receive", self._start)
        assert prepared.exit_code == 0, prepared

    def kill_and_finish(self, kill: Kill) -> Ended:
        """One kill, and the life after it."""
        place = self._start.with_name(f"copy-{next(self._numbers)}")
        shutil.copytree(self._start, place)
        killed = self._server.run("receive", place, kill)
        assert not killed.all_of("error"), killed
        before = served(killed)
        assert before == [2, 3, 5][: len(before)]
        if killed.was_killed:
            self._finish(place, killed)
        shutil.rmtree(place)
        return killed

    def _finish(self, place: Path, killed: Ended) -> None:
        with opened(place) as store:
            active = store.state().active
            listed = {each.member_id for each in store.receivers()}
        assert len(listed) <= 1
        said = [int(str(one[1])) for one in killed.acknowledged]
        assert active in ({2, 3, 5} if not said else {said[-1], 5})
        ended = self._server.run("receive", place)
        assert ended.exit_code == 0, ended
        after = served(ended)
        # It begins empty, and with what is active, whatever the one before had staged.
        assert after[0] == active
        assert after[-2:] == [3, 5]
        check_store(place, killed, ended)
        with opened(place) as store:
            left = {each.member_id for each in store.receivers()}
            assert left == listed, "the dead one is on the list until it is forgotten"
            for member_id in left:
                store.forget_receiver(member_id)
            assert not store.receivers()


@pytest.mark.parametrize("when", When)
def test_a_receiver_killed_at_some_storage_calls_is_replaced(
    server: KillServer, tmp_path: Path, when: When
) -> None:
    scene = Scene(server, tmp_path)
    kill_count = 0
    for at in range(3 if when is When.AFTER else 17, CALL_COUNT_MAX, STRIDE):
        if not scene.kill_and_finish(Kill(at, when)).was_killed:
            break
        kill_count += 1
    assert kill_count > 2
    totals.add("sigkills", kill_count)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PART_COUNT))
@pytest.mark.parametrize("when", When)
def test_a_receiver_killed_at_any_storage_call_is_replaced(
    server: KillServer, tmp_path: Path, when: When, part: int
) -> None:
    scene = Scene(server, tmp_path)
    kill_count = 0
    for at in range(part, CALL_COUNT_MAX, PART_COUNT):
        if not scene.kill_and_finish(Kill(at, when)).was_killed:
            break
        kill_count += 1
    assert CALL_COUNT_MAX // PART_COUNT > kill_count > 10
    totals.add("sigkills", kill_count)


class Life:
    """One seat of a fleet: process after process, each killed somewhere, then one to the end."""

    def __init__(self, server: KillServer, place: Path, operation: str, seed: int) -> None:
        self.ended: list[Ended] = []
        self._server = server
        self._place = place
        self._operation = operation
        self._rng = np.random.default_rng(seed)
        self.errors: list[BaseException] = []

    def live(self, count: int) -> None:
        """Be killed so often, at a random storage call each time."""
        try:
            for _ in range(count):
                at = int(self._rng.integers(0, 300))
                when = When.AFTER if self._rng.integers(2) else When.BEFORE
                self.ended.append(self._server.run(self._operation, self._place, Kill(at, when)))
        except BaseException as error:  # noqa: BLE001 -- told to the test, which ends by it
            self.errors.append(error)

    def finish(self) -> Ended:
        """One that is not killed."""
        self.ended.append(self._server.run(self._operation, self._place))
        assert self.ended[-1].exit_code == 0, self.ended[-1]
        return self.ended[-1]


def kill_a_fleet(place: Path, seed: int, life_count: int) -> int:
    """A trainer that activates what it publishes and three receivers, all killed at random."""
    with ExitStack() as stack:
        servers = [stack.enter_context(KillServer()) for _ in range(1 + RECEIVER_COUNT)]
        assert servers[0].run(PREPARE + "publish", place).exit_code == 0
        lives = [
            Life(each, place, "publish" if number == 0 else "follow", 100 * seed + number)
            for number, each in enumerate(servers)
        ]
        threads = [threading.Thread(target=life.live, args=(life_count,)) for life in lives]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_TIMEOUT_S)
            assert not thread.is_alive()
        assert not [error for life in lives for error in life.errors]
        lives[0].finish()
        with opened(place) as store:
            active, newest = store.state().active, store.state().newest
        assert active == newest
        assert newest is not None
        assert newest > VERSION_COUNT
        for life in lives[1:]:
            assert served(life.finish())[-1] == active
    _check_fleet(place, lives)
    return sum(each.was_killed for life in lives for each in life.ended)


def _check_fleet(place: Path, lives: list[Life]) -> None:
    for life in lives[1:]:
        versions = [version for ended in life.ended for version in served(ended)]
        assert versions == sorted(versions), "activations only rise here"
        assert min(versions) >= FIRST_ACTIVE
    assert not [ended for life in lives for ended in life.ended if ended.all_of("error")]
    check_store(place, *(ended for life in lives for ended in life.ended))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
def test_a_fleet_whose_processes_are_killed_at_random_ends_at_what_is_active(
    tmp_path: Path, seed: int
) -> None:
    totals.add("sigkills", kill_a_fleet(tmp_path / "place", seed, 12))
