"""The digest lanes of all tensors of a version, as a binary table in schema order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import CorruptObjectError, InputRefusedError
from weightstore.layout.schema import Schema

TABLE_MAGIC = b"WSTABLE1"
LANE_COUNT = 2

_HEADER_DTYPE = np.dtype([("magic", "V8"), ("schema_id", "V32"), ("tensor_count", "<u8")])


def encode_table(table: NDArray[np.uint64], schema: Schema) -> bytes:
    """Bytes of a table.

    Args:
        table: Lanes in schema order; uint64 of shape (tensors, 2).
        schema: That of the version.

    Raises:
        InputRefusedError: the table is not of this shape and dtype.
    """
    if table.dtype != np.uint64 or table.shape != (len(schema.tensors), LANE_COUNT):
        raise InputRefusedError(
            f"a digest table of {table.dtype} {table.shape} is not of uint64"
            f" {(len(schema.tensors), LANE_COUNT)}",
            do="Give two lanes per tensor of the schema.",
        )
    header = np.zeros((), _HEADER_DTYPE)
    header["magic"] = np.void(TABLE_MAGIC)
    header["schema_id"] = np.void(bytes.fromhex(schema.id))
    header["tensor_count"] = len(schema.tensors)
    return header.tobytes() + table.astype("<u8", copy=False).tobytes()


def decode_table(data: bytes, schema: Schema) -> NDArray[np.uint64]:
    """Lanes in schema order; uint64 of shape (tensors, 2), read-only.

    Raises:
        CorruptObjectError: not a table of this schema.
    """
    expected = _HEADER_DTYPE.itemsize + 8 * LANE_COUNT * len(schema.tensors)
    if len(data) != expected:
        raise CorruptObjectError(f"a digest table has {len(data)} bytes, expected {expected}")
    header = np.frombuffer(data, _HEADER_DTYPE, 1)[0]
    if header["magic"].tobytes() != TABLE_MAGIC:
        raise CorruptObjectError("a digest table does not begin as one")
    found_id = header["schema_id"].tobytes().hex()
    if found_id != schema.id or header["tensor_count"] != len(schema.tensors):
        raise CorruptObjectError(
            f"a digest table is of schema {found_id}, expected {schema.id}",
            facts={"expected": schema.id, "found": found_id},
        )
    lanes = np.frombuffer(data, "<u8", offset=_HEADER_DTYPE.itemsize)
    return lanes.reshape(-1, LANE_COUNT)
