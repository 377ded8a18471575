"""The loops over live memory: numba equals the line of NumPy on any input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.codec.blocked import WINDOW_UNIT_COUNT, BlockedChange
from weightstore.codec.live_kernels import LiveKernels, live_kernels_for, numpy_live_kernels
from weightstore.codec.numba_live import NumbaLiveKernels
from weightstore.codec.numpy_live import NumpyLiveKernels
from weightstore.codec.sparse import Combine, SparseChange
from weightstore.layout.dtypes import DType
from weightstore.testing.tensors import hard_units

SHARES = st.sampled_from([0.0, 0.001, 0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.5, 1.0])
"""Of changed units: some of them make each loop of the compiled kernels the one that is taken."""

KERNELS: list[LiveKernels] = [NumpyLiveKernels(), NumbaLiveKernels()]


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda each: each.name)
@pytest.mark.parametrize("redo", [False, True])
def test_what_is_strange(kernels: LiveKernels, redo: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    #                old  new  strange  untouched
    memory = np.array([1, 20, 99, 7], np.uint16)
    change = BlockedChange.of(
        np.array([0, 1, 2]), np.array([1, 2, 3], np.uint16), np.array([10, 20, 30], np.uint16)
    )
    assert kernels.scatter_compare(memory, change, redo=redo) == (1 if redo else 2)
    assert memory.tolist() == [10, 20, 30, 7]
    assert kernels.scatter_compare(memory, change, redo=True) == 0
    assert kernels.scatter_compare(memory, change, redo=False) == 3


@given(
    dtype=st.sampled_from([DType.U8, DType.BF16, DType.F16, DType.F32, DType.F64]),
    count=st.integers(1, 140_000),
    share=SHARES,
    seed=st.integers(0, 2**32 - 1),
    redo=st.booleans(),
)
def test_numba_equals_numpy(
    dtype: DType,
    count: int,
    share: float,
    seed: int,
    redo: bool,  # noqa: FBT001 -- drawn
) -> None:
    rng = np.random.default_rng(seed)
    values = hard_units(dtype)
    memory = rng.choice(values, count)
    places = np.sort(rng.choice(count, int(share * count), replace=False))
    old_bits, new_bits = memory[places].copy(), rng.choice(values, places.size)
    touched = rng.random(places.size) < 0.3
    memory[places[touched]] = np.where(
        rng.random(touched.sum()) < 0.5, new_bits[touched], rng.choice(values, touched.sum())
    )
    change = BlockedChange.of(places, old_bits, new_bits)
    memories = [memory.copy(), memory.copy()]
    counts = [
        kernels.scatter_compare(each, change, redo=redo)
        for kernels, each in zip(KERNELS, memories, strict=True)
    ]
    assert counts[0] == counts[1]
    assert np.array_equal(memories[0], memories[1])
    found = [np.empty_like(old_bits) for _ in KERNELS]
    for kernels, bits in zip(KERNELS, found, strict=True):
        kernels.gather(memories[0], places, bits)
        assert np.array_equal(bits, memories[0][places])


def fields_of(change: BlockedChange) -> list[np.ndarray]:
    return [
        change.block_starts,
        change.block_firsts,
        change.offsets,
        change.old_bits,
        change.new_bits,
    ]


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda each: each.name)
@pytest.mark.parametrize("combine", list(Combine))
def test_what_a_change_would_do(kernels: LiveKernels, combine: Combine) -> None:
    memory = np.full(2 * WINDOW_UNIT_COUNT, 250, np.uint8)
    memory.setflags(write=False)
    # Both sides of a window's edge, and a sum beyond the width.
    positions = np.array([0, 4, 5, 9], np.uint32)
    words = np.array([1, 5, 6, 255], np.uint8)
    first = WINDOW_UNIT_COUNT - 5
    found = kernels.follow(memory, first, SparseChange(positions, words, combine))
    expected = {
        Combine.ADD: [251, 255, 0, 249],
        Combine.XOR: [251, 255, 252, 5],
        Combine.SET: [1, 5, 6, 255],
    }
    assert found.block_starts.tolist() == [0, WINDOW_UNIT_COUNT]
    assert found.block_firsts.tolist() == [0, 2, 4]
    assert found.places().tolist() == [first, first + 4, first + 5, first + 9]
    assert found.old_bits.tolist() == [250] * 4
    assert found.new_bits.tolist() == expected[combine]
    assert not any(np.shares_memory(each, words) for each in fields_of(found))


@given(
    dtype=st.sampled_from([DType.U8, DType.BF16, DType.F16, DType.F32, DType.F64]),
    combine=st.sampled_from(list(Combine)),
    first=st.integers(0, 140_000),
    count=st.integers(1, 300_000),
    share=SHARES,
    seed=st.integers(0, 2**32 - 1),
)
def test_numba_follows_as_numpy_does(
    dtype: DType, combine: Combine, first: int, count: int, share: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = hard_units(dtype)
    memory = rng.choice(values, first + count + int(rng.integers(0, 9)))
    changed_count = max(int(share * count), 1)
    positions = np.sort(rng.choice(count, changed_count, replace=False)).astype(np.uint32)
    change = SparseChange(positions, rng.choice(values, positions.size), combine)
    before = memory.copy()
    found = [fields_of(kernels.follow(memory, first, change)) for kernels in KERNELS]
    for expected, actual in zip(*found, strict=True):
        assert expected.dtype == actual.dtype
        assert np.array_equal(expected, actual)
    assert np.array_equal(memory, before)


def test_a_process_with_little_memory_never_imports_numba() -> None:
    assert isinstance(live_kernels_for(10), NumpyLiveKernels)
    assert isinstance(live_kernels_for(1 << 20), NumbaLiveKernels)
    assert numpy_live_kernels().name == "numpy"
