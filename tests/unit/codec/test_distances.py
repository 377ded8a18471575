"""Distances: equal to ranks among all values, for every pattern of the small dtypes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from weightstore.codec.distances import distances, has_distances
from weightstore.layout.dtypes import TORCH_NAMES, DType

FLOATS = [
    DType.F16, DType.BF16, DType.F8_E5M2, DType.F8_E4M3, DType.F8_E5M2FNUZ, DType.F8_E4M3FNUZ,
    DType.F8_E8M0,
]  # fmt: skip
INTEGERS = [
    DType.BOOL, DType.U8, DType.I8, DType.U16, DType.I16, DType.U32, DType.I32, DType.U64,
    DType.I64,
]  # fmt: skip


def values_by_torch(dtype: DType) -> NDArray[np.float64]:
    """What torch makes of every pattern of a dtype, rising."""
    count = 1 << (8 * dtype.unit_size_bytes)
    patterns = np.arange(count).astype(dtype.unit_dtype)
    signed = torch.from_numpy(patterns.view(f"i{dtype.unit_size_bytes}"))
    found: NDArray[np.float64] = (
        signed.view(getattr(torch, TORCH_NAMES[dtype])).to(torch.float32).to(torch.float64).numpy()
    )
    return found


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: dtype.value)
def test_ulps_are_ranks_and_absolutes_are_differences_of_values(dtype: DType) -> None:
    values = values_by_torch(dtype)
    finite = np.isfinite(values)
    # Equal values (the two zeros) have one rank.
    ranks = np.searchsorted(np.unique(values[finite]), values)
    generator = np.random.default_rng(7)
    old, new = generator.integers(0, values.size, (2, 200_000))
    found = distances(dtype, old.astype(dtype.unit_dtype), new.astype(dtype.unit_dtype))
    measured = finite[old] & finite[new]
    assert np.array_equal(found.is_finite, measured)
    assert 0 < np.count_nonzero(measured) < measured.size
    expected = np.where(measured, np.abs(ranks[old] - ranks[new]), 0)
    assert np.array_equal(found.ulps.astype(np.int64), expected)
    with np.errstate(invalid="ignore"):
        differences = np.abs(values[old] - values[new])
    assert np.array_equal(found.absolutes, np.where(measured, differences, 0.0))


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: dtype.value)
def test_integers_differ_by_their_difference(dtype: DType) -> None:
    generator = np.random.default_rng(3)
    high = 1 << (8 * dtype.unit_size_bytes)
    old, new = generator.integers(0, high, (2, 1000), np.uint64, endpoint=False)
    units = old.astype(dtype.unit_dtype), new.astype(dtype.unit_dtype)
    kind = "i" if dtype.value.startswith("I") else "u"
    read: list[list[int]] = [each.view(f"{kind}{each.itemsize}").tolist() for each in units]
    found = distances(dtype, *units)
    assert found.ulps.tolist() == [abs(a - b) for a, b in zip(*read, strict=True)]
    assert found.absolutes.tolist() == [float(abs(a - b)) for a, b in zip(*read, strict=True)]
    assert found.is_finite.all()


def bits(dtype: type[np.floating[Any]], *values: float) -> NDArray[Any]:
    array = np.array(values, dtype)
    return array.view(f"u{array.itemsize}")


def test_wide_floats_step_by_neighbours() -> None:
    for dtype, kind in ((DType.F32, np.float32), (DType.F64, np.float64)):
        start = np.array([1.0, -1.0, 0.0, 1e-30], kind)
        after = np.nextafter(np.nextafter(start, kind(9)), kind(9))
        size = f"u{start.itemsize}"
        assert distances(dtype, start.view(size), after.view(size)).ulps.tolist() == [2, 2, 2, 2]
    crossing = distances(DType.F32, bits(np.float32, -0.0, 1e-45), bits(np.float32, 0.0, -1e-45))
    assert crossing.ulps.tolist() == [0, 2]


def test_what_is_not_finite_is_left_out() -> None:
    old = bits(np.float32, 1.0, np.inf, np.nan, np.inf)
    new = bits(np.float32, np.inf, -np.inf, 1.0, 1.0)
    found = distances(DType.F32, old, new)
    assert not found.is_finite.any()
    assert found.ulps.tolist() == found.absolutes.tolist() == [0, 0, 0, 0]


def test_the_difference_of_the_largest_doubles_stays_a_float() -> None:
    most = sys.float_info.max
    found = distances(DType.F64, bits(np.float64, most), bits(np.float64, -most))
    assert found.absolutes.tolist() == [most]
    assert found.ulps.tolist() == [2 * 0x7FEFFFFFFFFFFFFF]


def test_complex_numbers_move_by_the_part_that_moves_further() -> None:
    old = np.array([1 + 1j, complex(0, np.nan)], np.complex64)
    new = np.array([1 + 4j, 1j], np.complex64)
    new[0] = complex(np.nextafter(np.float32(1), np.float32(2)), 1.0)
    found = distances(DType.C64, old.view("<u8"), new.view("<u8"))
    assert found.ulps.tolist() == [1, 0]
    assert found.is_finite.tolist() == [True, False]
    moved = distances(
        DType.C64, np.array([3 + 4j], np.complex64).view("<u8"), np.zeros(1, np.uint64)
    )
    assert moved.absolutes.tolist() == [5.0]


def test_packed_elements_have_no_distances() -> None:
    packed = {DType.F4, DType.F6_E2M3, DType.F6_E3M2}
    assert {dtype for dtype in DType if not has_distances(dtype)} == packed
