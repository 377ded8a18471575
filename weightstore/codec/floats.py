"""Rounding of floats by integer arithmetic on their bits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.lanes import Units


class FloatForm(NamedTuple):
    """An IEEE 754 binary format."""

    exponent_bits: int
    mantissa_bits: int

    @property
    def bias(self) -> int:
        """What the exponent field holds for 1.0."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinity(self) -> int:
        """Bits of plus infinity."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def quiet_nan(self) -> int:
        """Bits of the one NaN that a cast gives: plus sign, quiet, no payload."""
        return self.infinity | 1 << (self.mantissa_bits - 1)


class FloatCast(NamedTuple):
    """From a wide format to a narrow one."""

    source: FloatForm
    target: FloatForm


def cast_floats(source: Units, cast: FloatCast, target: Units) -> None:
    """Round to nearest, ties to even; the oracle of the compiled loop.

    Overflow gives infinity, underflow a subnormal or zero, each with its sign; every NaN
    becomes the one quiet NaN of the target.
    """
    wide, narrow = cast
    bits = source.astype(np.uint64)
    sign_shift = wide.exponent_bits + wide.mantissa_bits
    sign = bits >> np.uint64(sign_shift)
    magnitude = bits & np.uint64((1 << sign_shift) - 1)
    rounded = np.minimum(_round(magnitude, cast), np.uint64(narrow.infinity))
    signed = rounded | sign << np.uint64(narrow.exponent_bits + narrow.mantissa_bits)
    is_nan = magnitude > np.uint64(wide.infinity)
    target[:] = np.where(is_nan, np.uint64(narrow.quiet_nan), signed).astype(target.dtype)


def _round(magnitude: NDArray[np.uint64], cast: FloatCast) -> NDArray[np.uint64]:
    """Round magnitudes; those beyond the largest come out as infinity or above."""
    wide, narrow = cast
    drop = wide.mantissa_bits - narrow.mantissa_bits
    rebias = wide.bias - narrow.bias
    exponent = (magnitude >> np.uint64(wide.mantissa_bits)).astype(np.int64)
    # Below the smallest normal number the significand loses as many bits more as the
    # exponent is too small; a shift that leaves less than half a unit gives zero.
    shortfall = np.maximum(rebias + 1 - np.maximum(exponent, 1), 0)
    shift = np.minimum(drop + shortfall, wide.mantissa_bits + 2).astype(np.uint64)
    mantissa = magnitude & np.uint64((1 << wide.mantissa_bits) - 1)
    hidden = (exponent > 0).astype(np.uint64) << np.uint64(wide.mantissa_bits)
    is_small = exponent <= rebias
    kept = np.where(is_small, mantissa | hidden, magnitude)
    half = (np.uint64(1) << (shift - np.uint64(1))) - np.uint64(1)
    rounded: NDArray[np.uint64] = (kept + half + (kept >> shift & np.uint64(1))) >> shift
    down = np.where(is_small, 0, rebias << narrow.mantissa_bits).astype(np.uint64)
    return rounded - down
