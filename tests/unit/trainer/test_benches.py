"""Scratch is used again, and lent to one job at a time."""

from __future__ import annotations

import numpy as np

from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import numpy_kernels
from weightstore.layout.dtypes import DType
from weightstore.trainer.benches import Bench, make_benches


def test_scratch_grows_and_is_used_again() -> None:
    bench = Bench(PieceCodec(numpy_kernels()))
    large = bench.pieces.units(100, np.dtype("<u4"))
    small = bench.pieces.units(7, np.dtype("<u2"))
    assert (small.dtype, small.size) == (np.dtype("<u2"), 7)
    assert np.shares_memory(large, small)
    assert not np.shares_memory(large, bench.pieces.units(1000, np.dtype("<u4")))


def test_a_cast_does_not_disturb_a_piece() -> None:
    bench = Bench(PieceCodec(numpy_kernels()))
    piece = bench.pieces.units(4, np.dtype("<u2"))
    cast = bench.cast(np.ones(4, np.float32).view("<u4"), DType.F32, DType.BF16)
    assert cast.tolist() == [0x3F80] * 4
    assert not np.shares_memory(piece, cast)


def test_a_bench_is_of_one_job_at_a_time() -> None:
    benches = make_benches(PieceCodec(numpy_kernels()))
    with benches.lend() as first, benches.lend() as second:
        assert first is not second
    with benches.lend() as again:
        assert again in {first, second}
