"""Records survive their bytes; hostile bytes end in one typed error, before anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.errors import CorruptLogError, UpgradeRequiredError
from weightstore.format.canonical import MAX_INTEGER, encode_json
from weightstore.format.kept import of_versions
from weightstore.format.records import (
    ActiveVersion,
    Base,
    KeptRange,
    Newest,
    Now,
    OpenClaim,
    OpenIntent,
    Record,
    VoidAttempt,
    VoidIntent,
    decode_record,
    encode_record,
)
from weightstore.ids import ANCHOR_ID_PATTERN, RUN_PATTERN, TAG_PATTERN, Slot, VersionId
from weightstore.settings import Limits
from weightstore.testing.log_story import LogStory

KIND_BUILDERS: dict[str, Callable[[LogStory], Record]] = {
    "init": LogStory.init,
    "open": LogStory.opening,
    "close": LogStory.closing,
    "version": LogStory.version,
    "alt": LogStory.alt,
    "intent": LogStory.intent,
    "void attempt": LogStory.void_attempt,
    "void intent": LogStory.void_intent,
    "tag": LogStory.tag,
    "activate": LogStory.activate,
    "retire": LogStory.retire,
    "format": LogStory.format,
}

INTS = st.integers(0, MAX_INTEGER)
POSITIVE = st.integers(1, MAX_INTEGER)
SHAS = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
NONCES = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
RUNS = st.from_regex(RUN_PATTERN, fullmatch=True).filter(lambda text: len(text) <= 64)
TAGS = st.from_regex(TAG_PATTERN, fullmatch=True).filter(lambda text: len(text) <= 64)
ANCHORS = st.from_regex(ANCHOR_ID_PATTERN, fullmatch=True).filter(lambda text: len(text) <= 160)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FEATURES = st.lists(st.from_regex(r"[a-z0-9_.]{1,64}", fullmatch=True), max_size=3).map(tuple)
KEPT = st.sets(st.integers(1, 60), max_size=20).map(of_versions)

NEWEST = st.builds(
    Newest, version=POSITIVE, slot=INTS, epoch=INTS, run=RUNS, step=INTS, digest=SHAS
)
CLAIM = st.builds(
    OpenClaim,
    slot=INTS,
    epoch=INTS,
    run=RUNS,
    session=NONCES,
    last_step=st.none() | INTS,
    host=TEXTS,
    process=INTS,
    boot_id=TEXTS,
)
ACTIVE = st.builds(ActiveVersion, version=POSITIVE, slot=INTS)
INTENTS = st.lists(
    st.builds(OpenIntent, anchor_id=ANCHORS, version=POSITIVE, slot=INTS), max_size=3
)
NOWS = st.builds(
    Now,
    format=POSITIVE,
    features=FEATURES,
    epoch=INTS,
    claim=st.none() | CLAIM,
    newest=st.none() | NEWEST,
    lowest_open_attempt=POSITIVE,
    intents=INTENTS.map(tuple),
    kept=KEPT,
    active=st.none() | ACTIVE,
    previous_active=st.none() | ACTIVE,
    last_slots=st.dictionaries(st.sampled_from(["init", "claim", "version", "tag"]), INTS),
)
# Values by field name, the same in every kind that has the field.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "slot": INTS,
    "parent_sha256": SHAS,
    "epoch": INTS,
    "session": NONCES,
    "commit_id": NONCES,
    "written_unix_ms": INTS,
    "now": NOWS,
    "store_id": NONCES,
    "features": FEATURES,
    "take_over": st.booleans(),
    "rewind_to": st.none() | INTS,
    "last_step": st.none() | INTS,
    "host": TEXTS,
    "process": INTS,
    "boot_id": TEXTS,
    "attempt": POSITIVE,
    "step": INTS,
    "base": st.none() | st.builds(Base, version=POSITIVE, digest=SHAS),
    "schema_id": SHAS,
    "digest": SHAS,
    "manifest_size_bytes": INTS,
    "manifest_sha256": SHAS,
    "world_size": POSITIVE,
    "form": st.sampled_from(["full", "fold"]),
    "anchor_id": ANCHORS,
    "what": st.builds(VoidAttempt, version=POSITIVE, attempt=POSITIVE, attempt_commit_id=NONCES)
    | st.builds(VoidIntent, anchor_id=ANCHORS),
    "name": TAGS,
    "version": POSITIVE,
    "owner": TEXTS,
    "previous_activate_slot": st.none() | INTS,
    "members_sha256": SHAS,
    "listed_count": INTS,
    "staged_count": INTS,
    "kept": KEPT,
}
UNKNOWN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def _stories() -> LogStory:
    story = LogStory().begin().claimed().published(2)
    return story.put(story.intent())


@st.composite
def _records(draw: st.DrawFn) -> Record:
    template = draw(st.sampled_from(list(KIND_BUILDERS.values())))(_stories())
    known = [field for field in type(template).model_fields if field in FIELDS]
    drawn = {field: draw(FIELDS[field]) for field in known}
    # Checked again, since `model_copy` alone would take anything.
    record: Record = type(template).model_validate(
        {**{field: getattr(template, field) for field in type(template).model_fields}, **drawn}
    )
    return record


@given(_records())
def test_a_record_survives_its_bytes(record: Record) -> None:
    data = encode_record(record)
    again = decode_record(data, slot=record.slot)
    assert again == record
    assert encode_record(again) == data


@given(_records(), st.dictionaries(st.from_regex(r"x_[a-z]{1,4}", fullmatch=True), UNKNOWN))
def test_unknown_fields_survive_at_every_level(record: Record, unknown: dict[str, Any]) -> None:
    value = json.loads(encode_record(record))
    value.update(unknown)
    value["now"].update(unknown)
    if value["now"]["newest"] is not None:
        value["now"]["newest"].update(unknown)
    data = encode_json(value)
    assert encode_record(decode_record(data, slot=record.slot)) == data


@pytest.mark.parametrize("build", KIND_BUILDERS.values(), ids=KIND_BUILDERS)
def test_every_kind_parses_and_needs_each_of_its_fields(
    build: Callable[[LogStory], Record],
) -> None:
    record = build(_stories())
    value = json.loads(encode_record(record))
    assert type(decode_record(encode_json(value), slot=record.slot)) is type(record)
    for field in value:
        less = {name: inner for name, inner in value.items() if name != field}
        with pytest.raises(CorruptLogError):
            decode_record(encode_json(less), slot=record.slot)


@pytest.mark.parametrize("field", list(Now.model_fields))
def test_a_state_needs_each_of_its_fields(field: str) -> None:
    record = _stories().tag()
    value = json.loads(encode_record(record))
    del value["now"][field]
    with pytest.raises(CorruptLogError, match=f"now.{field}"):
        decode_record(encode_json(value), slot=record.slot)


def _changed(path: tuple[str, ...], leaf: object) -> tuple[bytes, Slot]:
    record = _stories().version()
    value = json.loads(encode_record(record))
    place = value
    for name in path[:-1]:
        place = place[name]
    assert path[-1] in place
    place[path[-1]] = leaf
    return encode_json(value), record.slot


@pytest.mark.parametrize(
    ("path", "leaf"),
    [
        (("slot",), "4"),
        (("slot",), True),
        (("slot",), -1),
        (("slot",), None),
        (("slot",), MAX_INTEGER + 1),
        (("version",), 0),
        (("version",), 10**400),
        (("step",), -1),
        (("attempt",), 0),
        (("epoch",), [1]),
        (("run",), ""),
        (("run",), ".."),
        (("run",), "a/b"),
        (("run",), "A"),
        (("run",), "a\n"),
        (("run",), "a" * 65),
        (("session",), "5" * 31),
        (("session",), "F" * 32),
        (("commit_id",), "é" * 32),
        (("digest",), "a" * 63),
        (("parent_sha256",), "a" * 64 + "\n"),
        (("base",), {"version": 1}),
        (("base",), []),
        (("now",), None),
        (("now", "claim", "host"), "x" * 257),
        (("now", "claim", "session"), "../../etc/passwd"),
        (("now", "newest", "digest"), ""),
        (("now", "kept"), {"first": 1, "last": 2}),
        (("now", "kept"), [{"first": 0, "last": 2}]),
        (("now", "intents"), [{"anchor_id": "..", "version": 1, "slot": 1}]),
        (("now", "intents"), [{"anchor_id": "a/b", "version": 1, "slot": 1}]),
        (("now", "last_slots"), {"unheard": 1}),
        (("now", "last_slots"), {"version": -1}),
        (("now", "features"), ["A B"]),
        (("kind",), 7),
        (("kind",), None),
        (("kind",), "tag"),
    ],
)
def test_a_wrong_value_is_refused_by_name(path: tuple[str, ...], leaf: object) -> None:
    data, slot = _changed(path, leaf)
    with pytest.raises(CorruptLogError, match=f"log record {slot}"):
        decode_record(data, slot=slot)


@pytest.mark.parametrize("kind", ["unheard", "", "Version", "version "])
def test_an_unknown_kind_asks_for_an_upgrade(kind: str) -> None:
    data, slot = _changed(("kind",), kind)
    with pytest.raises(UpgradeRequiredError, match="unknown kind"):
        decode_record(data, slot=slot)


def test_a_record_of_another_slot_is_refused() -> None:
    record = _stories().tag()
    with pytest.raises(CorruptLogError, match="says that it is record 5"):
        decode_record(encode_record(record), slot=Slot(6))


def _texts() -> dict[str, bytes]:
    good = encode_record(_stories().tag())
    return {
        "nothing": b"",
        "no object": b"[]",
        "a text": b'"record"',
        "null": b"null",
        "an object of nothing": b"{}",
        "cut": good[:-1],
        "a byte more": good + b"\n",
        "a space": good.replace(b'"kind":', b'"kind": '),
        "a repeated key": good.replace(b'"kind":"tag"', b'"kind":"tag","kind":"tag"'),
        "a second kind": good.replace(b'"kind":"tag"', b'"kind":"tag","kind":"init"'),
        "a float": good.replace(b'"slot":5', b'"slot":5.0'),
        "an exponent": good.replace(b'"slot":5', b'"slot":5e0'),
        "not a number": good.replace(b'"slot":5', b'"slot":NaN'),
        "a huge integer": good.replace(b'"slot":5', b'"slot":' + b"9" * 60_000),
        "an escaped name": good.replace(b'"tag"', b'"t\\u0061g"'),
        "a surrogate": good.replace(b'"owner":"me"', b'"owner":"\\ud800"'),
        "no UTF-8": good.replace(b'"owner":"me"', b'"owner":"\xff\xfe"'),
        "lists in lists": b"[" * 60_000,
        "unknown lists in lists": good.replace(
            b'"version":2}', b'"version":2,"x":' + b"[" * 500 + b"]" * 500 + b"}"
        ),
        "NUL": b"\x00" * 100,
        "another format": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94.",
    }


@pytest.mark.parametrize("data", _texts().values(), ids=_texts())
def test_bytes_that_are_no_canonical_record_are_refused(data: bytes) -> None:
    assert data != encode_record(_stories().tag())
    with pytest.raises(CorruptLogError):
        decode_record(data, slot=Slot(5))


@given(st.binary(max_size=60), st.integers(0, 2_000), st.integers(0, 3))
def test_no_damage_ends_in_anything_but_a_record_or_a_typed_error(
    noise: bytes, place: int, length: int
) -> None:
    record = _stories().version()
    good = encode_record(record)
    place = min(place, len(good))
    data = good[:place] + noise + good[place + length :]
    try:
        again = decode_record(data, slot=record.slot)
    except (CorruptLogError, UpgradeRequiredError):
        return
    assert encode_record(again) == data


def test_the_largest_state_fits_into_a_record() -> None:
    big = MAX_INTEGER
    story = _stories()
    intents = tuple(
        OpenIntent(anchor_id=f"{number:0160}", version=VersionId(big), slot=Slot(big))
        for number in range(Limits().open_intent_count)
    )
    kept = tuple(
        KeptRange(first=VersionId(big - 2 * number), last=VersionId(big - 2 * number))
        for number in range(Limits().kept_range_count)
    )
    features = tuple(f"{number:064}" for number in range(64))
    claim = story.opening().model_copy(update={"host": "\U0001f600" * 256})
    now = story.prefix.now.model_copy(
        update={"intents": intents, "kept": kept, "features": features}
    )
    for record in (story.retire(), claim, story.format()):
        full = record.model_copy(update={"now": now})
        if record.kind == "retire":
            full = full.model_copy(update={"kept": kept})
        if record.kind == "format":
            full = full.model_copy(update={"features": features})
        assert len(encode_record(full)) <= Limits().record_size_bytes
