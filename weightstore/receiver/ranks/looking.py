"""A thread that looks at the tail of the log while a rank does what its leader asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from weightstore.errors import CorruptError, UnavailableError, UnknownOutcomeError
from weightstore.receiver.follower import STOP_TIMEOUT_S


class Stop(Protocol):
    """What ends a loop: a `threading.Event`."""

    def is_set(self) -> bool:
        """Whether to end."""
        ...


@contextmanager
def looking(look: Callable[[], object], poll_s: float, stop: Stop) -> Iterator[None]:
    """Look again and again inside, in another thread.

    Args:
        look: Looks once. A store that cannot be read needs no answer here: what was looked at
            grows old, and the gate sees it.
        poll_s: Between two looks.
        stop: Ends it before the block does.
    """
    ended = threading.Event()

    def watch() -> None:
        while not (stop.is_set() or ended.is_set()):
            with suppress(UnavailableError, UnknownOutcomeError, CorruptError):
                look()
            ended.wait(poll_s)

    watcher = threading.Thread(target=watch, name="weightstore-look", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join(STOP_TIMEOUT_S)
