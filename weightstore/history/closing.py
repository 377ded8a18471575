"""Giving something up after an error, without hiding the error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weightstore.errors import WeightStoreError


@contextmanager
def closing_after(error: BaseException | None) -> Iterator[None]:
    """Let a failure to tidy up be a note on the error that led there, and not hide it.

    Without this a commit of unknown outcome would be reported as a handle that is closed.

    Args:
        error: What is on its way already; None lets the failure through.
    """
    try:
        yield
    except WeightStoreError as failure:
        if error is None:
            raise
        error.add_note(f"closing failed too: {failure.message}")
