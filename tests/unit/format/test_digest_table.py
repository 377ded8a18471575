"""Digest tables: 16 bytes per tensor behind a header that names the schema."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.errors import CorruptObjectError, InputRefusedError
from weightstore.format.digest_table import decode_table, encode_table
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec

SCHEMA = Schema.build(TensorSpec(name, DType.BF16, (2, 3)) for name in "abc")
TABLE = np.array([[0, 1], [2**64 - 1, 2**63], [5, 6]], np.uint64)


def test_the_bytes_are_header_then_lanes() -> None:
    data = encode_table(TABLE, SCHEMA)
    assert data[:48] == b"WSTABLE1" + bytes.fromhex(SCHEMA.id) + (3).to_bytes(8, "little")
    assert data[48:] == b"".join(int(lane).to_bytes(8, "little") for lane in TABLE.ravel())
    found = decode_table(data, SCHEMA)
    assert found.dtype == np.uint64
    assert np.array_equal(found, TABLE)
    assert not found.flags.writeable


def test_a_schema_without_tensors() -> None:
    empty = Schema.build([])
    assert decode_table(encode_table(np.zeros((0, 2), np.uint64), empty), empty).shape == (0, 2)


def test_every_damaged_header_byte_and_every_cut_is_refused() -> None:
    data = encode_table(TABLE, SCHEMA)
    for place in range(48):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(CorruptObjectError):
            decode_table(bytes(damaged), SCHEMA)
    for size in (*range(len(data)), len(data) + 1):
        with pytest.raises(CorruptObjectError, match="bytes"):
            decode_table((data + b"\0")[:size], SCHEMA)


def test_a_table_of_another_schema_is_refused() -> None:
    other = Schema.build(TensorSpec(name, DType.BF16, (3, 2)) for name in "abc")
    with pytest.raises(CorruptObjectError, match=other.id) as refused:
        decode_table(encode_table(TABLE, SCHEMA), other)
    assert refused.value.facts == {"expected": other.id, "found": SCHEMA.id}


def test_only_two_lanes_per_tensor_are_written() -> None:
    for table in (TABLE[:2], TABLE.astype(np.int64), TABLE[:, :1]):
        with pytest.raises(InputRefusedError, match="digest table"):
            encode_table(table, SCHEMA)  # type: ignore[arg-type]
