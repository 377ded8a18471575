"""`Receiver`: live weights that move from version to version in place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weightstore import arguments
from weightstore.clock import Clock
from weightstore.codec.codec import PieceCodec
from weightstore.errors import LiveWeightsError, NotReadyError
from weightstore.format.canonical import MAX_INTEGER
from weightstore.format.records import VersionRecord
from weightstore.ids import VersionId
from weightstore.layout.schema import Schema
from weightstore.receiver.gate import ServingGate
from weightstore.receiver.live_state import Live, Ready, Staged, VersionRef, Way, Whole
from weightstore.receiver.live_weights import Callback, LiveWeights
from weightstore.receiver.placement import Placement
from weightstore.receiver.pool import Pool
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.reports import Phase, RefitReport, Tally
from weightstore.receiver.steps import StepMaker
from weightstore.receiver.version_source import VersionSource


class Receiver:
    """Live weights, what is known of them, and what is staged for them.

    Everything that changes weights or stages for it is done by one thread at a time; others
    wait. Serving blocks may be open in any number of threads.

    Args:
        source: The store.
        place: Plans where the tensors of a schema live; called again for another schema.
        clock: For times in reports.
        settings: Of this receiver.
        make_pool: Takes the memory for staged changes.
        codec: Kernels to use; None takes those of the process.

    Raises:
        VersionNotFoundError: the store holds no version yet, so that nothing says which
            tensors there are.
        SchemaMismatchError: the live tensors do not fit; everything is listed.
    """

    def __init__(
        self,
        source: VersionSource,
        place: Callable[[Schema], Placement],
        *,
        clock: Clock,
        settings: ReceiverSettings | None = None,
        make_pool: Callable[[int], Pool] = Pool.of_size,
        codec: PieceCodec | None = None,
    ) -> None:
        self.settings = settings or ReceiverSettings()
        self._source = source
        self._clock = clock
        self._lock = threading.RLock()
        self._gate = ServingGate()
        self._weights = LiveWeights(
            StepMaker(source, place, self.settings, make_pool, codec),
            self._gate,
            thread_count=source.settings.thread_count,
            block_timeout_s=self.settings.block_timeout_s,
        )

    @property
    def live(self) -> Live:
        """What the live memory holds."""
        return self._weights.live

    @property
    def staged(self) -> Staged:
        """What is ready to be applied."""
        return self._weights.staged

    @property
    def version(self) -> VersionId | None:
        """The version that is wholly there; None where there is none, never 0."""
        held = self._weights.held
        return held.version if held else None

    @property
    def placement(self) -> Placement:
        """Where the tensors live."""
        return self._weights.placement

    @contextmanager
    def serving(
        self,
        *,
        exact: int | None = None,
        min: int | None = None,  # noqa: A002 -- the word of requests that ask for it
        max_lag: int | None = None,
    ) -> Iterator[VersionId]:
        """Compute with the weights for one engine step or one admission.

        Args:
            exact: This version only.
            min: This version or a newer one.
            max_lag: At most so many versions behind the newest that this receiver heard of.

        Raises:
            InputRefusedError: an argument is no whole number from 0.
            NotReadyError: at the beginning or, if the weights were changed inside, at the
                end; then what was computed must be thrown away.
        """
        wanted = (
            _version_or_none(exact, "exact"),
            _version_or_none(min, "min"),
            _version_or_none(max_lag, "max_lag"),
        )
        with self._gate.serving(exact=wanted[0], at_least=wanted[1], max_lag=wanted[2]) as version:
            yield version

    def on_applied(self, callback: Callback) -> None:
        """Call a function after each change of version, before anything is served with it.

        It is called again if it raises and the refit is repeated.
        """
        arguments.function(callback, "callback")
        with self._lock:
            self._weights.callbacks.append(callback)

    def stage(self, selector: int | str = "latest") -> Ready:
        """Make a version ready while the engine serves. Writes no live memory.

        A change that was cut is given up for it; `refit` finishes that one first.

        Raises:
            WrongBaseError: a delta does not fit; nothing was written. (P8)
            LiveWeightsError: live memory was changed or moved by somebody else.
            SchemaMismatchError: the version has other tensors than live here.
            VersionGoneError, VersionNotFoundError, CorruptError: of the version.
        """
        with self._lock:
            tally = self._new_tally()
            return self._weights.stage(self._find(selector, tally), tally)

    def apply(self) -> RefitReport:
        """Write what is staged: the engine does not serve meanwhile.

        After a crash or an error: the receiver is dirty and does not serve. Calling `apply`,
        `refit` or `recover` again heals it, any number of times. (P5)

        Raises:
            InputRefusedError: nothing is staged.
            LiveWeightsError: live memory did not hold what it should.
            CorruptError: a version that is written whole or streamed is damaged.
        """
        with self._lock:
            return self._apply(self._new_tally())

    def refit(self, selector: int | str = "latest") -> RefitReport:
        """Bring a version into place, whatever was there.

        A change that was cut is finished first. Of several threads that refit at once the
        newest version wins, and those that waited with an older one do nothing.

        After a crash or an error: as `apply`.

        Raises:
            WrongBaseError, LiveWeightsError, SchemaMismatchError, VersionGoneError,
            VersionNotFoundError, CorruptError: as `stage` and `apply`.
        """
        entered_count = self._weights.done_count
        with self._lock:
            tally = self._new_tally()
            record = self._find(selector, tally)
            held = self._weights.held
            was_waiting = self._weights.done_count > entered_count
            if was_waiting and held is not None and held.version > record.version:
                return RefitReport(
                    held.version, held.version, Way.NOTHING, superseded_by=held.version
                )
            self._weights.finish_cut(tally)
            if isinstance(self.live, Whole):
                self._weights.look_at(self._weights.next_share(), tally)
            self._weights.stage(record, tally)
            return self._apply(tally)

    def recover(self) -> RefitReport:
        """Heal: write a change that was cut again, or take the whole version in place.

        Nothing is done to a version that is wholly there.

        After a crash or an error: as `apply`.

        Raises:
            VersionGoneError, CorruptError: of the version.
        """
        with self._lock:
            report = self._weights.finish_cut(self._new_tally())
            if report is not None:
                return report
            wanted = self._weights.held or self._weights.target
            return self.refit(wanted.version if wanted else "latest")

    def rollback(self) -> RefitReport:
        """Go back to the version before the last change, from the bits that were kept.

        They are kept until the next version is staged. A change that was cut is undone.

        After a crash or an error: as `apply`.

        Raises:
            InputRefusedError: no old bits are kept.
            LiveWeightsError: live memory did not hold what it should.
        """
        with self._lock:
            self._weights.stage_rollback()
            return self._apply(self._new_tally())

    def adopt(self, selector: int | str = "latest") -> VersionRef:
        """Take weights that the engine has loaded by itself for a version, after a full scan.

        Raises:
            WrongBaseError: they are not that version; names the tensors.
            VersionGoneError, VersionNotFoundError, CorruptError: of the version.
        """
        with self._lock:
            tally = self._new_tally()
            return self._weights.adopt(self._find(selector, tally), tally)

    def invalidate(self, reason: str = "somebody else wrote the weights") -> None:
        """Give up what is known: called by whatever writes weights behind the receiver."""
        arguments.text(reason, "reason")
        with self._lock:
            self._weights.soil(reason)

    def verify(self) -> VersionRef:
        """Look at every element and compare each tensor's digest.

        Returns:
            The version that is wholly there.

        Raises:
            NotReadyError: no version is said to be there.
            LiveWeightsError: some tensors differ; names them. The receiver is dirty.
        """
        with self._lock:
            return self._looked_at(list(range(len(self.placement.destinations))))

    def scan(self) -> VersionRef:
        """Look at the next share of the elements, as each refit does.

        Raises:
            NotReadyError, LiveWeightsError: as `verify`.
        """
        with self._lock:
            return self._looked_at(self._weights.next_share())

    def _looked_at(self, numbers: list[int]) -> VersionRef:
        held = self._weights.held
        if held is None:
            raise NotReadyError("no version is wholly there", do="Refit or recover it.")
        names = self._weights.look_at(numbers, self._new_tally())
        if names:
            raise LiveWeightsError(
                f"{len(names)} live tensors, the first {names[0]!r}, are not those of {held}",
                facts={"version": held.version, "tensors": names},
            )
        return held

    def _find(self, selector: int | str, tally: Tally) -> VersionRecord:
        wanted = arguments.selector(selector)
        with tally.phase(Phase.DISCOVER):
            record, newest = self._source.find(wanted)
        self._gate.hear_of(newest)
        return record

    def _apply(self, tally: Tally) -> RefitReport:
        report = self._weights.apply(tally)
        # An interrupt may have come between the last write and the opening of the gate.
        self._weights.reopen()
        return report

    def _new_tally(self) -> Tally:
        return Tally(self._clock)


def _version_or_none(value: int | None, what: str) -> int | None:
    return None if value is None else arguments.whole(value, what, least=0, most=MAX_INTEGER)
