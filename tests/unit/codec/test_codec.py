"""The codec as its users see it: shared by threads, one worker each."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import NUMPY_UNIT_COUNT_MAX, load_kernels, numpy_kernels
from weightstore.codec.lanes import Units
from weightstore.codec.piece import Piece
from weightstore.settings import Limits


def pairs(count: int) -> list[tuple[Units, Units]]:
    made = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        old = rng.integers(0, 65536, 200_000, dtype=np.uint16)
        made.append((old, old + (rng.random(old.size) < 0.01 * (seed + 1)).astype(np.uint16)))
    return made


@pytest.mark.parametrize("thread_count", [1, 2, 5])
def test_the_same_input_gives_the_same_bytes_for_any_number_of_threads(thread_count: int) -> None:
    codec = PieceCodec()
    work = pairs(10)
    expected = [codec.worker().encode(*pair).piece for pair in work]

    def encode(share: list[tuple[Units, Units]]) -> list[Piece | None]:
        worker = codec.worker()
        return [worker.encode(*pair).piece for pair in share]

    shares = [work[thread::thread_count] for thread in range(thread_count)]
    with ThreadPoolExecutor(thread_count) as threads:
        found = list(threads.map(encode, shares))
    for thread in range(thread_count):
        assert found[thread] == expected[thread::thread_count]


def test_kernels_are_chosen_by_size_unless_given() -> None:
    assert PieceCodec().kernels_for(NUMPY_UNIT_COUNT_MAX + 1).name == "numba"
    assert PieceCodec(numpy_kernels()).kernels_for(1 << 23).name == "numpy"
    assert PieceCodec(load_kernels()).kernels_for(1).name == "numba"


def test_few_units_use_numba_once_more_of_them_have_loaded_it() -> None:
    script = (
        "from weightstore.codec.codec import PieceCodec\n"
        "from weightstore.codec.kernels import NUMPY_UNIT_COUNT_MAX\n"
        "used = [PieceCodec().kernels_for(count).name\n"
        "        for count in (1, NUMPY_UNIT_COUNT_MAX, NUMPY_UNIT_COUNT_MAX + 1, 1)]\n"
        "assert used == ['numpy', 'numpy', 'numba', 'numba'], used\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_limits_are_the_products_unless_given() -> None:
    assert PieceCodec().limits == Limits()
    assert PieceCodec(limits=Limits(chain_count=1)).limits.chain_count == 1
