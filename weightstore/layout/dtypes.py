"""Every element type that a safetensors file can hold, and the unsigned units that stand for it.

Weights are compared and stored as bits. The *unit* of a dtype is the unsigned integer that
those bits are read through: as wide as the element, or one byte for types whose elements
are packed closer than bytes.
"""

from __future__ import annotations

import enum
import math
from typing import Any, Self

import numpy as np

from weightstore.errors import DTypeRefusedError, TensorRefusedError

BYTE_BITS = 8


class DType(enum.Enum):
    """An element type; the value is its name in safetensors headers.

    Members are in the library's order of alignment, smallest first.

    Attributes:
        bit_count: Bits of one logical element.
        is_packed: Whether elements share bytes, so that the unit is a byte and no element.
        unit_size_bytes: Bytes of one unit: 1, 2, 4 or 8.
    """

    BOOL = "BOOL", 8
    F4 = "F4", 4
    F6_E2M3 = "F6_E2M3", 6
    F6_E3M2 = "F6_E3M2", 6
    U8 = "U8", 8
    I8 = "I8", 8
    F8_E5M2 = "F8_E5M2", 8
    F8_E4M3 = "F8_E4M3", 8
    F8_E8M0 = "F8_E8M0", 8
    F8_E4M3FNUZ = "F8_E4M3FNUZ", 8
    F8_E5M2FNUZ = "F8_E5M2FNUZ", 8
    I16 = "I16", 16
    U16 = "U16", 16
    F16 = "F16", 16
    BF16 = "BF16", 16
    I32 = "I32", 32
    U32 = "U32", 32
    F32 = "F32", 32
    C64 = "C64", 64
    F64 = "F64", 64
    I64 = "I64", 64
    U64 = "U64", 64

    bit_count: int
    is_packed: bool
    unit_size_bytes: int

    def __new__(cls, name: str, bit_count: int) -> Self:
        """Make a member; `DType(name)` finds it."""
        member = object.__new__(cls)
        member._value_ = name
        # Plain attributes: schemas of 100,000 tensors ask for them again and again.
        member.bit_count = bit_count
        member.is_packed = bit_count < BYTE_BITS
        member.unit_size_bytes = max(1, bit_count // BYTE_BITS)
        return member

    @property
    def unit_dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """NumPy dtype of one unit: unsigned, little-endian."""
        return _UNIT_DTYPES[self.unit_size_bytes]

    def unit_count(self, shape: tuple[int, ...]) -> int:
        """Units of a tensor of this dtype: its elements, or its bytes for packed types.

        Args:
            shape: Dims in logical elements; `()` is one element.

        Raises:
            TensorRefusedError: packed elements that do not fill whole bytes.
        """
        element_count = math.prod(shape)
        if not self.is_packed:
            return element_count
        bits = element_count * self.bit_count
        if bits % BYTE_BITS:
            raise TensorRefusedError(
                f"{element_count} elements of {self.value} are {bits} bits, no whole bytes",
                do="Pad the tensor to whole bytes; safetensors cannot hold it either.",
                facts={"dtype": self.value, "shape": shape},
            )
        return bits // BYTE_BITS

    def size_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of this dtype.

        Raises:
            TensorRefusedError: packed elements that do not fill whole bytes.
        """
        return self.unit_count(shape) * self.unit_size_bytes

    @classmethod
    def parse(cls, name: str) -> DType:
        """The dtype of a safetensors name, such as `"BF16"`.

        Raises:
            DTypeRefusedError: no such dtype.
        """
        found = _BY_NAME.get(name)
        if found is None:
            raise DTypeRefusedError(
                f"{name!r} is no dtype that safetensors holds",
                do=f"Use one of {', '.join(_BY_NAME)}.",
                facts={"dtype": name},
            )
        return found


TORCH_NAMES: dict[DType, str] = {
    DType.BOOL: "bool",
    DType.F4: "float4_e2m1fn_x2",
    DType.U8: "uint8",
    DType.I8: "int8",
    DType.F8_E5M2: "float8_e5m2",
    DType.F8_E4M3: "float8_e4m3fn",
    DType.F8_E8M0: "float8_e8m0fnu",
    DType.F8_E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8_E5M2FNUZ: "float8_e5m2fnuz",
    DType.I16: "int16",
    DType.U16: "uint16",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.I32: "int32",
    DType.U32: "uint32",
    DType.F32: "float32",
    DType.C64: "complex64",
    DType.F64: "float64",
    DType.I64: "int64",
    DType.U64: "uint64",
}
"""Attribute of `torch` for each dtype that torch has.

An element of `float4_e2m1fn_x2` is a byte with two `F4`: the last dim of the torch tensor
is half the last dim of the canonical shape.
"""

_UNIT_DTYPES: dict[int, np.dtype[np.unsignedinteger[Any]]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
_BY_NAME: dict[str, DType] = {dtype.value: dtype for dtype in DType}
