"""What the rules add up to over several records."""

from __future__ import annotations

from weightstore.format.kept import of_versions
from weightstore.format.records import (
    KeptRange,
    Record,
)
from weightstore.format.rules import (
    EMPTY_PREFIX,
    Prefix,
    Rule,
    Valid,
    broken_rules,
    pass_over,
    validate,
)
from weightstore.ids import RunId
from weightstore.settings import Limits
from weightstore.testing.log_story import LogStory, sha_of

OTHER = RunId("other")
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


def _full_of_intents() -> LogStory:
    story = _published()
    for number in range(Limits().open_intent_count - 1):
        story.put(story.intent().model_copy(update={"anchor_id": f"c-{number}"}))
    return story


def _kept(*versions: int) -> tuple[KeptRange, ...]:
    return of_versions(versions)


def _rules(prefix: Prefix, record: Record) -> set[Rule]:
    return {one.rule for one in broken_rules(prefix, record)}


def test_only_init_begins_a_log_and_it_does_so_once() -> None:
    begun = _begun()
    assert _rules(begun.prefix, begun.init()) == {Rule.INIT}
    assert _rules(EMPTY_PREFIX, LogStory().tag()) >= {Rule.INIT}


def test_without_a_valid_init_nothing_ever_counts() -> None:
    void = pass_over(EMPTY_PREFIX, SHA)
    assert _rules(void, LogStory(void).opening()) == {Rule.INIT}
    assert _rules(void, LogStory(void).init()) == {Rule.INIT}


def test_an_owner_is_needed_for_versions_voids_of_attempts_and_closes() -> None:
    story = _published()
    story.put(story.closing())
    for record in (story.version(), story.void_attempt(), story.closing()):
        assert Rule.OWNER_CLAIM in _rules(story.prefix, record)


def test_a_voided_attempt_is_over_and_the_next_one_is_open() -> None:
    story = _published()
    late = story.version()
    story.put(story.void_attempt())
    assert story.prefix.now.lowest_open_attempt == 2
    rebuilt = story.version().model_copy(update={"attempt": late.attempt})
    assert _rules(story.prefix, rebuilt) == {Rule.ATTEMPT}
    story.published()
    assert story.prefix.now.lowest_open_attempt == 1


def test_a_claim_starts_attempts_anew_and_fences_the_one_before() -> None:
    story = _published()
    story.put(story.void_attempt())
    stale = story.version()
    story.claimed()
    assert story.prefix.now.lowest_open_attempt == 1
    moved = stale.model_copy(
        update={
            "slot": story.prefix.next_slot,
            "parent_sha256": story.prefix.tail_sha256,
            "now": story.prefix.now,
            "attempt": 1,
        }
    )
    assert _rules(story.prefix, moved) == {Rule.EPOCH}


def test_a_full_version_needs_no_base() -> None:
    story = _published()
    full = story.version().model_copy(update={"base": None})
    assert validate(story.prefix, full) == Valid()


def test_of_a_run_that_did_not_make_the_newest_version_any_last_step_is_possible() -> None:
    story = _published()
    for last_step in (None, 0, 99):
        other = story.opening().model_copy(update={"run": OTHER, "last_step": last_step})
        assert validate(story.prefix, other) == Valid()
    rewound = story.opening().model_copy(update={"run": OTHER, "rewind_to": 7, "last_step": 7})
    assert validate(story.prefix, rewound) == Valid()


def test_after_a_rewind_steps_above_it_become_new_versions() -> None:
    story = _published()
    story.put(story.opening().model_copy(update={"rewind_to": 0, "last_step": 0}))
    story.published()
    newest = story.prefix.now.newest
    assert newest is not None
    assert (newest.version, newest.step) == (4, 1)


def test_take_over_without_an_open_claim_is_no_fault() -> None:
    story = _begun()
    record = story.opening().model_copy(update={"take_over": True})
    assert validate(story.prefix, record) == Valid()


def test_an_open_anchor_id_is_not_opened_again() -> None:
    story = _intended()
    assert _rules(story.prefix, story.intent()) == {Rule.INTENT_ID}
    story.put(story.alt())
    assert story.prefix.now.intents == ()


def test_the_number_of_open_intents_is_bounded() -> None:
    story = _full_of_intents()
    story.put(story.intent())
    one_more = story.intent().model_copy(update={"anchor_id": "c-b"})
    assert _rules(story.prefix, one_more) == {Rule.INTENT_COUNT}


def test_an_alt_after_the_void_of_its_intent_is_invalid() -> None:
    story = _intended()
    story.put(story.void_intent())
    assert _rules(story.prefix, story.alt()) == {Rule.INTENT_OPEN}


def test_a_retired_version_gets_no_name_no_intent_and_no_alt() -> None:
    story = _published()
    story.put(story.intent().model_copy(update={"version": 1}))
    story.put(story.retire().model_copy(update={"kept": _kept(3)}))
    for record in (story.tag(), story.activate(), story.alt()):
        stale = record.model_copy(update={"version": 1})
        assert _rules(story.prefix, stale) == {Rule.KEPT}
    fresh = story.intent().model_copy(update={"version": 1, "anchor_id": "c-b"})
    assert _rules(story.prefix, fresh) == {Rule.KEPT}
    assert validate(story.prefix, story.tag().model_copy(update={"version": None})) == Valid()


def test_what_was_retired_never_comes_back() -> None:
    story = _published()
    story.put(story.retire().model_copy(update={"kept": _kept(1, 3)}))
    again = story.retire().model_copy(update={"kept": _kept(1, 2, 3)})
    assert _rules(story.prefix, again) == {Rule.RETIRE_SUBSET}


def test_a_kept_set_has_a_bounded_number_of_ranges() -> None:
    story = _claimed().published(2 * Limits().kept_range_count + 1)
    odd = _kept(*range(1, 2 * Limits().kept_range_count + 2, 2))
    assert len(odd) == Limits().kept_range_count + 1
    too_many = story.retire().model_copy(update={"kept": odd})
    assert _rules(story.prefix, too_many) == {Rule.RETIRE_FORM}
    fewer = story.retire().model_copy(update={"kept": odd[1:]})
    assert validate(story.prefix, fewer) == Valid()


def test_format_and_features_never_go_back() -> None:
    story = _begun()
    story.put(story.format().model_copy(update={"format": 2}))
    lower = story.format().model_copy(update={"features": ("future", "more")})
    assert _rules(story.prefix, lower) == {Rule.FORMAT_ORDER}
    fewer = story.format().model_copy(update={"format": 2, "features": ("more",)})
    assert _rules(story.prefix, fewer) == {Rule.FORMAT_ORDER}
