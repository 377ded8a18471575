"""Whatever the streams of a piece hold, both kernels judge and read them alike."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weightstore.codec.codec import PieceCodec
from weightstore.codec.decoding import Decoder
from weightstore.codec.frames import FrameCoder
from weightstore.codec.kernels import (
    CODES_PER_BYTE,
    STORE_SLACK_COUNT,
    Kernels,
    load_kernels,
    numpy_kernels,
)
from weightstore.codec.piece import GapCoding, Piece, ValueCoding, hash_streams
from weightstore.codec.scratch import Scratch
from weightstore.errors import CorruptObjectError
from weightstore.settings import Limits

KERNELS: list[Kernels] = [numpy_kernels(), load_kernels()]
FRAMES = FrameCoder(Limits().piece_size_bytes)
STEPS = st.sampled_from([1, -1, 2, -2, 3, 100, 127, -127, -128])
FAR_STEPS = st.sampled_from([1, -1, -2, 127, 128, -128, 30_000, -32_768])
BYTES = st.sampled_from([0, 1, 2, 3, 0x55, 0xAA, 0xFE, 0xFF])


@st.composite
def raw_streams(draw: st.DrawFn, width: int, gap_coding: GapCoding) -> tuple[int, list[bytearray]]:
    """What an encoder would write for a few changes, and their number."""
    steps = draw(st.lists(STEPS if width == 1 else FAR_STEPS, min_size=1, max_size=12))
    gaps = [draw(st.sampled_from([0, 1, 5, 254, 255, 256, 600])) for _ in steps]
    old = np.zeros(len(steps), dtype=f"u{width}")
    new = np.array([step % 256**width for step in steps], dtype=old.dtype)
    positions = (np.cumsum(np.array(gaps) + 1) - 1).astype(np.uint32)
    codes = np.zeros(-(-old.size // CODES_PER_BYTE), dtype=np.uint8)
    escapes = np.zeros(old.size + STORE_SLACK_COUNT, dtype=np.uint8)
    wide = np.zeros(old.size + STORE_SLACK_COUNT, dtype=old.dtype)
    escape_count, wide_count = KERNELS[0].pack_ulp(old, new, codes, escapes, wide)
    if gap_coding is GapCoding.BYTE:
        gap_bytes = np.zeros(200, dtype=np.uint8)
        said = gap_bytes[: KERNELS[0].pack_gap_bytes(positions, gap_bytes)].tobytes()
    else:
        words = np.zeros(200, dtype=np.uint16)
        count = KERNELS[0].pack_gap_words(positions, words)
        said = words[:count].view(np.uint8).reshape(-1, 2).T.tobytes()
    parts = (said, codes.tobytes(), escapes[:escape_count].tobytes(), wide[:wide_count].tobytes())
    return old.size, [bytearray(part) for part in parts]


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    """Pieces with up to three bytes of their content changed, added or taken away."""
    width = draw(st.sampled_from([1, 2, 4, 8]))
    gap_coding = draw(st.sampled_from([GapCoding.BYTE, GapCoding.U16]))
    count, raw = draw(raw_streams(width, gap_coding))
    for _ in range(draw(st.sampled_from([0, 1, 1, 2, 3]))):
        part = draw(st.sampled_from(raw))
        place = draw(st.integers(0, len(part)))
        part[place : place + draw(st.integers(0, 1))] = bytes(draw(st.lists(BYTES, max_size=1)))
    streams: Any = tuple(FRAMES.compress(np.frombuffer(part, dtype=np.uint8)) for part in raw)
    sizes: Any = tuple(len(part) for part in raw)
    return Piece(
        width_bytes=width,
        unit_count=draw(st.sampled_from([2000, 2000, 300, 20])),
        changed_count=count,
        value_coding=ValueCoding.ULP,
        gap_coding=gap_coding,
        raw_sizes=sizes,
        streams=streams,
        lane_deltas=(0, 0),
        hash16=hash_streams(streams),
    )


def judge(kernels: Kernels, piece: Piece) -> tuple[str, list[int], list[int]]:
    """Decode a piece: why it is refused, or its positions and differences."""
    decoder = Decoder(FRAMES, Scratch(), Limits())
    try:
        coded = decoder.decode(kernels, piece)
    except CorruptObjectError as error:
        return error.message, [], []
    assert coded.positions is not None
    return "", coded.positions.tolist(), coded.words.tolist()


@settings(max_examples=600)
@given(pieces())
def test_numba_and_numpy_judge_alike(piece: Piece) -> None:
    first, second = (judge(kernels, piece) for kernels in KERNELS)
    assert first == second
    reason, positions, words = first
    if not reason:
        assert len(positions) == len(words) == piece.changed_count
        assert positions == sorted(set(positions))
        assert positions[-1] < piece.unit_count
        assert 0 not in words


@settings(max_examples=300)
@given(pieces())
def test_an_accepted_piece_is_what_the_encoder_would_have_written(piece: Piece) -> None:
    # One change has one encoding per choice of codings; nothing can hide in the rest.
    reason, positions, words = judge(KERNELS[0], piece)
    if reason:
        return
    old = np.zeros(piece.unit_count, dtype=f"u{piece.width_bytes}")
    new = old.copy()
    new[positions] = words
    again = PieceCodec(KERNELS[0]).worker().encode(old, new, coding=ValueCoding.ULP).piece
    assert again is not None
    assert again.raw_sizes[1:] == piece.raw_sizes[1:]
    assert again.streams[1:] == piece.streams[1:]
    if again.gap_coding is piece.gap_coding:
        assert again.streams[0] == piece.streams[0] or piece.gap_coding is GapCoding.U16


def test_the_strategy_reaches_acceptance_and_many_kinds_of_refusal() -> None:
    verdicts: Counter[str] = Counter()

    @settings(max_examples=600)
    @given(pieces())
    def collect(piece: Piece) -> None:
        reason = judge(KERNELS[1], piece)[0]
        verdicts[reason.rpartition(": ")[2].rstrip("0123456789 units")] += 1

    collect()
    assert verdicts[""] >= 80, verdicts
    assert len(verdicts) >= 12, verdicts
