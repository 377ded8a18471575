"""Packs from hostile bytes: a typed error, or pieces that stay within their tensors (P10)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from weightstore.codec.piece import GapCoding, Piece, ValueCoding
from weightstore.errors import CorruptObjectError
from weightstore.format.index_checks import BOX_COUNT_MAX
from weightstore.format.index_rows import HEADER_DTYPE, ROW_DTYPE, PlaceKind
from weightstore.format.pack import PackBuilder, PackReader
from weightstore.format.piece_index import (
    BundlePlace,
    IndexEntry,
    PieceIndex,
    TensorPlace,
    encode_index,
)
from weightstore.layout.boxes import PIECE_UNIT_COUNT_MAX, Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits

SCHEMA = Schema.build(
    [
        TensorSpec("a", DType.BF16, (1000, 1000)),
        TensorSpec("b", DType.BF16, (1000, 1000)),
        TensorSpec("c", DType.F32, (100, 100, 100)),
        TensorSpec("d", DType.BF16, (PIECE_UNIT_COUNT_MAX + 9,)),
        TensorSpec("e", DType.BF16, (20,)),
        TensorSpec("f", DType.BF16, (30,)),
        TensorSpec("g", DType.U8, (40,)),
    ]
)


def piece(width_bytes: int, unit_count: int) -> Piece:
    return Piece(
        width_bytes=width_bytes,
        unit_count=unit_count,
        changed_count=2,
        value_coding=ValueCoding.ULP,
        gap_coding=GapCoding.BYTE,
        raw_sizes=(2, 1, 1, 0),
        streams=(b"gg", b"v", b"e", b""),
        lane_deltas=(1, 2),
        hash16=bytes(16),
    )


def flat(number: int, first_unit: int, unit_count: int) -> IndexEntry:
    return IndexEntry(PlaceKind.FLAT, number, first_unit, None, None, piece(2, unit_count))


def boxed(number: int, box: Box, first_unit: int, unit_count: int) -> IndexEntry:
    width_bytes = SCHEMA.tensors[number].dtype.unit_size_bytes
    return IndexEntry(PlaceKind.BOX, number, first_unit, box, None, piece(width_bytes, unit_count))


ENTRIES = [
    flat(0, 0, 1000),
    flat(0, 1000, 500),
    boxed(1, Box((0, 0), (10, 1000)), 0, 5000),
    boxed(1, Box((0, 0), (10, 1000)), 5000, 5000),
    boxed(1, Box((10, 500), (20, 500)), 0, 10_000),
    boxed(2, Box((1, 2, 3), (4, 5, 6)), 7, 100),
    IndexEntry(PlaceKind.BUNDLE, 0, 0, None, np.array([1, 1]), piece(2, 50)),
    IndexEntry(PlaceKind.BUNDLE, 1, 0, None, np.array([2]), piece(1, 40)),
]
AREAS = (2 * len(ENTRIES), len(ENTRIES), len(ENTRIES), 0)
INDEX = encode_index(SCHEMA, ENTRIES)
ROWS_END = HEADER_DTYPE.itemsize + len(ENTRIES) * ROW_DTYPE.itemsize


def parse(data: bytes, areas: Sequence[int] = AREAS) -> PieceIndex:
    return PieceIndex(data, SCHEMA, areas)


def with_rows(change: Callable[[NDArray[Any]], object]) -> bytes:
    rows = np.frombuffer(INDEX[HEADER_DTYPE.itemsize : ROWS_END], ROW_DTYPE).copy()
    change(rows)
    return INDEX[: HEADER_DTYPE.itemsize] + rows.tobytes() + INDEX[ROWS_END:]


def with_entries(entries: list[IndexEntry]) -> tuple[bytes, tuple[int, ...]]:
    count = len(entries)
    return encode_index(SCHEMA, entries), (2 * count, count, count, 0)


def check_places(index: PieceIndex) -> None:
    """The claim that readers rest on: every unit exists, and is changed by one piece."""
    seen: dict[object, set[tuple[int, int]]] = {}
    for number, place in enumerate(index):
        assert index.changed_counts[number] >= 1
        if isinstance(place, BundlePlace):
            counts = index.member_changed_counts(number)
            assert counts.sum() == index.changed_counts[number]
            assert np.all(counts <= np.diff(place.starts))
            assert place.members not in seen
            seen[place.members] = set()
            continue
        spec = SCHEMA.tensors[place.tensor_index]
        limit = spec.unit_count if place.box is None else place.box.unit_count
        assert place.box is None or place.box.is_within(spec.unit_shape)
        end = place.first_unit + place.unit_count
        assert index.changed_counts[number] <= place.unit_count
        assert end <= limit
        runs = seen.setdefault((place.tensor_index, place.box), set())
        assert all(end <= first or last <= place.first_unit for first, last in runs)
        runs.add((place.first_unit, end))


def test_the_index_itself_is_good() -> None:
    check_places(parse(INDEX))
    assert len(parse(INDEX)) == len(ENTRIES)


def put(field: str, row: int | slice, value: object) -> Callable[[NDArray[Any]], object]:
    return lambda rows: rows[field].__setitem__(row, value)


BUNDLE_ROW = 6
WRONG_ROWS: dict[str, tuple[Callable[[NDArray[Any]], object], str]] = {
    "kind 3": (put("kind", 7, 3), "unknown kind"),
    "kind 255": (put("kind", 7, 255), "unknown kind"),
    "kinds out of order": (put("kind", 1, 2), "comes earlier"),
    "a flat run as a box": (put("kind", 1, 1), "the boxes of a pack have"),
    "no units": (put("unit_count", 0, 0), "is not of 1 to"),
    "more units than a piece may have": (put("unit_count", 0, 2**32 - 1), "is not of 1 to"),
    "no change": (put("changed_count", 0, 0), "changes nothing"),
    "more changes than units": (put("changed_count", 0, 1001), "changes nothing"),
    "2^32 - 1 changes": (put("changed_count", 0, 2**32 - 1), "changes nothing"),
    "an unknown value coding": (put("value_coding", 0, 5), "coding of values"),
    "an unknown gap coding": (put("gap_coding", 0, 3), "coding of gaps"),
    "positions without need": (put("value_coding", 0, ValueCoding.DENSE_BITS), "has positions"),
    "no positions": (put("gap_coding", 0, GapCoding.NONE), "has positions"),
    "a stream of nothing": (put("raw_sizes", 0, (2, 0, 1, 0)), "without a stream"),
    "nothing for a stream": (put("raw_sizes", 0, (2, 1, 1, 1)), "without a stream"),
    "gaps that decompress to 4 GiB": (put("raw_sizes", 0, (2**32 - 1, 1, 1, 0)), "stream longer"),
    "values that decompress to 4 GiB": (put("raw_sizes", 0, (2, 2**32 - 1, 1, 0)), "stream longer"),
    "escapes that decompress to 4 GiB": (
        put("raw_sizes", 0, (2, 1, 2**32 - 1, 0)),
        "stream longer",
    ),
    "gaps for more than the units": (put("raw_sizes", 0, (2001, 1, 1, 0)), "stream longer"),
    "values for more than the units": (put("raw_sizes", 0, (2, 2001, 1, 0)), "stream longer"),
    "escapes for more than the units": (put("raw_sizes", 0, (2, 1, 1001, 0)), "stream longer"),
    "stream sizes past the areas": (
        put("stream_sizes", 0, (2**32 - 1, 1, 1, 0)),
        "bytes of streams",
    ),
    "stream sizes that sum to 2^32 more": (
        put("stream_sizes", slice(0, 2), (2**31 + 2, 1, 1, 0)),
        "bytes of streams",
    ),
    "stream sizes below the areas": (put("stream_sizes", 0, (1, 1, 1, 0)), "bytes of streams"),
    "a tensor that is not there": (put("number", 1, 7), "no tensor"),
    "tensor 2^32 - 1": (put("number", 1, 2**32 - 1), "no tensor"),
    "a tensor of a bundle": (put("number", 1, 4), "belongs to a bundle"),
    "tensors out of order": (put("number", 0, 3), "out of order"),
    "another width": (put("width_bytes", 0, 4), "width"),
    "width 0": (put("width_bytes", 0, 0), "stream longer"),
    "a run past the tensor": (put("first_unit", 1, 1_000_000 - 499), "ends after"),
    "a run at 2^63": (put("first_unit", 1, 2**63), "ends after"),
    "a run at 2^64 - 1": (put("first_unit", 1, 2**64 - 1), "ends after"),
    "a run that would wrap to 0": (put("first_unit", 1, 2**64 - 500), "ends after"),
    "runs that overlap by one": (put("first_unit", 1, 999), "overlaps"),
    "runs out of order": (put("first_unit", 0, 2000), "overlaps"),
    "a run past its box": (put("first_unit", 4, 1), "ends after"),
    "a run in a box at 2^64 - 1": (put("first_unit", 5, 2**64 - 1), "ends after"),
    "runs in a box that overlap": (put("first_unit", 3, 4999), "overlap"),
    "a box of a tensor with flat runs": (put("number", 2, 0), "also has pieces"),
    "a box of a tensor with more dims": (put("number", 4, 2), "width"),
    "a bundle that is not there": (put("number", 7, 2), "no bundle"),
    "a bundle twice": (put("number", 7, 0), "bundle out of order"),
    "bundles out of order": (put("number", slice(6, 8), [1, 0]), "bundle out of order"),
    "a part of a bundle": (put("first_unit", BUNDLE_ROW, 1), "part of a bundle"),
    "a bundle of fewer units": (put("unit_count", BUNDLE_ROW, 49), "bundle's units"),
    "a bundle of another width": (put("width_bytes", BUNDLE_ROW, 1), "bundle's width"),
    "another sum of member counts": (put("changed_count", BUNDLE_ROW, 3), "by member"),
}


@pytest.mark.parametrize("what", WRONG_ROWS)
def test_an_impossible_row_is_refused(what: str) -> None:
    change, why = WRONG_ROWS[what]
    with pytest.raises(CorruptObjectError, match=why):
        parse(with_rows(change))


SHAPE = (1000, 1000)
WRONG_BOXES: dict[str, list[IndexEntry]] = {
    "past the end": [boxed(1, Box((991, 0), (10, 1000)), 0, 2)],
    "from the end": [boxed(1, Box((1000, 0), (1, 1000)), 0, 2)],
    "empty": [boxed(1, Box((0, 0), (0, 1000)), 0, 2)],
    "that would wrap": [boxed(1, Box((2**64 - 5, 0), (10, 1000)), 0, 2)],
    "of 2^63": [boxed(1, Box((2**63, 0), (2**63, 1000)), 0, 2)],
    "of 2^64 - 1": [boxed(1, Box((0, 0), (2**64 - 1, 2**64 - 1)), 0, 2)],
    "of one dim": [boxed(1, Box((0,), (10,)), 0, 2)],
    "of three dims": [boxed(1, Box((0, 0, 0), (10, 1, 1)), 0, 2)],
    "that overlap": [
        boxed(1, Box((0, 0), (10, 10)), 0, 2),
        boxed(1, Box((9, 9), (10, 10)), 0, 2),
    ],
    "that overlap behind another": [
        boxed(1, Box((0, 0), (2, 500)), 0, 2),
        boxed(1, Box((0, 500), (2, 500)), 0, 2),
        boxed(1, Box((1, 250), (2, 1)), 0, 2),
    ],
    "out of order": [
        boxed(1, Box((20, 0), (10, 10)), 0, 2),
        boxed(1, Box((0, 0), (10, 10)), 0, 2),
    ],
    "of tensors out of order": [
        boxed(1, Box((0, 0), (10, 10)), 0, 2),
        boxed(0, Box((0, 0), (10, 10)), 0, 2),
    ],
    "too many": [boxed(1, Box((n, 0), (1, 10)), 0, 2) for n in range(BOX_COUNT_MAX + 1)],
}


@pytest.mark.parametrize("what", WRONG_BOXES)
def test_impossible_boxes_are_refused(what: str) -> None:
    data, areas = with_entries(WRONG_BOXES[what])
    with pytest.raises(CorruptObjectError, match="box"):
        parse(data, areas)


def test_as_many_boxes_as_allowed() -> None:
    data, areas = with_entries([boxed(1, Box((n, 0), (1, 10)), 0, 2) for n in range(BOX_COUNT_MAX)])
    check_places(parse(data, areas))


def test_member_counts_are_bound_to_their_members() -> None:
    for counts in ([0, 3], [3, 0], [21, -19]):
        members = np.array([*counts, 2]).astype("<u4").tobytes()
        with pytest.raises(CorruptObjectError):
            parse(INDEX[: -len(members)] + members)
    many = IndexEntry(PlaceKind.BUNDLE, 0, 0, None, np.array([21, 0]), piece(2, 50))
    data = with_entries([many])[0]
    rows = np.frombuffer(data[56 : 56 + 88], ROW_DTYPE).copy()
    rows["changed_count"] = 21
    with pytest.raises(CorruptObjectError, match="member"):
        parse(data[:56] + rows.tobytes() + data[56 + 88 :], (2, 1, 1, 0))


@pytest.mark.parametrize("field", ["piece_count", "box_word_count", "member_count"])
@pytest.mark.parametrize("count", [0, 1, 2**32 - 1])
def test_counts_that_the_bytes_do_not_hold_are_refused(field: str, count: int) -> None:
    header = np.frombuffer(INDEX[: HEADER_DTYPE.itemsize], HEADER_DTYPE).copy()
    header[field] = count
    with pytest.raises(CorruptObjectError):
        parse(header.tobytes() + INDEX[HEADER_DTYPE.itemsize :])


@pytest.mark.parametrize("field", ["box_word_count", "member_count"])
def test_numbers_that_no_row_needs_are_refused(field: str) -> None:
    header = np.frombuffer(INDEX[: HEADER_DTYPE.itemsize], HEADER_DTYPE).copy()
    header[field] += 2
    more = bytes(16 if field == "box_word_count" else 8)
    boxes_end = ROWS_END + 8 * int(header["box_word_count"][0]) - len(more)
    place = boxes_end if field == "box_word_count" else len(INDEX)
    data = header.tobytes() + INDEX[HEADER_DTYPE.itemsize : place] + more + INDEX[place:]
    with pytest.raises(CorruptObjectError, match=r"of a pack have \d+"):
        parse(data)


def test_boxes_and_members_cannot_be_exchanged() -> None:
    header = np.frombuffer(INDEX[: HEADER_DTYPE.itemsize], HEADER_DTYPE).copy()
    header["box_word_count"] += 1
    header["member_count"] -= 2
    with pytest.raises(CorruptObjectError):
        parse(header.tobytes() + INDEX[HEADER_DTYPE.itemsize :])


def test_every_byte_of_the_header_counts() -> None:
    for place in range(HEADER_DTYPE.itemsize):
        data = bytearray(INDEX)
        data[place] ^= 0x01
        with pytest.raises(CorruptObjectError):
            parse(bytes(data))


def test_every_cut_is_refused() -> None:
    for size in range(len(INDEX)):
        with pytest.raises(CorruptObjectError):
            parse(INDEX[:size])
    with pytest.raises(CorruptObjectError):
        parse(INDEX + b"\0")


def test_every_byte_that_changes_is_an_error_or_harmless() -> None:
    for place in range(len(INDEX)):
        for flip in (0x01, 0x80, 0xFF):
            data = bytearray(INDEX)
            data[place] ^= flip
            try:
                check_places(parse(bytes(data)))
            except CorruptObjectError:
                continue


@given(st.lists(st.tuples(st.integers(40, ROWS_END - 1), st.integers(0, 255)), max_size=6))
def test_several_changed_bytes_are_an_error_or_harmless(changes: list[tuple[int, int]]) -> None:
    data = bytearray(INDEX)
    for place, value in changes:
        data[place] = value
    try:
        found = parse(bytes(data))
    except CorruptObjectError:
        return
    check_places(found)


# --- The file around the index ----------------------------------------------------------


def file_of(tensors: dict[str, object], data: bytes, fmt: str = "weightstore-pack-1") -> bytes:
    header = json.dumps({"__metadata__": {"format": fmt}, **tensors}).encode()
    return len(header).to_bytes(8, "little") + header + data


def u8(start: int, end: int, **changes: object) -> dict[str, object]:
    return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]} | changes


EMPTY = encode_index(SCHEMA, [])
SIZE = len(EMPTY)
GOOD: dict[str, object] = {
    "index": u8(0, SIZE),
    **{name: u8(SIZE, SIZE) for name in ("gaps", "values", "escapes", "words")},
}


def test_a_pack_may_say_its_header_in_any_way() -> None:
    assert PackReader(file_of(GOOD, EMPTY), SCHEMA, Limits()).piece_count == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(8),
        EMPTY,
        file_of({}, b""),
        file_of(GOOD, EMPTY, fmt="weightstore-pack-2"),
        file_of(GOOD, EMPTY + b"\0"),
        file_of({**GOOD, "more": u8(SIZE, SIZE)}, EMPTY),
        file_of({name: GOOD[name] for name in list(GOOD)[:-1]}, EMPTY),
        file_of({**GOOD, "index": u8(0, SIZE, dtype="I8")}, EMPTY),
        file_of({**GOOD, "index": u8(0, SIZE, shape=[SIZE, 1])}, EMPTY),
        file_of({**GOOD, "index": u8(0, SIZE - 1)}, EMPTY),
        file_of({**GOOD, "gaps": u8(SIZE, SIZE + 1)}, EMPTY),
        file_of({"__metadata__": {"format": "weightstore-pack-1"}, **GOOD, "x" * 5000: 1}, EMPTY),
    ],
)
def test_what_is_no_pack_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptObjectError):
        PackReader(data, SCHEMA, Limits())


def test_every_changed_byte_of_a_pack_is_an_error_or_harmless() -> None:
    builder = PackBuilder(SCHEMA)
    builder.add(TensorPlace(0, 0, 1000), piece(2, 1000))
    parts = builder.finish()
    data = b"".join(parts)
    assert PackReader(data, SCHEMA, Limits()).piece_count == 1
    for place in range(len(parts[0]) + len(parts[1])):
        damaged = bytearray(data)
        damaged[place] ^= 0x01
        try:
            reader = PackReader(damaged, SCHEMA, Limits())
        except CorruptObjectError:
            continue
        found = reader.piece(0)
        assert sum(map(len, found.streams)) == sum(map(len, parts[2:]))
    for size in range(len(data)):
        with pytest.raises(CorruptObjectError):
            PackReader(data[:size], SCHEMA, Limits())
