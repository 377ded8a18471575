"""Any change comes back bit for bit, and numba and NumPy write the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.codec.digest import lanes_of, member_lanes, subtract_lanes
from weightstore.codec.kernels import Kernels, load_kernels, numpy_kernels
from weightstore.codec.lanes import Units
from weightstore.codec.piece import Piece, ValueCoding
from weightstore.errors import WrongBaseError

KERNELS: list[Kernels] = [numpy_kernels(), load_kernels()]
WORKERS = [PieceCodec(kernels).worker() for kernels in KERNELS]
CODINGS = st.sampled_from([None, *ValueCoding])
LONG_GAPS = [65534, 65535, 65536, 131069, 131070, 131071]
GAPS = st.one_of(
    st.integers(0, 70), st.sampled_from([253, 254, 255, 256, 257, 509, 510, 511, 764, 765, 766])
)
# Per width: 0, -0, one, a subnormal, infinity, two NaNs, all ones, of the float of that size.
HARD_BITS = {
    1: [0x00, 0x80, 0x38, 0x01, 0x7E, 0x7F, 0xFE, 0xFF],
    2: [0x0000, 0x8000, 0x3F80, 0x0001, 0x7F80, 0x7FC0, 0x7FFB, 0xFFFF],
    4: [
        0x00000000,
        0x80000000,
        0x3F800000,
        0x00000001,
        0x7F800000,
        0x7FC00000,
        0x7F800001,
        2**32 - 1,
    ],
    8: [0, 1 << 63, 0x3FF << 52, 1, 0x7FF << 52, 0x7FF8 << 48, (0x7FF << 52) + 1, 2**64 - 1],
}


@dataclass(frozen=True)
class Pair:
    """Bits before and after."""

    old: Units
    new: Units

    def __repr__(self) -> str:
        positions = np.flatnonzero(self.old != self.new)
        return (
            f"Pair({self.old.dtype}[{self.old.size}], at {positions.tolist()}, "
            f"{self.old[positions].tolist()} to {self.new[positions].tolist()})"
        )


@st.composite
def pairs(draw: st.DrawFn, width: int | None = None) -> Pair:
    """Changes at gaps around every skip, by differences around every escape."""
    width = width or draw(st.sampled_from([1, 2, 4, 8]))
    top = 256**width - 1
    gaps = draw(st.lists(GAPS, min_size=0, max_size=30))
    long_gap = draw(st.sampled_from([None, None, None, *LONG_GAPS]))
    if long_gap is not None:
        gaps.insert(draw(st.integers(0, len(gaps))), long_gap)
    positions = np.cumsum(np.array(gaps, dtype=np.int64) + 1) - 1
    size = int(positions[-1]) + 1 if gaps else 0
    size += draw(st.integers(0 if gaps else 1, 130))
    seed = draw(st.integers(0, 2**16))
    old = np.random.default_rng(seed).choice(np.array(HARD_BITS[width], dtype=f"u{width}"), size)
    steps = draw(st.lists(differences(width), min_size=len(gaps), max_size=len(gaps)))
    new = old.copy()
    new[positions] += np.array(steps, dtype=old.dtype)
    assert all(0 < step <= top for step in steps)
    return Pair(old, new)


def differences(width: int) -> st.SearchStrategy[int]:
    """Differences modulo the width, never 0."""
    modulus = 256**width
    near = [1, 2, 3, 126, 127, 128, 129, 254, 255, 256, modulus // 2 - 1, modulus // 2]
    both = sorted({step % modulus for size in near for step in (size, -size)} - {0})
    return st.one_of(
        st.sampled_from([1, modulus - 1]), st.sampled_from(both), st.integers(1, modulus - 1)
    )


def encode_both(pair: Pair, coding: ValueCoding | None, **place: object) -> Piece | None:
    """Encode by both kernels, which have to agree, and give the piece."""
    results = [
        worker.encode(pair.old, pair.new, coding=coding, **place)  # type: ignore[arg-type]
        for worker in WORKERS
    ]
    assert results[0].piece == results[1].piece
    for field in ("member_changed_counts", "member_lane_deltas"):
        assert np.array_equal(getattr(results[0], field), getattr(results[1], field))
    return results[0].piece


@settings(max_examples=300)
@given(pairs(), CODINGS, st.sampled_from([0, 1, 1 << 32, (1 << 64) - 1]))
def test_every_change_comes_back_bit_for_bit(
    pair: Pair, coding: ValueCoding | None, first_index: int
) -> None:
    piece = encode_both(pair, coding, first_index=first_index)
    if piece is None:
        assert np.array_equal(pair.old, pair.new)
        return
    for worker in WORKERS:
        worker.check(piece)
        target = pair.old.copy()
        worker.apply(piece, target, first_index=first_index)
        assert np.array_equal(target, pair.new)


@settings(max_examples=200)
@given(pairs(), CODINGS, st.sampled_from([0, 7, 1 << 40]))
def test_lane_deltas_are_those_of_the_whole_tensors(
    pair: Pair, coding: ValueCoding | None, first_index: int
) -> None:
    piece = encode_both(pair, coding, first_index=first_index)
    after = lanes_of(pair.new, first_index=first_index)
    before = lanes_of(pair.old, first_index=first_index)
    if coding is ValueCoding.DENSE_BITS:
        before = (0, 0)
    assert (piece.lane_deltas if piece else (0, 0)) == subtract_lanes(after, before)


@settings(max_examples=200)
@given(pairs(), CODINGS, st.lists(st.integers(1, 10_000), max_size=12))
def test_bundles_come_back_and_their_members_have_their_own_lanes(
    pair: Pair, coding: ValueCoding | None, cuts: list[int]
) -> None:
    size = pair.old.size
    starts = np.array(sorted({0, size, *(cut % size for cut in cuts)}), dtype=np.int64)
    piece = encode_both(pair, coding, member_starts=starts)
    results = [
        worker.encode(pair.old, pair.new, member_starts=starts, coding=coding) for worker in WORKERS
    ]
    before = member_lanes(pair.old, starts)
    if coding is ValueCoding.DENSE_BITS:
        before[:] = 0
    for result in results:
        assert np.array_equal(result.member_lane_deltas, member_lanes(pair.new, starts) - before)
    if piece is None:
        return
    counts = [
        np.count_nonzero(pair.old[first:last] != pair.new[first:last])
        for first, last in pairwise(starts.tolist())
    ]
    if coding is not ValueCoding.DENSE_BITS:
        assert results[0].member_changed_counts.tolist() == counts
    for worker in WORKERS:
        target = pair.old.copy()
        worker.apply(piece, target, member_starts=starts)
        assert np.array_equal(target, pair.new)


@settings(max_examples=200)
@given(pairs(), CODINGS, st.data())
def test_a_base_that_differs_where_it_matters_is_refused_untouched(
    pair: Pair, coding: ValueCoding | None, data: st.DataObject
) -> None:
    piece = encode_both(pair, coding)
    if piece is None or piece.value_coding is ValueCoding.DENSE_BITS:
        return
    changed = np.flatnonzero(pair.old != pair.new).tolist()
    target = pair.old.copy()
    width = target.itemsize
    place = data.draw(st.sampled_from(changed))
    target[place] ^= target.dtype.type(1 << data.draw(st.integers(0, 8 * width - 1)))
    # A dense piece says where nothing changes too; the others do not look there.
    kept = target.copy()
    for worker in WORKERS:
        with pytest.raises(WrongBaseError):
            worker.apply(piece, target)
        assert np.array_equal(target, kept)


@settings(max_examples=100)
@given(pairs(), st.lists(st.integers(0, 1 << 20), max_size=4))
def test_overwrite_gives_the_new_bits_over_any_mixture(pair: Pair, cuts: list[int]) -> None:
    piece = encode_both(pair, ValueCoding.OVERWRITE)
    if piece is None:
        return
    target = pair.old.copy()
    for cut in cuts:
        place = cut % target.size
        target[:place] = pair.new[:place]
    for worker in WORKERS:
        worker.apply(piece, target, expect_base=False)
        assert np.array_equal(target, pair.new)


@pytest.mark.parametrize("coding", [None, *ValueCoding])
def test_all_bf16_patterns_survive_every_coding(coding: ValueCoding | None) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    shuffled: NDArray[np.uint16] = np.random.default_rng(1).permutation(patterns)
    for old, new in (
        (np.zeros_like(patterns), patterns),
        (patterns, np.zeros_like(patterns)),
        (patterns, shuffled),
        (patterns, patterns ^ np.uint16(0x8000)),
        (patterns, patterns + np.uint16(1)),
    ):
        pair = Pair(old, new)
        piece = encode_both(pair, coding)
        assert piece is not None
        for worker in WORKERS:
            target = old.copy()
            worker.apply(piece, target)
            assert np.array_equal(target, new)
