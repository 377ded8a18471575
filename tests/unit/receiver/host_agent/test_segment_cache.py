"""One making for all who ask; memory bounded; what is idle goes first; nothing waits for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from weightstore.clock import SystemClock
from weightstore.errors import CorruptObjectError
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings
from weightstore.receiver.host_agent.segment_cache import (
    BusyError,
    Made,
    Reservation,
    SegmentCache,
)
from weightstore.testing.open_files import all_files_closed
from weightstore.testing.waiting import wait_until

LONG_S = 20.0
SOON_S = 0.05
BOUNDS = HostAgentSettings(
    memory_bytes=100, segment_count=3, queue_count=2, build_count=2, memory_wait_s=SOON_S
)


@pytest.fixture
def cache() -> Iterator[SegmentCache]:
    with all_files_closed():
        made = SegmentCache(BOUNDS, clock=SystemClock())
        yield made
        made.close(LONG_S)


class Maker:
    """Makes segments of one size, when it is let."""

    def __init__(self, size_bytes: int = 10, *, heap_bytes: int = 0, is_open: bool = True) -> None:
        self.size_bytes = size_bytes
        self.heap_bytes = heap_bytes
        self.count = 0
        self.gate = threading.Event()
        self.begun = threading.Event()
        if is_open:
            self.gate.set()

    def __call__(self, reservation: Reservation) -> Made:
        self.count += 1
        reservation.take(self.heap_bytes)
        reservation.take(self.size_bytes)
        self.begun.set()
        assert self.gate.wait(LONG_S)
        return Made(os.open("/dev/null", os.O_RDONLY), self.size_bytes, 2, 7)


def failing(_: Reservation) -> Made:
    raise CorruptObjectError("damaged")


def test_all_who_ask_at_once_share_one_making(cache: SegmentCache) -> None:
    maker = Maker(is_open=False)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(cache.take, "a", maker, LONG_S) for _ in range(8)]
        maker.begun.wait(LONG_S)
        maker.gate.set()
        entries = [each.result() for each in asked]
    assert maker.count == 1
    assert len(set(map(id, entries))) == 1
    assert entries[0].user_count == 8
    counts = cache.counts
    assert (counts.decoded_pack_count, counts.decoded_piece_count, counts.wire_bytes) == (1, 2, 7)
    for each in entries:
        cache.give_back(each)
    assert cache.take("a", maker, 0.0) is entries[0]
    cache.give_back(entries[0])


def test_who_does_not_wait_long_enough_is_told_and_the_making_goes_on(cache: SegmentCache) -> None:
    maker = Maker(is_open=False)
    with pytest.raises(BusyError, match="in time"):
        cache.take("a", maker, SOON_S)
    maker.gate.set()
    entry = cache.take("a", maker, LONG_S)
    assert (maker.count, entry.user_count, cache.counts.busy_count) == (1, 1, 1)
    cache.give_back(entry)


def test_a_failure_reaches_all_and_the_next_tries_again(cache: SegmentCache) -> None:
    for _ in range(2):
        with pytest.raises(CorruptObjectError):
            cache.take("a", failing, LONG_S)
    assert (cache.counts.failed_count, cache.used_bytes, cache.segment_count) == (2, 0, 0)
    cache.give_back(cache.take("a", Maker(), LONG_S))


@pytest.mark.parametrize("error", [OSError(12, "no memory"), MemoryError()])
def test_a_system_without_memory_is_busy(cache: SegmentCache, error: Exception) -> None:
    def without(_: Reservation) -> Made:
        raise error

    with pytest.raises(BusyError, match="memory"):
        cache.take("a", without, LONG_S)
    assert cache.used_bytes == 0


def test_the_longest_idle_segment_makes_room(cache: SegmentCache) -> None:
    makers = {name: Maker(40) for name in "abc"}

    def use(name: str) -> None:
        cache.give_back(cache.take(name, makers[name], LONG_S))

    for name in "aba":
        use(name)
    use("c")
    assert (cache.used_bytes, cache.segment_count) == (80, 2)
    use("a")
    use("b")
    assert [makers[name].count for name in "abc"] == [1, 2, 1]


def test_what_is_in_use_is_never_dropped(cache: SegmentCache) -> None:
    held = [cache.take(name, Maker(40), LONG_S) for name in "ab"]
    with pytest.raises(BusyError, match="80 of the host agent's 100"):
        cache.take("c", Maker(40), LONG_S)
    assert cache.used_bytes == 80
    for entry in held:
        cache.give_back(entry)


def test_what_is_given_back_meanwhile_makes_room() -> None:
    cache = SegmentCache(replace(BOUNDS, memory_wait_s=LONG_S), clock=SystemClock())
    held = cache.take("a", Maker(90), LONG_S)
    timer = threading.Timer(SOON_S, cache.give_back, [held])
    timer.start()
    cache.give_back(cache.take("b", Maker(90), LONG_S))
    timer.join()
    assert (cache.used_bytes, cache.segment_count) == (90, 1)
    cache.close(LONG_S)


def test_memory_for_the_making_counts_and_is_given_back(cache: SegmentCache) -> None:
    maker = Maker(30, heap_bytes=50, is_open=False)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(cache.take, "a", maker, LONG_S)
        maker.begun.wait(LONG_S)
        # It is the making of "b" that gives up, so that it does not take what "a" gives back.
        with pytest.raises(BusyError, match="in use"):
            cache.take("b", Maker(30), LONG_S)
        maker.gate.set()
        cache.give_back(asked.result())
    assert cache.used_bytes == 30


def test_more_than_all_memory_is_refused_at_once(cache: SegmentCache) -> None:
    with pytest.raises(BusyError, match="needs 101 bytes"):
        cache.take("a", Maker(101), LONG_S)


def test_segments_and_makings_are_counted(cache: SegmentCache) -> None:
    held = [cache.take(name, Maker(1), LONG_S) for name in "abc"]
    with pytest.raises(BusyError, match="3 segments"):
        cache.take("d", Maker(1), SOON_S)
    cache.give_back(held[0])
    slow = [Maker(1, is_open=False) for _ in range(2)]
    cache.give_back(held[1])
    for name, maker in zip("de", slow, strict=True):
        with pytest.raises(BusyError):
            cache.take(name, maker, SOON_S)
    cache.give_back(held[2])
    with pytest.raises(BusyError, match="2 packs"):
        cache.take("f", Maker(1), SOON_S)
    for maker in slow:
        maker.gate.set()


def test_an_ending_cache_lets_nobody_wait() -> None:
    cache = SegmentCache(replace(BOUNDS, memory_wait_s=LONG_S), clock=SystemClock())
    held = cache.take("a", Maker(90), LONG_S)
    start_s = SystemClock().monotonic_s()
    timer = threading.Timer(SOON_S, cache.close, [LONG_S])
    timer.start()
    with pytest.raises(BusyError):
        cache.take("b", Maker(90), LONG_S)
    timer.join()
    assert SystemClock().monotonic_s() - start_s < LONG_S / 2
    with pytest.raises(BusyError, match="ending"):
        cache.take("c", Maker(), LONG_S)
    cache.give_back(held)


def test_memory_is_waited_for_only_a_little(cache: SegmentCache) -> None:
    held = cache.take("a", Maker(90), LONG_S)
    start_s = SystemClock().monotonic_s()
    with pytest.raises(BusyError, match="in use"):
        cache.take("b", Maker(90), LONG_S)
    assert SystemClock().monotonic_s() - start_s < LONG_S / 2
    cache.give_back(held)


def test_what_nobody_expected_is_logged_and_ends_in_busy(
    cache: SegmentCache, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Reservation) -> Made:
        raise KeyError("unexpected")

    with pytest.raises(BusyError, match="failed over"):
        cache.take("a", broken, LONG_S)
    assert "unexpected" in caplog.text
    assert cache.used_bytes == 0


def test_where_no_thread_can_be_started_nothing_is_left(
    cache: SegmentCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    maker = Maker()
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_more)
        # More often than the queue is long: each of them gives its place back.
        for _ in range(BOUNDS.queue_count + 1):
            with pytest.raises(BusyError, match="starts no thread"):
                cache.take("a", maker, LONG_S)
    assert (cache.segment_count, cache.used_bytes, maker.count) == (0, 0, 0)
    cache.give_back(cache.take("a", maker, LONG_S))
    assert (maker.count, cache.counts.busy_count) == (1, BOUNDS.queue_count + 1)


def test_closing_does_not_wait_for_a_making_that_hangs(cache: SegmentCache) -> None:
    slow = [Maker(is_open=False) for _ in range(BOUNDS.build_count)]
    for name, maker in zip("ab", slow, strict=True):
        with pytest.raises(BusyError, match="in time"):
            cache.take(name, maker, SOON_S)
        assert maker.begun.wait(LONG_S)
    start_s = SystemClock().monotonic_s()
    cache.close(SOON_S)
    assert SystemClock().monotonic_s() - start_s < LONG_S / 2
    assert cache.segment_count == 2
    for maker in slow:
        maker.gate.set()
    # What is made after all is dropped by whoever made it; its file is closed, see the fixture.
    cache._threads.close(LONG_S)
    assert (cache.segment_count, cache.used_bytes) == (0, 0)


def test_what_waits_when_the_cache_closes_is_not_made() -> None:
    cache = SegmentCache(replace(BOUNDS, build_count=1), clock=SystemClock())
    first, second = Maker(is_open=False), Maker()
    for name, maker in (("a", first), ("b", second)):
        with pytest.raises(BusyError, match="in time"):
            cache.take(name, maker, SOON_S)
    assert first.begun.wait(LONG_S)
    closing = threading.Thread(target=cache.close, args=(LONG_S,))
    closing.start()
    wait_until(lambda: cache._is_closed)
    first.gate.set()
    closing.join()
    assert (first.count, second.count, cache.segment_count) == (1, 0, 0)
