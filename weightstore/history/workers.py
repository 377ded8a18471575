"""Threads that one call owns: bounded queue, results in order, first error wins."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

_QUEUED_PER_THREAD = 2
"""Jobs handed out per thread: one that runs and one that waits, so that none idles."""


class Workers:
    """Threads for jobs that release the interpreter lock: reads, hashes, kernels.

    With one thread the jobs run in the caller, in order. Leaving the block waits for what
    runs and drops what waits; nothing outlives it.
    """

    def __init__(self, thread_count: int) -> None:
        self.thread_count = max(1, thread_count)
        self._pool = (
            ThreadPoolExecutor(self.thread_count, thread_name_prefix="weightstore")
            if self.thread_count > 1
            else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(
        self, jobs: Iterable[Callable[[], T]], *, ahead: int | None = None
    ) -> Generator[T, None, None]:
        """Run jobs and yield their results in order.

        When a job raises, jobs already running are waited for, waiting ones are dropped,
        and the error of the earliest job is raised. The same holds when the caller stops
        taking results: once the iterator is closed no job of it runs.

        Args:
            jobs: Taken one by one, in the caller's thread.
            ahead: Results that exist or are being made at a time; None is two per thread.
        """
        if self._pool is None:
            for job in jobs:
                yield job()
            return
        queued_count = max(1, ahead or self.thread_count * _QUEUED_PER_THREAD)
        queued: deque[Future[T]] = deque()
        try:
            for job in jobs:
                queued.append(self._pool.submit(job))
                if len(queued) >= queued_count:
                    yield queued.popleft().result()
            while queued:
                yield queued.popleft().result()
        finally:
            _abandon(queued)


def _abandon(queued: Collection[Future[T]]) -> None:
    """Drop what waits and wait for what runs: nobody writes into a buffer after this."""
    for future in queued:
        future.cancel()
    for future in queued:
        if not future.cancelled():
            future.exception()


class Lender(Generic[T]):
    """Things that one thread uses at a time: made when all are lent, kept for the next.

    No more are ever made than jobs run at once.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._idle: SimpleQueue[T] = SimpleQueue()

    @contextmanager
    def lend(self) -> Iterator[T]:
        """Borrow one for a block."""
        try:
            thing = self._idle.get_nowait()
        except Empty:
            thing = self._make()
        try:
            yield thing
        finally:
            self._idle.put(thing)
