"""A few threads that build segments, started when they are needed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial


class BuildThreads:
    """Runs what it is given, in order, in up to so many threads.

    A thread that hangs in the storage must hold up neither the end of an agent nor the end of
    its process: these are daemons, which the threads of a `ThreadPoolExecutor` are not.

    Args:
        count: Threads at once.
        name: How each of their names begins.
    """

    def __init__(self, count: int, *, name: str) -> None:
        self._count = count
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], None]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle_count = 0
        self._is_closed = False

    def begin(self, work: Callable[..., None], *arguments: object) -> None:
        """Run something in one of the threads, as soon as one is free.

        Args:
            work: It; raises nothing. Who gives it bounds how much of it waits.
            arguments: Of it.

        Raises:
            RuntimeError: there is no thread and none can be started, or this is closed; the
                work is forgotten.
        """
        with self._changed:
            if self._is_closed:
                raise RuntimeError("these threads are ending")
            self._waiting.append(partial(work, *arguments))
            if len(self._waiting) > self._idle_count and len(self._threads) < self._count:
                self._start()
            self._changed.notify()

    def close(self, wait_s: float) -> None:
        """Take no more, and wait a time for all that was taken.

        A thread that needs longer goes on by itself and does what still waits.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._threads, wait_s)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # Out of threads: those that are there do it later.
            if not self._threads:
                self._waiting.pop()
                raise
        else:
            self._threads.add(thread)

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                work()
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._idle_count += 1
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            self._idle_count -= 1
            return self._waiting.popleft() if self._waiting else None
