"""What one rank does with its own live weights for each part of a round."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import assert_never

from weightstore.clock import Clock
from weightstore.errors import InputRefusedError, LiveWeightsError
from weightstore.ids import Sha256
from weightstore.receiver.delta_work import LiveTables
from weightstore.receiver.live_state import Applying, NothingStaged, Ready, VersionRef
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.placement import Placement
from weightstore.receiver.ranks.messages import (
    NO_TABLES,
    Part,
    Tables,
    Work,
    text_of,
)
from weightstore.receiver.ranks.shares import encode_boxes, places_of
from weightstore.receiver.reports import Tally
from weightstore.receiver.steps import ChangeStep
from weightstore.receiver.version_source import VersionSource


class RankWork:
    """The parts of a round on one rank's weights. One thread at a time.

    Args:
        weights: Gives the rank's weights to one thread at a time.
        source: The store.
        clock: For times in reports.
    """

    def __init__(
        self,
        weights: Callable[[], AbstractContextManager[LiveWeights]],
        source: VersionSource,
        clock: Clock,
    ) -> None:
        self._weights = weights
        self._source = source
        self._clock = clock
        self._tally = Tally(clock)
        self._way = ""
        self._is_redo = False
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
        with self._weights() as weights:
            if part is Part.STAGE:
                return self._stage(weights, target, base)
            if part is Part.APPLY:
                return self._apply(weights, target)
            self._move(weights, part, target, reason)
        return NO_TABLES

    def attach(self) -> Tables:
        """End what a leader before has left, and look at every element; the gate is shut."""
        with self._weights() as weights:
            return self._attach(weights)

    def shut(self, reason: str) -> None:
        """Close the gate over whatever is there, and wait for open blocks."""
        with self._weights() as weights:
            weights.close(reason)

    def work(self) -> Work:
        """What was done since the last stage."""
        tally = self._tally
        with self._weights() as weights:
            full_bytes = weights.placement.size_bytes
        return Work(
            way=self._way,
            reason=text_of(tally.reason),
            is_redo=self._is_redo,
            applied_count=tally.applied_count,
            launch_count=tally.launch_count,
            wire_bytes=tally.wire_bytes,
            applied_bytes=tally.applied_bytes,
            skipped_bytes=tally.skipped_bytes,
            full_bytes=full_bytes,
            seconds_us={
                phase.value: int(seconds * 1e6) for phase, seconds in tally.seconds.items()
            },
        )

    def _move(self, weights: LiveWeights, part: Part, target: VersionRef, reason: str) -> None:
        match part:
            case Part.CLOSE:
                self._check_staged(weights, target)
                weights.close_for_apply(self._tally)
                self._closed_for = target
            case Part.RESUME:
                self._check_written(weights, target)
                weights.resume_after(self._tally)
            case Part.OPEN:
                self._open(weights, target)
            case Part.SOIL:
                weights.soil(reason)
            case Part.CALL:
                pass
            case Part.ATTACH | Part.STAGE | Part.APPLY:
                raise _out_of_turn(f"{part.value!r} cannot be asked for here")
            case _:
                assert_never(part)

    def _attach(self, weights: LiveWeights) -> Tables:
        self._closed_for = None
        tally = Tally(self._clock)
        if weights.is_cut:
            try:
                weights.write_staged(tally)
            except LiveWeightsError:
                weights.soil("a change that was cut could not be written again")
        weights.settle()
        before = None
        if weights.tables is not None:
            numbers = list(range(len(weights.placement.destinations)))
            if not weights.look_at(numbers, tally):
                before = weights.tables
        return self._tables(weights.placement, before, None)

    def _stage(self, weights: LiveWeights, target: VersionRef, base: VersionRef | None) -> Tables:
        self._tally, self._closed_for = Tally(self._clock), None
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
            weights.look_at(weights.next_share(), self._tally)
        ready = weights.stage_again(record, self._tally)
        self._way, self._is_redo = ready.way.value, weights.is_cut
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
            weights.write_staged(self._tally)
        after = None if is_said else weights.tables
        return Tables(after=None if after is None else after.lanes)

    def _open(self, weights: LiveWeights, target: VersionRef) -> None:
        if weights.held == target and isinstance(weights.staged, NothingStaged):
            weights.reopen()  # an interrupt came after the last opening
            return
        self._check_written(weights, target)
        weights.settle()
        weights.open_after()

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
