"""The fleet as its test sees it: started, brought on, killed, healed, and asked how it is."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from weightstore.clock import SystemClock
from weightstore.format.member import Member
from weightstore.history.members import list_members, remove_member
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore
from weightstore.testing.fleet_kills.board import Board
from weightstore.testing.fleet_kills.nest import Nest
from weightstore.testing.fleet_kills.scrolls import Said, Scroll
from weightstore.testing.fleet_kills.story import (
    AGENT,
    MEMBERS,
    RUN,
    SEATS,
    SERVING,
    SETTINGS,
    weights_of,
)

TIMEOUT_S = 90.0
LOOK_MS = 10
LAST_LINE_COUNT = 12


@dataclass(frozen=True, slots=True)
class Life:
    """One process.

    Attributes:
        process: Its number.
        handle: Of the kernel; readable when it has ended.
    """

    process: int
    handle: int


class Fleet:
    """A trainer, its receivers, and all between. A context manager.

    Args:
        nest: Forks the processes.
        place: An empty folder.

    Attributes:
        board: What the processes are asked for.
        scrolls: What each seat has written down.
        kill_count: Processes that were killed so far.
    """

    def __init__(self, nest: Nest, place: Path) -> None:
        self.place = place
        for name in ("events", "files"):
            (place / name).mkdir(parents=True)
        self.board = Board.make(place / "board")
        self.scrolls = {seat: Scroll(place / "events" / seat) for seat in SEATS}
        self.kill_count = 0
        self._nest = nest
        self._lives: dict[str, Life] = {}
        self._clock = SystemClock()

    def __enter__(self) -> Self:
        with WeightStore.open(self.place / "store", create=True, settings=SETTINGS) as store:
            store.put_step(1, weights_of(1), run=RUN)
            store.activate(1, timeout_s=0.0)
        self.board.goal = 1
        for seat in (AGENT, *(one for one in SEATS if one != AGENT)):
            self.start(seat)
        self.settle()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.board.end()
        for seat in list(self._lives):
            life = self._lives[seat]
            if not _wait_any([life.handle], TIMEOUT_S):
                os.kill(life.process, signal.SIGKILL)
            ended = self._reap(seat)
            assert error is not None or ended == 0, (seat, ended, self.last_lines(seat))

    @property
    def goal(self) -> int:
        """The version that everybody is asked for."""
        return self.board.goal

    @property
    def blobs(self) -> LocalBlobStore:
        """The store, as nobody's process."""
        return LocalBlobStore(self.place / "store")

    def process(self, seat: str) -> int:
        """Number of the process of a seat."""
        return self._lives[seat].process

    def start(self, seat: str) -> None:
        """Start a process on a seat."""
        process = self._nest.start(seat, self.place)
        self._lives[seat] = Life(process, os.pidfd_open(process))

    def next_round(self, *, is_double: bool = False) -> None:
        """Ask for the next version.

        Args:
            is_double: Ask for the one after it, so that the next one is staged in vain.
        """
        self.board.goal += 1 + is_double

    def settle(self) -> None:
        """Wait until everybody is where the goal is."""
        self.until(lambda: not self.behind(), "everybody is at the goal")

    def behind(self) -> list[str]:
        """Seats that are not where the goal is."""
        return [seat for seat in SEATS if not self._is_there(seat)]

    def until(self, is_so: Callable[[], bool], what: str, *, doomed: str | None = None) -> None:
        """Wait for something, or for the end of a process.

        Args:
            is_so: What is waited for.
            what: It, in words.
            doomed: The seat whose process may end; that ends the wait too.
        """
        deadline_s = self._clock.monotonic_s() + TIMEOUT_S
        handles = {life.handle: seat for seat, life in self._lives.items()}
        while True:
            self.read_on()
            if is_so():
                return
            for handle in _wait_any(handles, LOOK_MS / 1000):
                seat = handles[handle]
                if seat == doomed:
                    return
                raise AssertionError(f"{seat} has ended by itself: {self.last_lines(seat)}")
            if self._clock.monotonic_s() > deadline_s:
                late = {seat: self.last_lines(seat) for seat in self.behind()}
                raise AssertionError(f"not after {TIMEOUT_S} s: {what}; goal {self.goal}: {late}")

    def pause(self, duration_s: float) -> None:
        """Let the fleet go on for a while."""
        self._clock.sleep(duration_s)

    def has_ended(self, seat: str) -> bool:
        """Whether the process of a seat has ended."""
        return bool(_wait_any([self._lives[seat].handle], 0))

    def kill(self, seat: str) -> None:
        """Kill the process of a seat from outside."""
        os.kill(self.process(seat), signal.SIGKILL)

    def bury(self, seat: str) -> int:
        """Take note of the end of a process that was killed; its number."""
        process = self.process(seat)
        ended = self._reap(seat)
        self.read_on()
        assert ended == -signal.SIGKILL, (seat, ended, self.last_lines(seat))
        self.kill_count += 1
        return process

    def member(self, process: int) -> Member | None:
        """What a process has said of itself last, as others see it."""
        members = list_members(self.blobs, SETTINGS.limits).members
        return next((one for one in members if one.process == process), None)

    def forget_dead(self) -> None:
        """Take processes that are gone off the list, as an operator does."""
        alive = {self.process(seat) for seat in MEMBERS}
        for member in list_members(self.blobs, SETTINGS.limits).members:
            if member.process not in alive:
                remove_member(self.blobs, member.member_id)

    def read_on(self) -> None:
        """Read what all have written down."""
        for scroll in self.scrolls.values():
            scroll.read_on()
        errors = [(seat, one) for seat in SEATS for one in self.scrolls[seat].of("error")]
        assert not errors, errors

    def marks(self) -> dict[str, int]:
        """How many lines each seat has written so far."""
        return {seat: len(scroll.said) for seat, scroll in self.scrolls.items()}

    def last_lines(self, seat: str) -> list[Said]:
        """What a seat has written last."""
        self.scrolls[seat].read_on()
        return self.scrolls[seat].said[-LAST_LINE_COUNT:]

    def _is_there(self, seat: str) -> bool:
        word = "served" if seat in SERVING else "serving" if seat == AGENT else "reached"
        process, said = self.process(seat), self.scrolls[seat].said
        for one in reversed(said):
            if one.process != process:
                return False
            if one.word == word:
                return seat == AGENT or one.rest[0] == self.goal
        return False

    def _reap(self, seat: str) -> int:
        life = self._lives.pop(seat)
        os.close(life.handle)
        return self._nest.reap(life.process)


def _wait_any(handles: Iterable[int], timeout_s: float) -> list[int]:
    """Those of some handles whose process has ended, once one has or the time is over."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    return [handle for handle, _ in poll.poll(1000 * timeout_s)]
