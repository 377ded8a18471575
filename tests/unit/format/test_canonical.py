"""One value has one byte string, and every other byte string is refused."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from weightstore.errors import CorruptObjectError
from weightstore.format.canonical import (
    MAX_INTEGER,
    CanonicalModel,
    Json,
    decode_json,
    decode_model,
    decode_validated,
    encode_json,
    encode_model,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "two values": b"{}{}",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a line end": b"{}\n",
    "a space": b'{"a": 1}',
    "UTF-16": "{}".encode("utf-16"),
    "no UTF-8": b'"\xff"',
    "an overlong form": b'"\xc0\xaf"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "an escaped surrogate": b'"\\ud800"',
    "a needless escape": b'"\\u0061"',
    "an escaped slash": b'"\\/"',
    "upper-case hexadecimal": b'"\\u001F"',
    "a raw control character": b'"\x01"',
    "keys out of order": b'{"b":1,"a":2}',
    "a repeated key": b'{"a":1,"a":1}',
    "another value for a repeated key": b'{"a":1,"a":2}',
    "a float": b'{"a":1.5}',
    "a float that is whole": b"1.0",
    "an exponent": b"1e3",
    "minus zero": b"-0",
    "a plus": b"+1",
    "leading zeros": b"01",
    "not a number": b"NaN",
    "infinity": b"[Infinity]",
    "minus infinity": b"-Infinity",
    "a number of 5,000 digits": b"1" * 5_000,
    "lists in lists": b"[" * 100_000 + b"]" * 100_000,
    "objects in objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a comment": b"{}//",
}


class Point(CanonicalModel):
    """Something to store."""

    x: int
    name: str = ""


class Marked(CanonicalModel):
    """Something with a mark that can have one value."""

    mark: Literal[1] = 1


@given(VALUES)
def test_a_value_survives_its_bytes(value: Json) -> None:
    data = encode_json(value)
    assert encode_json(decode_json(data, what="it")) == data
    assert decode_json(data, what="it") == value


@given(VALUES, st.integers(0, 200), st.sampled_from([b" ", b"\n", b"\t", b"\r"]))
def test_a_byte_of_white_space_outside_texts_is_refused(
    value: Json, place: int, space: bytes
) -> None:
    data = encode_json(value)
    place = min(place, len(data))
    changed = data[:place] + space + data[place:]
    try:
        same = json.loads(changed) == value
    except ValueError:
        same = False
    if same:
        with pytest.raises(CorruptObjectError):
            decode_json(changed, what="it")


@given(st.binary(max_size=40))
def test_any_bytes_are_canonical_or_refused(data: bytes) -> None:
    try:
        value = decode_json(data, what="it")
    except CorruptObjectError:
        return
    assert encode_json(value) == data


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_every_other_form_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="it is"):
        decode_json(data, what="it")


def test_keys_are_in_the_order_of_their_code_points() -> None:
    value: Json = {"é": 1, "z": 2, "\U0001f600": 3, "\uffee": 4}
    assert encode_json(value) == '{"z":2,"é":1,"\uffee":4,"\U0001f600":3}'.encode()


def test_a_model_keeps_the_fields_that_it_does_not_know() -> None:
    data = b'{"later":{"deep":[1,"x",null]},"name":"n","x":1}'
    model = decode_model(Point, data, what="it")
    assert model.x == 1
    assert encode_model(model) == data


@pytest.mark.parametrize(
    "data", [b"[]", b"{}", b'{"x":"1"}', b'{"x":true}', b'{"x":null}', b'{"name":1,"x":1}']
)
def test_a_model_takes_no_other_type(data: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="it is malformed"):
        decode_model(Point, data, what="it")


@pytest.mark.parametrize("data", [b'{"x":1}', b'{"later":1,"x":1}'])
def test_a_field_that_the_model_would_fill_in_must_be_there(data: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="it leaves out a field"):
        decode_model(Point, data, what="it")


def test_true_is_not_1_even_where_1_is_the_only_value() -> None:
    assert decode_model(Marked, b'{"mark":1}', what="it") == Marked()
    for data in (b'{"mark":true}', b'{"mark":1.0}', b"{}"):
        with pytest.raises(CorruptObjectError):
            decode_model(Marked, data, what="it")


@pytest.mark.parametrize(
    "later",
    [
        b"1.5",
        b"-0",
        b"9007199254740992",
        b"-9007199254740992",
        b"NaN",
        b'"\\u0061"',
        b'{"b":1,"a":2}',
        b'{"a":1,"a":1}',
        b'"\\ud800"',
    ],
)
def test_a_field_that_the_model_does_not_know_is_canonical_too(later: bytes) -> None:
    with pytest.raises(CorruptObjectError):
        decode_model(Point, b'{"later":%s,"name":"","x":1}' % later, what="it")


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_every_other_form_is_refused_as_a_model_too(data: bytes) -> None:
    with pytest.raises(CorruptObjectError, match="it is"):
        decode_model(Point, data, what="it")


def test_a_union_of_models_is_held_to_the_same() -> None:
    union: TypeAdapter[Marked | Point] = TypeAdapter(Marked | Point)
    found = decode_validated(union.validate_json, b'{"name":"n","x":1}', what="it")
    assert found == Point(x=1, name="n")
    with pytest.raises(CorruptObjectError, match="it leaves out a field"):
        decode_validated(union.validate_json, b'{"x":1}', what="it")


def test_a_model_is_frozen() -> None:
    model = Point(x=1)
    with pytest.raises(ValueError, match="frozen"):
        model.x = 2


@pytest.mark.parametrize("number", [MAX_INTEGER, -MAX_INTEGER, 0])
def test_integers_that_every_reader_has_are_taken(number: int) -> None:
    assert decode_json(encode_json([number]), what="it") == [number]


@pytest.mark.parametrize("digits", ["9007199254740992", "-9007199254740992", "9" * 100_000])
def test_an_integer_that_some_readers_lack_is_refused(digits: str) -> None:
    with pytest.raises(CorruptObjectError, match="an integer beyond 9007199254740991"):
        decode_json(b"[%s]" % digits.encode(), what="it")
