"""Tensors whose bits are easy to get wrong."""

from __future__ import annotations

import itertools

import numpy as np

from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units

_BYTE_PATTERN_COUNT = 256
_SHORT_PATTERN_COUNT = 65_536

# Exponent and mantissa bits of each float that is wider than a byte.
_FLOATS = {
    DType.F16: (5, 10),
    DType.BF16: (8, 7),
    DType.F32: (8, 23),
    DType.F64: (11, 52),
}


def hard_units(dtype: DType) -> Units:
    """Every bit pattern of a one-byte dtype, and the hard ones of a wider dtype.

    Of floats: zero and minus zero, one and minus one, the smallest and the largest
    subnormal, the largest finite, both infinities, quiet and signalling NaNs with several
    payloads, all ones. Of integers: the ends of the range and of its bytes.

    Returns:
        1-D, of the dtype's units.
    """
    if dtype.unit_size_bytes == 1:
        return np.arange(_BYTE_PATTERN_COUNT, dtype=np.uint16).astype(dtype.unit_dtype)
    if dtype is DType.C64:
        parts = _float_patterns(*_FLOATS[DType.F32])
        patterns = [real | (imag << 32) for real, imag in itertools.product(parts, parts)]
    elif dtype in _FLOATS:
        patterns = _float_patterns(*_FLOATS[dtype])
    else:
        top = 1 << dtype.bit_count
        patterns = sorted({0, 1, 255, 256, top // 2 - 1, top // 2, top // 2 + 1, top - 2, top - 1})
    return np.array(patterns, dtype=dtype.unit_dtype)


def all_units(dtype: DType) -> Units:
    """Every bit pattern of a dtype of one or two bytes, in order."""
    counts = {1: _BYTE_PATTERN_COUNT, 2: _SHORT_PATTERN_COUNT}
    return np.arange(counts[dtype.unit_size_bytes], dtype=np.uint32).astype(dtype.unit_dtype)


def hard_tensor(spec: TensorSpec, seed: int = 0) -> HostTensor:
    """A tensor of hard values, drawn anew for each seed."""
    chosen = np.random.default_rng(seed).choice(hard_units(spec.dtype), spec.unit_count)
    return HostTensor(spec, chosen)


def hard_tensors(schema: Schema, seed: int = 0) -> dict[str, HostTensor]:
    """A whole version of hard values, by name; tied names are left to their targets."""
    return {
        spec.name: hard_tensor(spec, seed + number) for number, spec in enumerate(schema.tensors)
    }


def hard_schema() -> Schema:
    """One tensor of each dtype and of each shape that has gone wrong somewhere.

    0-d, empty, size-1 dims, and byte sizes that leave the next tensor unaligned.
    """
    each_dtype = [TensorSpec(f"dtype.{dtype.value}", dtype, (3, 4)) for dtype in DType]
    each_shape = [
        TensorSpec(f"shape.{'x'.join(map(str, shape)) or 'scalar'}", DType.BF16, shape)
        for shape in ((), (0,), (0, 3), (1,), (5, 1), (1, 1, 5), (2, 3, 4, 5))
    ]
    unaligned = [TensorSpec("unaligned.bytes", DType.U8, (3,))]
    return Schema.build([*each_dtype, *each_shape, *unaligned])


def _float_patterns(exponent_bits: int, mantissa_bits: int) -> list[int]:
    sign = 1 << (exponent_bits + mantissa_bits)
    one = ((1 << (exponent_bits - 1)) - 1) << mantissa_bits
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    quiet = 1 << (mantissa_bits - 1)
    positive = [
        0,
        1,
        (1 << mantissa_bits) - 1,
        one,
        infinity - 1,
        infinity,
        infinity | 1,
        infinity | (quiet - 1),
        infinity | quiet,
        infinity | quiet | 1,
        infinity | (2 * quiet - 1),
    ]
    return [sign * is_negative | bits for is_negative in (0, 1) for bits in positive]
