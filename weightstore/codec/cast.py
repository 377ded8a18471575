"""Casting to the published dtype, bit by bit: part of the detection pass.

The rule, for every pair: round to nearest, ties to even, straight from the source format.
Values beyond the largest become infinity, tiny ones subnormals or zero, all with their sign.
Every NaN becomes the plus quiet NaN without payload (0x7FC0 in bf16, 0x7E00 in fp16,
0x7FC00000 in fp32): a NaN's sign and payload do not survive a cast.
"""

from __future__ import annotations

from weightstore.codec.floats import FloatCast, FloatForm
from weightstore.codec.kernels import Kernels, kernels_for
from weightstore.codec.lanes import Units
from weightstore.errors import DTypeRefusedError, InputRefusedError
from weightstore.layout.dtypes import DType

_FORMS = {
    DType.F16: FloatForm(exponent_bits=5, mantissa_bits=10),
    DType.BF16: FloatForm(exponent_bits=8, mantissa_bits=7),
    DType.F32: FloatForm(exponent_bits=8, mantissa_bits=23),
    DType.F64: FloatForm(exponent_bits=11, mantissa_bits=52),
}
CASTS = frozenset(
    {
        (DType.F32, DType.BF16),
        (DType.F32, DType.F16),
        (DType.F64, DType.F32),
        (DType.F64, DType.BF16),
        (DType.F64, DType.F16),
    }
)
"""The pairs (source, target) that can be cast."""


def cast_units(
    source: Units,
    source_dtype: DType,
    target_dtype: DType,
    out: Units,
    *,
    kernels: Kernels | None = None,
) -> None:
    """Cast bit patterns of floats to a narrower format.

    Args:
        source: Shape (units,), bits of `source_dtype`; not written.
        source_dtype: Format of the source.
        target_dtype: Format of `out`.
        out: Shape (units,), written.
        kernels: The loops to use; None takes what suits the size.

    Raises:
        DTypeRefusedError: this pair is not in `CASTS`.
        InputRefusedError: sizes or widths do not fit.
    """
    if (source_dtype, target_dtype) not in CASTS:
        raise DTypeRefusedError(
            f"{source_dtype.value} is not cast to {target_dtype.value}",
            do="Publish the tensor in its own dtype, or cast it before the put.",
            facts={"source": source_dtype.value, "target": target_dtype.value},
        )
    widths = (source.itemsize, out.itemsize)
    if widths != (source_dtype.unit_size_bytes, target_dtype.unit_size_bytes):
        raise InputRefusedError(f"units of {widths} bytes do not fit the dtypes of the cast")
    if source.shape != out.shape or source.ndim != 1:
        raise InputRefusedError(f"a cast from shape {source.shape} to {out.shape}")
    cast = FloatCast(_FORMS[source_dtype], _FORMS[target_dtype])
    (kernels or kernels_for(source.size)).cast_floats(source, cast, out)
