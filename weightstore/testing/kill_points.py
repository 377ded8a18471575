"""Dying of SIGKILL at one storage call: for the forked children of a `KillServer` alone.

The system calls are replaced for the whole process, wherever a module holds them: what a
child runs is the product as it is, opened as a user opens it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from weightstore.storage.durable import SYSCALLS
from weightstore.testing.faults import When

_FOLDER_FLAGS = os.O_DIRECTORY | os.O_PATH
# What changes or reads files without going through `SYSCALLS`: owner locks, exports, reads.
_EVENTS = frozenset(
    {"open", "fcntl.flock", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}
)


@dataclass(frozen=True, slots=True)
class Kill:
    """When a child dies.

    Attributes:
        at: Number of the storage call, from 0.
        when: Before the call has its effect, or right after.
        delay_us: None to die at the call itself; else the child goes on, and is killed from
            outside so many microseconds after the call.
    """

    at: int
    when: When = When.BEFORE
    delay_us: int | None = None


class KillPoints:
    """Counts the storage calls of this process, and dies at one of them.

    Before its effect every call counts: those of the seam, and each opening of a file,
    lock, link, rename and removal around it, which Python tells before it happens. After
    its effect those of the seam count.

    Args:
        kill: When to die; None only counts.
        say: Tells the parent of the end, or of the call that an outer kill follows.
    """

    def __init__(self, kill: Kill | None, say: Callable[..., None]) -> None:
        self._kill = kill
        self._say = say
        self._names: list[str] = []
        self._lock = threading.Lock()
        self._inside = threading.local()

    @property
    def names(self) -> tuple[str, ...]:
        """What was called so far, in order."""
        return tuple(self._names)

    def install(self) -> None:
        """Watch this process from here on, for ever."""
        for field in fields(SYSCALLS):
            call = partial(self._seam_call, field.name, getattr(SYSCALLS, field.name))
            object.__setattr__(SYSCALLS, field.name, call)
        sys.addaudithook(self._audit)

    def _seam_call(self, name: str, effect: Callable[..., Any], *given: Any) -> Any:  # noqa: ANN401 -- of any call
        is_after = self._kill is not None and self._kill.when is When.AFTER
        if not is_after:
            self._pass(name)
        self._inside.is_seam = True
        try:
            return effect(*given)
        finally:
            self._inside.is_seam = False
            if is_after:
                self._pass(name)

    def _audit(self, event: str, given: tuple[Any, ...]) -> None:
        if event not in _EVENTS or getattr(self._inside, "is_seam", False):
            return
        if self._kill is not None and self._kill.when is When.AFTER:
            return
        if event == "open" and given[2] & _FOLDER_FLAGS:
            return
        self._pass(f"around: {event}")

    def _pass(self, name: str) -> None:
        with self._lock:
            index = len(self._names)
            self._names.append(name)
        if self._kill is None or index != self._kill.at:
            return
        if self._kill.delay_us is None:
            self._say("died", name)
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            self._say("mark", name)
