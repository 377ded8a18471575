"""Whose step a thread takes: what is called back from there must not wait for that rank."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from weightstore.errors import InputRefusedError

OWN_ENGINE = "Make the ranks of an engine in the processes that serve them."
"""What a forked child does."""
_THIS_THREAD = threading.local()


class Stepped(Protocol):
    """A rank that does what a leader asks."""

    @property
    def engine_id(self) -> str | None:
        """Of the engine that it follows."""
        ...


@contextmanager
def stepping(rank: Stepped) -> Iterator[None]:
    """Let no callback inside ask the leader of the rank's engine: it waits for this thread."""
    before = _stepped()
    _THIS_THREAD.ranks = (*before, rank)
    try:
        yield
    finally:
        _THIS_THREAD.ranks = before


def refuse_callback(engine_id: str | None) -> None:
    """Let nobody ask a leader in the middle of a step of one of its ranks.

    Args:
        engine_id: Of the leader's engine; None before the first.

    Raises:
        InputRefusedError: this thread takes such a step.
    """
    if engine_id is not None and any(rank.engine_id == engine_id for rank in _stepped()):
        raise InputRefusedError(
            "a rank does what the leader of its engine asks, and one of its callbacks asks the "
            "leader for something else",
            do="Ask for it when the refit has ended.",
        )


def _stepped() -> tuple[Stepped, ...]:
    """The ranks of which this thread takes a step now."""
    found: tuple[Stepped, ...] = getattr(_THIS_THREAD, "ranks", ())
    return found
