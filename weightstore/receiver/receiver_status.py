"""What a receiver tells about itself: its status, its totals, and a report of each refit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from weightstore.ids import Slot, VersionId
from weightstore.receiver.live_state import (
    Applying,
    Dirty,
    Empty,
    Live,
    Ready,
    Staged,
    VersionRef,
    Whole,
    held_version,
)
from weightstore.receiver.reports import Phase, RefitReport, Report, spent_text
from weightstore.receiver.serve_policy import ModeName, TailView

ReportCallback = Callable[[Report], None]
StateName = Literal["empty", "whole", "applying", "dirty"]

LOGGER = logging.getLogger("weightstore.receiver")


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all refits since the receiver was made.

    Attributes:
        refit_count: Those that ended without an error, also those that found nothing to do.
        failed_count: Those that an error ended.
        wire_bytes: Bytes of the objects that were read.
        applied_bytes: Bytes written to live memory.
        last_pause_s: How long the last of them stopped serving.
    """

    refit_count: int = 0
    failed_count: int = 0
    wire_bytes: int = 0
    applied_bytes: int = 0
    last_pause_s: float = 0.0

    def with_report(self, report: Report) -> Totals:
        """The sums with one more refit."""
        is_done = isinstance(report, RefitReport)
        return Totals(
            refit_count=self.refit_count + is_done,
            failed_count=self.failed_count + (not is_done),
            wire_bytes=self.wire_bytes + report.size_bytes.wire,
            applied_bytes=self.applied_bytes + report.size_bytes.applied,
            last_pause_s=report.pause_s if is_done else self.last_pause_s,
        )


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """A receiver at one moment.

    Attributes:
        mode: By what it serves.
        state: Of its live weights.
        live: The version that they wholly are; None unless the state is `whole`.
        staged: The version that is ready to be applied.
        newest: The newest version that it heard of.
        active: The version that the newest activation it has read names.
        activate_slot: Of that activation's record.
        lag: Versions that `live` is behind `newest`; None where either is not known.
        tail_age_s: Seconds since the last look at the log began; None before the first.
        phase: What it is doing: the `Phase` of a refit, staging or scan; between two of them
            `refit`, `stage`, `apply`, `recover` or `scan`; or nothing.
        totals: Of all refits.
        last_report: Of the last refit, done or failed.
        is_ready: Whether a serving block could begin now.
        why_not: Why it could not; empty where it could.
    """

    mode: ModeName
    state: StateName
    live: VersionRef | None
    staged: VersionRef | None
    newest: VersionId | None
    active: VersionId | None
    activate_slot: Slot | None
    lag: int | None
    tail_age_s: float | None
    phase: str
    totals: Totals
    last_report: Report | None
    is_ready: bool
    why_not: str


def _none() -> None:
    return None


class Reporter:
    """Keeps totals, tells callbacks, and logs a line for each refit. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[ReportCallback] = []
        self._doing: tuple[tuple[str, Callable[[], Phase | None]], ...] = ()
        self.totals = Totals()
        self.last_report: Report | None = None

    @property
    def phase(self) -> str:
        """What is being done, as closely as it says; empty while nothing is."""
        doing = self._doing
        if not doing:
            return ""
        what, phase_of = doing[-1]
        phase = phase_of()
        return what if phase is None else phase.value

    def add(self, callback: ReportCallback) -> None:
        """Tell one more callback of each refit."""
        with self._lock:
            self._callbacks = [*self._callbacks, callback]

    @contextmanager
    def doing(self, what: str, phase_of: Callable[[], Phase | None] = _none) -> Iterator[None]:
        """Say inside what is being done.

        Args:
            what: In a word.
            phase_of: Tells the phase that it is in, from any thread; None while it is in none.
        """
        before = self._doing
        self._doing = (*before, (what, phase_of))
        try:
            yield
        finally:
            self._doing = before

    def tell(self, report: Report, *, done_level: int = logging.INFO) -> None:
        """Count, log and pass on the report of a refit.

        A callback that raises is logged: the refit has happened, whatever is made of its report.

        Args:
            report: Of the refit.
            done_level: At which one is logged that is done.
        """
        with self._lock:
            self.totals = self.totals.with_report(report)
            self.last_report = report
            callbacks = self._callbacks
        _log(report, done_level)
        for callback in callbacks:
            try:
                callback(report)
            except Exception:
                # Whatever a metric or a log of the caller's lacks, the weights are in place: an
                # error here would make a refit look failed that was not. (P11)
                LOGGER.exception("a callback of refit reports failed")


def state_name(live: Live) -> StateName:
    """The state of live weights in a word."""
    match live:
        case Empty():
            return "empty"
        case Whole():
            return "whole"
        case Applying():
            return "applying"
        case Dirty():
            return "dirty"
        case _:
            assert_never(live)


def staged_ref(staged: Staged) -> VersionRef | None:
    """The version that is ready; None while nothing is."""
    return staged.target if isinstance(staged, Ready) else None


def make_status(
    mode: ModeName,
    live: Live,
    staged: Staged,
    view: TailView | None,
    now_s: float,
    *,
    reporter: Reporter,
    why_not: str,
) -> ReceiverStatus:
    """Put a status together from values that were read one by one."""
    held, newest = held_version(live), view.newest if view else None
    return ReceiverStatus(
        mode=mode,
        state=state_name(live),
        live=held,
        staged=staged_ref(staged),
        newest=newest,
        active=view.active if view else None,
        activate_slot=view.active_slot if view else None,
        lag=max(newest - held.version, 0) if held and newest is not None else None,
        tail_age_s=max(now_s - view.read_at_s, 0.0) if view else None,
        phase=reporter.phase,
        totals=replace(reporter.totals),
        last_report=reporter.last_report,
        is_ready=not why_not,
        why_not=why_not,
    )


def _log(report: Report, done_level: int) -> None:
    seconds = {phase.value: each for phase, each in report.seconds.items()}
    spent = spent_text(seconds, report.size_bytes)
    if isinstance(report, RefitReport):
        LOGGER.log(
            done_level,
            "version %s -> %s by %s%s%s; %s",
            report.base,
            report.target,
            report.way.value,
            " again" if report.is_redo else "",
            f" ({report.reason})" if report.reason else "",
            spent,
        )
        return
    LOGGER.info(
        "version %s -> %s failed with %s: %s; %s",
        report.base,
        report.target,
        report.error_code,
        report.message,
        spent,
    )
