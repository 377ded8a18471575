"""A decoded piece without its coding: where units change, and how new bits come from old ones."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.decoding import Coded
from weightstore.codec.kernels import Kernels
from weightstore.codec.lanes import Units
from weightstore.codec.piece import Piece, ValueCoding


class Combine(enum.Enum):
    """What a word does to the bits below it."""

    ADD = enum.auto()
    """The word is the difference, modulo 2^width."""
    XOR = enum.auto()
    SET = enum.auto()
    """The word is the new bits."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseChange:
    """The changes of one piece, in arrays of their own.

    Attributes:
        positions: Units that change, rising; uint32.
        words: One for each position.
        combine: What a word does to the bits below it.
    """

    positions: NDArray[np.uint32]
    words: Units
    combine: Combine

    @property
    def size_bytes(self) -> int:
        """Bytes of positions and words."""
        return self.positions.nbytes + self.words.nbytes

    def after(self, old_bits: Units) -> Units:
        """The new bits of all positions, for the old ones."""
        match self.combine:
            case Combine.ADD:
                return old_bits + self.words
            case Combine.XOR:
                return old_bits ^ self.words
            case Combine.SET:
                return self.words
            case _:
                assert_never(self.combine)


def sparse_change(kernels: Kernels, piece: Piece, coded: Coded) -> SparseChange:
    """Take a decoded piece out of the decoder's buffers.

    Of a dense piece with a base the units that stay are left out.
    """
    if coded.positions is not None:
        combine = {ValueCoding.ULP: Combine.ADD, ValueCoding.XOR: Combine.XOR}
        return SparseChange(
            coded.positions.copy(),
            coded.words.copy(),
            combine.get(piece.value_coding, Combine.SET),
        )
    if piece.value_coding is ValueCoding.DENSE_BITS:
        positions = np.arange(piece.unit_count, dtype=np.uint32)
        return SparseChange(positions, coded.words.copy(), Combine.SET)
    positions = np.flatnonzero(coded.words).astype(np.uint32)
    words = coded.words[positions]
    kernels.unpack_zigzag(words)
    return SparseChange(positions, words, Combine.ADD)
