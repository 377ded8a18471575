"""Keeping a directory at the newest version, or at the active one, for as long as is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from weightstore.arguments import shown
from weightstore.clock import Clock
from weightstore.errors import (
    InputRefusedError,
    NotFoundError,
    UnavailableError,
    UnknownOutcomeError,
    WeightStoreError,
)
from weightstore.history.progress import Progress, no_progress
from weightstore.receiver.host_files.host_files import HostFiles
from weightstore.receiver.live_state import Way
from weightstore.receiver.reports import RefitReport

POLL_S_MAX = 3600.0
WAIT_GROWTH = 2.0
"""Each failure in a row makes the next wait so many times as long."""
WAIT_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why the directory was not brought to a version; it is tried again.

    Attributes:
        error: What happened.
        wait_s: Until the next try.
    """

    error: WeightStoreError
    wait_s: float


def follow(
    files: HostFiles,
    selector: str,
    *,
    clock: Clock,
    poll_s: float,
    is_wanted: Callable[[], bool],
    progress: Progress = no_progress,
) -> Iterator[RefitReport | Hindrance]:
    """Bring a directory to each new version that is seen.

    Waits between looks with the clock. What a storage fails at, or may have failed at, and a store
    without such a version, is told and tried again, later after each failure; any other error
    ends it.

    Args:
        files: The directory.
        selector: `"latest"` or `"active"`.
        clock: Waits.
        poll_s: Seconds between two looks at the store.
        is_wanted: Asked before each look; False ends it.
        progress: As for `HostFiles.refit`.

    Yields:
        The report of each change and of the first success after a failure, and each failure
        that is not the same as the one before.

    Raises:
        InputRefusedError: the time is no number of seconds that can be waited.
    """
    wait_s = _checked(poll_s)
    last = ""
    while is_wanted():
        try:
            report = files.refit(selector, progress=progress)
        except (UnavailableError, UnknownOutcomeError, NotFoundError) as error:
            wait_s = min(max(wait_s, poll_s) * WAIT_GROWTH, max(WAIT_S_MAX, poll_s))
            if error.message != last:
                last = error.message
                yield Hindrance(error, wait_s)
        else:
            # After a failure always: its last step may have been what was missing.
            is_news = report.way is not Way.NOTHING or report.is_redo or last
            wait_s, last = poll_s, ""
            if is_news:
                yield report
        if is_wanted():
            clock.sleep(wait_s)


def _checked(poll_s: object) -> float:
    if isinstance(poll_s, int | float) and not isinstance(poll_s, bool):
        seconds = float(poll_s)
        if math.isfinite(seconds) and 0 < seconds <= POLL_S_MAX:
            return seconds
    raise InputRefusedError(
        f"poll_s={shown(poll_s)} is no time between two looks",
        do=f"Give seconds above 0, at most {POLL_S_MAX:.0f}.",
        facts={"argument": "poll_s"},
    )
