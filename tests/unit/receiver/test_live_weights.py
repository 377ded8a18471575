"""The moves between versions, step by step: what is staged, dropped, kept and reopened."""

from __future__ import annotations

import pytest

from weightstore.errors import InputRefusedError, NotReadyError, ObjectMissingError
from weightstore.receiver.gate import ServingGate, Wanted
from weightstore.receiver.live_state import (
    Applying,
    Dirty,
    Empty,
    Live,
    NothingStaged,
    Ready,
    VersionRef,
    Way,
    Whole,
    held_version,
)
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.reports import Tally
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import SMALL_LAUNCHES, Cut, ReceiverLab


@pytest.fixture
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(mixed_schema(), 3)


class Story:
    """Live weights without the lock around them."""

    def __init__(self, lab: ReceiverLab, settings: ReceiverSettings = SMALL_LAUNCHES) -> None:
        receiver, self.arrays = lab.host_receiver(settings)
        self.lab = lab
        self.weights: LiveWeights = receiver._weights
        self.gate: ServingGate = receiver._gate
        self.refs = [VersionRef.of(record) for record in lab.versions.records]

    def stage(self, version: int) -> Ready:
        return self.weights.stage(self.lab.versions.records[version - 1], self.tally())

    def apply(self) -> None:
        self.weights.apply(self.tally())

    def tally(self) -> Tally:
        return Tally(self.lab.versions.store.clock)


def test_states_follow_what_is_done(lab: ReceiverLab) -> None:
    story = Story(lab)
    weights, refs = story.weights, story.refs
    assert [weights.live, weights.staged, weights.target] == [Empty(), NothingStaged(), None]
    assert story.stage(1) == Ready(None, refs[0], Way.FULL)
    assert held_version(weights.live) is None
    story.apply()
    assert [weights.live, weights.staged] == [Whole(refs[0]), NothingStaged()]
    assert story.gate.open_version == refs[0]
    assert story.stage(3) == Ready(refs[0], refs[2], Way.CHANGE)
    story.apply()
    assert [weights.live, weights.target, weights.done_count] == [Whole(refs[2]), refs[2], 2]


def test_another_stage_replaces_what_was_staged(lab: ReceiverLab) -> None:
    story = Story(lab)
    story.stage(1)
    story.apply()
    story.stage(3)
    assert story.stage(2) == Ready(story.refs[0], story.refs[1], Way.CHANGE)
    story.apply()
    assert lab.is_at(story.arrays, 2)


def test_a_stage_that_fails_leaves_nothing_staged_and_what_is_live(lab: ReceiverLab) -> None:
    story = Story(lab)
    story.stage(1)
    story.apply()
    for blob in [*lab.blobs.list("packs/"), *lab.blobs.list("anchors/")]:
        lab.blobs.delete(blob.key)
    with pytest.raises(ObjectMissingError, match="not there"):
        story.stage(2)
    assert story.weights.staged == NothingStaged()
    assert story.weights.live == Whole(story.refs[0])
    assert story.gate.open_version == story.refs[0]


def test_a_cut_change_is_kept_and_finished(lab: ReceiverLab) -> None:
    story = Story(lab)
    story.stage(1)
    story.apply()
    ready = story.stage(3)
    lab.fuse.set(1)
    with pytest.raises(Cut):
        story.apply()
    lab.fuse.set(None)
    assert story.weights.is_cut
    assert story.weights.staged == ready
    assert isinstance(story.weights.live, Dirty)
    assert story.gate.open_version is None
    report = story.weights.finish_cut(story.tally())
    assert report is not None
    assert report.is_redo
    assert lab.is_at(story.arrays, 3)
    assert story.weights.finish_cut(story.tally()) is None


def test_a_cut_change_over_spoiled_bits_is_of_no_use(lab: ReceiverLab) -> None:
    story = Story(lab)
    story.stage(1)
    story.apply()
    story.stage(3)
    lab.fuse.set(1)
    with pytest.raises(Cut):
        story.apply()
    lab.fuse.set(None)
    for units in story.arrays.values():
        units[:] = 0
    assert story.weights.finish_cut(story.tally()) is None
    assert isinstance(story.weights.live, Dirty)
    assert story.weights.staged == NothingStaged()


def test_nothing_staged_is_refused(lab: ReceiverLab) -> None:
    story = Story(lab)
    with pytest.raises(InputRefusedError):
        story.apply()
    with pytest.raises(InputRefusedError):
        story.weights.stage_rollback()


def test_a_gate_that_an_interrupt_left_closed_is_opened_again(lab: ReceiverLab) -> None:
    story = Story(lab)
    story.stage(1)
    story.apply()
    story.gate.close("an interrupt came", 0)
    with pytest.raises(NotReadyError), story.gate.serving():
        raise AssertionError
    story.weights.reopen()
    with story.gate.serving(Wanted(exact=1)):
        pass
    story.weights.soil("spoiled")
    story.weights.reopen()
    assert story.gate.open_version is None


def test_the_parts_of_an_apply_one_by_one(lab: ReceiverLab) -> None:
    story = Story(lab)
    weights, tally = story.weights, story.tally()
    story.stage(1)
    story.apply()
    story.stage(2)
    lives: list[Live] = []
    for part in (weights.close_for_apply, weights.write_staged, weights.resume_after):
        part(tally)
        lives.append(weights.live)
        assert weights.tables is not None
        assert story.gate.open_version is None
    first, second = story.refs[:2]
    assert lives == [Whole(first), Applying(first, second), Whole(second)]
    weights.open_after()
    assert story.gate.open_version == story.refs[1]
    assert weights.staged == NothingStaged()
    assert lab.is_at(story.arrays, 2)


def test_what_was_written_and_not_opened_is_staged_again_as_a_redo(lab: ReceiverLab) -> None:
    story = Story(lab)
    weights, tally = story.weights, story.tally()
    story.stage(1)
    story.apply()
    story.stage(2)
    weights.close_for_apply(tally)
    weights.write_staged(tally)
    again = weights.stage_again(lab.versions.records[1], tally)
    assert again.way is Way.CHANGE
    assert weights.is_cut
    assert weights.step is not None
    weights.write_staged(tally)
    weights.resume_after(tally)
    weights.open_after()
    assert lab.is_at(story.arrays, 2)
    # Another version than the one that was begun is staged on top of what was written.
    story.stage(3)
    weights.close_for_apply(tally)
    weights.write_staged(tally)
    assert weights.stage_again(lab.versions.records[1], tally).way is Way.FULL
    assert weights.live == Whole(story.refs[2])


def test_a_whole_version_that_was_written_is_not_written_again(lab: ReceiverLab) -> None:
    story = Story(lab)
    weights, tally = story.weights, story.tally()
    story.stage(1)
    weights.close_for_apply(tally)
    weights.write_staged(tally)
    assert weights.stage_again(lab.versions.records[0], tally).way is Way.NOTHING
    weights.settle()
    assert weights.held == story.refs[0]
