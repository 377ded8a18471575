"""What `apply` does to a target: all of the piece, or nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.codec.decoding import Change, Coded, Decoder
from weightstore.codec.frames import FrameCoder
from weightstore.codec.kernels import Kernels, load_kernels, numpy_kernels
from weightstore.codec.lanes import Units
from weightstore.codec.piece import Piece, ValueCoding
from weightstore.codec.scratch import Scratch
from weightstore.errors import InputRefusedError, WrongBaseError
from weightstore.settings import Limits

KERNELS = [numpy_kernels(), load_kernels()]
NEED_BASE = [coding for coding in ValueCoding if coding is not ValueCoding.DENSE_BITS]


@pytest.fixture(params=KERNELS, ids=lambda kernels: kernels.name)
def worker(request: pytest.FixtureRequest) -> PieceWorker:
    return PieceCodec(request.param).worker()


def pair(width: int = 2, count: int = 3000) -> tuple[Units, Units]:
    rng = np.random.default_rng(width)
    top = 256**width - 1
    old = rng.integers(0, top, count, dtype=f"u{width}", endpoint=True)
    new = np.where(rng.random(count) < 0.1, old ^ old.dtype.type(top // 2 + 1), old)
    new[::17] += old.dtype.type(1)
    return old, new


def encoded(worker: PieceWorker, old: Units, new: Units, coding: ValueCoding) -> Piece:
    piece = worker.encode(old, new, coding=coding).piece
    assert piece is not None
    return piece


@pytest.mark.parametrize("coding", ValueCoding)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_apply_gives_the_new_bits(worker: PieceWorker, width: int, coding: ValueCoding) -> None:
    old, new = pair(width)
    piece = encoded(worker, old, new, coding)
    worker.check(piece)
    target = old.copy()
    worker.apply(piece, target)
    assert np.array_equal(target, new)


@pytest.mark.parametrize("coding", NEED_BASE)
def test_a_wrong_base_at_a_changed_place_is_refused_untouched(
    worker: PieceWorker, coding: ValueCoding
) -> None:
    old, new = pair()
    piece = encoded(worker, old, new, coding)
    for place in np.flatnonzero(old != new)[::40]:
        target = old.copy()
        target[place] ^= 0x0100
        kept = target.copy()
        with pytest.raises(WrongBaseError) as caught:
            worker.apply(piece, target)
        assert np.array_equal(target, kept)
        expected = tuple(f"{lane:016x}" for lane in piece.lane_deltas)
        assert caught.value.facts["expected"] == expected
        assert caught.value.facts["found"] != expected
        assert expected[0] in caught.value.message


@pytest.mark.parametrize("coding", NEED_BASE)
def test_the_same_delta_twice_is_refused(worker: PieceWorker, coding: ValueCoding) -> None:
    old, new = pair()
    target = new.copy()
    with pytest.raises(WrongBaseError):
        worker.apply(encoded(worker, old, new, coding), target)
    assert np.array_equal(target, new)


@pytest.mark.parametrize("coding", NEED_BASE)
def test_another_index_is_another_base(worker: PieceWorker, coding: ValueCoding) -> None:
    old, new = pair()
    piece = encoded(worker, old, new, coding)
    for first_index in (1, 1 << 63):
        with pytest.raises(WrongBaseError):
            worker.apply(piece, old.copy(), first_index=first_index)
    with pytest.raises(WrongBaseError):
        worker.apply(piece, old.copy(), member_starts=np.array([0, 1500, 3000]))


def test_overwrite_heals_a_torn_target(worker: PieceWorker) -> None:
    old, new = pair()
    piece = encoded(worker, old, new, ValueCoding.OVERWRITE)
    for cut in (0, 1, 1500, 3000):
        target = np.concatenate([new[:cut], old[cut:]])
        for _ in range(2):
            worker.apply(piece, target, expect_base=False)
            assert np.array_equal(target, new)


@pytest.mark.parametrize("coding", [ValueCoding.ULP, ValueCoding.XOR, ValueCoding.DENSE_ULP])
def test_only_overwrite_can_do_without_its_base(worker: PieceWorker, coding: ValueCoding) -> None:
    old, new = pair()
    with pytest.raises(WrongBaseError):
        worker.apply(encoded(worker, old, new, coding), new.copy(), expect_base=False)


def test_dense_bits_need_no_base_but_their_own_lanes(worker: PieceWorker) -> None:
    _, new = pair()
    piece = worker.encode(None, new).piece
    assert piece is not None
    target = np.zeros_like(new)
    worker.apply(piece, target)
    assert np.array_equal(target, new)
    with pytest.raises(WrongBaseError):
        worker.apply(replace(piece, lane_deltas=(0, 0)), target)
    with pytest.raises(WrongBaseError):
        worker.apply(piece, target, first_index=1)


@pytest.mark.parametrize("coding", ValueCoding)
def test_a_bundle_is_applied_with_the_starts_it_was_made_with(
    worker: PieceWorker, coding: ValueCoding
) -> None:
    old, new = pair()
    starts = np.array([0, 1, 700, 3000])
    piece = worker.encode(old, new, member_starts=starts, coding=coding).piece
    assert piece is not None
    target = old.copy()
    worker.apply(piece, target, member_starts=starts)
    assert np.array_equal(target, new)


def test_targets_that_begin_anywhere_are_written(worker: PieceWorker) -> None:
    old, new = pair()
    piece = encoded(worker, old, new, ValueCoding.ULP)
    memory = bytearray(2 * old.size + 1)
    target = np.frombuffer(memory, dtype=np.uint16, offset=1)
    target[:] = old
    worker.apply(piece, target)
    assert np.array_equal(target, new)


def test_targets_of_another_form_are_refused(worker: PieceWorker) -> None:
    old, new = pair()
    piece = encoded(worker, old, new, ValueCoding.ULP)
    read_only = old.copy()
    read_only.setflags(write=False)
    for target in (
        old[:-1],
        old.astype(np.uint32),
        old.view(np.uint8),
        np.repeat(old, 2)[::2],
        read_only,
    ):
        with pytest.raises(InputRefusedError):
            worker.apply(piece, target)
    with pytest.raises(InputRefusedError):
        worker.apply(piece, old, member_starts=np.array([0, 2999]))


def test_streams_may_be_views_into_a_pack(worker: PieceWorker) -> None:
    old, new = pair()
    piece = encoded(worker, old, new, ValueCoding.ULP)
    pack = memoryview(b"head" + b"".join(piece.streams))
    ends = np.cumsum([4, *(len(stream) for stream in piece.streams)]).tolist()
    gaps, values, escapes, wide = (pack[ends[i] : ends[i + 1]] for i in range(4))
    viewed = replace(piece, streams=(gaps, values, escapes, wide))
    target = old.copy()
    worker.apply(viewed, target)
    assert np.array_equal(target, new)


def test_a_decoder_gives_positions_and_words_before_any_target() -> None:
    old = np.zeros(1000, dtype=np.uint16)
    new = old.copy()
    new[[10, 500]] = 1, 0xFFFF
    worker = PieceCodec().worker()
    limits = Limits()
    decoder = Decoder(FrameCoder(limits.piece_size_bytes), Scratch(), limits)
    kernels: Kernels = numpy_kernels()
    coded: Coded = decoder.decode(kernels, encoded(worker, old, new, ValueCoding.ULP))
    assert coded.positions is not None
    assert coded.positions.tolist() == [10, 500]
    assert coded.words.tolist() == [1, 0xFFFF]
    change: Change = decoder.resolve(
        kernels,
        encoded(worker, old, new, ValueCoding.OVERWRITE),
        old,
        first_index=0,
        member_starts=None,
        expect_base=True,
    )
    assert change.new_bits.tolist() == [1, 0xFFFF]
