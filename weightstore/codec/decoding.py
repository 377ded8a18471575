"""From a piece, which may be hostile, to new bits at positions; every check comes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.frames import FrameCoder
from weightstore.codec.kernels import (
    CODES_PER_BYTE,
    GAP_BYTE_SKIP,
    GAP_WORD_SKIP,
    STORE_SLACK_COUNT,
    Kernels,
    UlpFault,
)
from weightstore.codec.lanes import MASK_64, Lanes, Units
from weightstore.codec.members import Members
from weightstore.codec.piece import GapCoding, Piece, ValueCoding, hash_streams
from weightstore.codec.scratch import Scratch
from weightstore.codec.units import UNIT_WIDTHS, check_units
from weightstore.errors import CorruptObjectError, InputRefusedError, WrongBaseError
from weightstore.settings import Limits

_STREAM_COUNT = 4
_GAPS, _VALUES, _ESCAPES, _WIDE = range(_STREAM_COUNT)
_STREAM_NAMES = ("gap", "value", "escape", "wide word")


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A piece after all checks that need no base.

    Attributes:
        positions: Where units change, rising; None when all units are said.
        words: One for each position or unit: differences for `ULP`, their zigzag for
            `DENSE_ULP`, `old ^ new` for `XOR`, new bits for the rest.
    """

    positions: NDArray[np.uint32] | None
    words: Units


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A piece resolved against a target: new bits for each position, or for all units."""

    positions: NDArray[np.uint32] | None
    new_bits: Units


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """Every change of a piece against the bits of a target; for `DENSE_BITS` the new bits."""

    positions: NDArray[np.uint32]
    old_bits: Units
    new_bits: Units


class Decoder:
    """Decodes one piece at a time, into buffers that it owns for the call."""

    def __init__(self, frames: FrameCoder, scratch: Scratch, limits: Limits) -> None:
        self._frames = frames
        self._scratch = scratch
        self._limits = limits

    def decode(self, kernels: Kernels, piece: Piece) -> Coded:
        """Check everything that needs no base.

        Raises:
            CorruptObjectError: hash, sizes, counts, codes or frames are wrong.
        """
        _check_shape(piece, self._limits)
        if hash_streams(piece.streams) != piece.hash16:
            _refuse(piece, "its streams do not have the hash of the index")
        if piece.value_coding.is_dense:
            words = self._words(kernels, piece, piece.unit_count)
            dense_ulp = piece.value_coding is ValueCoding.DENSE_ULP
            if dense_ulp and np.count_nonzero(words) != piece.changed_count:
                _refuse(piece, "its dense words change another number of units")
            return Coded(None, words)
        positions = self._positions(kernels, piece)
        if piece.value_coding is ValueCoding.ULP:
            return Coded(positions, self._differences(kernels, piece))
        words = self._words(kernels, piece, piece.changed_count)
        if piece.value_coding is ValueCoding.XOR and not np.all(words):
            _refuse(piece, "an XOR word changes nothing")
        return Coded(positions, words)

    def resolve(
        self,
        kernels: Kernels,
        piece: Piece,
        target: Units,
        *,
        first_index: int,
        member_starts: NDArray[np.int64] | None,
        expect_base: bool,
    ) -> Change:
        """Compute the new bits and check that the target holds the base.

        Raises:
            CorruptObjectError: the piece is damaged.
            WrongBaseError: the lane differences at the changed positions disagree.
            InputRefusedError: the target has another size or width.
        """
        coded = self.decode(kernels, piece)
        _check_target(piece, target, self._limits)
        members = self._members(piece, first_index, member_starts)
        if piece.value_coding is ValueCoding.DENSE_BITS:
            nowhere = np.empty(0, np.uint32)
            _check_lanes(kernels, piece, members, Resolved(nowhere, coded.words, coded.words))
            return Change(None, coded.words)
        found = self._changes(kernels, piece, coded, target)
        if expect_base or piece.value_coding is not ValueCoding.OVERWRITE:
            _check_lanes(kernels, piece, members, found)
        return Change(found.positions, found.new_bits)

    def check_change(
        self,
        kernels: Kernels,
        piece: Piece,
        found: Resolved,
        *,
        first_index: int,
        member_starts: NDArray[np.int64] | None,
    ) -> None:
        """Compare the lane differences of changes made elsewhere with those of the piece.

        Raises:
            WrongBaseError: they disagree.
        """
        _check_lanes(kernels, piece, self._members(piece, first_index, member_starts), found)

    def _members(
        self, piece: Piece, first_index: int, member_starts: NDArray[np.int64] | None
    ) -> Members:
        return Members.of(
            piece.unit_count,
            first_index=first_index,
            member_starts=member_starts,
            member_count_max=self._limits.bundle_member_count,
        )

    def _changes(self, kernels: Kernels, piece: Piece, coded: Coded, target: Units) -> Resolved:
        """Say what the target holds at the changed positions, and what it shall hold."""
        words = coded.words
        if coded.positions is None:
            return self._dense_changes(kernels, words, target)
        old_bits = self._scratch.take("old_bits", words.size, target.dtype)
        kernels.gather(target, coded.positions, old_bits)
        if piece.value_coding is ValueCoding.ULP:
            np.add(old_bits, words, out=words)
        elif piece.value_coding is ValueCoding.XOR:
            np.bitwise_xor(old_bits, words, out=words)
        return Resolved(coded.positions, old_bits, words)

    def _dense_changes(self, kernels: Kernels, words: Units, target: Units) -> Resolved:
        """Turn zigzag words of all units into changes of some."""
        kernels.unpack_zigzag(words)
        np.add(target, words, out=words)
        room = words.size + STORE_SLACK_COUNT
        positions = self._scratch.take("positions", room, np.uint32)
        old_bits = self._scratch.take("old_bits", room, words.dtype)
        new_bits = self._scratch.take("new_bits", room, words.dtype)
        count = kernels.find_changes(target, words, positions, old_bits, new_bits)
        return Resolved(positions[:count], old_bits[:count], new_bits[:count])

    def _words(self, kernels: Kernels, piece: Piece, count: int) -> Units:
        """Decode byte planes."""
        planes = self._stream(piece, _VALUES)
        words: Units = self._scratch.take("words", count, f"u{piece.width_bytes}")
        kernels.join_planes(planes, words)
        return words

    def _positions(self, kernels: Kernels, piece: Piece) -> NDArray[np.uint32]:
        """Decode gaps."""
        gaps = self._stream(piece, _GAPS)
        positions = self._scratch.take("positions", gaps.size + 1, np.uint32)
        if piece.gap_coding is GapCoding.BYTE:
            count, end = kernels.unpack_gap_bytes(gaps, positions)
            open_ended = int(gaps[-1]) == GAP_BYTE_SKIP
        else:
            words = self._scratch.take("gap_words", gaps.size // 2, np.uint16)
            kernels.join_planes(gaps, words)
            count, end = kernels.unpack_gap_words(words, positions)
            open_ended = int(words[-1]) == GAP_WORD_SKIP
        if count != piece.changed_count:
            _refuse(piece, f"its gaps name {count} units")
        if end > piece.unit_count:
            _refuse(piece, f"its last gap ends at unit {end}")
        if open_ended:
            _refuse(piece, "its gaps end in a skip")
        return positions[:count]

    def _differences(self, kernels: Kernels, piece: Piece) -> Units:
        """Decode two-bit codes, escapes and wide words."""
        dtype = np.dtype(f"u{piece.width_bytes}")
        codes = self._stream(piece, _VALUES)
        escapes = self._stream(piece, _ESCAPES)
        wide = self._stream(piece, _WIDE).view(dtype)
        differences: Units = self._scratch.take("words", piece.changed_count, dtype)
        fault = kernels.unpack_ulp(codes, escapes, wide, differences)
        if fault is not UlpFault.NONE:
            _refuse(piece, f"its value streams are wrong ({fault.name.lower()})")
        return differences

    def _stream(self, piece: Piece, index: int) -> NDArray[np.uint8]:
        """Decompress one stream."""
        return self._frames.decompress(
            piece.streams[index], piece.raw_sizes[index], what=_STREAM_NAMES[index]
        )


def _check_shape(piece: Piece, limits: Limits) -> None:
    """Check counts and sizes against each other, before anything is allocated."""
    bits = piece.value_coding is ValueCoding.DENSE_BITS
    checks = (
        (piece.width_bytes in UNIT_WIDTHS, "its units have no known width"),
        (0 < piece.unit_count <= limits.piece_element_count, "it has no units, or too many"),
        (0 < piece.changed_count <= piece.unit_count, "it changes none, or more than it has"),
        (
            (piece.gap_coding is GapCoding.NONE) == piece.value_coding.is_dense,
            "its gap coding does not go with its value coding",
        ),
        (not bits or piece.changed_count == piece.unit_count, "it says all bits, not all changed"),
    )
    for is_right, why in checks:
        if not is_right:
            _refuse(piece, why)
    for index, (raw_size, stream) in enumerate(zip(piece.raw_sizes, piece.streams, strict=True)):
        if (raw_size == 0) != (len(stream) == 0):
            _refuse(piece, f"its {_STREAM_NAMES[index]} stream is declared with {raw_size} bytes")
    if not _gap_size_fits(piece) or not _value_sizes_fit(piece):
        _refuse(piece, f"raw sizes {piece.raw_sizes} do not go with its counts")


def _gap_size_fits(piece: Piece) -> bool:
    """Say whether the gap stream can hold exactly the changed units and no more skips."""
    size = piece.raw_sizes[_GAPS]
    changed = piece.changed_count
    if piece.gap_coding is GapCoding.NONE:
        return size == 0
    if piece.gap_coding is GapCoding.BYTE:
        return changed <= size <= changed + piece.unit_count // GAP_BYTE_SKIP
    most = changed + piece.unit_count // GAP_WORD_SKIP
    return size % 2 == 0 and changed <= size // 2 <= most


def _value_sizes_fit(piece: Piece) -> bool:
    """Say whether the value streams have the sizes that the counts ask for."""
    _, values, escapes, wide = piece.raw_sizes
    if piece.value_coding is ValueCoding.ULP:
        return (
            values == -(-piece.changed_count // CODES_PER_BYTE)
            and 0 <= escapes <= piece.changed_count
            and wide % piece.width_bytes == 0
            and 0 <= wide <= escapes * piece.width_bytes
        )
    count = piece.unit_count if piece.value_coding.is_dense else piece.changed_count
    return values == count * piece.width_bytes and escapes == 0 and wide == 0


def _check_target(piece: Piece, target: Units, limits: Limits) -> None:
    """Refuse a target of another size or width."""
    check_units(target, limits.piece_element_count, what="target bits")
    if target.size != piece.unit_count or target.itemsize != piece.width_bytes:
        raise InputRefusedError(
            f"a piece of {piece.unit_count} units of {piece.width_bytes} bytes does not fit a "
            f"target of {target.size} units of {target.itemsize}",
            do="Pass the box that the piece was made of.",
            facts={"expected": piece.unit_count, "found": target.size},
        )
    if not target.flags.writeable:
        raise InputRefusedError("the target is read-only", do="Pass an array that may be written.")


def _check_lanes(kernels: Kernels, piece: Piece, members: Members, found: Resolved) -> None:
    """Compare the lane differences of changes with those of the piece."""
    sums = np.empty((members.count, 2), dtype=np.uint64)
    if piece.value_coding is ValueCoding.DENSE_BITS:
        kernels.lane_sums(found.new_bits, members.starts, members.offsets, sums)
    else:
        changes = (found.positions, found.old_bits, found.new_bits)
        kernels.lane_deltas(changes, members.bounds(found.positions), members.offsets, sums)
    first, second = (int(lane) & MASK_64 for lane in sums.sum(axis=0, dtype=np.uint64))
    lanes: Lanes = (first, second)
    if lanes == tuple(piece.lane_deltas):
        return
    expected = tuple(f"{lane:016x}" for lane in piece.lane_deltas)
    actual = tuple(f"{lane:016x}" for lane in lanes)
    raise WrongBaseError(
        f"a piece of {piece.changed_count} changes does not fit the bits it was to change: "
        f"digest difference {'-'.join(actual)}, expected {'-'.join(expected)}",
        do="Check out the version anew; the live bits are not the delta's base.",
        facts={"expected": expected, "found": actual},
    )


def _refuse(piece: Piece, why: str) -> NoReturn:
    """Raise the error of a piece that is not what it should be."""
    raise CorruptObjectError(
        f"a piece of {piece.unit_count} units with {piece.changed_count} changes is damaged: {why}",
        do="Read the pack from another copy, or check out a full form.",
        facts={"unit_count": piece.unit_count, "changed_count": piece.changed_count},
    )
