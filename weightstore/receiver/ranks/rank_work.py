"""What one rank does with its own live weights for each part of a round."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import assert_never

from weightstore.clock import Clock
from weightstore.errors import InputRefusedError, LiveWeightsError
from weightstore.ids import Sha256
from weightstore.receiver.delta_work import LiveTables
from weightstore.receiver.live_check import live_check
from weightstore.receiver.live_state import Applying, NothingStaged, Ready, VersionRef
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.placement import Placement
from weightstore.receiver.ranks.messages import NO_TABLES, Part, Tables, Work
from weightstore.receiver.ranks.round_report import RankRound
from weightstore.receiver.ranks.shares import encode_boxes, places_of
from weightstore.receiver.receiver_status import Reporter
from weightstore.receiver.reports import Phase, Report, Tally
from weightstore.receiver.steps import ChangeStep
from weightstore.receiver.version_source import VersionSource

_PHASES = {
    Part.STAGE: "stage",
    Part.CLOSE: "apply",
    Part.APPLY: "apply",
    Part.RESUME: "apply",
    Part.OPEN: "apply",
    Part.SCAN: "scan",
}
"""What a status says while a part is done."""
_PARTS_OF_ROUND = frozenset({Part.STAGE, Part.CLOSE, Part.APPLY, Part.RESUME, Part.OPEN})


class RankWork:
    """The parts of a round on one rank's weights. One thread at a time.

    Args:
        weights: Gives the rank's weights to one thread at a time.
        source: The store.
        clock: For times in reports.
        reporter: Told of each round that was staged here, by `tell`.
        look: Looks at the tail of the log, for the gate.
    """

    def __init__(
        self,
        weights: Callable[[], AbstractContextManager[LiveWeights]],
        source: VersionSource,
        clock: Clock,
        reporter: Reporter,
        look: Callable[[], object],
    ) -> None:
        self._weights = weights
        self._source = source
        self._clock = clock
        self._reporter = reporter
        self._look = look
        self._untold: list[Report] = []
        self._round: RankRound | None = None
        self._closed_for: VersionRef | None = None
        self._boxes: tuple[Placement, Tables] | None = None

    @property
    def callback_count(self) -> int:
        """Functions that are called before the gate opens."""
        with self._weights() as weights:
            return len(weights.callbacks)

    @property
    def held(self) -> VersionRef | None:
        """The version that is wholly there."""
        with self._weights() as weights:
            return weights.held

    def schema_id(self) -> Sha256:
        """The schema of the tensors that are, or will be, there."""
        with self._weights() as weights:
            return _placement_after(weights).schema.id

    def do(self, part: Part, target: VersionRef, base: VersionRef | None, reason: str) -> Tables:
        """Do one part of a round; doing it again after a cut is safe (P5).

        Args:
            part: What to do.
            target: The version that the round is about.
            base: The version that the leader knows to be on every rank.
            reason: For messages.

        Returns:
            What is to be said of digests.

        Raises:
            WeightStoreError: as the parts of `LiveWeights`.
        """
        with self._weights() as weights, self._reporter.doing(_PHASES.get(part, ""), self._phase):
            try:
                return self._do(weights, part, target, base, reason)
            except Exception as error:
                if part in _PARTS_OF_ROUND:
                    self._round_of(weights, target).failed(error, weights.placement.size_bytes)
                raise

    def attach(self) -> Tables:
        """End what a leader before has left, and look at every element; the gate is shut."""
        with self._weights() as weights, self._reporter.doing("scan"):
            return self._attach(weights)

    def shut(self, reason: str) -> None:
        """Close the gate over whatever is there, and wait for open blocks."""
        with self._weights() as weights:
            weights.close(reason)

    def work(self) -> Work | None:
        """What was done in the round that was staged last; None before the first."""
        with self._weights() as weights:
            full_bytes = weights.placement.size_bytes
        return None if self._round is None else self._round.work(full_bytes)

    def tell(self) -> None:
        """Pass on the reports of rounds that have ended; callbacks may take their time."""
        while self._untold:
            # The leader logs what was done, for all ranks.
            self._reporter.tell(self._untold.pop(0), done_level=logging.DEBUG)

    def _phase(self) -> Phase | None:
        """What the round that was staged last is in."""
        return None if self._round is None else self._round.tally.now

    def _do(
        self,
        weights: LiveWeights,
        part: Part,
        target: VersionRef,
        base: VersionRef | None,
        reason: str,
    ) -> Tables:
        if part is Part.STAGE:
            return self._stage(weights, target, base)
        if part is Part.APPLY:
            return self._apply(weights, target)
        if part is Part.SCAN:
            self._scan(weights, target)
            return NO_TABLES
        self._move(weights, part, target, reason)
        return NO_TABLES

    def _round_of(self, weights: LiveWeights, target: VersionRef) -> RankRound:
        """The round that was staged, if it is about this version, else one that counts nothing."""
        if self._round is not None and self._round.target == target:
            return self._round
        return self._new_round(weights.held, target)

    def _new_round(self, base: VersionRef | None, target: VersionRef) -> RankRound:
        return RankRound(self._untold.append, self._clock, base, target)

    def _give_up_round(self, weights: LiveWeights) -> None:
        """Report a round that had closed the gate and came to no end here."""
        if self._round is not None and self._round.is_open_ended:
            self._round.given_up("it came to no end", weights.placement.size_bytes)

    def _move(self, weights: LiveWeights, part: Part, target: VersionRef, reason: str) -> None:
        match part:
            case Part.CLOSE:
                self._check_staged(weights, target)
                found = self._round_of(weights, target)
                found.closing()
                weights.close_for_apply(found.tally)
                self._closed_for = target
                found.closed()
            case Part.RESUME:
                self._check_written(weights, target)
                weights.resume_after(self._round_of(weights, target).tally)
            case Part.OPEN:
                self._open(weights, target)
            case Part.SOIL:
                weights.soil(reason)
                if self._round is not None and self._round.target == target:
                    self._round.given_up(reason, weights.placement.size_bytes)
            case Part.CALL:
                pass
            case Part.ATTACH | Part.STAGE | Part.APPLY | Part.SCAN:
                raise _out_of_turn(f"{part.value!r} cannot be asked for here")
            case _:
                assert_never(part)

    def _scan(self, weights: LiveWeights, target: VersionRef) -> None:
        """Look at everything; what differs is the error."""
        if weights.held != target:
            held = weights.held or "no whole version"
            raise _out_of_turn(f"this rank holds {held}, its engine {target}")
        numbers = list(range(len(weights.placement.destinations)))
        names = weights.look_at(numbers, Tally(self._clock))
        live_check(weights.placement, target, numbers, names).raise_if_differing()

    def _attach(self, weights: LiveWeights) -> Tables:
        self._closed_for = None
        self._give_up_round(weights)
        tally = Tally(self._clock)
        if weights.is_cut:
            self._write_again(weights)
        weights.settle()
        before = None
        if weights.tables is not None:
            numbers = list(range(len(weights.placement.destinations)))
            if not weights.look_at(numbers, tally):
                before = weights.tables
        return self._tables(weights.placement, before, None)

    def _write_again(self, weights: LiveWeights) -> None:
        """End a change that was cut, as a round of its own."""
        ready = weights.ready()
        found = self._new_round(ready.base, ready.target)
        found.staged(ready, ready.base, is_redo=True)
        try:
            weights.write_staged(found.tally)
        except Exception as error:
            found.failed(error, weights.placement.size_bytes)
            if not isinstance(error, LiveWeightsError):
                raise
            weights.soil("a change that was cut could not be written again")
        else:
            found.done(weights.placement.size_bytes)

    def _stage(self, weights: LiveWeights, target: VersionRef, base: VersionRef | None) -> Tables:
        self._give_up_round(weights)
        self._closed_for = None
        found = self._round_of(weights, target)
        if found.is_told:
            found = self._new_round(weights.held, target)
        self._round = found
        with found.tally.phase(Phase.DISCOVER):
            self._look()  # so that `max_lag` knows what is newest
            record = self._source.find(target.version)
        if VersionRef.of(record) != target:
            raise InputRefusedError(
                f"this rank's store holds another {target} than its leader's",
                do="Give all ranks of an engine the same store.",
                facts={"version": target.version, "expected": target.digest},
            )
        if base is not None and weights.held not in {None, base, target}:
            weights.soil(f"this rank holds {weights.held}, its engine {base}")
        if weights.held is not None:
            weights.look_at(weights.next_share(), found.tally)
        ready = weights.stage_again(record, found.tally)
        found.staged(ready, weights.held or ready.base, is_redo=weights.is_cut)
        placement = _placement_after(weights)
        # Of another schema's places the digests before say nothing that could be added up.
        has_before = weights.held is not None and placement is weights.placement
        before = weights.tables if has_before else None
        return self._tables(placement, before, _tables_after(weights))

    def _apply(self, weights: LiveWeights, target: VersionRef) -> Tables:
        self._check_staged(weights, target)
        self._check_closed(target)
        # What a change leads to was said when it was staged; of the rest only the write tells.
        is_said = weights.step is None or isinstance(weights.step, ChangeStep)
        if not isinstance(weights.live, Applying):
            found = self._round_of(weights, target)
            found.write_begins(is_redo=weights.is_cut)
            weights.write_staged(found.tally)
        after = None if is_said else weights.tables
        return Tables(after=None if after is None else after.lanes)

    def _open(self, weights: LiveWeights, target: VersionRef) -> None:
        if weights.held == target and isinstance(weights.staged, NothingStaged):
            weights.reopen()  # an interrupt came after the last opening
        else:
            self._check_written(weights, target)
            weights.settle()
            weights.open_after()
        self._round_of(weights, target).done(weights.placement.size_bytes)

    def _check_staged(self, weights: LiveWeights, target: VersionRef) -> None:
        staged = weights.staged
        if not isinstance(staged, Ready) or staged.target != target:
            raise _out_of_turn(f"{target} is not staged on this rank")

    def _check_closed(self, target: VersionRef) -> None:
        if self._closed_for != target:
            raise _out_of_turn(f"the gate was not closed for {target}")

    def _check_written(self, weights: LiveWeights, target: VersionRef) -> None:
        self._check_staged(weights, target)
        self._check_closed(target)
        if not isinstance(weights.live, Applying) and weights.held != target:
            raise _out_of_turn(f"{target} is not written on this rank")

    def _tables(
        self, placement: Placement, before: LiveTables | None, after: LiveTables | None
    ) -> Tables:
        if self._boxes is None or self._boxes[0] is not placement:
            self._boxes = (placement, Tables(box_words=encode_boxes(places_of(placement))))
        return Tables(
            box_words=self._boxes[1].box_words,
            before=None if before is None else before.lanes,
            after=None if after is None else after.lanes,
        )


def _out_of_turn(message: str) -> InputRefusedError:
    return InputRefusedError(message, do="Refit the engine again.")


def _placement_after(weights: LiveWeights) -> Placement:
    """Where the tensors of the staged version will live."""
    return weights.placement if weights.step is None else weights.step.placement


def _tables_after(weights: LiveWeights) -> LiveTables | None:
    """What the staged version's digests are; None where only the write tells."""
    if isinstance(weights.step, ChangeStep):
        return weights.step.after
    return weights.tables if weights.step is None else None
