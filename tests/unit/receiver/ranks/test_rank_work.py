"""What a rank does for each part of a round, and what it refuses to do out of turn."""

from __future__ import annotations

import pytest

from weightstore.errors import InputRefusedError, NotReadyError
from weightstore.ids import Sha256, VersionId
from weightstore.receiver.live_state import Applying, Dirty, VersionRef, Whole
from weightstore.receiver.ranks.messages import Part, VersionText, ref_of
from weightstore.receiver.ranks.rank_work import RankWork
from weightstore.testing.rank_lab import ONE_RANK_SCHEMA, RANK_PARTS, OneRank


def test_a_round_brings_a_version_in_and_opens_at_its_end_alone() -> None:
    story = OneRank()
    story.round(1)
    assert story.lab.is_at(story.arrays, 1)
    for part in (Part.STAGE, Part.CLOSE, Part.APPLY, Part.RESUME):
        story.do(part, 3)
        assert story.is_open() == (part is Part.STAGE)
    assert isinstance(story.receiver.live, Whole)
    assert story.receiver.version == 3
    story.do(Part.OPEN, 3)
    assert story.is_open()
    assert story.work.held == story.refs[2]
    assert story.done().way == "change"
    assert story.done().applied_count > 0


def test_every_part_may_be_done_again() -> None:
    story = OneRank()
    story.round(1)
    for part in RANK_PARTS:
        for _ in range(2):
            story.do(part, 2)
    assert story.is_open()
    assert story.lab.is_at(story.arrays, 2)


def test_no_part_is_done_out_of_turn() -> None:
    story = OneRank()
    story.round(1)
    refused = {
        (): [Part.CLOSE, Part.APPLY, Part.RESUME, Part.OPEN],
        (Part.STAGE,): [Part.APPLY, Part.RESUME, Part.OPEN],
        (Part.STAGE, Part.CLOSE): [Part.RESUME, Part.OPEN],
        (Part.STAGE, Part.CLOSE, Part.STAGE): [Part.APPLY, Part.RESUME, Part.OPEN],
    }
    for before, parts in refused.items():
        for part in parts:
            for each in before:
                story.do(each, 2)
            with pytest.raises(InputRefusedError):
                story.do(part, 2)
    with pytest.raises(InputRefusedError):
        story.do(Part.ATTACH, 2)
    story.do(Part.CLOSE, 2)
    with pytest.raises(InputRefusedError):
        story.do(Part.APPLY, 3)
    assert story.lab.is_at(story.arrays, 1)
    assert not story.is_open()


def test_a_store_with_another_version_of_that_number_is_refused() -> None:
    story = OneRank()
    wrong = ref_of(VersionText(version=2, digest="f" * 64))
    assert wrong == VersionRef(VersionId(2), Sha256("f" * 64))
    with pytest.raises(InputRefusedError, match="another"):
        story.work.do(Part.STAGE, wrong, None, "")


def test_digests_are_said_before_and_after_and_whole_versions_when_they_are_written() -> None:
    story = OneRank()
    story.work.attach()
    staged = story.do(Part.STAGE, 1)
    assert staged.box_words is not None
    assert (staged.before, staged.after) == (None, None)
    story.do(Part.CLOSE, 1)
    written = story.do(Part.APPLY, 1)
    assert written.after is not None
    story.do(Part.OPEN, 1)
    staged = story.do(Part.STAGE, 2)
    assert staged.before is not None
    assert staged.after is not None
    assert (staged.before == written.after).all()
    story.do(Part.CLOSE, 2)
    assert story.do(Part.APPLY, 2).after is None


def test_a_written_version_that_was_not_opened_is_kept_behind_a_closed_gate() -> None:
    story = OneRank()
    story.round(1)
    for part in (Part.STAGE, Part.CLOSE, Part.APPLY):
        story.do(part, 2)
    assert isinstance(story.receiver.live, Applying)
    story.work.shut("a new leader")
    tables = story.work.attach()
    assert tables.before is not None
    assert story.work.held == story.refs[1]
    assert not story.is_open()


def test_a_write_that_was_cut_is_ended_when_the_rank_attaches() -> None:
    story = OneRank()
    story.round(1)
    story.cut(3)
    assert isinstance(story.receiver.live, Dirty)
    assert story.work.attach().before is not None
    assert story.work.held == story.refs[2]
    assert story.lab.is_at(story.arrays, 3)
    assert not story.is_open()


def test_another_rank_that_failed_makes_this_one_write_its_change_again() -> None:
    story = OneRank()
    story.round(1)
    for part in (Part.STAGE, Part.CLOSE, Part.APPLY):
        story.do(part, 2)
    story.do(Part.STAGE, 2)
    assert isinstance(story.receiver.live, Dirty)
    assert story.done().is_redo
    for part in (Part.CLOSE, Part.APPLY, Part.OPEN):
        story.do(part, 2)
    assert story.lab.is_at(story.arrays, 2)


def test_a_rank_that_holds_something_else_than_its_engine_takes_all_of_the_version() -> None:
    story = OneRank()
    story.round(1)
    story.do(Part.STAGE, 3, base=2)
    assert story.done().way == "full"
    with pytest.raises(NotReadyError), story.receiver.serving():
        pass


def test_giving_up_and_calling() -> None:
    story = OneRank()
    story.round(1)
    story.do(Part.CALL, 1)
    assert story.is_open()
    story.do(Part.SOIL, 1)
    assert story.work.held is None
    assert story.work.schema_id() == ONE_RANK_SCHEMA.id
    assert story.work.callback_count == 0


def test_a_rank_that_has_staged_nothing_has_done_nothing() -> None:
    work: RankWork = OneRank().work
    assert work.work() is None
    work.attach()
    assert work.work() is None
