"""Waiting in tests for what other threads do, with an end."""

from __future__ import annotations

from collections.abc import Callable

from weightstore.clock import SystemClock

WAIT_S = 60.0
"""Longer than a busy machine stands still."""
_LOOK_S = 0.001


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Look again and again until something is so.

    Raises:
        AssertionError: it is not, in all that time.
    """
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + timeout_s
    while not condition():
        assert clock.monotonic_s() < deadline_s, "waited in vain"
        clock.sleep(_LOOK_S)
