"""A piece without its coding: the same new bits as applying it."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import numpy_kernels
from weightstore.codec.piece import ValueCoding
from weightstore.codec.sparse import Combine, SparseChange
from weightstore.errors import WrongBaseError

COMBINES = {
    ValueCoding.ULP: Combine.ADD,
    ValueCoding.XOR: Combine.XOR,
    ValueCoding.OVERWRITE: Combine.SET,
    ValueCoding.DENSE_ULP: Combine.ADD,
    ValueCoding.DENSE_BITS: Combine.SET,
}


@pytest.mark.parametrize("coding", list(ValueCoding))
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_new_bits_are_those_of_the_piece(coding: ValueCoding, width: int) -> None:
    rng = np.random.default_rng(width)
    old = rng.integers(0, 256**width, 5_000, np.dtype(f"u{width}"))
    new = old.copy()
    new[rng.choice(5_000, 400, replace=False)] += old.dtype.type(3)
    worker = PieceCodec(numpy_kernels()).worker()
    piece = worker.encode(old, new, first_index=90, coding=coding).piece
    assert piece is not None
    sparse = worker.sparse(piece)
    assert sparse.combine is COMBINES[coding]
    assert sparse.size_bytes == sparse.positions.nbytes + sparse.words.nbytes
    before = old[sparse.positions]
    after = sparse.after(before)
    found = old.copy()
    found[sparse.positions] = after
    assert np.array_equal(found, new)
    worker.check_change(piece, sparse.positions, before, after, first_index=90)
    with pytest.raises(WrongBaseError):
        worker.check_change(piece, sparse.positions, before, after ^ after.dtype.type(1))


def test_its_arrays_outlive_the_next_piece() -> None:
    worker = PieceCodec(numpy_kernels()).worker()
    old = np.zeros(1000, np.uint16)
    pieces = [worker.encode(old, old + np.uint16(step)).piece for step in (1, 5)]
    first, _ = [worker.sparse(piece) for piece in pieces if piece is not None]
    assert isinstance(first, SparseChange)
    assert np.array_equal(first.after(old[first.positions]), old + np.uint16(1))
