"""From two arrays of bits to a piece."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.chooser import choose_coding
from weightstore.codec.frames import FrameCoder
from weightstore.codec.kernels import (
    CODES_PER_BYTE,
    GAP_BYTE_SKIP,
    GAP_WORD_SKIP,
    STORE_SLACK_COUNT,
    Kernels,
)
from weightstore.codec.lanes import MASK_64, Lanes, Units
from weightstore.codec.members import Members
from weightstore.codec.piece import (
    EncodeResult,
    GapCoding,
    Piece,
    RawSizes,
    Streams,
    ValueCoding,
    hash_streams,
)
from weightstore.codec.scratch import Scratch
from weightstore.codec.units import check_units
from weightstore.errors import InputRefusedError
from weightstore.settings import Limits

U16_UNITS_PER_CHANGE_MIN = 128
"""Gap words are tried when changes are rarer than one in so many; above, bytes always win."""

Changes = tuple[NDArray[np.uint32], Units, Units]
"""Where units changed, rising, and their bits before and after."""
_Coded = tuple[tuple[int, int, int], tuple[bytes, bytes, bytes]]
"""Raw sizes and frames of the streams values, escapes and wide words."""


class Encoder:
    """Codes one piece at a time, with buffers that it owns for the call."""

    def __init__(self, frames: FrameCoder, scratch: Scratch, limits: Limits) -> None:
        self._frames = frames
        self._scratch = scratch
        self._limits = limits

    def encode(
        self,
        kernels: Kernels,
        old: Units | None,
        new: Units,
        *,
        first_index: int,
        member_starts: NDArray[np.int64] | None,
        coding: ValueCoding | None,
    ) -> EncodeResult:
        """See `PieceWorker.encode`."""
        check_units(new, self._limits.piece_element_count, what="new bits")
        members = Members.of(
            new.size,
            first_index=first_index,
            member_starts=member_starts,
            member_count_max=self._limits.bundle_member_count,
        )
        if coding is ValueCoding.DENSE_BITS or (old is None and coding is None):
            return self._encode_bits(kernels, new, members)
        if old is None:
            raise InputRefusedError(
                f"coding {coding!r} needs the bits before",
                do="Pass the old bits, or code the new ones as DENSE_BITS.",
            )
        check_units(old, self._limits.piece_element_count, what="old bits")
        if old.size != new.size or old.dtype != new.dtype:
            raise InputRefusedError(
                f"old bits are {old.size} x {old.dtype}, new bits {new.size} x {new.dtype}",
                do="Pass the same box before and after.",
            )
        return self._encode_change(kernels, old, new, members, coding)

    def _encode_change(
        self,
        kernels: Kernels,
        old: Units,
        new: Units,
        members: Members,
        coding: ValueCoding | None,
    ) -> EncodeResult:
        """Detect and code; the pass over all units is in `find_changes` alone."""
        room = new.size + STORE_SLACK_COUNT
        positions = self._scratch.take("positions", room, np.uint32)
        old_bits = self._scratch.take("old_bits", room, new.dtype)
        new_bits = self._scratch.take("new_bits", room, new.dtype)
        count = kernels.find_changes(old, new, positions, old_bits, new_bits)
        changes = (positions[:count], old_bits[:count], new_bits[:count])
        return self._encode_found(kernels, changes, lambda: (old, new), new.size, members, coding)

    def encode_found(
        self,
        kernels: Kernels,
        changes: Changes,
        whole: Callable[[], tuple[Units, Units]],
        unit_count: int,
        *,
        first_index: int,
    ) -> EncodeResult:
        """See `PieceWorker.encode_found`."""
        members = Members.of(
            unit_count,
            first_index=first_index,
            member_starts=None,
            member_count_max=self._limits.bundle_member_count,
        )
        return self._encode_found(kernels, changes, whole, unit_count, members, None)

    def _encode_found(
        self,
        kernels: Kernels,
        changes: Changes,
        whole: Callable[[], tuple[Units, Units]],
        unit_count: int,
        members: Members,
        coding: ValueCoding | None,
    ) -> EncodeResult:
        """Code changes that were found."""
        count = changes[0].size
        bounds = members.bounds(changes[0])
        deltas = np.zeros((members.count, 2), dtype=np.uint64)
        if count == 0:
            return EncodeResult(None, np.diff(bounds), deltas)
        kernels.lane_deltas(changes, bounds, members.offsets, deltas)
        gap_coding, gaps_size, gaps = GapCoding.NONE, 0, b""
        if coding is None or not coding.is_dense:
            gap_coding, gaps_size, gaps = self._code_gaps(kernels, changes[0], unit_count)
        if coding is None:
            coding = choose_coding(kernels, changes[1], changes[2], unit_count, len(gaps))
        if coding.is_dense:
            gap_coding, gaps_size, gaps = GapCoding.NONE, 0, b""
        sizes, frames = self._code_values(kernels, coding, changes, whole)
        piece = _seal(
            (changes[2].itemsize, unit_count, count),
            (coding, gap_coding),
            ((gaps_size, *sizes), (gaps, *frames)),
            _total(deltas),
        )
        return EncodeResult(piece, np.diff(bounds), deltas)

    def _encode_bits(self, kernels: Kernels, new: Units, members: Members) -> EncodeResult:
        """Code the new bits alone."""
        sums = np.zeros((members.count, 2), dtype=np.uint64)
        kernels.lane_sums(new, members.starts, members.offsets, sums)
        sizes, frames = self._code_planes(kernels, new)
        piece = _seal(
            (new.itemsize, new.size, new.size),
            (ValueCoding.DENSE_BITS, GapCoding.NONE),
            ((0, *sizes), (b"", *frames)),
            _total(sums),
        )
        return EncodeResult(piece, np.diff(members.starts), sums)

    def _code_gaps(
        self, kernels: Kernels, positions: NDArray[np.uint32], unit_count: int
    ) -> tuple[GapCoding, int, bytes]:
        """Code positions in bytes or in words, whichever frame is smaller; bytes on a tie."""
        count = positions.size
        room = count + unit_count // GAP_BYTE_SKIP + STORE_SLACK_COUNT
        gaps = self._scratch.take("gaps", room, np.uint8)
        size = kernels.pack_gap_bytes(positions, gaps)
        frame = self._frames.compress(gaps[:size])
        if count * U16_UNITS_PER_CHANGE_MIN > unit_count:
            return GapCoding.BYTE, size, frame
        room = count + unit_count // GAP_WORD_SKIP + STORE_SLACK_COUNT
        words = self._scratch.take("gap_words", room, np.uint16)
        word_count = kernels.pack_gap_words(positions, words)
        planes = self._scratch.take("gap_planes", word_count * 2, np.uint8)
        kernels.split_planes(words[:word_count], planes)
        word_frame = self._frames.compress(planes, plane_count=2)
        if len(word_frame) < len(frame):
            return GapCoding.U16, planes.size, word_frame
        return GapCoding.BYTE, size, frame

    def _code_values(
        self,
        kernels: Kernels,
        coding: ValueCoding,
        changes: Changes,
        whole: Callable[[], tuple[Units, Units]],
    ) -> _Coded:
        """Code the new bits of the changes, or of the whole for the dense coding."""
        _positions, old_bits, new_bits = changes
        if coding is ValueCoding.ULP:
            return self._code_ulp(kernels, old_bits, new_bits)
        if coding is ValueCoding.XOR:
            words = self._scratch.take("words", new_bits.size, new_bits.dtype)
            np.bitwise_xor(old_bits, new_bits, out=words)
            return self._code_planes(kernels, words)
        if coding is ValueCoding.DENSE_ULP:
            old, new = whole()
            words = self._scratch.take("words", new.size, new_bits.dtype)
            kernels.pack_zigzag(old, new, words)
            return self._code_planes(kernels, words)
        return self._code_planes(kernels, new_bits)

    def _code_ulp(self, kernels: Kernels, old_bits: Units, new_bits: Units) -> _Coded:
        """Code differences as two-bit codes, escapes and wide words."""
        count = new_bits.size
        codes = self._scratch.take("codes", -(-count // CODES_PER_BYTE), np.uint8)
        escapes = self._scratch.take("escapes", count + STORE_SLACK_COUNT, np.uint8)
        wide = self._scratch.take("words", count + STORE_SLACK_COUNT, new_bits.dtype)
        escape_count, wide_count = kernels.pack_ulp(old_bits, new_bits, codes, escapes, wide)
        wide_bytes = wide[:wide_count].view(np.uint8)
        compress = self._frames.compress
        return (
            (codes.size, escape_count, wide_bytes.size),
            (compress(codes), compress(escapes[:escape_count]), compress(wide_bytes)),
        )

    def _code_planes(self, kernels: Kernels, words: Units) -> _Coded:
        """Code words as byte planes in the value stream."""
        planes = self._scratch.take("planes", words.nbytes, np.uint8)
        kernels.split_planes(words, planes)
        frame = self._frames.compress(planes, plane_count=words.itemsize)
        return (planes.size, 0, 0), (frame, b"", b"")


def _total(sums: NDArray[np.uint64]) -> Lanes:
    """Add up the lanes of all members."""
    first, second = (int(lane) & MASK_64 for lane in sums.sum(axis=0, dtype=np.uint64))
    return first, second


def _seal(
    sizes: tuple[int, int, int],
    codings: tuple[ValueCoding, GapCoding],
    coded: tuple[RawSizes, Streams],
    lane_deltas: Lanes,
) -> Piece:
    """Put a piece together; sizes are its unit's bytes, its units, and those that change."""
    width_bytes, unit_count, changed_count = sizes
    raw_sizes, streams = coded
    return Piece(
        width_bytes=width_bytes,
        unit_count=unit_count,
        changed_count=changed_count,
        value_coding=codings[0],
        gap_coding=codings[1],
        raw_sizes=raw_sizes,
        streams=streams,
        lane_deltas=lane_deltas,
        hash16=hash_streams(streams),
    )
