"""Locks, conditions, events and threads of tasks that take turns, in place of the system's.

The product's receiver names them as `threading.Lock` and so on; `taking_turns` gives its modules
these instead, so that a wait is one of virtual time and a lock that is held lets others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

from weightstore.receiver import follower, gate, membership, receiver_status, refits
from weightstore.receiver.host_agent import segment_cache
from weightstore.receiver.ranks import looking
from weightstore.testing.simulation.turns import Task, Turns

MODULES: tuple[ModuleType, ...] = (
    follower,
    gate,
    looking,
    membership,
    receiver_status,
    refits,
    segment_cache,
)
"""Those whose locks are held, or whose waits are made, across a storage call or a sleep."""


class TurnLock:
    """A lock that its holder may take again, as `threading.RLock` and, if not, `Lock`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._owner: Task | None = None
        self._count = 0
        self._waiting: list[Task] = []

    def acquire(self) -> bool:
        """Take it, and wait until it can be taken."""
        task = self._turns.current
        while self._owner not in {None, task}:
            self._waiting.append(task)
            self._turns.wait(None)
        self._owner = task
        self._count += 1
        return True

    def release(self) -> None:
        """Give it back once."""
        self._count -= 1
        if not self._count:
            self.let_go()

    def let_go(self) -> int:
        """Give it back as often as it was taken; how often that was, besides now."""
        count, self._count, self._owner = self._count, 0, None
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._turns.wake(task)
        return count

    def take_back(self, count: int) -> None:
        """Take it as often as before."""
        self.acquire()
        self._count = count

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class TurnCondition(TurnLock):
    """As `threading.Condition`, with a lock of its own."""

    def __init__(self, turns: Turns) -> None:
        super().__init__(turns)
        self._sleeping: list[Task] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Let go, sleep until somebody notifies, and take it again."""
        task = self._turns.current
        self._sleeping.append(task)
        count = self.let_go()
        try:
            return self._turns.wait(timeout)
        finally:
            if task in self._sleeping:
                self._sleeping.remove(task)
            if not task.group.is_dead:
                self.take_back(count)
            else:
                self._owner, self._count = task, count

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until something holds; whether it did before the timeout."""
        end_s = None if timeout is None else self._turns.now_s + timeout
        while not predicate():
            left_s = None if end_s is None else end_s - self._turns.now_s
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def notify_all(self) -> None:
        """Wake everybody who sleeps."""
        sleeping, self._sleeping = self._sleeping, []
        for task in sleeping:
            self._turns.wake(task)


class TurnEvent:
    """As `threading.Event`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Wake everybody who waits."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._turns.wake(task)

    def clear(self) -> None:
        """Let the next ones wait again."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; whether it is."""
        if not self._is_set:
            task = self._turns.current
            self._waiting.append(task)
            try:
                self._turns.wait(timeout)
            finally:
                if task in self._waiting:
                    self._waiting.remove(task)
        return self._is_set


class TurnThread:
    """As `threading.Thread`: a task of the process that starts it."""

    def __init__(
        self,
        turns: Turns,
        target: Callable[..., None],
        args: tuple[object, ...],
        name: str,
    ) -> None:
        self._turns = turns
        self._work = lambda: target(*args)
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        """Begin."""
        group = self._turns.current.group
        self._task = self._turns.spawn(group, f"{group.name}/{self._name}", self._work)

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self._task is not None and not self._task.is_done

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._task is not None:
            self._turns.await_task(self._task, timeout)


class TurnThreading:
    """What a module finds under the name `threading`."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def Lock(self) -> TurnLock:  # noqa: N802 -- the name of the one that it stands for
        """As `threading.Lock`."""
        return TurnLock(self._turns)

    def RLock(self) -> TurnLock:  # noqa: N802 -- the name of the one that it stands for
        """As `threading.RLock`."""
        return TurnLock(self._turns)

    def Condition(self) -> TurnCondition:  # noqa: N802 -- the name of the one that it stands for
        """As `threading.Condition`."""
        return TurnCondition(self._turns)

    def Event(self) -> TurnEvent:  # noqa: N802 -- the name of the one that it stands for
        """As `threading.Event`."""
        return TurnEvent(self._turns)

    def Thread(  # noqa: N802 -- the name of the one that it stands for
        self,
        *,
        target: Callable[..., None],
        args: tuple[object, ...] = (),
        name: str = "thread",
        daemon: bool = False,
    ) -> TurnThread:
        """As `threading.Thread`."""
        del daemon
        return TurnThread(self._turns, target, args, name)


@contextmanager
def taking_turns(turns: Turns) -> Iterator[None]:
    """Let the receiver's threads be tasks inside this block; for one run at a time."""
    before = [(module, vars(module)["threading"]) for module in MODULES]
    stand_in = TurnThreading(turns)
    try:
        for module, _ in before:
            vars(module)["threading"] = stand_in
        yield
    finally:
        for module, threading in before:
            vars(module)["threading"] = threading
