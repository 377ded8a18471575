"""The change of one box as values: how it is coded, its sizes and its four streams.

The bytes of the streams are described in `docs/format.md`, section "Piece streams".
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.lanes import Lanes

HASH_SIZE_BYTES = 16

Stream = bytes | memoryview
"""One zstd frame, or nothing for an absent stream."""
RawSizes = tuple[int, int, int, int]
Streams = tuple[Stream, Stream, Stream, Stream]
"""In the order gaps, values, escapes, wide words."""


class ValueCoding(enum.IntEnum):
    """How the new bits of a piece are said."""

    ULP = 0
    """Differences of the bit patterns: two bits for +1 and -1, escapes for the rest."""
    XOR = 1
    """Byte planes of `old ^ new`."""
    OVERWRITE = 2
    """Byte planes of the new bits."""
    DENSE_ULP = 3
    """Byte planes of the zigzag differences of all units; no positions."""
    DENSE_BITS = 4
    """Byte planes of all new bits; no positions, and no base."""

    @property
    def is_dense(self) -> bool:
        """Whether every unit is said, so that no positions are stored."""
        return self in {ValueCoding.DENSE_ULP, ValueCoding.DENSE_BITS}


class GapCoding(enum.IntEnum):
    """How the positions of the changed units are said."""

    NONE = 0
    """Not at all: the coding is dense."""
    BYTE = 1
    """A byte a gap; 255 skips 255 units."""
    U16 = 2
    """Two bytes a gap, as two byte planes; 65535 skips 65535 units."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The change of up to 8 Mi units, ready for a pack or read from one.

    Attributes:
        width_bytes: Size of a unit: 1, 2, 4 or 8.
        unit_count: Units of the box, changed or not.
        changed_count: Units that change; all of them for `DENSE_BITS`.
        value_coding: How the new bits are said.
        gap_coding: How the positions are said.
        raw_sizes: Sizes of the four streams in bytes before compression; 0 is absent.
        streams: The four zstd frames.
        lane_deltas: Digest lanes of the new bits minus those of the old, over the piece; for
            `DENSE_BITS` the lanes of the new bits themselves.
        hash16: The first 16 bytes of the SHA-256 over the streams.
    """

    width_bytes: int
    unit_count: int
    changed_count: int
    value_coding: ValueCoding
    gap_coding: GapCoding
    raw_sizes: RawSizes
    streams: Streams
    lane_deltas: Lanes
    hash16: bytes

    @property
    def size_bytes(self) -> int:
        """Size of the four frames together."""
        return sum(len(stream) for stream in self.streams)


@dataclass(frozen=True, slots=True, eq=False)
class EncodeResult:
    """What a detection pass over one piece found.

    Attributes:
        piece: The change, or None when no unit changed.
        member_changed_counts: Shape (members,), int64; one member where none were given.
        member_lane_deltas: Shape (members, 2), uint64.
    """

    piece: Piece | None
    member_changed_counts: NDArray[np.int64]
    member_lane_deltas: NDArray[np.uint64]


def hash_streams(streams: Iterable[Stream]) -> bytes:
    """Hash the frames of a piece, in order: the first 16 bytes of their SHA-256."""
    digest = hashlib.sha256()
    for stream in streams:
        digest.update(stream)
    return digest.digest()[:HASH_SIZE_BYTES]
