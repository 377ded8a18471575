"""A valid record changes what it says; an invalid one changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from weightstore.format.effects import state_after
from weightstore.format.kept import of_versions
from weightstore.format.records import (
    FORMAT_NUMBER,
    ActiveVersion,
    KeptRange,
    Record,
)
from weightstore.format.rules import (
    Prefix,
    accept,
    advance,
    is_kept,
    next_version,
    pass_over,
    upgrade_reason,
)
from weightstore.ids import Slot, VersionId
from weightstore.testing.log_story import RUN, LogStory, sha_of

SHA = sha_of("any")


def _begun() -> LogStory:
    return LogStory().begin()


def _claimed() -> LogStory:
    return _begun().claimed()


def _published() -> LogStory:
    return _claimed().published(3)


def _intended() -> LogStory:
    story = _published()
    return story.put(story.intent())


def _activated() -> LogStory:
    """Version 1 was active, version 2 is."""
    story = _published()
    for version in (1, 2):
        story.put(story.activate().model_copy(update={"version": version}))
    return story


def _kept(*versions: int) -> tuple[KeptRange, ...]:
    return of_versions(versions)


def _effects() -> Iterator[tuple[str, LogStory, Record, dict[str, Any]]]:
    """Stories, a valid record, and every field of the state that it changes."""
    story = _begun()
    yield "init", LogStory(), LogStory().init(), {}
    claim = story.opening()
    yield "claim", story, claim, {"epoch": 1}
    story = _published()
    yield "close", story, story.closing(), {"claim": None}
    tagged = story.tag()
    yield "tag", story, tagged, {}
    kept = _kept(1, 2, 3, 4)
    yield "version", story, story.version(), {"kept": kept}
    yield "void", story, story.void_attempt(), {"lowest_open_attempt": 2}
    yield "retire", story, story.retire().model_copy(update={"kept": _kept(3)}), {"kept": _kept(3)}
    active = ActiveVersion(version=VersionId(3), slot=Slot(5))
    yield "activate", story, story.activate(), {"active": active}
    yield "format", story, story.format(), {"features": ("future",)}
    intended = _intended()
    yield "alt", intended, intended.alt(), {"intents": ()}
    yield "void intent", intended, intended.void_intent(), {"intents": ()}


@pytest.mark.parametrize(("name", "story", "record", "changes"), list(_effects()))
def test_a_valid_record_changes_what_it_says_and_links_itself(
    name: str, story: LogStory, record: Record, changes: dict[str, Any]
) -> None:
    before = story.prefix
    after = advance(before, record, SHA)
    assert (after.next_slot, after.tail_sha256) == (before.next_slot + 1, SHA), name
    assert after == accept(before, record, SHA)
    assert after.now == state_after(before.now, record)
    assert after.now.last_slots == {**before.now.last_slots, record.kind: before.next_slot}
    for field, value in changes.items():
        assert getattr(after.now, field) == value
    loose = {"last_slots", *changes}
    if record.kind in {"claim", "version"}:
        loose |= {"claim", "newest"}
    same = [field for field in type(after.now).model_fields if field not in loose]
    assert [getattr(after.now, field) for field in same] == [
        getattr(before.now, field) for field in same
    ]


def test_a_version_becomes_newest_and_moves_the_last_step() -> None:
    story = _published()
    record = story.version()
    now = story.put(record).prefix.now
    assert now.newest is not None
    assert now.claim is not None
    assert now.newest.model_dump() == {
        "version": 4,
        "slot": record.slot,
        "epoch": 1,
        "run": RUN,
        "step": 3,
        "digest": record.digest,
    }
    assert now.claim.last_step == 3


def test_a_claim_tells_who_owns_the_store() -> None:
    record = _begun().opening()
    claim = _begun().put(record).prefix.now.claim
    assert claim is not None
    assert claim.model_dump() == {
        field: getattr(record, field) for field in type(claim).model_fields
    }


def test_activating_the_active_version_again_keeps_its_predecessor() -> None:
    story = _activated()
    before = story.prefix.now
    again = story.activate().model_copy(update={"version": 2})
    now = story.put(again).prefix.now
    assert now.active == ActiveVersion(version=VersionId(2), slot=again.slot)
    assert now.previous_active == before.previous_active
    assert now.previous_active is not None
    assert now.previous_active.version == 1


@pytest.mark.parametrize("kind", ["version", "tag", "claim"])
def test_an_invalid_record_moves_slot_and_hash_and_nothing_else(kind: str) -> None:
    story = _published()
    records: dict[str, Record] = {
        "version": story.version(),
        "tag": story.tag(),
        "claim": story.opening(),
    }
    record = records[kind]
    changed = record.model_copy(update={"epoch": 7})
    after = advance(story.prefix, changed, SHA)
    assert after == Prefix(Slot(story.prefix.next_slot + 1), SHA, story.prefix.now)
    assert after == pass_over(story.prefix, SHA)


def test_fields_of_the_state_that_are_not_known_stay() -> None:
    story = _published()
    now = story.prefix.now.model_copy(update={"later": {"x": 1}})
    story = LogStory(Prefix(story.prefix.next_slot, story.prefix.tail_sha256, now))
    story.published()
    story.put(story.tag())
    assert story.prefix.now.model_dump()["later"] == {"x": 1}


def test_a_state_beyond_this_release_says_so() -> None:
    story = _begun()
    assert upgrade_reason(story.prefix.now) is None
    story.put(story.format())
    assert "future" in (upgrade_reason(story.prefix.now) or "")
    newer = _begun().prefix.now.model_copy(update={"format": FORMAT_NUMBER + 1})
    assert str(FORMAT_NUMBER + 1) in (upgrade_reason(newer) or "")


def test_next_version_and_kept_follow_the_log() -> None:
    story = _claimed()
    assert next_version(story.prefix.now) == 1
    assert not is_kept(story.prefix.now, 1)
    story.published(2)
    assert next_version(story.prefix.now) == 3
    assert [is_kept(story.prefix.now, version) for version in range(4)] == [
        False,
        True,
        True,
        False,
    ]
