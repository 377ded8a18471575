"""How long work says how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called from the thread that asked for the work, never from two at once."""

    def __call__(self, phase: str, done_bytes: int, total_bytes: int, /) -> None:
        """Take note.

        Args:
            phase: What is being done, such as `"anchor"`, `"delta"` or `"copy"`.
            done_bytes: Bytes of this phase that are done; never falls.
            total_bytes: All bytes of this phase, known from the plan.
        """
        ...


def no_progress(phase: str, done_bytes: int, total_bytes: int, /) -> None:
    """Take no note."""


class Meter:
    """Adds up the bytes of one phase and tells a `Progress`."""

    def __init__(self, progress: Progress, phase: str, total_bytes: int) -> None:
        self._progress = progress
        self._phase = phase
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def add(self, done_bytes: int) -> None:
        """Count more bytes of the phase as done."""
        self._done_bytes += done_bytes
        self._progress(self._phase, self._done_bytes, self._total_bytes)
