"""Tasks take turns: one at a time, on virtual time, in the same order for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from weightstore.testing.simulation.threads import TurnThreading
from weightstore.testing.simulation.turns import Group, Stopped, Turns

Work = Callable[[], None]


def turns_of(seed: int = 0, limit_s: float = 100.0) -> Turns:
    return Turns(np.random.default_rng(seed), limit_s)


def started(turns: Turns, group: Group, *works: Work) -> None:
    """Run tasks; whoever ends last ends the run."""
    left = [len(works)]

    def counted(work: Work) -> Work:
        def run() -> None:
            try:
                work()
            finally:
                left[0] -= 1
                if not left[0]:
                    turns.finish()

        return run

    for number, work in enumerate(works):
        turns.spawn(group, f"task {number}", counted(work))
    turns.run()


def test_whoever_is_due_first_goes_on_and_nobody_waits_for_real_time() -> None:
    turns, seen = turns_of(limit_s=1e6), []

    def sleeper(name: str, pause_s: float) -> Work:
        def run() -> None:
            for _ in range(2):
                turns.pause(pause_s)
                seen.append((name, turns.now_s))

        return run

    started(turns, Group("one"), sleeper("slow", 5000.0), sleeper("quick", 3000.0))
    assert seen == [("quick", 3000.0), ("slow", 5000.0), ("quick", 6000.0), ("slow", 10_000.0)]


def test_the_seed_decides_between_those_that_are_due_together() -> None:
    def order(seed: int) -> tuple[int, ...]:
        turns, seen = turns_of(seed), []
        started(turns, Group("one"), *(lambda each=each: seen.append(each) for each in range(5)))
        return tuple(seen)

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(20)}) > 10


def test_a_killed_process_ends_where_it_waits_and_runs_no_more_handlers_of_errors() -> None:
    turns, seen = turns_of(), []
    victim = Group("victim")

    def lives() -> None:
        try:
            turns.pause(50.0)
        except Exception:  # noqa: BLE001 -- what a product does that goes on after errors
            seen.append("handled")
        finally:
            seen.append("tidied up")
            with pytest.raises(Stopped):
                turns.pause(1.0)
            raise Stopped

    def kills() -> None:
        turns.spawn(victim, "victim", lives)
        turns.pause(1.0)
        turns.kill(victim)
        assert turns.await_end(victim)
        seen.append(f"{turns.now_s}")

    started(turns, Group("killer"), kills)
    assert seen == ["tidied up", "1.0"]
    assert not turns.failures


def test_an_error_of_a_task_is_told_and_ends_the_run() -> None:
    turns = turns_of()

    def fails() -> None:
        raise ValueError("so it is")

    started(turns, Group("one"), fails, lambda: turns.pause(1.0))
    assert len(turns.failures) == 1
    assert "so it is" in turns.failures[0]


def test_tasks_that_wait_for_each_other_are_found() -> None:
    turns = turns_of()
    threading = TurnThreading(turns)
    first, second = threading.Lock(), threading.Lock()

    def takes(one: object, other: object) -> Work:
        def run() -> None:
            with one:  # type: ignore[attr-defined]
                turns.pause(1.0)
                with other:  # type: ignore[attr-defined]
                    pass

        return run

    started(turns, Group("one"), takes(first, second), takes(second, first))
    assert turns.failures == ["every task waits for another"]


def test_a_run_that_does_not_end_is_ended() -> None:
    turns = turns_of(limit_s=10.0)

    def runs() -> None:
        while True:
            turns.pause(1.0)

    started(turns, Group("one"), runs)
    assert turns.failures == ["not over after 11.0 s"]
