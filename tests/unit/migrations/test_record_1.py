"""The frozen shapes of records: what the product reads is read, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest

from migrations import record_1
from migrations.failures import DamagedStoreError, NewerStoreError
from weightstore.errors import UpgradeRequiredError, WeightStoreError
from weightstore.format.records import Record, decode_record, encode_record
from weightstore.ids import Slot
from weightstore.testing.log_story import LogStory

Place: TypeAlias = tuple[str | int, ...]

MISSING = object()
WRONG: tuple[Any, ...] = (
    MISSING, None, True, -1, 0, 1, 2**53 - 1, 2**53, 10**4_000, 1.5, "", "x", "X", "..", "x\n",
    "x y", "\ud800", "open", "full", "init", "later", "a" * 32, "a" * 64, "a" * 161, "x" * 257,
    "attempt", "intent", [], [[]], [1], ["x", 1], ["b", "a"], [{}], {}, {"x": 1}, {"init": 0},
    {"init": -1}, {"target": "intent"}, {"target": []}, {"target": "later"},
)  # fmt: skip


def records() -> Iterator[Record]:
    """One of every kind, with a state in which every field has a value."""
    yield LogStory().init()
    story = LogStory().begin().claimed().published(3)
    story.put(story.intent())
    story.put(story.activate()).published()
    story.put(story.activate())
    yield from (story.opening(), story.closing(), story.version(), story.alt(), story.tag())
    yield from (story.void_attempt(), story.void_intent(), story.intent(), story.activate())
    yield from (story.retire(), story.format())


def places(value: object) -> Iterator[Place]:
    """The way to every field, and to every item of a list."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for name, inner in items:
        yield (name,)
        yield from ((name, *rest) for rest in places(inner))


def changed(record: Record, place: Place, value: object) -> bytes:
    """A record with one field changed or removed."""
    found = document = json.loads(encode_record(record))
    for name in place[:-1]:
        found = found[name]
    if value is MISSING:
        del found[place[-1]]
    else:
        found[place[-1]] = value
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8", errors="surrogatepass")


def reads(data: bytes, slot: int) -> str:
    """What the frozen code says of a record."""
    try:
        record_1.parse(data, slot)
    except NewerStoreError:
        return "newer"
    except DamagedStoreError:
        return "damaged"
    return "read"


def product_reads(data: bytes, slot: int) -> str:
    try:
        decode_record(data, slot=Slot(slot))
    except UpgradeRequiredError:
        return "newer"
    except WeightStoreError:
        return "damaged"
    return "read"


@pytest.mark.parametrize(
    "record", [pytest.param(one, id=f"{one.kind}-{at}") for at, one in enumerate(records())]
)
def test_each_field_may_be_what_the_product_takes_and_nothing_else(record: Record) -> None:
    said: dict[str, int] = {}
    for place in places(json.loads(encode_record(record))):
        for value in WRONG:
            data = changed(record, place, value)
            expected = product_reads(data, record.slot)
            assert reads(data, record.slot) == expected, f"{place}: {value!r:.80}"
            said[expected] = said.get(expected, 0) + 1
    assert said["damaged"] > 500
    assert said["read"] > 20
    assert said["newer"] >= 5


def test_fields_of_nobody_stay() -> None:
    document = json.loads(encode_record(LogStory().init())) | {"later": {"a": [1, None]}}
    data = record_1.encode(document)
    assert record_1.parse(data, 0)["later"] == {"a": [1, None]}


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [100, 190, 300, 990, 5_000, 10_000])
def test_no_depth_is_more_than_damage(opening: bytes, depth: int) -> None:
    deep = opening * depth + b"1" + (b"]" if opening == b"[" else b"}") * depth
    whole = encode_record(LogStory().init())
    for data in (opening * depth, deep, whole.replace(b'"kind":"init"', b'"kind":' + deep)):
        assert reads(data, 0) == "damaged"
    # In a field of nobody it is kept, as far down as the product goes.
    data = whole[:-1] + b',"x":' + deep + b"}"
    assert reads(data, 0) == product_reads(data, 0)
