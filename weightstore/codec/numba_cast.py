"""Rounding of floats as compiled loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.floats import FloatCast
from weightstore.codec.lanes import Units
from weightstore.codec.numba_compile import compiled

Words = NDArray[np.uint64]

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_F32_INFINITY = np.uint32(0x7F800000)
_F32_MAGNITUDE = np.uint32(0x7FFFFFFF)
_BF16_NAN = np.uint32(0x7FC0)
_BF16_HALF = np.uint32(0x7FFF)
_BF16_DROP = np.uint32(16)
_BIT = np.uint32(1)


def cast_floats(source: Units, cast: FloatCast, target: Units) -> None:
    """See `Kernels.cast_floats`."""
    wide, narrow = cast
    if wide.exponent_bits == narrow.exponent_bits:
        _round_to_bf16(source, target)
        return
    _round(
        source,
        np.array([*wide, wide.bias, wide.infinity], dtype=np.uint64),
        np.array([*narrow, narrow.bias, narrow.infinity, narrow.quiet_nan], dtype=np.uint64),
        target,
    )


@compiled
def _round_to_bf16(source: Units, target: Units) -> None:
    """Round fp32 to bf16: the exponents are alike, so a carry is all there is to it."""
    for index in range(np.uint64(source.size)):
        bits = np.uint32(source[index])
        rounded = np.uint32(bits + _BF16_HALF + ((bits >> _BF16_DROP) & _BIT)) >> _BF16_DROP
        is_nan = np.uint32(bits & _F32_MAGNITUDE) > _F32_INFINITY
        target[index] = _BF16_NAN if is_nan else rounded


@compiled
def _round(source: Units, wide: Words, narrow: Words, target: Units) -> None:
    """Round from any form to any narrower one."""
    wide_exponent_bits, wide_mantissa_bits, wide_bias, wide_infinity = wide
    exponent_bits, mantissa_bits, bias, infinity, quiet_nan = narrow
    wide_sign_shift = wide_exponent_bits + wide_mantissa_bits
    magnitude_mask = (_ONE << wide_sign_shift) - _ONE
    drop = wide_mantissa_bits - mantissa_bits
    rebias = wide_bias - bias
    hidden = _ONE << wide_mantissa_bits
    for index in range(np.uint64(source.size)):
        bits = np.uint64(source[index])
        magnitude = bits & magnitude_mask
        exponent = magnitude >> wide_mantissa_bits
        if magnitude > wide_infinity:
            target[index] = quiet_nan
            continue
        shift = drop
        kept = magnitude
        down = rebias << mantissa_bits
        if exponent <= rebias:
            shortfall = rebias + _ONE - max(exponent, _ONE)
            shift = min(drop + shortfall, wide_mantissa_bits + _ONE + _ONE)
            kept = magnitude & (hidden - _ONE)
            if exponent:
                kept |= hidden
            down = _ZERO
        half = (_ONE << (shift - _ONE)) - _ONE
        rounded = ((kept + half + ((kept >> shift) & _ONE)) >> shift) - down
        sign = bits >> wide_sign_shift
        target[index] = min(rounded, infinity) | (sign << (exponent_bits + mantissa_bits))
