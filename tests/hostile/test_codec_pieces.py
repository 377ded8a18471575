"""Pieces that are damaged, or made to do harm: refused, or what they were; never more."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zstandard

from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.codec.frames import WINDOW_SIZE_BYTES_MAX, FrameCoder
from weightstore.codec.kernels import Kernels, load_kernels, numpy_kernels
from weightstore.codec.lanes import Units
from weightstore.codec.piece import GapCoding, Piece, Streams, ValueCoding, hash_streams
from weightstore.errors import CorruptObjectError, WrongBaseError
from weightstore.settings import GIB, MIB, Limits

KERNELS: list[Kernels] = [numpy_kernels(), load_kernels()]
OLD = np.random.default_rng(1).integers(0, 65536, 600, dtype=np.uint16)


@pytest.fixture(params=KERNELS, ids=lambda kernels: kernels.name)
def worker(request: pytest.FixtureRequest) -> PieceWorker:
    return PieceCodec(request.param).worker()


def new_bits() -> Units:
    new = OLD.copy()
    new[[0, 1, 300, 301, 599]] += np.array([1, 0xFFFF, 5, 1000, 1], dtype=np.uint16)
    return new


def piece_of(coding: ValueCoding) -> Piece:
    piece = PieceCodec().worker().encode(OLD, new_bits(), coding=coding).piece
    assert piece is not None
    return piece


def frame(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def with_streams(piece: Piece, *streams: bytes | memoryview, **changes: object) -> Piece:
    """A piece whose hash is right again: the hash stops accidents, the rest stops intent."""
    found: Any = streams
    fields: dict[str, Any] = {"streams": found, "hash16": hash_streams(found), **changes}
    return replace(piece, **fields)


def ulp_piece(
    gaps: bytes, codes: bytes, escapes: bytes = b"", wide: bytes = b"", **changes: object
) -> Piece:
    raw = (gaps, codes, escapes, wide)
    streams = [frame(part) if part else b"" for part in raw]
    fields = {"raw_sizes": tuple(len(part) for part in raw), **changes}
    return with_streams(piece_of(ValueCoding.ULP), *streams, **fields)


def refused(worker: PieceWorker, piece: Piece) -> None:
    target = OLD.copy()
    with pytest.raises(CorruptObjectError):
        worker.check(piece)
    with pytest.raises(CorruptObjectError):
        worker.apply(piece, target)
    assert np.array_equal(target, OLD)


def damaged(stream: bytes) -> Iterator[bytes]:
    """Every byte of a stream changed in eight ways, and every truncation of it."""
    for place in range(len(stream)):
        for bit in range(8):
            yield stream[:place] + bytes([stream[place] ^ 1 << bit]) + stream[place + 1 :]
        yield stream[:place]
    yield stream + b"\0"
    yield stream + stream
    yield stream + b"\x50\x2a\x4d\x18\x04\0\0\0skip"
    yield b"\x50\x2a\x4d\x18\x04\0\0\0skip" + stream


def replaced(streams: Streams, index: int, stream: bytes) -> list[bytes]:
    return [stream if at == index else bytes(kept) for at, kept in enumerate(streams)]


@pytest.mark.parametrize("coding", ValueCoding)
def test_any_damage_to_a_stream_fails_the_hash(worker: PieceWorker, coding: ValueCoding) -> None:
    piece = piece_of(coding)
    for index, stream in enumerate(piece.streams):
        for bad in damaged(bytes(stream)) if stream else ():
            streams: Any = tuple(replaced(piece.streams, index, bad))
            refused(worker, replace(piece, streams=streams))
    refused(worker, replace(piece, hash16=b"\0" * 16))
    refused(worker, replace(piece, hash16=piece.hash16[:-1]))


@pytest.mark.parametrize("coding", ValueCoding)
def test_damage_under_a_right_hash_is_refused_or_changes_nothing(
    worker: PieceWorker, coding: ValueCoding
) -> None:
    piece = piece_of(coding)
    for index, stream in enumerate(piece.streams):
        for bad in damaged(bytes(stream)) if stream else ():
            target = OLD.copy()
            try:
                worker.apply(with_streams(piece, *replaced(piece.streams, index, bad)), target)
            except (CorruptObjectError, WrongBaseError):
                assert np.array_equal(target, OLD)
            else:
                assert np.array_equal(target, new_bits())


def test_streams_that_swap_places_are_refused(worker: PieceWorker) -> None:
    piece = piece_of(ValueCoding.ULP)
    gaps, values, escapes, wide = piece.streams
    for streams in ((values, gaps, escapes, wide), (gaps, values, wide, escapes)):
        refused(worker, with_streams(piece, *streams))


@pytest.mark.parametrize(
    "changes",
    [
        {"width_bytes": 3},
        {"width_bytes": 0},
        {"width_bytes": 16},
        {"width_bytes": 1},
        {"width_bytes": 4},
        {"unit_count": 0},
        {"unit_count": -1},
        {"unit_count": 1 << 62},
        {"unit_count": 599},
        {"changed_count": 0},
        {"changed_count": -1},
        {"changed_count": 4},
        {"changed_count": 6},
        {"changed_count": 601},
        {"gap_coding": GapCoding.NONE},
        {"gap_coding": GapCoding.U16},
        {"value_coding": ValueCoding.XOR},
        {"value_coding": ValueCoding.OVERWRITE},
        {"value_coding": ValueCoding.DENSE_ULP},
        {"value_coding": ValueCoding.DENSE_BITS},
        {"value_coding": ValueCoding.DENSE_BITS, "gap_coding": GapCoding.NONE},
    ],
    ids=str,
)
def test_an_index_that_contradicts_the_streams_is_refused(
    worker: PieceWorker, changes: dict[str, Any]
) -> None:
    refused(worker, replace(piece_of(ValueCoding.ULP), **changes))


def test_every_wrong_raw_size_is_refused(worker: PieceWorker) -> None:
    for coding in ValueCoding:
        piece = piece_of(coding)
        for index, right in enumerate(piece.raw_sizes):
            for wrong in {0, 1, right - 1, right + 1, 2 * right, 1 << 20, GIB, 1 << 63, -1} - {
                right
            }:
                sizes: Any = tuple(
                    wrong if at == index else size for at, size in enumerate(piece.raw_sizes)
                )
                refused(worker, replace(piece, raw_sizes=sizes))


@pytest.mark.parametrize(
    ("what", "piece"),
    [
        ("fewer positions", ulp_piece(b"\0\0\0\0", b"\0\0")),
        ("more positions", ulp_piece(b"\0" * 6, b"\0\0")),
        ("too many skips", ulp_piece(b"\xff\xff\xff" + b"\0" * 5, b"\0\0")),
        ("past the end", ulp_piece(b"\0\0\0\0\xfe", b"\0\0", unit_count=258)),
        ("past the end by skips", ulp_piece(b"\xff\xff\0\0\0\0\x60", b"\0\0")),
        ("a trailing skip", ulp_piece(b"\0\0\0\0\0\xff", b"\0\0")),
        ("only skips", ulp_piece(b"\xff" * 5, b"\0\0")),
        ("a reserved code", ulp_piece(b"\0" * 5, b"\x03\0")),
        ("code bits behind the last", ulp_piece(b"\0" * 5, b"\0\x04")),
        ("a missing escape", ulp_piece(b"\0" * 5, b"\x02\0")),
        ("an escape too many", ulp_piece(b"\0" * 5, b"\0\0", b"\x03")),
        ("an escape that codes 0", ulp_piece(b"\0" * 5, b"\x02\0", b"\x00")),
        ("an escape that codes -1", ulp_piece(b"\0" * 5, b"\x02\0", b"\x01")),
        ("an escape that codes 1", ulp_piece(b"\0" * 5, b"\x02\0", b"\x02")),
        ("a missing wide word", ulp_piece(b"\0" * 5, b"\x02\0", b"\xff")),
        ("a wide word too many", ulp_piece(b"\0" * 5, b"\x02\0", b"\x03", b"\0\2")),
        ("a wide word that is small", ulp_piece(b"\0" * 5, b"\x02\0", b"\xff", b"\1\0")),
        ("half a wide word", ulp_piece(b"\0" * 5, b"\x02\0", b"\xff", b"\1")),
        ("codes too long", ulp_piece(b"\0" * 5, b"\0\0\0")),
        ("codes too short", ulp_piece(b"\0" * 5, b"\0")),
        ("no codes", ulp_piece(b"\0" * 5, b"")),
        ("no gaps", ulp_piece(b"", b"\0\0")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_streams_that_contradict_each_other_are_refused(
    worker: PieceWorker, what: str, piece: Piece
) -> None:
    assert what
    refused(worker, piece)


def test_the_last_unit_can_change_and_the_one_behind_it_cannot(worker: PieceWorker) -> None:
    for last, fits in ((0x59, True), (0x5A, False)):
        piece = ulp_piece(b"\xff\xff\0\0\0\0" + bytes([last - 4]), b"\0\0")
        piece = replace(piece, unit_count=600)
        if fits:
            worker.check(piece)
        else:
            refused(worker, piece)


def test_gap_words_past_the_end_are_refused(worker: PieceWorker) -> None:
    words = np.array([0, 0, 0, 0, 700], dtype=np.uint16)
    planes = words.view(np.uint8).reshape(-1, 2).T.tobytes()
    piece = ulp_piece(planes, b"\0\0", gap_coding=GapCoding.U16)
    refused(worker, piece)
    words[-1] = 65535
    planes = words.view(np.uint8).reshape(-1, 2).T.tobytes()
    refused(worker, ulp_piece(planes, b"\0\0", gap_coding=GapCoding.U16, changed_count=4))


def test_an_xor_word_of_zero_is_refused(worker: PieceWorker) -> None:
    piece = piece_of(ValueCoding.XOR)
    words = frame(b"\1\1\0\1\1" + b"\0" * 5)
    refused(worker, with_streams(piece, piece.streams[0], words, b"", b""))


def test_dense_words_that_change_another_number_are_refused(worker: PieceWorker) -> None:
    refused(worker, replace(piece_of(ValueCoding.DENSE_ULP), changed_count=4))
    refused(worker, replace(piece_of(ValueCoding.DENSE_BITS), changed_count=599))


def bombs(content: bytes) -> dict[str, bytes]:
    """Frames of the right content that break one rule each, and frames that are none."""
    size = len(content).to_bytes(4, "little")
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    return {
        "declares nothing": zstandard.ZstdCompressor(write_content_size=False).compress(content),
        "declares 1 GiB": b"\x28\xb5\x2f\xfd\xa0" + GIB.to_bytes(4, "little") + block,
        "declares 2^63": b"\x28\xb5\x2f\xfd\xe0" + (1 << 63).to_bytes(8, "little") + block,
        "holds more": b"\x28\xb5\x2f\xfd\xa0" + size + b"\x08\0\0x" + block,
        "holds less": frame(content[:-1]),
        "has a checksum": zstandard.ZstdCompressor(write_checksum=True).compress(content),
        "needs a dictionary": b"\x28\xb5\x2f\xfd\xa1\x07" + size + block,
        "is another format": b"\x1f\x8b\x08" + b"\0" * 20,
        "is skippable": b"\x50\x2a\x4d\x18" + size + content,
        "is nothing": b"",
        "is its magic": b"\x28\xb5\x2f\xfd",
        "is two frames": frame(content[:-1]) + frame(content[-1:]),
        "is followed by more": frame(content) + b"\0",
        "is followed by a skippable frame": frame(content) + b"\x50\x2a\x4d\x18\0\0\0\0",
        "expands to 128 MiB": frame(b"\0" * (128 * MIB)),
    }


def raw_values(piece: Piece) -> bytes:
    return zstandard.ZstdDecompressor().decompress(bytes(piece.streams[1]))


@pytest.mark.parametrize("name", bombs(b"xy"))
def test_bombs_are_refused_before_anything_is_allocated(worker: PieceWorker, name: str) -> None:
    piece = piece_of(ValueCoding.DENSE_ULP)
    content = raw_values(piece)
    worker.check(with_streams(piece, b"", frame(content), b"", b""))
    bomb = with_streams(piece, b"", bombs(content)[name], b"", b"")
    tracemalloc.start()
    refused(worker, bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MIB


@pytest.mark.parametrize("index", range(4))
def test_a_stream_larger_than_its_counts_allow_is_never_opened(
    worker: PieceWorker, index: int
) -> None:
    piece = piece_of(ValueCoding.ULP)
    large = 32 * MIB
    sizes = [large if at == index else size for at, size in enumerate(piece.raw_sizes)]
    streams = replaced(piece.streams, index, frame(b"\0" * large))
    bomb = with_streams(piece, *streams, raw_sizes=tuple(sizes))
    tracemalloc.start()
    refused(worker, bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MIB


@pytest.mark.parametrize(
    "coding", [coding for coding in ValueCoding if coding is not ValueCoding.ULP]
)
def test_nothing_can_hide_in_a_stream_that_is_absent(
    worker: PieceWorker, coding: ValueCoding
) -> None:
    piece = piece_of(coding)
    worker.check(piece)
    for index, stream in enumerate(piece.streams):
        if not stream:
            refused(worker, with_streams(piece, *replaced(piece.streams, index, frame(b"x"))))


def test_a_frame_with_a_window_above_the_bound_is_refused() -> None:
    coder = FrameCoder(256 * MIB)
    # Window descriptor, no single segment, 8-byte content size, one empty last block.
    for exponent, fits in ((13, True), (14, False), (21, False)):
        window = 1 << (10 + exponent)
        assert (window <= WINDOW_SIZE_BYTES_MAX) is fits
        header = b"\x28\xb5\x2f\xfd\xc0" + bytes([exponent << 3]) + (1).to_bytes(8, "little")
        stream = header + b"\x09\0\0" + b"x"
        if fits:
            assert coder.decompress(stream, 1, what="test").tobytes() == b"x"
        else:
            with pytest.raises(CorruptObjectError, match="window"):
                coder.decompress(stream, 1, what="test")


def test_a_frame_of_one_byte_more_or_less_than_declared_is_refused() -> None:
    coder = FrameCoder(MIB)
    stream = frame(b"x" * 100)
    assert coder.decompress(stream, 100, what="test").tobytes() == b"x" * 100
    for size in (0, 99, 101, MIB + 1, -1):
        with pytest.raises(CorruptObjectError):
            coder.decompress(stream, size, what="test")


def test_no_stream_may_be_larger_than_the_limit() -> None:
    limits = Limits(piece_size_bytes=1000)
    with pytest.raises(CorruptObjectError):
        PieceCodec(limits=limits).worker().check(piece_of(ValueCoding.DENSE_ULP))


def test_a_worker_is_as_good_as_new_after_a_refusal(worker: PieceWorker) -> None:
    piece = piece_of(ValueCoding.ULP)
    for bad in bombs(raw_values(piece)).values():
        with pytest.raises(CorruptObjectError):
            worker.check(with_streams(piece, piece.streams[0], bad, *piece.streams[2:]))
        target = OLD.copy()
        worker.apply(piece, target)
        assert np.array_equal(target, new_bits())
        assert worker.encode(OLD, new_bits(), coding=ValueCoding.ULP).piece == piece
