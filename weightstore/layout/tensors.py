"""A tensor's name, dtype and shape, and its bits in host memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import LimitError, NameRefusedError, TensorRefusedError
from weightstore.layout.dtypes import BYTE_BITS, DType

Units: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Bits of elements, as unsigned integers of a dtype's unit width."""

NAME_SIZE_BYTES_MAX = 1024
RESERVED_NAME = "__metadata__"
DIM_COUNT_MAX = 64
TENSOR_SIZE_BYTES_MAX = 2**53 - 1
"""Sizes and positions stay exact in JSON of any language, and far from 64-bit overflow."""


def check_tensor_name(name: str) -> None:
    """Check a tensor name: UTF-8 of 1 to 1,024 bytes without NUL. Anything else is allowed.

    Raises:
        NameRefusedError: empty, too long, or with NUL or a lone surrogate in it.
    """
    try:
        size_bytes = len(name) if name.isascii() else len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise _refused_name(name, "holds a lone surrogate, which UTF-8 cannot say") from None
    if size_bytes == 0:
        raise _refused_name(name, "is empty")
    if size_bytes > NAME_SIZE_BYTES_MAX:
        raise _refused_name(name, f"has {size_bytes} bytes of UTF-8, above {NAME_SIZE_BYTES_MAX}")
    if "\0" in name:
        raise _refused_name(name, "holds a NUL")
    if name == RESERVED_NAME:
        raise _refused_name(name, "is the key of a safetensors header's own metadata")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a tensor is, without its bits.

    Attributes:
        name: Canonical name; compared by its UTF-8 bytes, never used as a path or key.
        dtype: Published dtype.
        shape: Dims in logical elements, row-major; `()` for a 0-d tensor.
        unit_count: Elements, or bytes for packed dtypes.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    unit_count: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_tensor_name(self.name)
        _check_shape(self.name, self.shape)
        unit_count = self.dtype.unit_count(self.shape)
        if unit_count * self.dtype.unit_size_bytes > TENSOR_SIZE_BYTES_MAX:
            raise LimitError(
                f"tensor {self.name!r} of shape {self.shape} is larger than any storage",
                do="Check the shape.",
                facts={"tensor": self.name, "shape": self.shape},
            )
        object.__setattr__(self, "unit_count", unit_count)

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor's bits."""
        return self.unit_count * self.dtype.unit_size_bytes

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """The shape in units, which boxes are said in.

        Equal to `shape`, but for packed dtypes the last dim counts bytes; where a row of
        packed elements is no whole number of bytes, the tensor is one flat dim.
        """
        if not self.dtype.is_packed:
            return self.shape
        row_bits = self.shape[-1] * self.dtype.bit_count if self.shape else 1
        if row_bits % BYTE_BITS:
            return (self.unit_count,)
        return (*self.shape[:-1], row_bits // BYTE_BITS)


@dataclass(frozen=True, slots=True, eq=False)
class HostTensor:
    """A tensor's bits in host memory.

    Attributes:
        spec: What it is.
        units: 1-D, contiguous, of the dtype's `unit_dtype`, `unit_count` long, in
            row-major logical order.

    Raises:
        TensorRefusedError: `units` is none of that.
    """

    spec: TensorSpec
    units: Units

    def __post_init__(self) -> None:
        found = self.units
        expected = self.spec.dtype.unit_dtype
        if (
            found.dtype != expected
            or found.shape != (self.spec.unit_count,)
            or not found.flags.c_contiguous
        ):
            raise TensorRefusedError(
                f"units of tensor {self.spec.name!r} are {found.dtype} of shape {found.shape}"
                f"{'' if found.flags.c_contiguous else ', not contiguous'}; expected contiguous"
                f" {expected} of shape ({self.spec.unit_count},)",
                do="Give the bits in row-major order as one flat unsigned array.",
                facts={"tensor": self.spec.name},
            )


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) > DIM_COUNT_MAX:
        raise LimitError(
            f"tensor {name!r} has {len(shape)} dims, above {DIM_COUNT_MAX}",
            do="Merge dims.",
            facts={"tensor": name, "dim_count": len(shape)},
        )
    for size in shape:
        if type(size) is not int or not 0 <= size <= TENSOR_SIZE_BYTES_MAX:
            raise TensorRefusedError(
                f"tensor {name!r} has a dim of {size!r} in its shape",
                do="Dims are whole numbers from 0.",
                facts={"tensor": name},
            )


def _refused_name(name: str, why: str) -> NameRefusedError:
    shown = ascii(name if len(name) <= 80 else name[:80] + "...")  # noqa: PLR2004 -- readable
    return NameRefusedError(
        f"tensor name {shown} {why}",
        do=f"Use 1 to {NAME_SIZE_BYTES_MAX} bytes of UTF-8 without NUL.",
        facts={"tensor": shown},
    )
