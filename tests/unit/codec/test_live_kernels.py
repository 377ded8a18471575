"""The loops over live memory: numba equals the line of NumPy on any input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.live_kernels import LiveKernels, live_kernels_for, numpy_live_kernels
from weightstore.codec.numba_live import NumbaLiveKernels
from weightstore.codec.numpy_live import NumpyLiveKernels
from weightstore.layout.dtypes import DType
from weightstore.testing.tensors import hard_units

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
    changed=st.integers(0, 300),
    seed=st.integers(0, 2**32 - 1),
    redo=st.booleans(),
)
def test_numba_equals_numpy(
    dtype: DType,
    count: int,
    changed: int,
    seed: int,
    redo: bool,  # noqa: FBT001 -- drawn
) -> None:
    rng = np.random.default_rng(seed)
    values = hard_units(dtype)
    memory = rng.choice(values, count)
    places = np.sort(rng.choice(count, min(count, changed), replace=False))
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


def test_a_process_with_little_memory_never_imports_numba() -> None:
    assert isinstance(live_kernels_for(10), NumpyLiveKernels)
    assert isinstance(live_kernels_for(1 << 20), NumbaLiveKernels)
    assert numpy_live_kernels().name == "numpy"
