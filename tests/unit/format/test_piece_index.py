"""The piece index: its bytes, its order, and what is made from it on demand."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from weightstore.codec.piece import GapCoding, Piece, ValueCoding
from weightstore.errors import InputRefusedError
from weightstore.format.index_rows import PlaceKind
from weightstore.format.piece_index import (
    BundlePlace,
    IndexEntry,
    PieceIndex,
    TensorPlace,
    encode_index,
)
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec

SCHEMA = Schema.build(
    [
        TensorSpec("a", DType.BF16, (512, 512)),
        TensorSpec("b", DType.F32, (512, 512)),
        TensorSpec("c", DType.BF16, (10,)),
        TensorSpec("d", DType.BF16, ()),
    ]
)


def piece(width_bytes: int, unit_count: int, changed_count: int, tag: int) -> Piece:
    return Piece(
        width_bytes=width_bytes,
        unit_count=unit_count,
        changed_count=changed_count,
        value_coding=ValueCoding.ULP,
        gap_coding=GapCoding.BYTE,
        raw_sizes=(changed_count, 1, 0, 0),
        streams=(b"g" * (5 + tag), b"v" * (2 + tag), b"", b""),
        lane_deltas=(2**64 - 1 - tag, tag),
        hash16=bytes([tag] * 16),
    )


ENTRIES = [
    IndexEntry(PlaceKind.FLAT, 0, 0, None, None, piece(2, 1000, 3, 1)),
    IndexEntry(PlaceKind.FLAT, 0, 1000, None, None, piece(2, 512 * 512 - 1000, 4, 2)),
    IndexEntry(PlaceKind.BOX, 1, 0, Box((0, 0), (512, 256)), None, piece(4, 512 * 256, 5, 3)),
    IndexEntry(PlaceKind.BOX, 1, 7, Box((0, 256), (512, 256)), None, piece(4, 100, 6, 4)),
    IndexEntry(PlaceKind.BUNDLE, 0, 0, None, np.array([2, 1]), piece(2, 11, 3, 5)),
]
AREAS = [b"".join(entry.piece.streams[area] for entry in ENTRIES) for area in range(4)]
SIZES = [len(area) for area in AREAS]


def test_the_bytes() -> None:
    data = encode_index(SCHEMA, ENTRIES)
    assert data[:56] == (
        b"WSPIECE1" + bytes.fromhex(SCHEMA.id) + struct.pack("<4I", 5, 2 * 2 * 2, 2, 0)
    )
    second = struct.pack(
        "<Q2Q16s4I4I3I4B",
        1000,
        *(2**64 - 3, 2),
        bytes([2] * 16),
        *(4, 1, 0, 0),
        *(7, 4, 0, 0),
        *(0, 512 * 512 - 1000, 4),
        *(0, 2, 0, 1),
    )
    assert data[56 + 88 : 56 + 2 * 88] == second
    boxes = struct.pack("<8Q", 0, 0, 512, 256, 0, 256, 512, 256)
    assert data[56 + 5 * 88 :] == boxes + struct.pack("<2I", 2, 1)
    assert len(data) == 56 + sum(entry.size_bytes for entry in ENTRIES)


def test_places_and_pieces_come_back() -> None:
    index = PieceIndex(encode_index(SCHEMA, ENTRIES), SCHEMA, SIZES)
    assert list(index) == [
        TensorPlace(0, 0, 1000),
        TensorPlace(0, 1000, 512 * 512 - 1000),
        TensorPlace(1, 0, 512 * 256, Box((0, 0), (512, 256))),
        TensorPlace(1, 7, 100, Box((0, 256), (512, 256))),
        BundlePlace((2, 3), SCHEMA.bundles[0].starts),
    ]
    assert index[1:3] == (index[1], index[2])
    assert index[-1] == index[4]
    areas = [memoryview(area) for area in AREAS]
    assert [index.piece(number, areas) for number in range(5)] == [entry.piece for entry in ENTRIES]
    assert index.changed_counts.tolist() == [3, 4, 5, 6, 3]
    assert index.stream_starts[-1].tolist() == SIZES


def test_member_counts_belong_to_bundles() -> None:
    index = PieceIndex(encode_index(SCHEMA, ENTRIES), SCHEMA, SIZES)
    assert index.member_changed_counts(4).tolist() == [2, 1]
    assert index.member_changed_counts(-1).dtype == np.int64
    with pytest.raises(InputRefusedError, match="one tensor"):
        index.member_changed_counts(3)
    for number in (5, -6):
        with pytest.raises(IndexError):
            index[number]


def test_an_index_without_pieces() -> None:
    index = PieceIndex(encode_index(SCHEMA, []), SCHEMA, [0, 0, 0, 0])
    assert len(index) == 0
    assert list(index) == []
