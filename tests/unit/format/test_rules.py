"""Each rule of the log both ways: a valid record passes, one changed field breaks that rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from weightstore.format.kept import of_versions
from weightstore.format.records import (
    Base,
    KeptRange,
    Record,
    VoidAttempt,
    VoidIntent,
)
from weightstore.format.rules import (
    Invalid,
    Rule,
    Valid,
    broken_rules,
    validate,
)
from weightstore.ids import Attempt, CommitId, RunId, VersionId
from weightstore.testing.log_story import LogStory, sha_of

OTHER = RunId("other")
NONCE = CommitId("e" * 32)
SHA = sha_of("any")


def _empty() -> LogStory:
    return LogStory()


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


class Break(NamedTuple):
    """A story, the record that is valid at its end, and a change that breaks one rule."""

    rule: Rule
    name: str
    story: Callable[[], LogStory]
    build: Callable[[LogStory], Record]
    change: dict[str, Any]


def _kept(*versions: int) -> tuple[KeptRange, ...]:
    return of_versions(versions)


def _range(first: int, last: int) -> KeptRange:
    return KeptRange(first=VersionId(first), last=VersionId(last))


def _attempt(version: int, attempt: int) -> VoidAttempt:
    return VoidAttempt(
        version=VersionId(version), attempt=Attempt(attempt), attempt_commit_id=NONCE
    )


_EVERYWHERE = (
    Break(Rule.SLOT, "a slot too early", _published, LogStory.tag, {"slot": 3}),
    Break(Rule.SLOT, "a slot too late", _published, LogStory.tag, {"slot": 6}),
    Break(Rule.PARENT, "another parent", _published, LogStory.tag, {"parent_sha256": SHA}),
    Break(Rule.NOW, "an older state", _published, LogStory.tag, {"now": _claimed().prefix.now}),
    Break(Rule.EPOCH, "an older epoch", _published, LogStory.tag, {"epoch": 0}),
    Break(Rule.EPOCH, "a later epoch", _published, LogStory.version, {"epoch": 2}),
    Break(Rule.EPOCH, "a claim of the epoch in force", _published, LogStory.opening, {"epoch": 1}),
    Break(Rule.EPOCH, "a claim that skips an epoch", _begun, LogStory.opening, {"epoch": 2}),
    Break(Rule.EPOCH, "a close of a later epoch", _published, LogStory.closing, {"epoch": 2}),
)
_CLAIMS = (
    Break(Rule.CLAIM_RUN, "no run", _begun, LogStory.opening, {"run": None}),
    Break(Rule.CLAIM_BUSY, "no take-over", _published, LogStory.opening, {"take_over": False}),
    Break(Rule.CLAIM_LAST_STEP, "a lower step", _published, LogStory.opening, {"last_step": 1}),
    Break(Rule.CLAIM_LAST_STEP, "a higher step", _published, LogStory.opening, {"last_step": 3}),
    Break(Rule.CLAIM_LAST_STEP, "no step", _published, LogStory.opening, {"last_step": None}),
    Break(Rule.CLAIM_LAST_STEP, "a step of nothing", _begun, LogStory.opening, {"last_step": 0}),
    Break(Rule.CLAIM_LAST_STEP, "another at close", _published, LogStory.closing, {"last_step": 1}),
    Break(
        Rule.CLAIM_REWIND,
        "to the newest step",
        _published,
        LogStory.opening,
        {"rewind_to": 2, "last_step": 2},
    ),
    Break(
        Rule.CLAIM_REWIND,
        "last step not where it rewinds to",
        _published,
        LogStory.opening,
        {"rewind_to": 1, "last_step": 0},
    ),
    Break(
        Rule.CLAIM_REWIND,
        "nothing to rewind",
        _begun,
        LogStory.opening,
        {"rewind_to": 0, "last_step": 0},
    ),
    Break(Rule.CLAIM_CLOSE, "close by force", _claimed, LogStory.closing, {"take_over": True}),
    Break(Rule.CLAIM_CLOSE, "close and rewind", _published, LogStory.closing, {"rewind_to": 0}),
    Break(Rule.OWNER_RUN, "close of another run", _claimed, LogStory.closing, {"run": OTHER}),
    Break(Rule.OWNER_SESSION, "foreign close", _claimed, LogStory.closing, {"session": NONCE}),
)
_VERSIONS = (
    Break(Rule.OWNER_RUN, "another run", _published, LogStory.version, {"run": OTHER}),
    Break(Rule.OWNER_RUN, "no run", _published, LogStory.version, {"run": None}),
    Break(Rule.OWNER_SESSION, "foreign", _published, LogStory.version, {"session": NONCE}),
    Break(Rule.NEXT_VERSION, "the newest again", _published, LogStory.version, {"version": 3}),
    Break(Rule.NEXT_VERSION, "a gap", _published, LogStory.version, {"version": 5}),
    Break(Rule.NEXT_VERSION, "not from 1", _claimed, LogStory.version, {"version": 2}),
    Break(Rule.ATTEMPT, "a later attempt", _published, LogStory.version, {"attempt": 2}),
    Break(Rule.STEP, "the last step again", _published, LogStory.version, {"step": 2}),
    Break(Rule.STEP, "an older step", _published, LogStory.version, {"step": 0}),
    Break(
        Rule.BASE,
        "an older version",
        _published,
        LogStory.version,
        {"base": Base(version=VersionId(2), digest=sha_of("version 2"))},
    ),
    Break(
        Rule.BASE,
        "another digest",
        _published,
        LogStory.version,
        {"base": Base(version=VersionId(3), digest=SHA)},
    ),
    Break(
        Rule.BASE,
        "a base of nothing",
        _claimed,
        LogStory.version,
        {"base": Base(version=VersionId(1), digest=SHA)},
    ),
    Break(Rule.OWNER_RUN, "void of another run", _claimed, LogStory.void_attempt, {"run": OTHER}),
    Break(Rule.OWNER_SESSION, "foreign void", _claimed, LogStory.void_attempt, {"session": NONCE}),
    Break(
        Rule.NEXT_VERSION,
        "void of the newest version",
        _published,
        LogStory.void_attempt,
        {"what": _attempt(3, 1)},
    ),
    Break(
        Rule.ATTEMPT,
        "void of an attempt that is not open",
        _published,
        LogStory.void_attempt,
        {"what": _attempt(4, 2)},
    ),
)
_ANCHORS = (
    Break(Rule.KEPT, "intent for no version", _published, LogStory.intent, {"version": 4}),
    Break(
        Rule.INTENT_ID, "a trainer's name", _published, LogStory.intent, {"anchor_id": "r-1-2-1"}
    ),
    Break(Rule.INTENT_OPEN, "alt of no intent", _intended, LogStory.alt, {"anchor_id": "c-b"}),
    Break(Rule.INTENT_OPEN, "alt of another version", _intended, LogStory.alt, {"version": 2}),
    Break(
        Rule.INTENT_OPEN,
        "void of no intent",
        _intended,
        LogStory.void_intent,
        {"what": VoidIntent(anchor_id="c-b")},
    ),
)
_NAMES = (
    Break(Rule.KEPT, "tag of no version", _published, LogStory.tag, {"version": 4}),
    Break(Rule.KEPT, "activate no version", _published, LogStory.activate, {"version": 4}),
    Break(
        Rule.ACTIVATE_LINK,
        "it follows none",
        _activated,
        LogStory.activate,
        {"previous_activate_slot": None},
    ),
    Break(
        Rule.ACTIVATE_LINK,
        "it follows an older one",
        _activated,
        LogStory.activate,
        {"previous_activate_slot": 5},
    ),
    Break(
        Rule.ACTIVATE_LINK,
        "it follows one that is not there",
        _published,
        LogStory.activate,
        {"previous_activate_slot": 2},
    ),
    Break(Rule.ACTIVATE_COUNT, "more staged", _published, LogStory.activate, {"staged_count": 3}),
)
_RETIRES = (
    Break(
        Rule.RETIRE_FORM,
        "out of order",
        _published,
        LogStory.retire,
        {"kept": (_range(3, 3), _range(1, 1))},
    ),
    Break(
        Rule.RETIRE_FORM,
        "adjacent ranges",
        _published,
        LogStory.retire,
        {"kept": (_range(1, 2), _range(3, 3))},
    ),
    Break(
        Rule.RETIRE_FORM, "an empty range", _published, LogStory.retire, {"kept": (_range(3, 2),)}
    ),
    Break(Rule.RETIRE_SUBSET, "the future", _published, LogStory.retire, {"kept": _kept(3, 4)}),
    Break(Rule.RETIRE_LOSS, "newest lost", _published, LogStory.retire, {"kept": _kept(1, 2)}),
    Break(Rule.RETIRE_LOSS, "all lost", _published, LogStory.retire, {"kept": ()}),
    Break(Rule.RETIRE_LOSS, "active lost", _activated, LogStory.retire, {"kept": _kept(1, 3)}),
    Break(Rule.RETIRE_LOSS, "previous lost", _activated, LogStory.retire, {"kept": _kept(2, 3)}),
)
_FORMATS = (
    Break(Rule.FEATURES, "repeated", _begun, LogStory.format, {"features": ("a", "a")}),
    Break(Rule.FEATURES, "unsorted", _begun, LogStory.format, {"features": ("b", "a")}),
    Break(
        Rule.FEATURES,
        "too many",
        _begun,
        LogStory.format,
        {"features": tuple(f"f{number:02}" for number in range(65))},
    ),
    Break(Rule.FEATURES, "unsorted at slot 0", _empty, LogStory.init, {"features": ("b", "a")}),
    Break(Rule.FORMAT_ORDER, "nothing new", _begun, LogStory.format, {"features": ()}),
)
_BREAKS = _EVERYWHERE + _CLAIMS + _VERSIONS + _ANCHORS + _NAMES + _RETIRES + _FORMATS


def _names_of(breaks: tuple[Break, ...]) -> list[str]:
    return [f"{one.rule.value}: {one.name}" for one in breaks]


@pytest.mark.parametrize("case", _BREAKS, ids=_names_of(_BREAKS))
def test_one_changed_field_breaks_exactly_its_rule(case: Break) -> None:
    story = case.story()
    record = case.build(story)
    assert validate(story.prefix, record) == Valid()
    changed = record.model_copy(update=case.change)
    assert {one.rule for one in broken_rules(story.prefix, changed)} == {case.rule}
    verdict = validate(story.prefix, changed)
    assert isinstance(verdict, Invalid)
    assert verdict.reason


def test_every_rule_has_a_case_here() -> None:
    elsewhere = {Rule.INIT, Rule.OWNER_CLAIM, Rule.INTENT_COUNT}
    assert {one.rule for one in _BREAKS} | elsewhere == set(Rule)
