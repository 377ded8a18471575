"""`Leader`: decides for all ranks of an engine; lives in the process of rank 0.

A round brings one version to every rank: stage, then close, apply, resume, open. Each part is
asked only when every rank has answered the one before, so no gate opens before all have
applied, and none is written before all are closed. (P4)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from weightstore import arguments
from weightstore.clock import Clock
from weightstore.errors import (
    CorruptError,
    InputRefusedError,
    NotFoundError,
    RankFailedError,
    RanksDisagreeError,
)
from weightstore.format.records import VersionRecord
from weightstore.ids import VersionId
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.ranks.answers import Answers, only_given_up, refuse_failed
from weightstore.receiver.ranks.digest_sums import DigestSums
from weightstore.receiver.ranks.engine_report import EngineReport, logged, rank_reports
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.ranks.messages import Part, ref_of
from weightstore.receiver.ranks.roll_call import RollCall, T, Waiting
from weightstore.receiver.ranks.stepping import OWN_ENGINE, refuse_callback
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.machine import process_id, refuse_fork


class Leader:
    """Refits an engine of several ranks: of several threads one after the other.

    Args:
        roll_call: Asks the ranks.
        source: The store.
        clock: For times in reports, and for waits.
        settings: Times and bounds.

    Attributes:
        own_step: A step of the rank that lives in this process.
        before_drop: Called before a version that all have staged is given up.
        live: The version that is open on every rank; None while there is none.
        staged: The version that every rank has staged; None while there is none.
        opened: Generation of the engine, and turn of the order, that opened it last.
        pending: The version that a round was about that failed after the gates were closed.
    """

    def __init__(
        self,
        roll_call: RollCall,
        source: VersionSource,
        *,
        clock: Clock,
        settings: EngineSettings,
    ) -> None:
        self._roll_call = roll_call
        self._source = source
        self._clock = clock
        self._settings = settings
        self._is_attached = False
        self._is_waiting = False
        self._sums = DigestSums(source)
        self._lock = threading.RLock()
        self._stage_s = 0.0
        self._process = process_id()
        self.own_step: Callable[[], bool] = lambda: False
        self.before_drop: Callable[[], None] = lambda: None
        self.live: VersionRef | None = None
        self.opened: tuple[int, int] | None = None
        self.staged: VersionRef | None = None
        self.pending: VersionRef | None = None

    @property
    def version(self) -> VersionId | None:
        """The version that is open on every rank; None while there is none."""
        return self.live.version if self.live else None

    @property
    def engine_id(self) -> str | None:
        """Of the engine that this leader has begun; None before the first."""
        engine = self._roll_call.engine
        return engine.engine_id if engine else None

    def lost_ranks(self) -> tuple[int, ...]:
        """Ranks whose process was replaced since it attached to this leader's engine."""
        return self._roll_call.lost_ranks()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other thread ask the ranks for anything inside.

        Raises:
            StoreClosedError: this is a forked child; the engine is its parent's.
            InputRefusedError: a callback of a rank asks, for which the leader waits.
        """
        refuse_fork(self._process, "this engine", OWN_ENGINE)
        refuse_callback(self.engine_id)
        with self._lock:
            yield

    def given_up_ranks(self) -> tuple[int, ...]:
        """Ranks that have said that they no longer hold what was opened last."""
        return () if self.opened is None else self._roll_call.given_up_ranks(*self.opened)

    def attach(self) -> VersionRef | None:
        """Begin an engine and wait for every rank.

        Ranks that all hold one version whole, by a full scan each, serve it again.

        After a crash: the next leader begins another engine.

        Returns:
            The version that is open on every rank now; None if there is none.

        Raises:
            SchemaMismatchError: the ranks' boxes overlap or leave something out; all of it is
                listed.
            RankFailedError: a rank has not come in time, or failed.
            FencedError: another leader has begun an engine.
        """
        return self._driven(self.attaching())

    def stage(self, selector: int | str = "latest") -> VersionRef:
        """Make a version ready on every rank while all of them serve.

        Raises:
            RankFailedError, RanksDisagreeError, FencedError: as `refit`.
        """
        return self._driven(self.staging(selector))

    def apply(self) -> EngineReport:
        """Bring what every rank has staged into place, on all of them.

        After a crash or an error: as `refit`.

        Raises:
            InputRefusedError: nothing is staged on every rank; all serve as before.
            RankFailedError, RanksDisagreeError, FencedError: as `refit`.
        """
        return self._driven(self.applying())

    def refit(self, selector: int | str = "latest") -> EngineReport:
        """Bring a version into place on every rank, whatever is there.

        A round that had failed is finished first, if it can be.

        After a crash or an error: as long as no gate was closed, all ranks serve on; later
        none serves until a refit has succeeded, here or by another leader. (P4, P5)

        Raises:
            RankFailedError: a rank failed, or is gone; the facts say which, and its code.
            RanksDisagreeError: partial digests do not add up; no rank serves.
            SchemaMismatchError, FencedError: as `attach`.
            VersionGoneError, VersionNotFoundError, CorruptError: of the version.
        """
        return self._driven(self.refitting(selector))

    def verify(self) -> VersionRef:
        """Look at every element on every rank, all of which serve; the version that they are.

        Raises:
            InputRefusedError: no version is.
            RankFailedError: a rank's weights differ, or it is gone, and no rank serves until a
                refit; or a rank has given up its weights, and the others serve on.
        """
        return self._driven(self.verifying())

    # The same as generators, which yield while an answer is missing: a test puts any step of any
    # rank in between.

    def attaching(self) -> Waiting[VersionRef | None]:
        """`attach`, step by step."""
        return self._guarded(self._attach())

    def staging(self, selector: int | str) -> Waiting[VersionRef]:
        """`stage`, step by step."""
        return self._guarded(self._stage_selected(arguments.selector(selector)))

    def applying(self) -> Waiting[EngineReport]:
        """`apply`, step by step."""
        return self._guarded(self._apply_staged())

    def refitting(self, selector: int | str) -> Waiting[EngineReport]:
        """`refit`, step by step."""
        return self._guarded(self._refit(arguments.selector(selector)))

    def verifying(self) -> Waiting[VersionRef]:
        """`verify`, step by step."""
        return self._guarded(self._verify())

    def _driven(self, waiting: Waiting[T]) -> T:
        """Run to the end, with this process's own rank in between; every wait has a deadline."""
        with self.alone(), closing(waiting):
            while True:
                try:
                    next(waiting)
                except StopIteration as end:
                    found: T = end.value
                    return found
                if not self.own_step():
                    self._clock.sleep(self._settings.poll_s)

    def _guarded(self, waiting: Waiting[T]) -> Waiting[T]:
        """Trust in where the ranks are only after an end that says it.

        What fails while no rank is asked for anything, as a store that is away, moves none: they
        serve on, and the next try goes on from here.
        """
        refuse_fork(self._process, "this engine", OWN_ENGINE)
        is_known = False
        try:
            found = yield from waiting
            is_known = True
        except (RankFailedError, RanksDisagreeError, NotFoundError):
            is_known = True
            raise
        finally:
            if not is_known and not self._roll_call.is_settled:
                self._is_attached = self._is_waiting = False
        return found

    def _ready(self) -> Waiting[None]:
        """Attach, unless every rank is where it was."""
        if not self._is_attached or self.lost_ranks():
            yield from self._attach()

    def _attach(self) -> Waiting[VersionRef | None]:
        if not self._is_waiting:
            self._begin()
        answers = yield from self._roll_call.attached()
        # Whatever comes now, the next attachment is that of a new engine.
        self._is_waiting = False
        refuse_failed(answers)
        self._sums.attach(answers)
        self._is_attached = True
        held = {None if one.held is None else ref_of(one.held) for one, _ in answers}
        common = held.pop() if len(held) == 1 else None
        record = None if common is None else self._source.kept(common)
        if record is not None:
            yield from self._round(record)
        return self.live

    def _stage_selected(self, selector: int | str) -> Waiting[VersionRef]:
        yield from self._ready()
        return (yield from self._stage(self._source.find(selector)))

    def _refit(self, selector: int | str) -> Waiting[EngineReport]:
        yield from self._ready()
        record = self._source.find(selector)
        begun = None if self.pending is None else self._source.kept(self.pending)
        if begun is not None:
            report = yield from self._finish(begun, record)
            if report is not None:
                return report
        elif self.pending is not None:
            yield from self._soil(self.pending, "the version that was on its way is retired")
        if self.live == VersionRef.of(record) and (yield from self._is_open(self.live)):
            return EngineReport(record.version, record.version)
        return (yield from self._round(record))

    def _finish(self, begun: VersionRecord, wanted: VersionRecord) -> Waiting[EngineReport | None]:
        """End a round that had failed; None where another version is wanted, and comes next."""
        is_wanted = begun.version == wanted.version
        try:
            report = yield from self._round(begun)
        except (RankFailedError, RanksDisagreeError, CorruptError, NotFoundError) as error:
            # A version that cannot be brought in must not keep out one that can.
            if is_wanted or error.facts.get("is_gone"):
                raise
            return None
        return report if is_wanted else None

    def _verify(self) -> Waiting[VersionRef]:
        yield from self._ready()
        if self.live is None:
            raise InputRefusedError("no version is open on every rank", do="Refit the engine.")
        live = self.live
        answers = yield from self._ask(Part.SCAN, live)
        try:
            refuse_failed(answers)
        except RankFailedError as error:
            if not only_given_up(answers):
                yield from self._soil(live, error.message)
            raise
        return live

    def _is_open(self, ref: VersionRef) -> Waiting[bool]:
        """Whether every rank is there and still holds the version that was opened."""
        answers = yield from self._ask(Part.CALL, ref)
        return all(one.held is not None and ref_of(one.held) == ref for one, _ in answers)

    def _round(self, record: VersionRecord) -> Waiting[EngineReport]:
        target = VersionRef.of(record)
        self._drop_lost()
        if self.staged != target:
            yield from self._stage(record)
        return (yield from self._apply(target))

    def _drop_lost(self) -> None:
        """Give up what is staged if a rank has told that it no longer has it.

        To find that only when all gates are closed would be a refit that fails.
        """
        if self.staged is not None:
            while self.own_step():
                continue  # between two rounds nobody else takes a step for rank 0
            if self._roll_call.unstaged_ranks():
                self._drop_staged()

    def _stage(self, record: VersionRecord) -> Waiting[VersionRef]:
        """Have a version staged, and its digests checked, while all serve."""
        target = VersionRef.of(record)
        start_s = self._clock.monotonic_s()
        self._roll_call.round += 1
        self._drop_staged()
        answers = yield from self._ask(Part.STAGE, target)
        refuse_failed(answers)
        try:
            self._sums.check_staged(answers, record, self.live)
        except RanksDisagreeError as error:
            yield from self._soil(target, error.message)
            raise
        self.staged = target
        self._stage_s = self._clock.monotonic_s() - start_s
        return target

    def _apply_staged(self) -> Waiting[EngineReport]:
        self._drop_lost()
        if self.staged is None or not self._is_attached:
            raise InputRefusedError("no version is staged on every rank", do="Call stage or refit.")
        return (yield from self._apply(self.staged))

    def _apply(self, target: VersionRef) -> Waiting[EngineReport]:
        try:
            return (yield from self._apply_parts(target))
        except BaseException:
            self._drop_staged()
            raise

    def _apply_parts(self, target: VersionRef) -> Waiting[EngineReport]:
        """Close, write, check and open, everywhere; each part when all have done the last."""
        start_s = self._clock.monotonic_s()
        base, is_redo = self.live, self.pending == target
        self.live, self.pending = None, target
        refuse_failed((yield from self._ask(Part.CLOSE, target)))
        answers = yield from self._ask(Part.APPLY, target)
        refuse_failed(answers)
        try:
            self._sums.check_applied(answers, target)
        except RanksDisagreeError as error:
            yield from self._soil(target, error.message)
            raise
        if any(answer.callback_count for answer, _ in answers):
            refuse_failed((yield from self._ask(Part.RESUME, target)))
        answers = yield from self._ask(Part.OPEN, target)
        refuse_failed(answers)
        self.opened = (self._roll_call.generation, self._roll_call.turn)
        self.live, self.staged, self.pending = target, None, None
        self._sums.open()
        report = EngineReport(
            base=base.version if base else None,
            target=target.version,
            ranks=rank_reports([answer for answer, _ in answers]),
            is_redo=is_redo,
            pause_s=self._clock.monotonic_s() - start_s,
            stage_s=self._stage_s,
        )
        return logged(report)

    def _soil(self, target: VersionRef, reason: str) -> Waiting[None]:
        """Let no rank serve, or go on from what it holds."""
        self._drop_staged()
        self.live, self.pending = None, None
        yield from self._ask(Part.SOIL, target, reason)

    def _ask(self, part: Part, target: VersionRef, reason: str = "") -> Waiting[Answers]:
        try:
            return (yield from self._roll_call.ask(part, target, base=self.live, reason=reason))
        except RankFailedError:
            self._begin()  # the others see it, and close
            raise

    def _begin(self) -> None:
        self._is_attached = self._is_waiting = False
        self._drop_staged()
        self.live, self.pending = None, None
        self._roll_call.begin()
        self._is_waiting = True

    def _drop_staged(self) -> None:
        if self.staged is not None:
            self.before_drop()
        self.staged = None
