"""The hard values are what they are said to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weightstore.layout.dtypes import DType
from weightstore.testing.tensors import (
    all_units,
    hard_schema,
    hard_tensor,
    hard_tensors,
    hard_units,
)

NUMPY_FLOATS: dict[DType, type[np.floating[Any]]] = {
    DType.F16: np.float16,
    DType.F32: np.float32,
    DType.F64: np.float64,
}


@pytest.mark.parametrize("dtype", DType)
def test_hard_values_are_distinct_units_with_both_ends(dtype: DType) -> None:
    values = hard_units(dtype)
    assert values.dtype == dtype.unit_dtype
    assert len(np.unique(values)) == values.size >= 9
    assert {0, 2 ** (8 * dtype.unit_size_bytes) - 1} <= set(values.tolist())


@pytest.mark.parametrize("dtype", NUMPY_FLOATS)
def test_hard_floats_cover_every_class_of_number(dtype: DType) -> None:
    """Asked of NumPy, on formats that it knows."""
    values = hard_units(dtype).view(NUMPY_FLOATS[dtype])
    finite = np.finfo(NUMPY_FLOATS[dtype])
    expected = [0.0, 1.0, float(finite.smallest_subnormal), float(finite.max), float("inf")]
    for value in expected:
        assert value in values
        assert -value in values
    zeros = values[values == 0]
    assert sorted(np.signbit(zeros).tolist()) == [False, True]
    assert np.isnan(values).sum() == 10


def test_hard_bf16_values_are_the_upper_halves_of_float32() -> None:
    values = (hard_units(DType.BF16).astype(np.uint32) << 16).view(np.float32)
    assert {0.0, 1.0, -1.0, np.inf, -np.inf} <= set(values.tolist())
    assert np.isnan(values).sum() == 10
    assert {0x7FC0, 0x8000, 0x0001} <= set(hard_units(DType.BF16).tolist())


def test_complex_values_are_hard_in_both_parts() -> None:
    values = hard_units(DType.C64).view(np.complex64)
    assert np.any(np.isnan(values.real) & np.isinf(values.imag))
    assert np.any(np.isinf(values.real) & np.isnan(values.imag))


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.unit_size_bytes <= 2])
def test_all_patterns_are_all(dtype: DType) -> None:
    values = all_units(dtype)
    assert values.dtype == dtype.unit_dtype
    assert values.tolist() == list(range(256**dtype.unit_size_bytes))


def test_the_hard_schema_has_every_dtype_and_the_odd_shapes() -> None:
    schema = hard_schema()
    assert {spec.dtype for spec in schema.tensors} == set(DType)
    assert {(), (0,), (5, 1)} <= {spec.shape for spec in schema.tensors}


def test_seeds_give_the_same_tensors_every_time_and_others_for_others() -> None:
    schema = hard_schema()
    first, again, other = (hard_tensors(schema, seed) for seed in (1, 1, 2))
    assert list(first) == [spec.name for spec in schema.tensors]
    assert all(np.array_equal(first[name].units, again[name].units) for name in first)
    assert any(not np.array_equal(first[name].units, other[name].units) for name in first)
    spec = schema.tensors[0]
    assert np.array_equal(hard_tensor(spec, 5).units, hard_tensor(spec, 5).units)
