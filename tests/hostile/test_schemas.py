"""Schemas from hostile bytes: a typed error, or exactly the schema of those bytes (P10)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.errors import CorruptObjectError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits

SCHEMA = Schema.build(
    [TensorSpec("a", DType.BF16, (2, 3)), TensorSpec("b", DType.F32, ())],
    aliases=[Alias("c", "a")],
    atomic_groups=[["a", "b"]],
)


def encoded(**changes: object) -> bytes:
    value = json.loads(SCHEMA.to_bytes()) | changes
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "a list": b"[]",
    "bad UTF-8": SCHEMA.to_bytes().replace(b'"a"', b'"\xff"'),
    "spaces": SCHEMA.to_bytes().replace(b",", b", "),
    "a line end": SCHEMA.to_bytes() + b"\n",
    "an escape for a letter": SCHEMA.to_bytes().replace(b'"b"', b'"\\u0062"'),
    "a lone surrogate": encoded(tensors=[["\ud800", "BF16", [1]]]),
    "deep": b'{"tensors":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a field twice": SCHEMA.to_bytes().replace(b'{"aliases"', b'{"format":1,"aliases"'),
    "a field more": encoded(more=1),
    "a field less": SCHEMA.to_bytes().replace(b'"format":1,', b""),
    "format 2": encoded(format=2),
    "format true": encoded(format=True),
    "format 1.0": encoded(format=1.0),
    "NaN": encoded(format=float("nan")),
    "tensors as text": encoded(tensors="ab"),
    "tensors as an object": encoded(tensors={"a": 1}),
    "two fields": encoded(tensors=[["a", "BF16"]]),
    "a number as name": encoded(tensors=[[1, "BF16", []]]),
    "an unknown dtype": encoded(tensors=[["a", "C128", []]]),
    "a list as dtype": encoded(tensors=[["a", [], []]]),
    "a negative dim": encoded(tensors=[["a", "U8", [-1]]]),
    "a bool dim": encoded(tensors=[["a", "U8", [True]]]),
    "a float dim": encoded(tensors=[["a", "U8", [1.5]]]),
    "a list as dim": encoded(tensors=[["a", "U8", [[]]]]),
    "a dim of 2^53": encoded(tensors=[["a", "U8", [2**53]]]),
    "2^80 bytes": encoded(tensors=[["a", "U8", [2**40, 2**40]]]),
    "65 dims": encoded(tensors=[["a", "U8", [1] * 65]]),
    "half bytes": encoded(tensors=[["a", "F4", [3]]]),
    "an empty name": encoded(tensors=[["", "U8", []]]),
    "a name with NUL": encoded(tensors=[["a\0", "U8", []]]),
    "a long name": encoded(tensors=[["a" * 1025, "U8", []]]),
    "a name twice": encoded(tensors=[["a", "U8", []], ["a", "U8", []], ["b", "U8", []]]),
    "not sorted": encoded(tensors=[["b", "U8", []], ["a", "U8", []]]),
    "an alias of nothing": encoded(aliases=[["c", "x"]]),
    "an alias of an alias": encoded(aliases=[["c", "a"], ["d", "c"]]),
    "an alias that is a tensor": encoded(aliases=[["b", "a"]]),
    "an alias below its target": encoded(aliases=[["0", "a"]]),
    "an alias of three names": encoded(aliases=[["c", "a", "b"]]),
    "an alias that is text": encoded(aliases=["ca"]),
    "a group of one": encoded(atomic_groups=[["a"]]),
    "a group of nothing": encoded(atomic_groups=[[]]),
    "a group of numbers": encoded(atomic_groups=[[1, 2]]),
    "a group of an alias": encoded(atomic_groups=[["a", "c"]]),
    "groups that are not sorted": encoded(
        tensors=[[name, "U8", []] for name in "abcd"],
        aliases=[],
        atomic_groups=[["c", "d"], ["a", "b"]],
    ),
    "a group that is not sorted": encoded(atomic_groups=[["b", "a"]]),
    "a group twice": encoded(atomic_groups=[["a", "b"], ["a", "b"]]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_schemas_are_corrupt(what: str) -> None:
    with pytest.raises(CorruptObjectError, match="schema"):
        Schema.from_bytes(HOSTILE[what])


def test_size_is_checked_before_parsing() -> None:
    data = SCHEMA.to_bytes()
    assert Schema.from_bytes(data, limits=Limits(schema_size_bytes=len(data))) == SCHEMA
    with pytest.raises(CorruptObjectError, match="above"):
        Schema.from_bytes(data, limits=Limits(schema_size_bytes=len(data) - 1))


@given(st.integers(0, len(SCHEMA.to_bytes()) - 1), st.integers(1, 255))
def test_a_changed_byte_is_an_error_or_another_schema(place: int, flip: int) -> None:
    data = bytearray(SCHEMA.to_bytes())
    data[place] ^= flip
    try:
        found = Schema.from_bytes(bytes(data))
    except CorruptObjectError:
        return
    assert found.to_bytes() == bytes(data)
    assert found.id != SCHEMA.id
