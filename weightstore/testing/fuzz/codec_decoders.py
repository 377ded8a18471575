"""Decoders of pieces: every coding, with NumPy and with numba, and single zstd frames."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import zstandard

from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.codec.frames import FrameCoder
from weightstore.codec.kernels import Kernels, load_kernels, numpy_kernels
from weightstore.codec.lanes import Units
from weightstore.codec.piece import GapCoding, Piece, Streams, ValueCoding, hash_streams
from weightstore.errors import CorruptObjectError, WrongBaseError
from weightstore.format.index_rows import AREA_COUNT, ROW_STRUCT
from weightstore.settings import KIB, MIB, Limits
from weightstore.testing.fuzz.decoder import Decoder
from weightstore.testing.fuzz.mutating import Form

UNIT_COUNT_MAX = 128 * KIB
"""Of pieces here: a hostile count may ask for this many units, and is answered quickly."""
WIDTHS = (1, 2, 4, 8)
UNIT_COUNT = 700

_LIMITS = Limits(piece_element_count=UNIT_COUNT_MAX)
_NO_LANES = (0, 0)


def codec_decoders() -> Iterator[Decoder]:
    """The decoders of this file."""
    for kernels in (numpy_kernels(), load_kernels()):
        for coding in ValueCoding:
            yield _piece_decoder(kernels, coding)
        yield _content_decoder(kernels)
    coder = FrameCoder(MIB)
    contents = (b"x", bytes(1000), np.arange(4000, dtype=np.uint8).tobytes())
    frames = [coder.compress(np.frombuffer(content, np.uint8)) for content in contents]
    frames.append(coder.compress(np.frombuffer(contents[-1], np.uint8), 4))
    sizes = [len(content) for content in (*contents, contents[-1])]
    yield Decoder(
        "zstd frames",
        tuple(struct.pack("<I", size) + frame for size, frame in zip(sizes, frames, strict=True)),
        partial(_decode_frame, coder),
        Form.BYTES,
        ("codec.frames:FrameCoder.decompress",),
    )


def _decode_frame(coder: FrameCoder, data: bytes) -> None:
    if len(data) < 4:  # noqa: PLR2004 -- the declared size
        raise CorruptObjectError("no declared size")
    size, frame = int.from_bytes(data[:4], "little"), data[4:]
    content = coder.decompress(frame, size, what="fuzzed")
    assert content.size == size <= MIB
    if size:
        assert zstandard.ZstdDecompressor().decompress(frame) == content.tobytes()
    else:
        assert not frame


def _piece_decoder(kernels: Kernels, coding: ValueCoding) -> Decoder:
    return Decoder(
        f"{coding.name} pieces, {kernels.name}",
        tuple(_seeds(coding)),
        partial(_decode_piece, PieceCodec(kernels, limits=_LIMITS).worker()),
        Form.BYTES,
        ("codec.decoding:Decoder.decode", "codec.decoding:Decoder.resolve"),
    )


def _content_decoder(kernels: Kernels) -> Decoder:
    """Pieces whose streams are damaged before they are compressed."""
    seeds = [_unpacked(seed) for coding in ValueCoding for seed in _seeds(coding)]
    return Decoder(
        f"contents of streams, {kernels.name}",
        tuple(seeds),
        partial(_decode_contents, PieceCodec(kernels, limits=_LIMITS).worker()),
        Form.BYTES,
        ("codec.decoding:Decoder.decode",),
        share=2.0,
    )


def old_units(width: int) -> Units:
    """The base of every seed of a width."""
    words = np.random.default_rng(width).bytes(width * UNIT_COUNT)
    units: Units = np.frombuffer(words, f"<u{width}")
    return units


def _seeds(coding: ValueCoding) -> Iterator[bytes]:
    """A good piece of each width: small steps, escapes, wide words, and a long gap."""
    for width in WIDTHS:
        old = old_units(width)
        new = old.copy()
        places = np.array([0, 1, 2, 40, 299, 300, 698, 699])
        steps = np.array([1, -1, 5, 1000, -3, 1, -20_000, 1], np.int64)
        new[places] += steps.astype(old.dtype)
        piece = PieceCodec().worker().encode(old, new, coding=coding).piece
        assert piece is not None
        yield _row(piece) + b"".join(piece.streams)


def _row(piece: Piece) -> bytes:
    """As the piece index has it."""
    return ROW_STRUCT.pack(
        0,
        *piece.lane_deltas,
        piece.hash16,
        *piece.raw_sizes,
        *(len(stream) for stream in piece.streams),
        0,
        piece.unit_count,
        piece.changed_count,
        0,
        piece.width_bytes,
        piece.value_coding,
        piece.gap_coding,
    )


def _piece(data: bytes) -> Piece:
    """The piece of a row and streams, with a hash that vouches for it.

    Raises:
        CorruptObjectError: as the piece index refuses it, before there is a piece.
    """
    if len(data) < ROW_STRUCT.size:
        raise CorruptObjectError("no row")
    _, lane, other_lane, _, *sizes = ROW_STRUCT.unpack_from(data)
    _, unit_count, changed_count, _, width, value_coding, gap_coding = sizes[2 * AREA_COUNT :]
    if value_coding > max(ValueCoding) or gap_coding > max(GapCoding):
        raise CorruptObjectError("unknown codings")
    streams, start = [], ROW_STRUCT.size
    for size in sizes[AREA_COUNT : 2 * AREA_COUNT]:
        streams.append(data[start : start + size])
        start += size
    gaps, values, escapes, words = streams
    found: Streams = (gaps, values, escapes, words)
    return Piece(
        width_bytes=width,
        unit_count=unit_count,
        changed_count=changed_count,
        value_coding=ValueCoding(value_coding),
        gap_coding=GapCoding(gap_coding),
        raw_sizes=(sizes[0], sizes[1], sizes[2], sizes[3]),
        streams=found,
        lane_deltas=(lane, other_lane),
        hash16=hash_streams(found),
    )


def _unpacked(seed: bytes) -> bytes:
    """The same piece with streams as they are before compression."""
    piece = _piece(seed)
    contents = [_content(bytes(stream)) for stream in piece.streams]
    stated = replace(piece, streams=(contents[0], contents[1], contents[2], contents[3]))
    return _row(stated) + b"".join(contents)


def _content(stream: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(stream) if stream else b""


def _decode_contents(worker: PieceWorker, data: bytes) -> None:
    piece = _piece(data)
    compress = zstandard.ZstdCompressor().compress
    gaps, values, escapes, words = (compress(stream) if stream else b"" for stream in piece.streams)
    streams = (gaps, values, escapes, words)
    first, second, third, fourth = map(len, piece.streams)
    sizes = (first, second, third, fourth)
    _check_piece(
        worker,
        replace(piece, streams=streams, raw_sizes=sizes, hash16=hash_streams(streams)),
    )


def _decode_piece(worker: PieceWorker, data: bytes) -> None:
    _check_piece(worker, _piece(data))


def _check_piece(worker: PieceWorker, piece: Piece) -> None:
    """What passes changes what it says, and has the one form that codes this change."""
    worker.check(piece)
    assert piece.unit_count <= UNIT_COUNT_MAX
    old = np.resize(old_units(piece.width_bytes), piece.unit_count)
    new = old.copy()
    try:
        worker.apply(piece, new)
    except WrongBaseError as error:
        assert np.array_equal(new, old)
        lanes = [int(str(lane), 16) for lane in _texts(error.facts["found"])]
        piece = replace(piece, lane_deltas=(lanes[0], lanes[1]))
        worker.apply(piece, new)
    if piece.value_coding is ValueCoding.DENSE_BITS:
        again = worker.encode(None, new, coding=piece.value_coding).piece
    else:
        changed_count = int(np.count_nonzero(old != new))
        if piece.value_coding is ValueCoding.OVERWRITE and changed_count < piece.changed_count:
            return  # new bits that were there already
        assert changed_count == piece.changed_count
        again = worker.encode(old, new, coding=piece.value_coding).piece
    assert again is not None
    assert again.lane_deltas == piece.lane_deltas
    same = slice(0 if again.gap_coding is piece.gap_coding else 1, AREA_COUNT)
    assert _contents(again.streams)[same] == _contents(piece.streams)[same]


def _contents(streams: Streams) -> list[bytes]:
    return [_content(bytes(stream)) for stream in streams]


def _texts(fact: object) -> Sequence[object]:
    assert isinstance(fact, tuple)
    return fact
