"""Shared memory between the test and the processes of its fleet: a goal, an end, and who dies.

It is a small file that all map, so that reading it is no storage call.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from pathlib import Path
from typing import Self

from weightstore.testing.fleet_kills.story import SEATS

_HEAD = struct.Struct("<qq")
_SLOT = struct.Struct("<qqq")
_SLOT_SIZE_BYTES = 256
_NAME_SIZE_BYTES = _SLOT_SIZE_BYTES - _SLOT.size
ANY_POINT = "any"
"""As a name: every point counts."""


class Board:
    """The file. `make` it once; every process opens it.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def make(cls, path: Path) -> Self:
        """A new one, with the goal 0."""
        path.write_bytes(bytes(_SLOT_SIZE_BYTES * (1 + len(SEATS))))
        return cls(path)

    @property
    def goal(self) -> int:
        """The version that shall be active."""
        goal: int = _HEAD.unpack_from(self._memory)[0]
        return goal

    @goal.setter
    def goal(self, version: int) -> None:
        _HEAD.pack_into(self._memory, 0, version, 0)

    @property
    def is_over(self) -> bool:
        """Whether everybody shall end."""
        return bool(_HEAD.unpack_from(self._memory)[1])

    def end(self) -> None:
        """Let everybody end."""
        _HEAD.pack_into(self._memory, 0, self.goal, 1)

    def doom(self, seat: str, point: str, number: int) -> None:
        """Let the process of a seat die when it passes a point for the so-manieth time from now.

        Args:
            seat: Whose.
            point: Name of it, or `ANY_POINT`; empty takes an earlier doom back.
            number: From 1.
        """
        start, name = _start(seat), point.encode()
        assert len(name) <= _NAME_SIZE_BYTES, point
        generation = _SLOT.unpack_from(self._memory, start)[0]
        first = start + _SLOT.size
        self._memory[first : first + len(name)] = name
        # The generation last: by it a process sees that the rest is there.
        _SLOT.pack_into(self._memory, start, generation, number, len(name))
        struct.pack_into("<q", self._memory, start, generation + 1)

    def spare(self, seat: str) -> None:
        """Let the process of a seat live."""
        self.doom(seat, "", 0)

    def generation(self, seat: str) -> int:
        """Rises with each doom of a seat."""
        found: int = struct.unpack_from("<q", self._memory, _start(seat))[0]
        return found

    def doom_of(self, seat: str) -> tuple[str, int]:
        """At which point a process dies, and at which passing of it."""
        start = _start(seat)
        _, number, length = _SLOT.unpack_from(self._memory, start)
        first = start + _SLOT.size
        return self._memory[first : first + length].decode(), number


class Doom:
    """One process's side: counts the points that it passes since it was doomed last.

    Args:
        board: Where its doom stands.
        seat: Its seat.
    """

    def __init__(self, board: Board, seat: str) -> None:
        self._board = board
        self._seat = seat
        self._generation = board.generation(seat)
        self._point, self._number = board.doom_of(seat)
        self.counts: Counter[str] = Counter()

    def passes(self, point: str) -> tuple[bool, Counter[str] | None]:
        """Count a point.

        Returns:
            Whether this is the place to die; and, where the doom has just changed, what was
            counted under the one before.
        """
        before = None
        generation = self._board.generation(self._seat)
        if generation != self._generation:
            self._generation = generation
            self._point, self._number = self._board.doom_of(self._seat)
            before, self.counts = self.counts, Counter()
        self.counts[point] += 1
        self.counts[ANY_POINT] += 1
        is_end = self._point in {point, ANY_POINT} and self.counts[self._point] == self._number
        return is_end, before


def _start(seat: str) -> int:
    return _SLOT_SIZE_BYTES * (1 + SEATS.index(seat))
