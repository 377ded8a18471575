"""Locks, conditions, events and threads of tasks do what those of `threading` do."""

from __future__ import annotations

import threading

import numpy as np

from weightstore.receiver import gate
from weightstore.testing.simulation.threads import TurnThreading, taking_turns
from weightstore.testing.simulation.turns import Group, Turns


def run(turns: Turns, *works: object) -> None:
    for number, work in enumerate(works):
        assert callable(work)
        turns.spawn(Group(f"group {number}"), f"task {number}", work)

    def ends() -> None:
        turns.pause(50.0)
        turns.finish()

    turns.spawn(Group("end"), "end", ends)
    turns.run()
    assert not turns.failures


def made() -> tuple[Turns, TurnThreading]:
    turns = Turns(np.random.default_rng(0), 100.0)
    return turns, TurnThreading(turns)


def test_a_lock_lets_one_in_at_a_time_and_its_holder_again() -> None:
    turns, names = made()
    lock, inside, most = names.RLock(), [0], [0]

    def enters() -> None:
        for _ in range(3):
            with lock, lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                turns.pause(1.0)
                inside[0] -= 1

    run(turns, enters, enters, enters)
    assert most == [1]


def test_a_condition_wakes_who_sleeps_or_gives_up_at_its_timeout() -> None:
    turns, names = made()
    condition, count, seen = names.Condition(), [0], []

    def waits(timeout_s: float) -> None:
        with condition:
            is_there = condition.wait_for(lambda: count[0] == 2, timeout_s)
        seen.append((timeout_s, is_there, turns.now_s))

    def raises_count() -> None:
        for _ in range(2):
            turns.pause(3.0)
            with condition:
                count[0] += 1
                condition.notify_all()

    run(turns, lambda: waits(4.0), lambda: waits(10.0), raises_count)
    assert seen == [(4.0, False, 4.0), (10.0, True, 6.0)]


def test_an_event_ends_a_wait_once_and_a_later_one_not() -> None:
    turns, names = made()
    event, seen = names.Event(), []

    def waits() -> None:
        seen.append((event.wait(2.0), turns.now_s))
        seen.append((event.wait(9.0), turns.now_s))
        event.clear()
        turns.pause(4.0)
        seen.append((event.is_set(), turns.now_s))

    def sets() -> None:
        turns.pause(5.0)
        event.set()

    run(turns, waits, sets)
    assert seen == [(False, 2.0), (True, 5.0), (False, 9.0)]


def test_a_thread_belongs_to_the_process_that_starts_it_and_can_be_awaited() -> None:
    turns, names = made()
    seen: list[object] = []

    def starts() -> None:
        thread = names.Thread(target=turns.pause, args=(7.0,), name="inner", daemon=True)
        thread.start()
        thread.join(2.0)
        seen.append((thread.is_alive(), turns.now_s))
        thread.join()
        seen.append((thread.is_alive(), turns.now_s))
        seen.append([task.name for task in turns.current.group.tasks])

    run(turns, starts)
    assert seen == [(True, 2.0), (False, 7.0), ["task 0", "group 0/inner"]]


def test_modules_have_their_own_threading_back_afterwards() -> None:
    turns, _ = made()
    with taking_turns(turns):
        assert isinstance(vars(gate)["threading"], TurnThreading)
    assert vars(gate)["threading"] is threading
