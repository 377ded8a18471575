"""Pieces as values."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from weightstore.codec.piece import EncodeResult, GapCoding, Piece, ValueCoding, hash_streams

PIECE = Piece(
    width_bytes=2,
    unit_count=10,
    changed_count=1,
    value_coding=ValueCoding.ULP,
    gap_coding=GapCoding.BYTE,
    raw_sizes=(1, 1, 0, 0),
    streams=(b"abc", b"de", b"", b""),
    lane_deltas=(1, 2),
    hash16=hash_streams((b"abc", b"de")),
)


def test_numbers_of_the_codings_are_those_of_the_format_page() -> None:
    assert {coding.name: coding.value for coding in ValueCoding} == {
        "ULP": 0,
        "XOR": 1,
        "OVERWRITE": 2,
        "DENSE_ULP": 3,
        "DENSE_BITS": 4,
    }
    assert {coding.name: coding.value for coding in GapCoding} == {"NONE": 0, "BYTE": 1, "U16": 2}


def test_only_dense_codings_have_no_positions() -> None:
    assert [coding for coding in ValueCoding if coding.is_dense] == [
        ValueCoding.DENSE_ULP,
        ValueCoding.DENSE_BITS,
    ]


def test_the_hash_is_the_front_of_sha256_over_the_streams_in_order() -> None:
    assert hash_streams(PIECE.streams) == hashlib.sha256(b"abcde").digest()[:16]
    assert hash_streams((memoryview(b"abc"), b"de")) == PIECE.hash16
    assert hash_streams((b"de", b"abc")) != PIECE.hash16


def test_pieces_are_equal_by_content_wherever_their_streams_lie() -> None:
    views = (memoryview(b"abc"), memoryview(b"de"), b"", b"")
    assert replace(PIECE, streams=views) == PIECE
    assert replace(PIECE, lane_deltas=(1, 3)) != PIECE


def test_the_size_of_a_piece_is_that_of_its_frames() -> None:
    assert PIECE.size_bytes == 5


def test_a_result_without_changes_has_no_piece() -> None:
    result = EncodeResult(None, np.zeros(3, dtype=np.int64), np.zeros((3, 2), dtype=np.uint64))
    assert result.piece is None
