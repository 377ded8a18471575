"""The log is looked at for as long as the block lasts, whatever a look ends with."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from weightstore.errors import CorruptObjectError, StorageFailedError, UnknownOutcomeError
from weightstore.receiver.ranks.looking import looking

WAIT_S = 20.0


def test_it_looks_on_after_errors_of_the_store_and_ends_with_the_block() -> None:
    errors: Iterator[Exception] = iter(
        [StorageFailedError("away"), UnknownOutcomeError("perhaps"), CorruptObjectError("damaged")]
    )
    enough, before = threading.Event(), set(threading.enumerate())
    count = 0

    def look() -> None:
        nonlocal count
        count += 1
        if count > 5:
            enough.set()
        for error in errors:
            raise error

    with looking(look, 0.001, threading.Event()):
        assert enough.wait(WAIT_S)
    assert not set(threading.enumerate()) - before
    last = count
    enough.clear()
    assert not enough.wait(0.05)
    assert count == last


def test_it_ends_when_told() -> None:
    stop, looked = threading.Event(), threading.Event()
    before = set(threading.enumerate())
    with looking(looked.set, 0.001, stop):
        assert looked.wait(WAIT_S)
        stop.set()
        for watcher in set(threading.enumerate()) - before:
            watcher.join(WAIT_S)
        assert not set(threading.enumerate()) - before
