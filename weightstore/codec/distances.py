"""How far a change moves an element: in representable numbers, and as a float.

For people and dashboards. Nothing that is stored or checked depends on it: weights are
compared, kept and applied as bits.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.lanes import Units
from weightstore.layout.dtypes import DType

Bits = NDArray[np.uint64]
Values = NDArray[np.float64]

_COMPLEX_PART_COUNT = 2


class _SmallFloat(NamedTuple):
    """A float of 8 bits, from which all its values follow.

    Attributes:
        exponent_bits: Bits of the exponent.
        bias: What the exponent field holds for 1.0.
        special: Patterns of magnitude from here on are infinite or NaN.
        has_negative_zero: False where the pattern of minus zero is NaN instead.
    """

    exponent_bits: int
    bias: int
    special: int
    has_negative_zero: bool = True


_SMALL_FLOATS = {
    DType.F8_E5M2: _SmallFloat(5, 15, 0x7C),
    DType.F8_E4M3: _SmallFloat(4, 7, 0x7F),
    DType.F8_E5M2FNUZ: _SmallFloat(5, 16, 0x80, has_negative_zero=False),
    DType.F8_E4M3FNUZ: _SmallFloat(4, 8, 0x80, has_negative_zero=False),
}
_FLOATS: dict[DType, Any] = {DType.F16: np.float16, DType.F32: np.float32, DType.F64: np.float64}
_SIGNED = {DType.I8, DType.I16, DType.I32, DType.I64}


@dataclass(frozen=True, slots=True, eq=False)
class Distances:
    """What some changes amount to, one entry for each changed unit.

    Attributes:
        ulps: Steps from one representable number to the next, between old and new; 0
            between the two zeros. For integers the difference, for complex numbers the
            larger one of the two parts.
        absolutes: The absolute difference of the values.
        is_finite: False where old or new is infinite or NaN; the other two are 0 there.
    """

    ulps: Bits
    absolutes: Values
    is_finite: NDArray[np.bool_]


def has_distances(dtype: DType) -> bool:
    """Whether elements of a dtype have values of their own; packed ones share a unit."""
    return not dtype.is_packed


def distances(dtype: DType, old: Units, new: Units) -> Distances:
    """Measure changes.

    Args:
        dtype: Not a packed one.
        old: Bits before, shape (changes,), of the dtype's unit.
        new: Bits after, same shape.
    """
    if dtype is DType.C64:
        return _of_complex(old, new)
    if dtype in _FLOATS or dtype is DType.BF16 or dtype in _SMALL_FLOATS:
        return _of_floats(dtype, old, new)
    if dtype is DType.F8_E8M0:
        return _of_exponents(old, new)
    return _of_integers(dtype, old, new)


def _of_floats(dtype: DType, old: Units, new: Units) -> Distances:
    old_values, new_values = _values(dtype, old), _values(dtype, new)
    is_finite = np.isfinite(old_values) & np.isfinite(new_values)
    sign_shift = np.uint64(8 * dtype.unit_size_bytes - 1)
    magnitude_mask = np.uint64((1 << int(sign_shift)) - 1)
    before, after = old.astype(np.uint64), new.astype(np.uint64)
    old_size, new_size = before & magnitude_mask, after & magnitude_mask
    # Magnitudes have at most 63 bits, so their sum fits in 64.
    ulps = np.where(
        (before ^ after) >> sign_shift == 0,
        np.maximum(old_size, new_size) - np.minimum(old_size, new_size),
        old_size + new_size,
    )
    return _finite(ulps, old_values, new_values, is_finite)


def _of_exponents(old: Units, new: Units) -> Distances:
    """Powers of two without sign; the highest pattern is NaN."""
    highest = np.uint64(0xFF)
    before, after = old.astype(np.uint64), new.astype(np.uint64)
    is_finite = (before != highest) & (after != highest)
    old_values = np.ldexp(1.0, before.astype(np.int32) - 127)
    new_values = np.ldexp(1.0, after.astype(np.int32) - 127)
    ulps = np.maximum(before, after) - np.minimum(before, after)
    return _finite(ulps, old_values, new_values, is_finite)


def _of_integers(dtype: DType, old: Units, new: Units) -> Distances:
    before, after = old.astype(np.uint64), new.astype(np.uint64)
    if dtype in _SIGNED:
        # With the sign bit turned over, unsigned order is the order of the numbers.
        turn = np.uint64(1 << (8 * dtype.unit_size_bytes - 1))
        before, after = before ^ turn, after ^ turn
    ulps = np.maximum(before, after) - np.minimum(before, after)
    return Distances(ulps, ulps.astype(np.float64), np.ones(ulps.shape, np.bool_))


def _of_complex(old: Units, new: Units) -> Distances:
    parts = _of_floats(DType.F32, old.view("<u4"), new.view("<u4"))
    shape = (-1, _COMPLEX_PART_COUNT)
    is_finite: NDArray[np.bool_] = np.logical_and.reduce(parts.is_finite.reshape(shape), axis=1)
    absolutes = np.hypot(*parts.absolutes.reshape(shape).T)
    ulps = parts.ulps.reshape(shape).max(axis=1, initial=0)
    return Distances(
        np.where(is_finite, ulps, np.uint64(0)), np.where(is_finite, absolutes, 0.0), is_finite
    )


def _finite(
    ulps: Bits, old_values: Values, new_values: Values, is_finite: NDArray[np.bool_]
) -> Distances:
    with np.errstate(over="ignore", invalid="ignore"):
        absolutes = np.abs(new_values - old_values)
    # The difference of two doubles may pass the largest one.
    absolutes = np.where(is_finite, np.minimum(absolutes, sys.float_info.max), 0.0)
    return Distances(np.where(is_finite, ulps, np.uint64(0)), absolutes, is_finite)


def _values(dtype: DType, units: Units) -> Values:
    if dtype is DType.BF16:
        wide = (units.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype in _SMALL_FLOATS:
        return _table(dtype)[units]
    else:
        wide = units.view(_FLOATS[dtype])
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return wide.astype(np.float64)


@cache
def _table(dtype: DType) -> Values:
    """The value of every pattern of an 8-bit float; NaN for all that is not finite."""
    form = _SMALL_FLOATS[dtype]
    mantissa_bits = 7 - form.exponent_bits
    magnitude = np.arange(0x80)
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    hidden = np.where(exponent > 0, 1 << mantissa_bits, 0)
    scale = np.maximum(exponent, 1) - form.bias - mantissa_bits
    values = np.ldexp((hidden + mantissa).astype(np.float64), scale)
    values[form.special :] = np.nan
    table = np.concatenate([values, -values])
    if not form.has_negative_zero:
        table[0x80] = np.nan
    return table
