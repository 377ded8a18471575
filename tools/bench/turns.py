"""Measuring several things in turns: A B A B, so that all meet the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Timed = Callable[[], float]
"""Does something once and returns the seconds that count."""


def seconds(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def timed(work: Callable[[], object]) -> Timed:
    """Make something whose every call counts whole."""
    return lambda: seconds(work)


def in_turns(work: Mapping[str, Timed], turn_count: int) -> dict[str, list[float]]:
    """Do each once uncounted, which compiles and faults pages in, then all in turns."""
    for each in work.values():
        each()
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(turn_count):
        for name, each in work.items():
            taken[name].append(each())
    return taken


def rates(size_bytes: int, taken: list[float]) -> list[float]:
    """Turn seconds into GB/s."""
    return [size_bytes / each / 1e9 for each in taken]
