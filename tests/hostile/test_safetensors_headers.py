"""Headers that lie: refused with a typed error before anything is allocated for them (P10)."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from weightstore.errors import CorruptObjectError, InputRefusedError, WeightStoreError
from weightstore.format.safetensors_header import parse_safetensors_header, read_header_size
from weightstore.layout.dtypes import DType
from weightstore.settings import Limits
from weightstore.testing.safetensors_files import file_of, read_with_library


def entry(dtype: object, shape: object, start: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def refused(data: bytes, error: type[CorruptObjectError | InputRefusedError]) -> None:
    with pytest.raises(error, match="the file"):
        parse_safetensors_header(
            data, file_size_bytes=len(data), limits=Limits(), what="the file", error=error
        )


DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
GOOD = entry("U8", [1], 0, 1)
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "half a size": bytes(7),
    "size past the end": file_of({}, 0, said_size=3),
    "size of 2^63": file_of({}, 0, said_size=2**63),
    "size of 2^64 - 1": file_of({}, 0, said_size=2**64 - 1),
    "no header": file_of(b"", 0),
    "a list": file_of([], 0),
    "a byte order mark": file_of(b"\xef\xbb\xbf{}", 0),
    "no JSON": file_of(b"{]", 0),
    "two values": file_of(b"{}{}", 0),
    "NaN": file_of(b'{"a":NaN}', 0),
    "bad UTF-8": file_of(b'{"\xff":{}}', 0),
    "deep": file_of(DEEP, 0),
    "a number of 10,000 digits": file_of(b'{"a":' + b"9" * 10_000 + b"}", 0),
    "a name twice": file_of(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        1,
    ),
    "a field twice": file_of(
        b'{"a":{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}}', 1
    ),
    "metadata twice": file_of(b'{"__metadata__":{},"__metadata__":{}}', 0),
    "metadata of numbers": file_of({"__metadata__": {"a": 1}}, 0),
    "metadata of nothing": file_of({"__metadata__": []}, 0),
    "metadata with a lone surrogate": file_of({"__metadata__": {"a": "\ud800"}}, 0),
    "a tensor that is null": file_of({"a": None}, 0),
    "no dtype": file_of({"a": {"shape": [], "data_offsets": [0, 0]}}, 0),
    "no shape": file_of({"a": {"dtype": "U8", "data_offsets": [0, 1]}}, 1),
    "no offsets": file_of({"a": {"dtype": "U8", "shape": [1]}}, 1),
    "unknown dtype": file_of({"a": entry("C128", [1], 0, 16)}, 16),
    "dtype in lower case": file_of({"a": entry("u8", [1], 0, 1)}, 1),
    "negative dim": file_of({"a": entry("U8", [-1], 0, 1)}, 1),
    "two negative dims": file_of({"a": entry("U8", [-1, -1], 0, 1)}, 1),
    "float dim": file_of({"a": entry("U8", [1.0], 0, 1)}, 1),
    "bool dim": file_of({"a": entry("U8", [True], 0, 1)}, 1),
    "text dim": file_of({"a": entry("U8", ["1"], 0, 1)}, 1),
    "negative offset": file_of({"a": entry("U8", [1], -1, 0)}, 1),
    "float offset": file_of({"a": entry("U8", [1], 0, 1.0)}, 1),
    "end before start": file_of({"a": entry("U8", [0], 1, 0)}, 1),
    "three offsets": file_of({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 1]}}, 1),
    "offsets past the end": file_of({"a": entry("U8", [2], 0, 2)}, 1),
    "offsets of 2^62": file_of({"a": entry("U8", [1], 2**62, 2**62 + 1)}, 1),
    "shape too large for its bytes": file_of({"a": entry("F32", [2], 0, 4)}, 4),
    "shape too small for its bytes": file_of({"a": entry("U8", [1], 0, 4)}, 4),
    "shape that is 0 modulo 2^64": file_of({"a": entry("U8", [2**32, 2**32], 0, 0)}, 0),
    "shape that is 1 modulo 2^64": file_of({"a": entry("U8", [3, 0xAAAAAAAAAAAAAAAB], 0, 1)}, 1),
    "overflow before a zero": file_of({"a": entry("U8", [2**52, 2**52, 0], 0, 0)}, 0),
    "65 dims": file_of({"a": entry("U8", [1] * 65, 0, 1)}, 1),
    "half bytes": file_of({"a": entry("F4", [3], 0, 2)}, 2),
    "overlap": file_of({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, 3),
    "the same bytes twice": file_of({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 0, 2)}, 2),
    "an overlap as large as a hole": file_of(
        {"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, 4
    ),
    "a hole": file_of({"a": entry("U8", [1], 0, 1), "b": entry("U8", [1], 2, 3)}, 3),
    "a hole before": file_of({"a": entry("U8", [1], 1, 2)}, 2),
    "an empty tensor in a hole": file_of({"a": entry("U8", [0], 1, 1), "b": GOOD}, 2),
    "bytes after": file_of({"a": GOOD}, 2),
    "an empty name": file_of({"": GOOD}, 1),
    "a name with NUL": file_of({"a\0": GOOD}, 1),
    "a name with a lone surrogate": file_of({"\ud800": GOOD}, 1),
    "a name of 1,025 bytes": file_of({"a" * 1025: GOOD}, 1),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_headers_of_stored_files_are_corrupt(what: str) -> None:
    refused(HOSTILE[what], CorruptObjectError)


REFUSED_BY_KIND = {
    "unknown dtype",
    "dtype in lower case",
    "half bytes",
    "65 dims",
    "an empty name",
    "a name with NUL",
    "a name with a lone surrogate",
    "a name of 1,025 bytes",
}


@pytest.mark.parametrize("what", [what for what in HOSTILE if what not in REFUSED_BY_KIND])
def test_hostile_headers_of_a_users_file_are_refused_input(what: str) -> None:
    refused(HOSTILE[what], InputRefusedError)


# What the library lets pass and cannot be stored, or would depend on which of two wins.
STRICTER = {
    "a name twice",
    "65 dims",
    "an empty name",
    "a name with NUL",
    "a name of 1,025 bytes",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_the_library_refuses_all_others_too(what: str) -> None:
    if what in STRICTER:
        assert read_with_library(HOSTILE[what])
        return
    with pytest.raises(safetensors.SafetensorError):
        read_with_library(HOSTILE[what])


def test_a_size_above_the_bound_is_refused_before_it_is_read() -> None:
    first = (200 * 1024 * 1024).to_bytes(8, "little")
    with pytest.raises(CorruptObjectError, match="above"):
        read_header_size(first, file_size_bytes=2**40, limits=Limits(), what="the file")
    small = Limits(safetensors_header_size_bytes=100)
    with pytest.raises(CorruptObjectError, match="above 100"):
        read_header_size(
            (101).to_bytes(8, "little"), file_size_bytes=2**40, limits=small, what="the file"
        )


@pytest.mark.parametrize(
    ("first_bytes", "why"),
    [(bytes(7), "it has 7 bytes"), ((93).to_bytes(8, "little"), "would pass its end at 100")],
)
def test_what_a_file_says_of_its_header_is_checked_first(first_bytes: bytes, why: str) -> None:
    with pytest.raises(CorruptObjectError, match=why):
        read_header_size(first_bytes, file_size_bytes=100, limits=Limits(), what="the file")


def test_a_head_that_was_cut_is_refused() -> None:
    data = file_of(json.dumps({"a": GOOD}).encode() + b"   ", 1)
    for size in range(len(data) - 1):
        with pytest.raises(CorruptObjectError):
            parse_safetensors_header(
                data[:size], file_size_bytes=len(data), limits=Limits(), what="the file"
            )


NUMBERS = st.one_of(st.integers(0, 9), st.sampled_from([-1, 2**31, 2**53, 2**63, 2**64, 1.0, "1"]))
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*(dtype.value for dtype in DType), "U8", "I4", 1]),
        "shape": st.lists(NUMBERS, max_size=3),
        "data_offsets": st.lists(NUMBERS, min_size=1, max_size=3).map(lambda ends: ends[:2]),
    }
)


@st.composite
def headers(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    """Mostly legal: tensors that tile the data, then perhaps one of them spoiled."""
    found: dict[str, Any] = {}
    end = 0
    for name in draw(st.lists(st.sampled_from("abcé\n"), max_size=4, unique=True)):
        dtype = draw(st.sampled_from(DType))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        shape = [*shape, 8] if dtype.is_packed else shape
        size_bytes = dtype.size_bytes(tuple(shape))
        found[name] = entry(dtype.value, shape, end, end + size_bytes)
        end += size_bytes
    is_spoiled = draw(st.booleans())
    if found and is_spoiled:
        found[draw(st.sampled_from(sorted(found)))] = draw(ENTRIES)
    if draw(st.booleans()):
        texts = st.one_of(st.text(max_size=2), st.just(1))
        found["__metadata__"] = draw(st.dictionaries(st.sampled_from("kq"), texts))
    return found, end + draw(st.sampled_from([0, 0, 0, 1]))


@given(headers(), st.sampled_from([b"", b" ", b"\t \r\n"]))
def test_ours_and_the_librarys_answers_are_the_same(
    header: tuple[dict[str, Any], int], padding: bytes
) -> None:
    entries, data_size_bytes = header
    text = json.dumps(entries, ensure_ascii=False).encode("utf-8", "surrogatepass")
    data = file_of(padding + text + padding, data_size_bytes)
    try:
        found = parse_safetensors_header(
            data, file_size_bytes=len(data), limits=Limits(), what="the file"
        )
    except WeightStoreError:
        with pytest.raises(safetensors.SafetensorError):
            read_with_library(data)
        return
    expected = read_with_library(data)
    assert {tensor.spec.name for tensor in found.tensors} == expected.keys()
    for tensor in found.tensors:
        other = expected[tensor.spec.name]
        assert (tensor.spec.dtype.value, list(tensor.spec.shape), tensor.size_bytes) == (
            other["dtype"],
            other["shape"],
            len(other["data"]),
        )


@given(st.binary(max_size=64))
def test_any_bytes_end_in_a_typed_error_or_a_header(data: bytes) -> None:
    with contextlib.suppress(CorruptObjectError):
        parse_safetensors_header(data, file_size_bytes=len(data), limits=Limits(), what="the file")
