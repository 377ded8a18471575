"""The handle of a put that goes on in the background, and what it reports."""

from __future__ import annotations

import inspect
import threading
import warnings
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weightstore import arguments
from weightstore.errors import StoreBusyError
from weightstore.ids import RunId, Step, VersionId

_PACKAGE_FOLDER = f"{Path(__file__).parents[1]}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class PutReport:
    """What one put did.

    Attributes:
        version: The committed version.
        run: The run that it belongs to.
        step: The trainer's step.
        repeated: The step was committed before with the same bytes; nothing was written.
        changed_count: Units that differ from the version before.
        unit_count: Units of all tensors.
        piece_count: Pieces that hold the change.
        wire_size_bytes: Packs, digest table, manifest and a new schema: what a reader of
            the version before has to fetch.
        full_size_bytes: The full form, where the version has one; else 0.
        device_bytes: Device memory that detection on the device keeps: a copy of the baseline
            of each tensor that is there. 0 without that setting.
        detect_s: Until the caller's tensors were read.
        write_s: From then until everything but the record was stored.
        commit_s: From then until the verdict, and the baseline moved.
        notes: What the caller should know; each is a warning of `result` too.
    """

    version: VersionId
    run: RunId
    step: Step
    repeated: bool
    changed_count: int
    unit_count: int
    piece_count: int
    wire_size_bytes: int
    full_size_bytes: int
    device_bytes: int
    detect_s: float
    write_s: float
    commit_s: float
    notes: tuple[str, ...] = ()


class PendingVersion:
    """A put in the background.

    The weights stay as they are until `captured` has returned.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._read = threading.Event()
        self._future: Future[PutReport] = Future()
        self._was_read = False
        self._warned = False

    def captured(self, *, timeout_s: float | None = None) -> None:
        """Wait until the caller's tensors were read; from then on they may change.

        Raises:
            InputRefusedError: `timeout_s` is no time to wait.
            StoreBusyError: not yet, after `timeout_s`.
            WeightStoreError: the put failed before it had read them.
        """
        if not self._read.wait(arguments.timeout_s(timeout_s)):
            raise self._busy("its tensors are still being read", timeout_s)
        if self._future.done() and not self._was_read:
            self._future.result()

    def result(self, *, timeout_s: float | None = None) -> VersionId:
        """Wait for the verdict of the log: the committed version, or the error.

        Raises:
            InputRefusedError: `timeout_s` is no time to wait.
            StoreBusyError: no verdict after `timeout_s`; the put goes on.
            CommitUnknownError: the log could not be reached; the next put resolves it.
            WeightStoreError: the put failed; nothing of it is visible.
        """
        return self._report(timeout_s).version

    def report(self, *, timeout_s: float | None = None) -> PutReport:
        """As `result`, with everything that is known about the put."""
        return self._report(timeout_s)

    def wait(self) -> None:
        """Wait for the end, whatever it is."""
        with suppress(CancelledError):
            self._future.exception()

    def abandon(self) -> None:
        """For the side that began it: never start it, unless it was started already."""
        self._future.cancel()

    def start(self) -> bool:
        """For the side that works: whether to go on, since nobody has abandoned it."""
        return self._future.set_running_or_notify_cancel()

    def mark_captured(self) -> None:
        """For the side that works: the tensors were read."""
        self._was_read = True
        self._read.set()

    def succeed(self, report: PutReport) -> None:
        """For the side that works: there is a verdict."""
        self._future.set_result(report)
        self.mark_captured()

    def fail(self, error: BaseException) -> None:
        """For the side that works: it ended with an error."""
        self._future.set_exception(error)
        self._read.set()

    def _report(self, timeout_s: float | None) -> PutReport:
        wait_s = arguments.timeout_s(timeout_s)
        try:
            report = self._future.result(wait_s)
        except TimeoutError:
            if self._future.done():
                raise
            raise self._busy("it has no verdict yet", timeout_s) from None
        if not self._warned:
            self._warned = True
            for note in report.notes:
                # Told to the thread that asks: a warning there may be an error, and must not
                # end the put.
                warnings.warn(note, UserWarning, stacklevel=_caller_level())
        return report

    def _busy(self, what: str, timeout_s: float | None) -> StoreBusyError:
        return StoreBusyError(
            f"the put of step {self.step} goes on: {what} after {timeout_s} s",
            do="Wait again; the put is not ended by a timeout.",
            facts={"step": self.step},
        )


def _caller_level() -> int:
    """The `stacklevel` at which whoever asks for it warns about this library's caller."""
    frame = inspect.currentframe()
    level = 0
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        frame = frame.f_back
        level += 1
    return level
