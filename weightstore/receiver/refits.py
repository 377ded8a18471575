"""What a receiver does to its weights, one thing at a time, each with its report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from weightstore import arguments
from weightstore.clock import Clock
from weightstore.errors import InputRefusedError, NotReadyError
from weightstore.format.records import VersionRecord
from weightstore.receiver.gate import OWN_RECEIVER, ServingGate
from weightstore.receiver.live_check import LiveCheck, destinations_of, live_check
from weightstore.receiver.live_state import Applying, Ready, VersionRef, Way, Whole
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.membership import Membership
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.receiver_status import Reporter
from weightstore.receiver.reports import Phase, RefitReport, Tally
from weightstore.receiver.serve_policy import Mode, TailView
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.machine import process_id, refuse_fork

ReportT = TypeVar("ReportT", RefitReport, RefitReport | None)

At = Literal["idle", "step"]
"""When weights may be written: between two requests, or between two engine steps."""


@dataclass
class Run:
    """One thing that is being done.

    Attributes:
        tally: Counts.
        base: The version that was there when it began; None where nothing was known.
        target: The version that is wanted, once it is known.
    """

    tally: Tally
    base: int | None = None
    target: int | None = None


class Refits:
    """Stages, applies and heals, in the order in which threads come. Safe from any thread.

    Args:
        source: The store.
        weights: What is moved.
        gate: Stops readers, and knows what was read of the tail.
        clock: For times.
        settings: Of the receiver.

    Attributes:
        lock: Held by whoever changes weights or stages for them.
        reporter: Told of each refit.
        membership: What tells others, while the receiver is followed.
    """

    def __init__(
        self,
        source: VersionSource,
        weights: LiveWeights,
        gate: ServingGate,
        clock: Clock,
        settings: ReceiverSettings,
    ) -> None:
        self.lock = threading.RLock()
        self.reporter = Reporter()
        self.membership: Membership | None = None
        self._source = source
        self._weights = weights
        self._gate = gate
        self._clock = clock
        self._settings = settings
        self._is_active = settings.policy.mode is Mode.ACTIVE
        self._staging: tuple[Ready, Tally] | None = None
        self._process = process_id()
        self._is_writing = False
        weights.before_drop = self._withdraw_gone

    def look(self) -> TailView:
        """As `Receiver.poll`."""
        self.refuse_fork()
        _, view = self._source.look(self._clock)
        self._gate.hear(view)
        return self._gate.view or view

    def follow(self, make: Callable[[], Membership]) -> Membership:
        """Take the membership of a follower, the only one there is.

        Raises:
            InputRefusedError: the receiver is followed already.
        """
        with self.owned():
            if self.membership is not None:
                raise InputRefusedError(
                    "this receiver is followed already", do="Close its follower first."
                )
            self.membership = make()
            return self.membership

    def unfollow(self) -> None:
        """Tell others no more."""
        self.membership = None

    def stage(self, selector: int | str) -> Ready:
        """As `Receiver.stage`."""
        wanted = arguments.selector(selector)
        with self._alone(), self._run("stage", self._new_tally()) as run:
            record = self._find(wanted, run)
            found = self._look_before(record, run.tally)
            if found is not None:
                found.raise_if_differing()
            return self._stage(record, run.tally)

    def apply(self, at: At) -> RefitReport:
        """As `Receiver.apply`."""
        _check(at)
        with self._alone():
            ready = self._weights.ready()
            with self._run("apply", self._tally_of_staged()) as run:
                run.target = ready.target.version
                report = self._apply(run.tally, at)
            return self._told(report)

    def refit(self, selector: int | str, at: At) -> RefitReport:
        """As `Receiver.refit`."""
        _check(at)
        wanted = arguments.selector(selector)
        entered_count = self._weights.done_count
        with self._alone():
            is_staged = isinstance(wanted, int) and self._stages(wanted)
            tally = self._tally_of_staged() if is_staged else self._new_tally()
            with self._run("refit", tally) as run:
                record = None if is_staged else self._find(wanted, run)
                version = int(wanted) if record is None else int(record.version)
                run.target = version
                was_waiting = self._weights.done_count > entered_count
                held = self._weights.held
                report = None
                if was_waiting and held is not None and self._yields_to(held, version):
                    stays = held.version
                    report = RefitReport(stays, stays, Way.NOTHING, superseded_by=stays)
                elif record is not None:
                    healed = self._written(lambda: self._weights.finish_cut(tally))
                    if healed is not None and self._weights.held == VersionRef.of(record):
                        report = healed
                    else:
                        if healed is not None:
                            # A change of its own, which others count as one.
                            self._told(healed)
                            tally = run.tally = self._new_tally()
                            run.base = healed.target
                        self._look_before(record, tally)
                        self._stage(record, tally)
                if report is None:
                    report = self._apply(tally, at)
            return self._told(report)

    def recover(self) -> RefitReport:
        """As `Receiver.recover`."""
        with self._alone():
            target = self._weights.target
            with self._run("recover", self._new_tally()) as run:
                run.target = target.version if target else None
                report = self._written(lambda: self._weights.finish_cut(run.tally))
            if report is not None:
                return self._told(report)
            wanted = self._weights.held or target
            return self.refit(wanted.version if wanted else "latest", "step")

    def rollback(self) -> RefitReport:
        """As `Receiver.rollback`."""
        with self._alone():
            self._withdraw_gone()
            try:
                self._weights.stage_rollback()
            except InputRefusedError:
                # What is staged stays staged.
                self._stand_by()
                raise
            return self.apply("step")

    def adopt(self, selector: int | str) -> VersionRef:
        """As `Receiver.adopt`."""
        wanted = arguments.selector(selector)
        with self._alone(), self.reporter.doing("scan"):
            run = Run(self._new_tally())
            return self._weights.adopt(self._find(wanted, run), run.tally)

    def invalidate(self, reason: str) -> None:
        """As `Receiver.invalidate`."""
        # At once: what the lock is held for may take minutes, and must not serve them meanwhile,
        # whoever opens the gate at its end.
        self._gate.hold(reason)
        try:
            with self.owned():
                self._weights.soil(reason)
        finally:
            self._gate.release()

    def check(self, tensors: Sequence[str] | None) -> LiveCheck:
        """As `Receiver.check`."""
        with self.owned(), self.reporter.doing("scan"):
            numbers = destinations_of(self._weights.placement, tensors)
            return self._looked_at(numbers, self._new_tally())

    def scan(self) -> VersionRef:
        """As `Receiver.scan`."""
        with self.owned(), self.reporter.doing("scan"):
            found = self._looked_at(self._weights.next_share(), self._new_tally())
        found.raise_if_differing()
        return VersionRef(found.version, found.digest)

    def _looked_at(self, numbers: list[int], tally: Tally) -> LiveCheck:
        held = self._weights.held
        if held is None:
            raise NotReadyError("no version is wholly there", do="Refit or recover it.")
        names = self._weights.look_at(numbers, tally)
        return live_check(self._weights.placement, held, numbers, names)

    def _find(self, selector: int | str, run: Run) -> VersionRecord:
        with run.tally.phase(Phase.DISCOVER):
            prefix, view = self._source.look(self._clock)
            self._gate.hear(view)
            record = self._source.find_in(prefix, selector)
        run.target = record.version
        return record

    def _stages(self, version: int) -> bool:
        """Whether a version is ready on top of what is live."""
        held, staged = self._weights.held, self._weights.staged
        if held is None or not isinstance(staged, Ready):
            return False
        return staged.target.version == version and staged.base in {None, held}

    def _yields_to(self, held: VersionRef, version: int) -> bool:
        """Whether what another thread has just brought in stays, and not this version (K3)."""
        view = self._gate.view
        active = view.active if self._is_active and view is not None else None
        if active in {held.version, version}:
            return version != active
        return held.version > version

    def _look_before(self, record: VersionRecord, tally: Tally) -> LiveCheck | None:
        """Look at a share of all elements before a version is staged on top of them (P8).

        Here and not when it is applied: the engine stands still then.
        """
        if not isinstance(self._weights.live, Whole) or self._stages(record.version):
            return None
        return self._looked_at(self._weights.next_share(), tally)

    def _stage(self, record: VersionRecord, tally: Tally) -> Ready:
        staged = self._weights.staged
        if isinstance(staged, Ready) and self._stages(record.version):
            return staged
        membership = self.membership
        if membership is not None:
            # Also of what is live by now: the claim of it is true only until the next apply.
            membership.withdraw()
        ready = self._weights.stage(record, tally)
        self._staging = (ready, tally)
        self._stand_by()
        return ready

    def _apply(self, tally: Tally, at: At) -> RefitReport:
        staged, self._staging = self._weights.staged, None
        with ExitStack() as stack:
            if at == "idle" and isinstance(staged, Ready) and staged.way is not Way.NOTHING:
                reason = f"version {staged.target.version} waits for open requests"
                timeout_s = self._settings.block_timeout_s
                with tally.phase(Phase.WAIT):
                    stack.enter_context(self._gate.drained(reason, timeout_s))
            return self._written(lambda: self._weights.apply(tally))

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            StoreClosedError: this is a forked child, where nobody may be left to release it.
        """
        self.refuse_fork()
        with self.lock:
            yield

    def refuse_fork(self) -> None:
        """Let no forked child wait for a lock.

        Raises:
            StoreClosedError: as `owned`.
        """
        refuse_fork(self._process, "this receiver", OWN_RECEIVER)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock, with no change under way.

        Raises:
            StoreClosedError: as `owned`.
            InputRefusedError: this is called by a callback of a change.
        """
        with self.owned():
            if self._is_writing:
                raise InputRefusedError(
                    "a version is on its way in, and one of its callbacks asks for another change",
                    do="Ask for it after the refit, such as in a callback of `on_report`.",
                )
            self._note_interrupt()
            yield

    def _note_interrupt(self) -> None:
        """Take for cut what an interrupt has left half done, so that it is written again."""
        weights = self._weights
        if isinstance(weights.live, Applying) and isinstance(weights.staged, Ready):
            with suppress(KeyboardInterrupt), weights.cut_by_errors(weights.staged, weights.step):
                raise KeyboardInterrupt

    def _written(self, write: Callable[[], ReportT]) -> ReportT:
        """Write what is staged, whose callbacks may look but not change anything (P4)."""
        self._is_writing = True
        try:
            return write()
        finally:
            self._is_writing = False

    def _told(self, report: RefitReport) -> RefitReport:
        # An interrupt may have come between the last write and the opening of the gate.
        self._weights.reopen()
        self.reporter.tell(report)
        return report

    @contextmanager
    def _run(self, phase: str, tally: Tally) -> Iterator[Run]:
        """Say what is being done, and report an error that ends it."""
        held = self._weights.held
        run = Run(tally, held.version if held else None)
        try:
            with self.reporter.doing(phase, lambda: run.tally.now):
                yield run
        except BaseException as error:
            full_bytes = self._weights.placement.size_bytes
            failure = run.tally.failure(run.base, run.target, error, full_bytes=full_bytes)
            self.reporter.tell(failure)
            raise

    def _tally_of_staged(self) -> Tally:
        """What staging has counted, to be counted on in the same report; only once."""
        staging, self._staging = self._staging, None
        if staging is not None and staging[0] is self._weights.staged:
            return staging[1]
        return self._new_tally()

    def _stand_by(self) -> None:
        membership = self.membership
        if membership is not None:
            membership.stand_by()

    def _withdraw_gone(self) -> None:
        membership = self.membership
        if membership is not None:
            membership.withdraw_gone()

    def _new_tally(self) -> Tally:
        return Tally(self._clock)


def _check(at: str) -> None:
    arguments.choice(at, "at", get_args(At))
