"""Points of a process's work, and its death at one of them.

A point is before or after a phase, or a storage call inside one: `apply: before fsync`. Phases
are methods of the product; they are wrapped in the forked child alone.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from weightstore.storage.durable import SYSCALLS
from weightstore.testing.fleet_kills.board import Doom

IDLE = "between"
"""The phase of whatever happens in none."""
_FOLDER_FLAGS = os.O_DIRECTORY | os.O_PATH
_EVENTS = frozenset(
    {"open", "fcntl.flock", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}
)

Say = Callable[..., None]
"""Writes a word and what belongs to it where it survives the process."""


class Points:
    """Counts the points that this process passes, and dies at one of them.

    Args:
        doom: Says where.
        say: Is told of the end, and of what was counted when a doom changes.
    """

    def __init__(self, doom: Doom, say: Say) -> None:
        self._doom = doom
        self._say = say
        self._lock = threading.Lock()
        self._everybody = IDLE
        self._thread = threading.local()

    def install(self) -> None:
        """Watch the storage calls of this process from here on, for ever."""
        for field in fields(SYSCALLS):
            call = functools.partial(self._call, field.name, getattr(SYSCALLS, field.name))
            object.__setattr__(SYSCALLS, field.name, call)
        sys.addaudithook(self._audit)

    def wrap(self, owner: object, name: str, phase: str) -> None:
        """Make a method a phase."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def wrapped(*given: Any, **named: Any) -> Any:  # noqa: ANN401 -- of any method
            with self.phase(phase):
                return function(*given, **named)

        setattr(owner, name, wrapped)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens inside is this phase, for this thread."""
        self.passed(f"{name}: before")
        before = getattr(self._thread, "phase", "")
        self._thread.phase = name
        try:
            yield
        finally:
            self._thread.phase = before
        self.passed(f"{name}: after")

    @contextmanager
    def phase_of_all(self, name: str) -> Iterator[None]:
        """What happens inside, or in another thread meanwhile, is this phase."""
        self._everybody = name
        with self.phase(name):
            yield
        self._everybody = IDLE

    def passed(self, point: str) -> None:
        """Pass a point, or die at it."""
        with self._lock:
            is_end, counted = self._doom.passes(point)
        if counted is not None:
            self._say("counted", dict(counted))
        if is_end:
            self._say("died", point)
            os.kill(os.getpid(), signal.SIGKILL)

    def _phase(self) -> str:
        return getattr(self._thread, "phase", "") or self._everybody

    def _call(self, name: str, effect: Callable[..., Any], *given: Any) -> Any:  # noqa: ANN401 -- of any call
        phase = self._phase()
        self.passed(f"{phase}: before {name}")
        self._thread.is_seam = True
        try:
            return effect(*given)
        finally:
            self._thread.is_seam = False
            self.passed(f"{phase}: after {name}")

    def _audit(self, event: str, given: tuple[Any, ...]) -> None:
        if event not in _EVENTS or getattr(self._thread, "is_seam", False):
            return
        if event == "open" and given[2] & _FOLDER_FLAGS:
            return
        self.passed(f"{self._phase()}: {event}")
