"""All that is taken is done, by few threads; nobody waits for one that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from weightstore.clock import SystemClock
from weightstore.receiver.host_agent.build_threads import BuildThreads

LONG_S = 20.0
SOON_S = 0.05
NAME = "build-in-a-test"
Found = TypeVar("Found")


@pytest.fixture
def threads() -> Iterator[BuildThreads]:
    made = BuildThreads(2, name=NAME)
    yield made
    made.close(LONG_S)
    for each in running():
        each.join(LONG_S)  # done with its last job, and about to end
    assert not running()


def running() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == NAME and each.is_alive()]


class WatchedCondition(threading.Condition):
    """Says when a thread is about to wait: it holds the lock then."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Semaphore(0)

    def wait_for(self, predicate: Callable[[], Found], timeout: float | None = None) -> Found:
        """Whoever gets the lock afterwards finds that thread waiting, or done with it."""
        self.waits.release()
        return super().wait_for(predicate, timeout)


def nothing_starts(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


class Works:
    """Jobs that note their number, when they are let."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.done: list[int] = []
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        if is_open:
            self.gate.set()

    def work(self, number: int) -> None:
        self.begun.release()
        assert self.gate.wait(LONG_S)
        self.done.append(number)
        self.ended.release()


def test_all_of_it_is_done_by_no_more_than_so_many(threads: BuildThreads) -> None:
    works = Works(is_open=False)
    for number in range(50):
        threads.begin(works.work, number)
    for _ in range(2):
        assert works.begun.acquire(timeout=LONG_S)
    assert not works.begun.acquire(timeout=SOON_S)
    assert len(running()) == 2
    works.gate.set()
    for _ in range(50):
        assert works.ended.acquire(timeout=LONG_S)
    assert sorted(works.done) == list(range(50))


def test_one_that_is_free_is_used_again(threads: BuildThreads) -> None:
    works = Works()
    threads._changed = changed = WatchedCondition()
    threads.begin(works.work, 0)
    # For the first work, and for more.
    for _ in range(2):
        assert changed.waits.acquire(timeout=LONG_S)
    threads.begin(works.work, 1)
    for _ in range(2):
        assert works.ended.acquire(timeout=LONG_S)
    assert (works.done, len(running())) == ([0, 1], 1)


def test_where_none_can_be_started_nothing_is_kept(
    threads: BuildThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Works()
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", nothing_starts)
        for number in range(3):
            with pytest.raises(RuntimeError, match="new thread"):
                threads.begin(works.work, number)
    threads.begin(works.work, 3)
    threads.close(LONG_S)
    assert works.done == [3]


def test_where_one_is_there_already_it_does_the_rest(
    threads: BuildThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Works(is_open=False)
    threads.begin(works.work, 0)
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", nothing_starts)
        threads.begin(works.work, 1)
    works.gate.set()
    threads.close(LONG_S)
    assert works.done == [0, 1]


def test_closing_waits_for_all_of_it_and_takes_no_more(threads: BuildThreads) -> None:
    works = Works(is_open=False)
    for number in range(5):
        threads.begin(works.work, number)
    timer = threading.Timer(SOON_S, works.gate.set)
    timer.start()
    threads.close(LONG_S)
    assert sorted(works.done) == list(range(5))
    with pytest.raises(RuntimeError, match="ending"):
        threads.begin(works.work, 5)
    timer.join()


def test_closing_does_not_wait_for_one_that_hangs(threads: BuildThreads) -> None:
    works = Works(is_open=False)
    for number in range(5):
        threads.begin(works.work, number)
    start_s = SystemClock().monotonic_s()
    threads.close(SOON_S)
    assert SystemClock().monotonic_s() - start_s < LONG_S / 2
    assert works.done == []
    assert all(each.daemon for each in running())
    works.gate.set()
    for _ in range(5):
        assert works.ended.acquire(timeout=LONG_S)
