"""Threads of one call: order, bound, first error, nothing that outlives the call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from weightstore.history.workers import Lender, Workers


def numbers(count: int) -> Iterator[Callable[[], int]]:
    for number in range(count):
        yield lambda number=number: number  # type: ignore[misc]


@pytest.mark.parametrize("thread_count", [0, 1, 2, 5])
def test_results_come_in_the_order_of_the_jobs(thread_count: int) -> None:
    with Workers(thread_count) as workers:
        assert list(workers.run(numbers(50))) == list(range(50))


@pytest.mark.parametrize("thread_count", [1, 3])
def test_the_earliest_error_wins_and_later_jobs_do_not_start(thread_count: int) -> None:
    started: list[int] = []

    def job(number: int) -> int:
        started.append(number)
        if number in {3, 4}:
            raise ValueError(str(number))
        return number

    with Workers(thread_count) as workers, pytest.raises(ValueError, match="3"):
        list(workers.run((lambda n=n: job(n)) for n in range(1000)))  # type: ignore[misc]
    assert len(started) <= 4 + 2 * thread_count


def test_jobs_are_taken_from_the_iterable_only_as_far_as_ahead_says() -> None:
    taken: list[int] = []

    def jobs() -> Iterator[Callable[[], int]]:
        for number in range(100):
            taken.append(number)
            yield lambda number=number: number  # type: ignore[misc]

    with Workers(2) as workers:
        results = workers.run(jobs(), ahead=3)
        assert next(results) == 0
        assert len(taken) == 3
        results.close()
    assert len(taken) == 3


def test_after_close_no_job_runs_any_more() -> None:
    running = threading.Event()
    go_on = threading.Event()
    ended: list[int] = []

    def slow() -> int:
        running.set()
        go_on.wait(30)
        ended.append(1)
        return 1

    with Workers(2) as workers:
        results = workers.run(iter([lambda: 0, slow]), ahead=2)
        assert next(results) == 0
        assert running.wait(30)
        threading.Timer(0.05, go_on.set).start()
        results.close()
        assert ended == [1]


def test_a_power_cut_in_a_job_reaches_the_caller() -> None:
    class Cut(BaseException):
        pass

    def cut() -> None:
        raise Cut

    with Workers(2) as workers, pytest.raises(Cut):
        list(workers.run([cut]))


def test_lent_things_are_made_once_per_job_at_a_time_and_never_shared() -> None:
    made: list[object] = []

    def make() -> object:
        made.append(object())
        return made[-1]

    lender = Lender(make)
    with lender.lend() as first, lender.lend() as second:
        assert first is not second
    with lender.lend() as third:
        assert third in {first, second}
    assert len(made) == 2
