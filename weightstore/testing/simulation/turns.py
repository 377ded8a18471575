"""Tasks that take turns: one runs at a time, in an order that a seed decides, on virtual time.

A task is a real thread, so that it can run the product as it is. It gives its turn away where
it waits: at a storage call, a sleep, a lock. Whoever is due first goes on.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

EVENT_COUNT_MAX = 200_000
"""A run that takes more turns is taken for endless."""
JOIN_TIMEOUT_S = 30.0
"""Real seconds in which a stopped task must end."""


class Stopped(BaseException):
    """The process of a task was killed, or the run is over.

    No `Exception`: whoever handles errors must not get to handle this one.
    """


@dataclass(eq=False)
class Group:
    """A process of the simulation: its tasks die together."""

    name: str
    is_dead: bool = False
    tasks: list[Task] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether no task of it runs any more."""
        return all(task.is_done for task in self.tasks)


@dataclass(eq=False)
class Task:
    """One thread of a process."""

    name: str
    group: Group
    turn: threading.Lock = field(default_factory=threading.Lock)
    wait_number: int = 0
    was_woken: bool = False
    is_done: bool = False
    thread: threading.Thread | None = None
    waiters: list[Task] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a task waits for; stale once the task has gone on for another reason."""

    task: Task
    wait_number: int
    is_wake: bool


Due = _Turn | Callable[[], None]


class Turns:
    """The scheduler.

    Args:
        chances: Decides between tasks that are due at the same time.
        limit_s: Virtual seconds after which the run ends whatever happens.

    Attributes:
        now_s: Virtual time.
        current: The task whose turn it is.
        failures: What tasks ended with that they should not have.
    """

    def __init__(self, chances: np.random.Generator, limit_s: float) -> None:
        self.now_s = 0.0
        self.failures: list[str] = []
        self.event_count = 0
        self._chances = chances
        self._limit_s = limit_s
        self._events: list[tuple[float, float, int, Due]] = []
        self._numbers = itertools.count()
        self._tasks: list[Task] = []
        self._current: Task | None = None
        self._is_over = False
        self._is_closing = False
        self._end = threading.Lock()

    @property
    def current(self) -> Task:
        """The task whose turn it is."""
        assert self._current is not None
        return self._current

    def spawn(self, group: Group, name: str, work: Callable[[], None]) -> Task:
        """Start a task; its turn comes later."""
        task = Task(name, group)
        task.turn.acquire()
        task.thread = threading.Thread(
            target=self._run_task, args=(task, work), name=f"simulated-{name}", daemon=True
        )
        group.tasks.append(task)
        self._tasks.append(task)
        self._push(self.now_s, task)
        task.thread.start()
        return task

    def at(self, due_s: float, action: Callable[[], None]) -> None:
        """Do something at a time, between turns."""
        heapq.heappush(self._events, (due_s, self._tie(), next(self._numbers), action))

    def pause(self, duration_s: float) -> None:
        """Give the turn away for a time.

        Raises:
            Stopped: the process was killed meanwhile, or the run is over.
        """
        task = self.current
        self._check(task)
        self._push(self.now_s + duration_s, task)
        self._park(task)

    def wait(self, timeout_s: float | None) -> bool:
        """Give the turn away until `wake`; whether it came before the timeout.

        Raises:
            Stopped: the process was killed meanwhile, or the run is over.
        """
        task = self.current
        self._check(task)
        task.was_woken = False
        if timeout_s is not None:
            self._push(self.now_s + timeout_s, task)
        self._park(task)
        return task.was_woken

    def wake(self, task: Task) -> None:
        """End a task's wait."""
        self._push(self.now_s, task, is_wake=True)

    def await_end(self, group: Group, timeout_s: float | None = None) -> bool:
        """Give the turn away until every task of a process has ended; whether it has.

        Raises:
            Stopped: the caller's process was killed meanwhile, or the run is over.
        """
        end_s = None if timeout_s is None else self.now_s + timeout_s
        while not group.is_over:
            left_s = None if end_s is None else end_s - self.now_s
            if left_s is not None and left_s <= 0:
                break
            self.await_task(next(each for each in group.tasks if not each.is_done), left_s)
        return group.is_over

    def await_task(self, task: Task, timeout_s: float | None) -> bool:
        """Give the turn away until a task has ended; whether it has.

        Raises:
            Stopped: the caller's process was killed meanwhile, or the run is over.
        """
        if not task.is_done:
            waiter = self.current
            task.waiters.append(waiter)
            try:
                self.wait(timeout_s)
            finally:
                if waiter in task.waiters:
                    task.waiters.remove(waiter)
        return task.is_done

    def kill(self, group: Group) -> None:
        """Kill a process: each of its tasks ends where it is."""
        group.is_dead = True
        for task in group.tasks:
            if not task.is_done:
                self.wake(task)

    def finish(self) -> None:
        """End the run; the caller's turn goes on until it waits."""
        self._is_over = True

    def run(self) -> None:
        """Let the tasks run until the run is over, and end them all."""
        self._end.acquire()
        first = self._next()
        if first is not None:
            self._current = first
            first.turn.release()
            self._end.acquire()
        self._is_over = self._is_closing = True
        for task in self._tasks:
            if not task.is_done:
                self._current = task
                task.turn.release()
            assert task.thread is not None
            task.thread.join(JOIN_TIMEOUT_S)
            if task.thread.is_alive():
                raise RuntimeError(f"{task.name} does not end")

    def _run_task(self, task: Task, work: Callable[[], None]) -> None:
        task.turn.acquire()
        try:
            self._check(task)
            work()
        except Stopped:
            pass
        except BaseException:  # noqa: BLE001 -- told at the end; a thread has nobody to tell
            self.failures.append(f"{task.name}: {traceback.format_exc()}")
            self._is_over = True
        task.is_done = True
        if self._is_closing:
            return
        waiters, task.waiters = task.waiters, []
        for waiter in waiters:
            self.wake(waiter)
        self._pass_on(None)

    def _check(self, task: Task) -> None:
        if self._is_over or task.group.is_dead:
            raise Stopped

    def _push(self, due_s: float, task: Task, *, is_wake: bool = False) -> None:
        turn = _Turn(task, task.wait_number, is_wake)
        heapq.heappush(self._events, (due_s, self._tie(), next(self._numbers), turn))

    def _tie(self) -> float:
        return float(self._chances.random())

    def _park(self, task: Task) -> None:
        self._pass_on(task)
        self._check(task)

    def _pass_on(self, task: Task | None) -> None:
        """Let the next task go on; the one that calls waits for its turn, unless it has ended."""
        following = None if self._is_over else self._next()
        if following is None:
            self._is_over = True
            self._end.release()
        elif following is task:
            return
        else:
            self._current = following
            following.turn.release()
        if task is not None:
            task.turn.acquire()

    def _next(self) -> Task | None:
        while self._events:
            due_s, _, _, due = heapq.heappop(self._events)
            self.event_count += 1
            if due_s > self._limit_s or self.event_count > EVENT_COUNT_MAX:
                self.failures.append(f"not over after {due_s:.1f} s")
                return None
            self.now_s = max(self.now_s, due_s)
            if not isinstance(due, _Turn):
                due()
            elif not due.task.is_done and due.task.wait_number == due.wait_number:
                due.task.wait_number += 1
                due.task.was_woken = due.is_wake
                return due.task
        self.failures.append("every task waits for another")
        return None
