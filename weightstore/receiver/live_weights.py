"""Live weights between versions: staging, writing, and what is known after each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weightstore.errors import InputRefusedError, LiveWeightsError, WrongBaseError
from weightstore.format.records import VersionRecord
from weightstore.history.delta_path import DeltaPath, NoDeltaPath
from weightstore.receiver.delta_work import LiveTables
from weightstore.receiver.gate import ServingGate
from weightstore.receiver.live_state import (
    Building,
    Dirty,
    Empty,
    Live,
    NothingStaged,
    Ready,
    Staged,
    VersionRef,
    Way,
    Whole,
    begin,
    finish,
    held_version,
    soil,
)
from weightstore.receiver.placement import Placement
from weightstore.receiver.reports import Phase, RefitReport, Tally
from weightstore.receiver.rolling_scan import damaged_tensors
from weightstore.receiver.steps import ChangeStep, Step, StepMaker, StreamStep

Callback = Callable[[VersionRef], None]


class LiveWeights:
    """What the memory holds, what is staged for it, and the moves between. One thread at a time.

    Args:
        maker: Makes versions ready.
        gate: Stops readers.
        thread_count: Threads for scans.
        block_timeout_s: How long a change waits for open serving blocks.

    Attributes:
        live: What the memory holds.
        staged: What is ready to be written.
        target: The version that was last there or on its way; None before the first.
        done_count: Times that a version came into place.
        callbacks: Called after each change of version, before the gate opens.
    """

    def __init__(
        self, maker: StepMaker, gate: ServingGate, *, thread_count: int, block_timeout_s: float
    ) -> None:
        self._maker = maker
        self._gate = gate
        self._thread_count = thread_count
        self._block_timeout_s = block_timeout_s
        self.live: Live = Empty()
        self.staged: Staged = NothingStaged()
        self.target: VersionRef | None = None
        self.done_count = 0
        self.callbacks: list[Callback] = []
        self._tables: LiveTables | None = None
        self._step: Step | None = None
        self._undo: tuple[Ready, ChangeStep] | None = None

    @property
    def placement(self) -> Placement:
        """Where the tensors live."""
        return self._maker.placement

    @property
    def held(self) -> VersionRef | None:
        """The version that is wholly there."""
        return held_version(self.live)

    @property
    def is_cut(self) -> bool:
        """Whether a staged change was cut on its way in, and heals what it left."""
        is_ready = isinstance(self.live, Dirty) and isinstance(self.staged, Ready)
        return is_ready and isinstance(self._step, ChangeStep)

    def stage(self, record: VersionRecord, tally: Tally) -> Ready:
        """Make a version ready, unless it is already. Writes no live memory.

        Raises:
            WrongBaseError, LiveWeightsError, SchemaMismatchError, CorruptError,
            VersionGoneError: as `StepMaker.make`.
        """
        target, held, staged = VersionRef.of(record), self.held, self.staged
        if isinstance(staged, Ready) and (staged.base, staged.target) == (held, target):
            return staged
        if held == target:
            self.staged, self._step = Ready(held, target, Way.NOTHING), None
            return self.staged
        self.drop()
        self._check_addresses()
        if held is None:
            tally.reason = _said(self.live)
        self.staged = Building(target)
        try:
            way = self._maker.way(record, held, tally)
            step = self._make(record, way, tally)
        except BaseException:
            self.drop()
            raise
        base = None if step.way is Way.FULL else held
        self._step, self.staged = step, Ready(base, target, step.way)
        return self.staged

    def apply(self, tally: Tally) -> RefitReport:
        """Write what is ready; the gate is closed from the first write to the last callback.

        After a crash or an error: dirty, and not served.

        Raises:
            InputRefusedError: nothing is ready.
            LiveWeightsError: live memory did not hold what it should.
            CorruptError: a version that is written whole or streamed is damaged.
        """
        ready, step, base = self.staged, self._step, self.held
        if not isinstance(ready, Ready):
            raise InputRefusedError("nothing is staged", do="Call stage or refit.")
        is_redo = self.is_cut
        if step is not None:
            self._check_addresses()
            with tally.phase(Phase.WAIT):
                reason = f"version {ready.target.version} is being applied"
                self._gate.close(reason, self._block_timeout_s)
            with tally.phase(Phase.PAUSE):
                self._write(ready, step, tally, is_redo=is_redo)
        self.staged, self._step = NothingStaged(), None
        self.done_count += 1
        return tally.report(
            base.version if base else None,
            ready.target.version,
            ready.way,
            full_bytes=self.placement.size_bytes,
            is_redo=is_redo,
        )

    def finish_cut(self, tally: Tally) -> RefitReport | None:
        """Write a change again that was cut; None if there is none, or it is of no use."""
        if not self.is_cut:
            return None
        try:
            return self.apply(tally)
        except LiveWeightsError:
            # Now dirty without anything staged: the whole version is next.
            return None

    def stage_rollback(self) -> None:
        """Make the version before the last change ready, or before the one that was cut.

        Raises:
            InputRefusedError: no old bits are kept.
        """
        cut = (self.staged, self._step) if self.is_cut else (None, None)
        ready, step = cut if self.is_cut else self._undo or (None, None)
        if not (isinstance(ready, Ready) and isinstance(step, ChangeStep) and ready.base):
            raise InputRefusedError(
                "no bits of the version before are kept", do="Refit to that version."
            )
        self.staged = Ready(ready.target, ready.base, Way.CHANGE)
        self._step = step.reversed()

    def adopt(self, record: VersionRecord, tally: Tally) -> VersionRef:
        """Take what is live for a version, after a full scan.

        Raises:
            WrongBaseError: it is not; names the tensors.
        """
        ref = VersionRef.of(record)
        self._check_addresses()
        tables = self._maker.expected(record)
        names = self._damaged(range(len(self.placement.destinations)), tables, tally)
        if names:
            raise WrongBaseError(
                f"the live weights are not {ref}: {len(names)} tensors, the first "
                f"{names[0]!r}, have other digests; nothing was written",
                do="Refit: the version is then written in place.",
                facts={"version": ref.version, "expected": ref.digest, "tensors": names},
            )
        self.drop()
        self.live, self._tables, self.target = Whole(ref), tables, ref
        self._gate.open(ref)
        return ref

    def look_at(self, numbers: list[int], tally: Tally) -> tuple[str, ...]:
        """Names of tensors that are not what is known of them; any makes dirty."""
        assert self._tables is not None
        names = self._damaged(numbers, self._tables, tally)
        if names:
            self.soil(f"a scan found {len(names)} tensors changed, the first {names[0]!r}")
        return names

    def next_share(self) -> list[int]:
        """The destinations that a rolling scan looks at next."""
        return self._maker.rolling.take()

    def soil(self, reason: str) -> None:
        """Give up what is known, and everything that was staged on top of it."""
        self.drop()
        self.live = soil(self.live, reason)
        self._tables = None
        self._gate.shut(reason)

    def drop(self) -> None:
        """Forget what is staged, and the old bits of the last change."""
        self.staged, self._step, self._undo = NothingStaged(), None, None

    def reopen(self) -> None:
        """Open the gate if it was left closed over a version that is wholly there."""
        if self.held is not None and self._gate.open_version != self.held:
            self._gate.open(self.held)

    def _make(
        self, record: VersionRecord, way: DeltaPath | NoDeltaPath | None, tally: Tally
    ) -> Step:
        try:
            return self._maker.make(record, way, self._tables, tally)
        except (LiveWeightsError, WrongBaseError) as error:
            # What is stored was checked by itself, so it is the live bits that are wrong.
            self.soil(error.message)
            raise

    def _write(self, ready: Ready, step: Step, tally: Tally, *, is_redo: bool) -> None:
        try:
            self.live, self.target = begin(self.live, ready), ready.target
            with tally.phase(Phase.APPLY):
                self._tables = step.write(tally, is_redo=is_redo)
            self._maker.seat_of(step)
            self.live = finish(self.live)
            with tally.phase(Phase.RESUME):
                for callback in self.callbacks:
                    callback(ready.target)
        except BaseException as error:
            self._cut(step, error)
            raise
        self._undo = (ready, step) if isinstance(step, ChangeStep) else None
        self._gate.open(ready.target)

    def _cut(self, step: Step, error: BaseException) -> None:
        """Note that something went wrong on the way; what can be written again stays."""
        reason = f"an apply was cut: {error}"
        if isinstance(step, StreamStep) or isinstance(error, LiveWeightsError):
            self.drop()
        self.live = soil(self.live, reason)
        self._gate.shut(reason)

    def _damaged(self, numbers: Sequence[int], tables: LiveTables, tally: Tally) -> tuple[str, ...]:
        with tally.phase(Phase.VERIFY):
            return damaged_tensors(self.placement, numbers, tables.lanes, self._thread_count)

    def _check_addresses(self) -> None:
        try:
            self.placement.check_addresses()
        except LiveWeightsError as error:
            self.soil(error.message)
            raise


def _said(live: Live) -> str:
    """Why nothing is known of the live weights, in words."""
    return f"dirty: {live.reason}" if isinstance(live, Dirty) else "the receiver is empty"
