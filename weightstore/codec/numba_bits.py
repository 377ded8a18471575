"""What numba lacks: comparing 64 units at once, and counting bits, as LLVM instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import types
from numba.extending import intrinsic

Internal: TypeAlias = Any
"""An object of numba's or llvmlite's compiler, which have no types of their own."""

MASK_UNIT_COUNT = 64
"""Units that one mask compares."""

_intrinsic = cast("Callable[[Callable[..., Internal]], Callable[..., np.uint64]]", intrinsic)


@_intrinsic
def changed_mask(_context: Internal, old: Internal, new: Internal, _start: Internal) -> Internal:
    """Compare 64 units of two arrays from `start` on; bit i is set where unit i differs."""
    signature = types.uint64(old, new, types.uint64)

    def generate(
        context: Internal, builder: Internal, signature: Internal, arguments: Internal
    ) -> Internal:
        vector = ir.VectorType(ir.IntType(old.dtype.bitwidth), MASK_UNIT_COUNT)
        loaded = []
        for kind, value in zip(signature.args[:2], arguments[:2], strict=True):
            data = context.make_array(kind)(context, builder, value).data
            place = builder.bitcast(builder.gep(data, [arguments[2]]), vector.as_pointer())
            # Alignment 1: a slice begins anywhere.
            loaded.append(builder.load(place, align=1))
        unequal = builder.icmp_unsigned("!=", loaded[0], loaded[1])
        return builder.bitcast(unequal, ir.IntType(MASK_UNIT_COUNT))

    return signature, generate


@_intrinsic
def lowest_bit(_context: Internal, _word: Internal) -> Internal:
    """Count trailing zeros; 64 for zero."""

    def generate(
        _context: Internal, builder: Internal, _signature: Internal, arguments: Internal
    ) -> Internal:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@_intrinsic
def bit_count(_context: Internal, _word: Internal) -> Internal:
    """Count set bits."""

    def generate(
        _context: Internal, builder: Internal, _signature: Internal, arguments: Internal
    ) -> Internal:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate
