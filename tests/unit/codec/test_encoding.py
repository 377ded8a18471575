"""What the encoder writes, read back by a plain decoder made from the format page alone."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import zstandard

from weightstore.codec.codec import PieceCodec
from weightstore.codec.digest import lanes_of, subtract_lanes
from weightstore.codec.encoding import U16_UNITS_PER_CHANGE_MIN
from weightstore.codec.kernels import Kernels, load_kernels, numpy_kernels
from weightstore.codec.lanes import Units
from weightstore.codec.piece import GapCoding, Piece, ValueCoding, hash_streams
from weightstore.errors import InputRefusedError, LimitError
from weightstore.settings import Limits

KERNELS = [numpy_kernels(), load_kernels()]
SPARSE = [ValueCoding.ULP, ValueCoding.XOR, ValueCoding.OVERWRITE]


def raw_streams(piece: Piece) -> list[bytes]:
    raw = []
    for stream, size in zip(piece.streams, piece.raw_sizes, strict=True):
        content = zstandard.ZstdDecompressor().decompress(bytes(stream)) if stream else b""
        assert len(content) == size
        raw.append(content)
    return raw


def planes(raw: bytes, width: int) -> list[int]:
    count = len(raw) // width
    return [
        sum(raw[plane * count + at] << 8 * plane for plane in range(width)) for at in range(count)
    ]


def plain_positions(raw: bytes, coding: GapCoding) -> list[int]:
    skip, gaps = (255, list(raw)) if coding is GapCoding.BYTE else (65535, planes(raw, 2))
    ends = accumulate(gap + (gap != skip) for gap in gaps)
    return [end - 1 for end, gap in zip(ends, gaps, strict=True) if gap != skip]


def plain_decode(piece: Piece, old: Units) -> list[int]:
    gaps, values, escapes, wide = raw_streams(piece)
    modulus = 256**piece.width_bytes
    if piece.value_coding is ValueCoding.DENSE_BITS:
        return planes(values, piece.width_bytes)
    new: list[int] = old.tolist()
    if piece.value_coding is ValueCoding.DENSE_ULP:
        words = planes(values, piece.width_bytes)
        return [
            (bits + (word >> 1 ^ -(word & 1))) % modulus
            for bits, word in zip(new, words, strict=True)
        ]
    positions = plain_positions(gaps, piece.gap_coding)
    if piece.value_coding is not ValueCoding.ULP:
        for at, word in zip(positions, planes(values, piece.width_bytes), strict=True):
            new[at] = new[at] ^ word if piece.value_coding is ValueCoding.XOR else word
        return new
    bytes_left, words_left = (
        iter(escapes),
        iter(np.frombuffer(wide, f"u{piece.width_bytes}").tolist()),
    )
    for count, at in enumerate(positions):
        code = values[count // 4] >> 2 * (count % 4) & 3
        step = (1, -1)[code] if code < 2 else next(bytes_left)
        if code == 2:
            step = next(words_left) if step == 255 else step >> 1 ^ -(step & 1)
        new[at] = (new[at] + step) % modulus
    assert next(bytes_left, None) is next(words_left, None) is None
    return new


def changed_pair(width: int, count: int, share: float, seed: int = 1) -> tuple[Units, Units]:
    rng = np.random.default_rng(seed)
    top = 256**width - 1
    old = rng.integers(0, top, count, dtype=f"u{width}", endpoint=True)
    near = rng.choice(np.array([1, top, 2, top - 1, 100, top // 2], dtype=old.dtype), count)
    new = np.where(rng.random(count) < share, old + near, old)
    new[-1] = old[-1] + old.dtype.type(1)
    return old, new


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.name)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.6, 1.0])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_a_plain_decoder_reads_every_coding(kernels: Kernels, width: int, share: float) -> None:
    old, new = changed_pair(width, 5000, share)
    worker = PieceCodec(kernels).worker()
    for coding in (None, *ValueCoding):
        piece = worker.encode(old, new, coding=coding).piece
        assert piece is not None
        assert coding in {None, piece.value_coding}
        assert plain_decode(piece, old) == new.tolist()
        assert piece.hash16 == hash_streams(piece.streams)
        assert (piece.width_bytes, piece.unit_count) == (width, 5000)
        changed = 5000 if coding is ValueCoding.DENSE_BITS else int(np.count_nonzero(old != new))
        assert piece.changed_count == changed


@pytest.mark.parametrize("coding", [None, *ValueCoding])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("share", [0.002, 0.05, 1.0])
def test_numba_and_numpy_give_the_same_bytes(
    width: int, share: float, coding: ValueCoding | None
) -> None:
    old, new = changed_pair(width, 40_000, share)
    first, second = (
        PieceCodec(kernels).worker().encode(old, new, coding=coding) for kernels in KERNELS
    )
    assert first.piece == second.piece
    assert np.array_equal(first.member_lane_deltas, second.member_lane_deltas)


def test_nothing_changed_is_no_piece() -> None:
    old = np.arange(1000, dtype=np.uint16)
    result = PieceCodec().worker().encode(old, old.copy())
    assert result.piece is None
    assert result.member_changed_counts.tolist() == [0]
    assert result.member_lane_deltas.tolist() == [[0, 0]]


def test_minus_zero_other_nans_and_exponents_are_changes() -> None:
    # 0.0 to -0.0, 1.0 to -1.0, 2.0 to 8.0, one NaN payload into another, and an equal NaN.
    old = np.array([0x0000, 0x3F80, 0x4000, 0x7FC0, 0x7FC1], dtype=np.uint16)
    new = np.array([0x8000, 0xBF80, 0x4100, 0x7FFB, 0x7FC1], dtype=np.uint16)
    worker = PieceCodec().worker()
    piece = worker.encode(old, new).piece
    assert piece is not None
    assert piece.changed_count == 4
    target = old.copy()
    worker.apply(piece, target)
    assert np.array_equal(target, new)
    assert worker.encode(new, target).piece is None


def test_lane_deltas_are_the_digest_difference_at_the_canonical_index() -> None:
    old, new = changed_pair(2, 3000, 0.1)
    worker = PieceCodec().worker()
    piece = worker.encode(old, new, first_index=1 << 40).piece
    assert piece is not None
    after, before = (lanes_of(bits, first_index=1 << 40) for bits in (new, old))
    assert piece.lane_deltas == subtract_lanes(after, before)
    dense = worker.encode(None, new, first_index=1 << 40).piece
    assert dense is not None
    assert dense.lane_deltas == after


@pytest.mark.parametrize("base", [True, False])
def test_each_member_of_a_bundle_has_counts_and_lanes_of_its_own(base: bool) -> None:  # noqa: FBT001
    old, new = changed_pair(2, 6000, 0.1)
    new[2000:4000] = old[2000:4000]
    starts = np.array([0, 1, 2000, 4000, 6000])
    result = PieceCodec().worker().encode(old if base else None, new, member_starts=starts)
    assert result.piece is not None
    for member in range(4):
        part = slice(starts[member], starts[member + 1])
        expected = lanes_of(new[part])
        changed = new[part].size
        if base:
            expected = subtract_lanes(expected, lanes_of(old[part]))
            changed = int(np.count_nonzero(old[part] != new[part]))
        assert tuple(result.member_lane_deltas[member].tolist()) == expected
        assert result.member_changed_counts[member] == changed
    total = result.member_lane_deltas.sum(axis=0, dtype=np.uint64)
    assert tuple(total.tolist()) == result.piece.lane_deltas


def test_rare_changes_take_gap_words_and_others_bytes() -> None:
    rng = np.random.default_rng(1)
    old = np.zeros(1 << 20, dtype=np.uint16)
    for share, expected in ((0.001, GapCoding.U16), (0.05, GapCoding.BYTE)):
        new = (rng.random(old.size) < share).astype(np.uint16)
        piece = PieceCodec().worker().encode(old, new).piece
        assert piece is not None
        assert piece.gap_coding is expected
    # The threshold only saves the attempt: just above it, bytes would have won anyway.
    new = np.zeros_like(old)
    new[rng.choice(old.size, old.size // U16_UNITS_PER_CHANGE_MIN + 1, replace=False)] = 1
    positions = np.flatnonzero(new)
    words = (np.diff(positions, prepend=-1) - 1).astype(np.uint16)
    by_planes = words.view(np.uint8).reshape(-1, 2).T.tobytes()
    piece = PieceCodec().worker().encode(old, new).piece
    assert piece is not None
    assert len(piece.streams[0]) < len(zstandard.ZstdCompressor().compress(by_planes))


def test_neither_input_is_written_and_read_only_ones_are_read() -> None:
    for kernels in KERNELS:
        old, new = changed_pair(2, 2000, 0.5)
        kept = old.copy(), new.copy()
        old.setflags(write=False)
        new.setflags(write=False)
        for coding in (None, *ValueCoding):
            PieceCodec(kernels).worker().encode(old, new, coding=coding)
        assert np.array_equal(old, kept[0])
        assert np.array_equal(new, kept[1])


def test_a_worker_keeps_nothing_of_the_piece_before() -> None:
    worker = PieceCodec().worker()
    large, small = changed_pair(4, 9000, 0.9), changed_pair(1, 100, 0.1, seed=2)
    expected = PieceCodec().worker().encode(*small)
    worker.encode(*large)
    assert worker.encode(*small).piece == expected.piece


def test_arguments_that_do_not_fit_are_refused() -> None:
    worker = PieceCodec(limits=Limits(piece_element_count=1000)).worker()
    units = np.zeros(10, dtype=np.uint16)
    refused: list[tuple[object, object]] = [
        (units, units.astype(np.uint32)),
        (units, units[:9]),
        (units.view(np.int16), units.view(np.int16)),
        (units.astype(">u2"), units.astype(">u2")),
        (np.repeat(units, 2)[::2], units),
        (units.reshape(2, 5), units.reshape(2, 5)),
        (units[:0], units[:0]),
        (units.view(np.float16), units.view(np.float16)),
    ]
    for old, new in refused:
        with pytest.raises(InputRefusedError):
            worker.encode(old, new)  # type: ignore[arg-type]
    with pytest.raises(InputRefusedError, match="before"):
        worker.encode(None, units, coding=ValueCoding.ULP)
    with pytest.raises(LimitError):
        worker.encode(None, np.zeros(1001, dtype=np.uint8))


@pytest.mark.parametrize("coding", SPARSE)
def test_streams_that_would_be_empty_are_absent(coding: ValueCoding) -> None:
    old = np.zeros(10, dtype=np.uint16)
    new = old.copy()
    new[3] = 1
    piece = PieceCodec().worker().encode(old, new, coding=coding).piece
    assert piece is not None
    sizes = (1, 1, 0, 0) if coding is ValueCoding.ULP else (1, 2, 0, 0)
    assert piece.raw_sizes == sizes
    assert [bool(stream) for stream in piece.streams] == [True, True, False, False]
