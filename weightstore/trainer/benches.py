"""What a job works with: a codec worker and scratch memory, lent to one job at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.cast import cast_units
from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.codec.kernels import Kernels
from weightstore.history.workers import Lender
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import Units


class Scratch:
    """Memory that is used again and again."""

    def __init__(self) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)

    def units(self, unit_count: int, dtype: np.dtype[np.unsignedinteger[Any]]) -> Units:
        """Room for a number of units; what was there before is lost."""
        size_bytes = unit_count * dtype.itemsize
        if self._memory.size < size_bytes:
            self._memory = np.empty(size_bytes, dtype=np.uint8)
        return self._memory[:size_bytes].view(dtype)


class Bench:
    """What one job works with.

    Attributes:
        worker: Encodes and applies pieces.
        pieces: Holds a whole piece that is put together from parts.
    """

    def __init__(self, codec: PieceCodec) -> None:
        self._codec = codec
        self.worker: PieceWorker = codec.worker()
        self._casts = Scratch()
        self.pieces = Scratch()

    def kernels_for(self, unit_count: int) -> Kernels:
        """The loops for a job over this many units."""
        return self._codec.kernels_for(unit_count)

    def cast(self, units: Units, found: DType, published: DType) -> Units:
        """The units after a cast, in scratch that the next cast takes back."""
        out = self._casts.units(units.size, published.unit_dtype)
        cast_units(units, found, published, out, kernels=self.kernels_for(units.size))
        return out


Benches = Lender[Bench]
"""There are as many as jobs ran at once."""


def make_benches(codec: PieceCodec) -> Benches:
    """Benches that share a codec."""
    return Lender(lambda: Bench(codec))
