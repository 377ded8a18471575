"""What a rank tells of each round: one report, whatever ended it, with what was moved there."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from weightstore.codec.blocked import BlockedChange
from weightstore.errors import LiveWeightsError, RankFailedError, StorageFailedError
from weightstore.receiver.gate import ServingGate
from weightstore.receiver.live_state import Way
from weightstore.receiver.live_storage import ScatterCounts
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.ranks.messages import Part
from weightstore.receiver.reports import Phase, RefitFailure, RefitReport, Tally
from weightstore.testing.rank_lab import RANK_PARTS, OneRank
from weightstore.testing.receiver_lab import FusedStorage


def raise_interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def raise_unavailable() -> None:
    raise StorageFailedError("no answer")


def test_each_round_is_reported_once_with_what_it_moved_here() -> None:
    story = OneRank()
    story.round(1)
    for part in RANK_PARTS:
        for _ in range(2):
            story.do(part, 2)
            assert len(story.told) == 1 + (part is Part.OPEN)
    full, change = story.told
    assert isinstance(full, RefitReport)
    assert isinstance(change, RefitReport)
    assert (full.base, full.target, full.way) == (None, 1, Way.FULL)
    assert (change.base, change.target, change.way) == (1, 2, Way.CHANGE)
    assert {Phase.DISCOVER, Phase.SCAN, Phase.FETCH, Phase.APPLY, Phase.PAUSE} <= set(
        change.seconds
    )
    made, size = story.done(), change.size_bytes
    assert (made.applied_count, made.launch_count) == (change.applied_count, change.launch_count)
    assert (made.wire_bytes, made.applied_bytes) == (size.wire, size.applied)
    assert size.wire > 0
    assert 0 < size.applied < size.full
    assert story.receiver.status().totals.refit_count == 2


def test_a_part_that_fails_is_reported_and_so_is_the_redo_of_who_attaches() -> None:
    story = OneRank()
    story.round(1)
    story.cut(3)
    story.attach()
    _, failure, redo = story.told
    assert isinstance(failure, RefitFailure)
    assert isinstance(redo, RefitReport)
    # Whoever is interrupted does not say why; the next leader finds what is left.
    assert (failure.base, failure.target, failure.error_code) == (1, 3, RankFailedError.code)
    assert (redo.base, redo.target, redo.is_redo) == (1, 3, True)
    assert redo.pause_s == 0.0  # its gate is another round's
    assert redo.applied_count > 0
    story.round(3)
    last = story.told[-1]
    assert isinstance(last, RefitReport)
    assert (last.base, last.target, last.way) == (3, 3, Way.NOTHING)
    assert last.applied_count == 0


def test_an_error_is_reported_as_it_is() -> None:
    story = OneRank()
    story.round(1)
    story.do(Part.STAGE, 2)
    for units in story.arrays.values():
        units[:] = 7
    story.do(Part.CLOSE, 2)
    with pytest.raises(LiveWeightsError):
        story.do(Part.APPLY, 2)
    failure = story.told[-1]
    assert isinstance(failure, RefitFailure)
    assert (failure.base, failure.target, failure.error_code) == (1, 2, LiveWeightsError.code)
    assert failure.launch_count > 0
    story.round(2)
    healed = story.told[-1]
    assert isinstance(healed, RefitReport)
    assert (healed.base, healed.way) == (None, Way.FULL)
    assert len(story.told) == 3


@pytest.mark.parametrize("error", [LiveWeightsError("moved"), RuntimeError("no device")])
def test_a_redo_that_fails_is_reported_with_what_it_wrote(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = OneRank()
    story.round(1)
    story.cut(3)
    scatter, count = FusedStorage.scatter, 0

    def fails(storage: FusedStorage, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
        nonlocal count
        count += 1
        if count > 1:
            raise error
        return scatter(storage, change, redo=redo)

    monkeypatch.setattr(FusedStorage, "scatter", fails)
    # Weights that are not what they were are given up; a device that fails is the rank's failure.
    is_known = isinstance(error, LiveWeightsError)
    with nullcontext() if is_known else pytest.raises(RuntimeError):
        story.attach()
    failure = story.told[-1]
    assert isinstance(failure, RefitFailure)
    assert failure.error_code == getattr(error, "code", "RuntimeError")
    assert (failure.base, failure.target, failure.launch_count) == (1, 3, 1)
    assert len(story.told) == 3


def test_a_write_that_is_asked_for_again_is_a_redo() -> None:
    story = OneRank()
    story.round(1)
    story.cut(3)
    story.do(Part.APPLY, 3)
    story.do(Part.OPEN, 3)
    report = story.told[-1]
    assert isinstance(report, RefitReport)
    assert (report.base, report.target, report.is_redo) == (1, 3, True)


def test_an_interrupt_while_the_gate_closes_is_an_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    story = OneRank()
    story.round(1)
    story.do(Part.STAGE, 2)
    with monkeypatch.context() as patch:
        patch.setattr(ServingGate, "close", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            story.do(Part.CLOSE, 2)
    story.attach()
    failure = story.told[-1]
    assert isinstance(failure, RefitFailure)
    assert (failure.target, failure.error_code) == (2, RankFailedError.code)


def test_a_look_at_the_log_that_fails_is_a_failure_of_the_round() -> None:
    story = OneRank()
    story.round(1)
    story.work._look = raise_unavailable
    with pytest.raises(StorageFailedError):
        story.do(Part.STAGE, 2)
    failure = story.told[-1]
    assert isinstance(failure, RefitFailure)
    assert (failure.base, failure.target) == (1, 2)
    assert failure.error_code == StorageFailedError.code
    assert story.is_open()


def test_a_full_form_over_a_version_says_which_was_there() -> None:
    story = OneRank()
    story.round(3)
    story.round(1)
    report = story.told[-1]
    assert isinstance(report, RefitReport)
    assert (report.base, report.target, report.way) == (3, 1, Way.FULL)


def test_giving_up_another_version_is_not_the_end_of_this_round() -> None:
    story = OneRank()
    story.round(1)
    story.do(Part.STAGE, 2)
    story.do(Part.SOIL, 3)
    assert [report.target for report in story.told] == [1]


@pytest.mark.parametrize("ends", ["a new stage", "a new leader", "soil"])
def test_a_round_that_ends_elsewhere_is_a_failure_here(ends: str) -> None:
    story = OneRank()
    story.round(1)
    for part in (Part.STAGE, Part.CLOSE, Part.APPLY):
        story.do(part, 2)
    if ends == "a new stage":
        story.do(Part.STAGE, 2)
    elif ends == "a new leader":
        story.attach()
    else:
        story.do(Part.SOIL, 2)
    failure = story.told[-1]
    assert isinstance(failure, RefitFailure)
    assert failure.error_code == RankFailedError.code
    assert failure.applied_count > 0
    assert len(story.told) == 2


def test_a_version_that_was_only_staged_is_no_failure_when_another_is() -> None:
    story = OneRank()
    story.round(1)
    story.do(Part.STAGE, 2)
    story.round(3)
    assert [report.target for report in story.told] == [1, 3]
    assert all(isinstance(report, RefitReport) for report in story.told)


def test_a_status_says_what_is_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    story = OneRank()
    seen: list[str] = []
    story.receiver.on_applied(lambda _: seen.append(story.receiver.status().phase))
    story.round(1)
    assert seen == ["resume"]
    assert story.receiver.status().phase == ""
    look_at = LiveWeights.look_at

    def looked(weights: LiveWeights, numbers: list[int], tally: Tally) -> tuple[str, ...]:
        seen.append(story.receiver.status().phase)
        return look_at(weights, numbers, tally)

    monkeypatch.setattr(LiveWeights, "look_at", looked)
    story.attach()
    assert seen == ["resume", "scan"]


def test_a_look_that_finds_damage_is_no_refit() -> None:
    story = OneRank()
    story.round(1)
    for units in story.arrays.values():
        units[:] = 7
    with pytest.raises(LiveWeightsError, match="not those of version 1"):
        story.do(Part.SCAN, 1)
    assert [report.target for report in story.told] == [1]
    story.round(1)
    story.do(Part.STAGE, 2)
    for units in story.arrays.values():
        units[:] = 7
    with pytest.raises(LiveWeightsError):
        story.do(Part.SCAN, 1)
    assert [report.target for report in story.told] == [1, 1]
