"""The frozen log of format 1 says of every record what the product said when it was frozen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from migrations import log_1
from migrations.failures import DamagedStoreError, NewerStoreError, NoStoreError
from migrations.place import Place
from migrations.record_1 import encode
from weightstore.format.records import Record, encode_record
from weightstore.format.rules import Invalid, advance, validate
from weightstore.history.log import sha256_of
from weightstore.testing.log_story import LogStory

Change = dict[str, Any]


def stories() -> Iterator[tuple[LogStory, Record]]:
    """Every kind of record after a log in which it is valid."""
    fresh = LogStory()
    yield fresh, fresh.init()
    for build in ("opening", "format"):
        story = LogStory().begin()
        yield story, getattr(story, build)()
    for build in ("closing", "opening", "version", "void_attempt"):
        story = LogStory().begin().claimed()
        yield story, getattr(story, build)()
    for build in ("version", "tag", "intent", "activate", "retire", "closing", "opening"):
        story = LogStory().begin().claimed().published(3)
        yield story, getattr(story, build)()
    for build in ("alt", "void_intent", "intent"):
        story = LogStory().begin().claimed().published(2)
        story.put(story.intent())
        yield story, getattr(story, build)()
    story = LogStory().begin().claimed().published(2)
    story.put(story.activate()).published()
    yield story, story.activate()
    yield story, story.retire()


CHANGES: dict[str, list[Change]] = {
    "init": [{"features": ["b", "a"]}],
    "claim": [
        {"run": None}, {"take_over": False}, {"take_over": True}, {"rewind_to": 0},
        {"rewind_to": 0, "last_step": 0}, {"rewind_to": 9, "last_step": 9}, {"last_step": 1},
        {"run": "other"}, {"session": "6" * 32}, {"last_step": None},
    ],
    "version": [
        {"version": 1}, {"version": 9}, {"attempt": 2}, {"step": 0}, {"base": None},
        {"base": {"version": 1, "digest": "0" * 64}}, {"run": "other"}, {"session": "6" * 32},
    ],
    "void": [{"what": {"target": "attempt", "version": 1, "attempt": 7,
                       "attempt_commit_id": "a" * 32}},
             {"what": {"target": "intent", "anchor_id": "unknown"}}, {"run": "other"}],
    "tag": [{"version": None}, {"version": 9}],
    "intent": [{"version": 9}, {"anchor_id": "grpo-1-2-3"}, {"anchor_id": "grpo-1-2"},
               {"anchor_id": "..-1-2-3"}],
    "alt": [{"version": 1}, {"anchor_id": "other"}],
    "activate": [{"version": 9}, {"previous_activate_slot": 1}, {"staged_count": 9}],
    "retire": [
        {"kept": []}, {"kept": [{"first": 2, "last": 3}]}, {"kept": [{"first": 3, "last": 2}]},
        {"kept": [{"first": 1, "last": 1}, {"first": 2, "last": 3}]},
        {"kept": [{"first": 1, "last": 9}]}, {"kept": [{"first": 3, "last": 3}]},
    ],
    "format": [{"format": 2}, {"format": 2, "features": ["b", "a"]}, {"features": []},
               {"features": ["a"] * 2}],
}  # fmt: skip
ANYWHERE: list[Change] = [
    {}, {"parent_sha256": "f" * 64}, {"epoch": 0}, {"epoch": 1}, {"epoch": 7},
]  # fmt: skip


def test_every_record_and_every_wrong_one_is_judged_as_the_product_does() -> None:
    kinds, void_count, valid_count = set(), 0, 0
    for story, record in stories():
        kinds.add(record.kind)
        start = log_1.Prefix(
            story.prefix.next_slot,
            story.prefix.tail_sha256,
            story.prefix.now.model_dump(mode="json"),
        )
        for change in (*ANYWHERE, *CHANGES[record.kind], {"now": other_now(story)}):
            document = json.loads(encode_record(record)) | change
            data = encode(document)
            changed = type(record).model_validate_json(data)
            expected = advance(story.prefix, changed, sha256_of(data))
            found = log_1.advance(start, data)
            what = f"{record.kind} {change}"
            assert found.now == expected.now.model_dump(mode="json"), what
            assert (found.next_slot, found.tail_sha256) == (
                expected.next_slot,
                expected.tail_sha256,
            )
            is_void = isinstance(validate(story.prefix, changed), Invalid)
            void_count, valid_count = void_count + is_void, valid_count + (not is_void)
    assert kinds == set(CHANGES)
    assert void_count > 100
    assert valid_count > 20


def other_now(story: LogStory) -> Change:
    now: Change = story.prefix.now.model_dump(mode="json")
    return now | {"lowest_open_attempt": now["lowest_open_attempt"] + 1}


def test_unknown_fields_of_the_state_stay() -> None:
    prefix = log_1.empty_prefix()
    now = prefix.now | {"later": 1}
    story = LogStory()
    document = json.loads(encode_record(story.init())) | {"now": now}
    after = log_1.advance(log_1.Prefix(0, "0" * 64, now), encode(document))
    assert after.now["later"] == 1
    assert after.now["last_slots"] == {"init": 0}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"{", DamagedStoreError),
        (b"[]", DamagedStoreError),
        (b'{"kind": "init"}', DamagedStoreError),
        (b'{"kind":"init"}', DamagedStoreError),
    ],
)
def test_what_is_no_record_stops(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        log_1.advance(log_1.empty_prefix(), data)


def test_a_record_of_a_later_kind_or_of_another_slot_stops() -> None:
    document = json.loads(encode_record(LogStory().init()))
    with pytest.raises(NewerStoreError, match="'later'"):
        log_1.advance(log_1.empty_prefix(), encode(document | {"kind": "later"}))
    with pytest.raises(DamagedStoreError, match="says that it is record 4"):
        log_1.advance(log_1.empty_prefix(), encode(document | {"slot": 4}))


def test_a_record_larger_than_any_may_be_stops(tmp_path: Path) -> None:
    document = json.loads(encode_record(LogStory().init()))
    room = log_1.RECORD_SIZE_BYTES_MAX - len(encode(document | {"x": ""}))
    (tmp_path / "log").mkdir()
    (tmp_path / log_1.log_key(0)).write_bytes(encode(document | {"x": "x" * room}))
    assert log_1.read_log(Place(tmp_path)).now["last_slots"] == {"init": 0}
    (tmp_path / log_1.log_key(0)).write_bytes(encode(document | {"x": "x" * (room + 1)}))
    with pytest.raises(DamagedStoreError, match="larger than 65536 bytes"):
        log_1.read_log(Place(tmp_path))


def test_a_place_without_a_log_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError):
        log_1.read_log(Place(tmp_path))
