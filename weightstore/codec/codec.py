"""Encode, check and apply the change of one piece."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.decoding import Change, Decoder, Resolved
from weightstore.codec.encoding import Changes, Encoder
from weightstore.codec.frames import FrameCoder
from weightstore.codec.kernels import Kernels, kernels_for
from weightstore.codec.lanes import Units
from weightstore.codec.piece import EncodeResult, Piece, ValueCoding
from weightstore.codec.scratch import Scratch
from weightstore.codec.sparse import SparseChange, sparse_change
from weightstore.settings import Limits


class PieceCodec:
    """What all workers of a process share: kernels and limits. Safe from several threads.

    Args:
        kernels: The loops to use; None takes NumPy for small pieces until the first larger
            one, and from then on numba where it can be imported.
        limits: Bounds on what is accepted.
    """

    def __init__(self, kernels: Kernels | None = None, *, limits: Limits | None = None) -> None:
        self._kernels = kernels
        self.limits = limits or Limits()

    def kernels_for(self, unit_count: int) -> Kernels:
        """Give the kernels for a piece of this many units."""
        return self._kernels or kernels_for(unit_count)

    def worker(self) -> PieceWorker:
        """Make a worker with zstd contexts and buffers of its own; one per thread."""
        return PieceWorker(self)


class PieceWorker:
    """Works on one piece at a time. Not thread-safe; make one per thread."""

    def __init__(self, codec: PieceCodec) -> None:
        self._codec = codec
        self._scratch = Scratch()
        frames = FrameCoder(codec.limits.piece_size_bytes)
        self._encoder = Encoder(frames, self._scratch, codec.limits)
        self._decoder = Decoder(frames, self._scratch, codec.limits)

    def encode(
        self,
        old: Units | None,
        new: Units,
        *,
        first_index: int = 0,
        member_starts: NDArray[np.int64] | None = None,
        coding: ValueCoding | None = None,
    ) -> EncodeResult:
        """Find what changed and code it. Neither `old` nor `new` is written.

        Args:
            old: Bits before, shape (units,); None codes the new bits without a base.
            new: Bits after, same shape and dtype.
            first_index: Canonical flat index of unit 0; ignored with `member_starts`.
            member_starts: Shape (members + 1,): where each tensor of a bundle begins, and the
                end. Each one's index counts from 0.
            coding: The value coding; None chooses by estimated size.

        Raises:
            InputRefusedError: the arguments do not fit each other.
            LimitError: the piece has more units than a piece may have.
        """
        kernels = self._codec.kernels_for(new.size)
        return self._encoder.encode(
            kernels, old, new, first_index=first_index, member_starts=member_starts, coding=coding
        )

    def encode_found(
        self,
        changes: Changes,
        whole: Callable[[], tuple[Units, Units]],
        unit_count: int,
        *,
        first_index: int = 0,
    ) -> EncodeResult:
        """Code changes that were found elsewhere, to the bytes that `encode` gives.

        Args:
            changes: Positions, rising, and different bits before and after.
            whole: Gives all units before and after; asked for if a dense coding is smallest.
            unit_count: Units of the piece, at most those that a piece may have.
            first_index: As for `encode`.
        """
        kernels = self._codec.kernels_for(unit_count)
        return self._encoder.encode_found(
            kernels, changes, whole, unit_count, first_index=first_index
        )

    def check(self, piece: Piece) -> None:
        """Do all checks of a piece that need no base.

        Raises:
            CorruptObjectError: hash, sizes, counts, codes or frames are wrong.
        """
        self._decoder.decode(self._codec.kernels_for(piece.unit_count), piece)

    def sparse(self, piece: Piece) -> SparseChange:
        """Decode a piece after all checks that need no base.

        Raises:
            CorruptObjectError: hash, sizes, counts, codes or frames are wrong.
        """
        kernels = self._codec.kernels_for(piece.unit_count)
        return sparse_change(kernels, piece, self._decoder.decode(kernels, piece))

    def check_change(
        self,
        piece: Piece,
        positions: NDArray[np.uint32],
        old_bits: Units,
        new_bits: Units,
        *,
        first_index: int = 0,
        member_starts: NDArray[np.int64] | None = None,
    ) -> None:
        """Compare what a piece would do to bits with what it was made to do.

        Args:
            piece: The piece.
            positions: Every position that `sparse` gave.
            old_bits: What the units there hold.
            new_bits: What they are to hold.
            first_index: As for `encode`.
            member_starts: As for `encode`.

        Raises:
            WrongBaseError: the digest difference is another one.
        """
        self._decoder.check_change(
            self._codec.kernels_for(piece.unit_count),
            piece,
            Resolved(positions, old_bits, new_bits),
            first_index=first_index,
            member_starts=member_starts,
        )

    def apply(
        self,
        piece: Piece,
        target: Units,
        *,
        first_index: int = 0,
        member_starts: NDArray[np.int64] | None = None,
        expect_base: bool = True,
    ) -> None:
        """Change the target to the piece's new bits, after all checks.

        After a crash: the target holds old and new bits mixed, each unit one of the two.

        Args:
            piece: A piece that was encoded over the same box.
            target: Bits to change, shape (units,).
            first_index: As for `encode`.
            member_starts: As for `encode`.
            expect_base: False lets an `overwrite` piece be applied again over a target that
                holds some of its bits already; every other piece needs its base.

        Raises:
            CorruptObjectError: the piece is damaged; nothing was written.
            WrongBaseError: the target does not hold the piece's base; nothing was written.
            InputRefusedError: the target has another size or width; nothing was written.
        """
        change = self._resolve(piece, target, first_index, member_starts, expect_base=expect_base)
        if change.positions is None:
            target[:] = change.new_bits
        else:
            kernels = self._codec.kernels_for(piece.unit_count)
            kernels.scatter(target, change.positions, change.new_bits)

    def _resolve(
        self,
        piece: Piece,
        target: Units,
        first_index: int,
        member_starts: NDArray[np.int64] | None,
        *,
        expect_base: bool,
    ) -> Change:
        """Decode a piece against a target and check that its base is there."""
        return self._decoder.resolve(
            self._codec.kernels_for(piece.unit_count),
            piece,
            target,
            first_index=first_index,
            member_starts=member_starts,
            expect_base=expect_base,
        )
