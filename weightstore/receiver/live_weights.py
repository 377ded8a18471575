"""Live weights between versions: staging, writing, and what is known after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from weightstore.arguments import counted
from weightstore.errors import CorruptError, InputRefusedError, LiveWeightsError, WrongBaseError
from weightstore.format.records import VersionRecord
from weightstore.history.delta_path import DeltaPath, NoDeltaPath
from weightstore.receiver.delta_work import LiveTables
from weightstore.receiver.gate import ServingGate
from weightstore.receiver.live_state import (
    Applying,
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
    why_unknown,
)
from weightstore.receiver.overwrite_step import Mixture
from weightstore.receiver.placement import Placement
from weightstore.receiver.reports import Phase, RefitReport, Tally
from weightstore.receiver.rolling_scan import damaged_tensors
from weightstore.receiver.steps import ChangeStep, FullStep, Step, StepMaker, StreamStep

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
        mixture: What a change that was cut has left, as long as that is known; it outlives the
            staged change.
        done_count: Times that a version came into place.
        callbacks: Called after each change of version, before the gate opens.
        before_drop: Called before a version that is ready is given up.
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
        self.mixture: Mixture | None = None
        self.done_count = 0
        self.callbacks: list[Callback] = []
        self.before_drop: Callable[[], None] = lambda: None
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
    def tables(self) -> LiveTables | None:
        """What is known of the version that is wholly there, or was just written."""
        return None if isinstance(self.live, Empty | Dirty) else self._tables

    @property
    def step(self) -> Step | None:
        """What writes the staged version; None where nothing has to be written."""
        return self._step

    @property
    def is_cut(self) -> bool:
        """Whether a staged change was cut on its way in, and heals what it left."""
        is_ready = isinstance(self.live, Dirty) and isinstance(self.staged, Ready)
        return is_ready and isinstance(self._step, ChangeStep)

    def ready(self) -> Ready:
        """What is ready to be applied.

        Raises:
            InputRefusedError: nothing is.
        """
        if not isinstance(self.staged, Ready):
            raise InputRefusedError("nothing is staged", do="Call stage or refit.")
        return self.staged

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
            tally.reason = why_unknown(self.live)
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
        ready, step, held = self.ready(), self._step, self.held
        is_redo = self.is_cut
        if step is None:
            self._end()
        else:
            self.close_for_apply(tally)
            with tally.phase(Phase.PAUSE):
                self.write_staged(tally)
                self.resume_after(tally)
                self.open_after()
        base = held or ready.base
        version, size = base.version if base else None, self.placement.size_bytes
        return tally.report(
            version, ready.target.version, ready.way, full_bytes=size, is_redo=is_redo
        )

    def close_for_apply(self, tally: Tally) -> None:
        """Stop readers; the first of the parts of `apply`, for ranks that take them together.

        Raises:
            InputRefusedError: nothing is ready.
            LiveWeightsError: the live tensors were moved; nothing is ready any more.
        """
        ready = self.ready()
        self._check_addresses()
        with tally.phase(Phase.WAIT):
            self.close(f"version {ready.target.version} is being applied")

    def close(self, reason: str) -> None:
        """Stop readers over whatever is there."""
        self._gate.close(reason, self._block_timeout_s)

    def write_staged(self, tally: Tally) -> None:
        """Write what is ready, behind the closed gate: `live` is applying until `resume_after`.

        After a crash or an error: dirty; a change that is still staged is written again.

        Raises:
            InputRefusedError, LiveWeightsError, CorruptError: as `apply`.
        """
        ready, step, is_redo = self.ready(), self._step, self.is_cut
        if step is None:
            return
        with self.cut_by_errors(ready, step):
            self.live, self.target, self._tables = begin(self.live, ready), ready.target, None
            with tally.phase(Phase.APPLY):
                self._tables = step.write(tally, is_redo=is_redo)
            self._maker.seat_once(step.placement)

    def resume_after(self, tally: Tally) -> None:
        """Take what was written for what is there, and call the callbacks.

        After a crash or an error: dirty, as after a write that was cut.
        """
        ready, step = self.ready(), self._step
        with self.cut_by_errors(ready, step):
            self.settle()
            with tally.phase(Phase.RESUME):
                for callback in self.callbacks:
                    callback(ready.target)

    def open_after(self) -> None:
        """Let readers in to what was written; the last of the parts of `apply`."""
        ready, step = self.ready(), self._step
        assert self.held == ready.target, (self.live, ready)
        if step is not None:
            self.mixture = None
            self._undo = (ready, step) if isinstance(step, ChangeStep) else None
        self._gate.open(ready.target)
        self._end()

    def settle(self) -> None:
        """Take what was wholly written for what is there, with the gate as it is."""
        if isinstance(self.live, Applying) and self._tables is not None:
            self.live = finish(self.live)

    def stage_again(self, record: VersionRecord, tally: Tally) -> Ready:
        """As `stage`, but a change to this version that was begun is kept, to be redone.

        Raises:
            As `stage`.
        """
        target, ready = VersionRef.of(record), self.staged
        if isinstance(ready, Ready) and ready.target == target and ready.base is not None:
            if isinstance(self.live, Applying) and isinstance(self._step, ChangeStep):
                self.live = soil(self.live, "another rank did not get as far")
            if self.is_cut:
                return ready
        self.settle()
        return self.stage(record, tally)

    def finish_cut(self, tally: Tally) -> RefitReport | None:
        """Bring in the version that a cut change was about; None if nothing but all of it helps.

        The staged change is written again. If it is lost, an overwrite set takes its place,
        as long as it is known what the mixture is one of.

        After a crash or an error: as `apply`.

        Raises:
            UnavailableError: the store cannot be read now, and nothing is staged.
        """
        if not self.is_cut:
            return self._overwrite(tally)
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
        ready, step = (self.staged, self._step) if self.is_cut else self._undo or (None, None)
        if not (isinstance(ready, Ready) and isinstance(step, ChangeStep) and ready.base):
            raise InputRefusedError(
                "no bits of the version before are kept", do="Refit to that version."
            )
        self._step, self.staged = step.reversed(), Ready(ready.target, ready.base, Way.CHANGE)

    def adopt(self, record: VersionRecord, tally: Tally) -> VersionRef:
        """Take what is live for a version, after a full scan.

        Raises:
            WrongBaseError: it is not; names the tensors.
            LiveWeightsError: the live tensors were moved.
        """
        ref = VersionRef.of(record)
        placement, tables = self._maker.expected(record)
        names = self._damaged(placement, range(len(placement.destinations)), tables, tally)
        if names:
            raise WrongBaseError(
                f"the live weights are not {ref}: {len(names)} tensors, the first "
                f"{names[0]!r}, have other digests; nothing was written",
                do="Refit: the version is then written in place.",
                facts={"version": ref.version, "expected": ref.digest, "tensors": names},
            )
        self.drop()
        self.mixture = None
        self._maker.seat_once(placement)
        self.live, self._tables, self.target = Whole(ref), tables, ref
        self._gate.open(ref)
        return ref

    def look_at(self, numbers: list[int], tally: Tally) -> tuple[str, ...]:
        """Names of tensors that are not what is known of them; any makes dirty."""
        assert self._tables is not None
        names = self._damaged(self.placement, numbers, self._tables, tally)
        if names:
            found = counted(len(names), "tensor")
            self.soil(f"a scan found {found} changed, the first {names[0]!r}")
        return names

    def next_share(self) -> list[int]:
        """The destinations that a rolling scan looks at next."""
        return self._maker.rolling.take()

    def soil(self, reason: str) -> None:
        """Give up what is known, and everything that was staged on top of it."""
        self.mixture = self._tables = None
        self.live = soil(self.live, reason)
        self._gate.shut(reason)
        # Last: others are told first, which takes time or fails, and nobody serves meanwhile. (P4)
        self.drop()

    def drop(self) -> None:
        """Forget what is staged, and the old bits of the last change."""
        try:
            if isinstance(self.staged, Ready):
                self.before_drop()
        finally:
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

    def _end(self) -> None:
        self.staged, self._step = NothingStaged(), None
        self.done_count += 1

    @contextmanager
    def cut_by_errors(self, ready: Ready, step: Step | None) -> Iterator[None]:
        """Note what goes wrong inside; what can be written again stays."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, LiveWeightsError) or isinstance(step, FullStep | None):
                self.mixture = None
            elif isinstance(step, ChangeStep | StreamStep) and ready.base is not None:
                self.mixture = Mixture(ready.base, ready.target, step.before)
            reason = f"an apply was cut: {error}"
            self.live = soil(self.live, reason)
            self._gate.shut(reason)
            if isinstance(step, StreamStep) or isinstance(error, LiveWeightsError):
                self.drop()
            raise

    def _overwrite(self, tally: Tally) -> RefitReport | None:
        """Write an overwrite set over a mixture; None if there is none, or it is of no use."""
        mixture = self.mixture
        if mixture is None or not isinstance(self.live, Dirty):
            return None
        step = self._maker.overwrite(mixture, tally)
        if step is not None:
            self.drop()
            self._step = step
            self.staged = Ready(mixture.base, mixture.target, Way.OVERWRITE)
            tally.reason = f"the change from {mixture.base} was cut, and what was staged is lost"
            try:
                return self.apply(tally)
            except CorruptError as error:
                tally.reason = f"the overwrite set from {mixture.base}: {error.message}"
        self.soil(tally.reason)
        return None

    def _damaged(
        self, placement: Placement, numbers: Sequence[int], tables: LiveTables, tally: Tally
    ) -> tuple[str, ...]:
        # Memory that the model has left would still look right. (P8)
        self._check_addresses()
        with tally.phase(Phase.SCAN):
            return damaged_tensors(placement, numbers, tables.lanes, self._thread_count)

    def _check_addresses(self) -> None:
        try:
            self.placement.check_addresses()
        except LiveWeightsError as error:
            self.soil(error.message)
            raise
