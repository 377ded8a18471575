"""Visit every state that a small model can reach, shortest paths first.

A model is a set of beginnings, the moves out of a state and what is broken in a state.
States are compact hashable values, so two histories that lead to the same state are
followed once. The first broken state is reported with the moves that lead to it; being
the first of a breadth-first search, no shorter way to break the model exists.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

STATE_COUNT_MAX = 2_000_000

StateT = TypeVar("StateT", bound=Hashable)


class Model(Protocol[StateT]):
    """A finite system: where it begins, how it moves, what must never be."""

    @property
    def name(self) -> str:
        """One word for tables."""
        ...

    @property
    def bounds(self) -> str:
        """How far the search goes, in words."""
        ...

    def beginnings(self) -> Iterable[tuple[str, StateT]]:
        """Labelled first states."""
        ...

    def moves(self, state: StateT, /) -> Iterator[tuple[str, StateT]]:
        """Every next state with the label of the move."""
        ...

    def broken(self, state: StateT, /) -> str | None:
        """The promise that this state breaks, or None."""
        ...

    def stuck(self, state: StateT, /) -> str | None:
        """Why a state without moves is wrong, or None if everybody has come to an end."""
        ...


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A broken state and the shortest way to it."""

    broken: str
    trace: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a search saw. Without a counterexample it saw every reachable state."""

    state_count: int
    move_count: int
    depth: int
    counterexample: Counterexample | None


def explore(model: Model[StateT], *, state_count_max: int = STATE_COUNT_MAX) -> Exploration:
    """Visit every reachable state, or stop at the first broken one.

    Raises:
        RuntimeError: more than `state_count_max` states; nothing was shown.
    """
    return _Search(model, state_count_max).run()


@contextmanager
def _without_cycle_search() -> Iterator[None]:
    """States hold no cycles, and looking for some takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Search(Generic[StateT]):
    def __init__(self, model: Model[StateT], state_count_max: int) -> None:
        self._model = model
        self._state_count_max = state_count_max
        self._ways: dict[StateT, tuple[StateT | None, str]] = {}
        self._queue: deque[tuple[StateT, int]] = deque()
        self._move_count = 0
        self._depth = 0

    def run(self) -> Exploration:
        found = self._begin()
        with _without_cycle_search():
            while self._queue and found is None:
                state, self._depth = self._queue.popleft()
                found = self._follow(state)
        return Exploration(len(self._ways), self._move_count, self._depth, found)

    def _begin(self) -> Counterexample | None:
        found = None
        for label, state in self._model.beginnings():
            found = found or self._visit(state, None, label, 0)
        return found

    def _follow(self, here: StateT) -> Counterexample | None:
        before = self._move_count
        for label, state in self._model.moves(here):
            self._move_count += 1
            if state not in self._ways:
                found = self._visit(state, here, label, self._depth + 1)
                if found is not None:
                    return found
        if self._move_count == before:
            return self._judge(here, self._model.stuck(here))
        return None

    def _visit(
        self, state: StateT, before: StateT | None, label: str, depth: int
    ) -> Counterexample | None:
        if len(self._ways) >= self._state_count_max:
            raise RuntimeError(f"{self._model.name} has more than {self._state_count_max} states")
        self._ways[state] = (before, label)
        self._queue.append((state, depth))
        return self._judge(state, self._model.broken(state))

    def _judge(self, state: StateT, broken: str | None) -> Counterexample | None:
        return None if broken is None else Counterexample(broken, self._trace(state))

    def _trace(self, state: StateT) -> tuple[str, ...]:
        labels: list[str] = []
        at: StateT | None = state
        while at is not None:
            at, label = self._ways[at]
            labels.append(label)
        return tuple(reversed(labels))
