"""The two views of an index row, NumPy's and struct's, are one layout of 88 bytes."""

from __future__ import annotations

import numpy as np

from weightstore.format.index_rows import HEADER_DTYPE, ROW_DTYPE, ROW_STRUCT, PlaceKind, Rows


def test_sizes() -> None:
    assert ROW_DTYPE.itemsize == ROW_STRUCT.size == 88
    assert HEADER_DTYPE.itemsize == 56


def test_both_views_find_every_field_in_the_same_bytes() -> None:
    data = bytes(range(100, 100 + ROW_STRUCT.size))
    row = np.frombuffer(data, ROW_DTYPE)[0]
    flat: list[object] = []
    for name in ROW_DTYPE.names or ():
        value = row[name]
        if value.dtype.kind == "V":
            flat.append(value.tobytes())
        else:
            flat.extend(np.atleast_1d(value).tolist())
    assert tuple(flat) == ROW_STRUCT.unpack(data)


def test_columns_count_the_kinds() -> None:
    raw = np.zeros(6, ROW_DTYPE)
    raw["kind"] = [0, 0, 0, 1, 1, 2]
    raw["number"] = 2**32 - 1
    rows = Rows.of(raw)
    assert (rows.flat_count, rows.box_count) == (3, 2)
    assert rows.numbers.tolist() == [2**32 - 1] * 6
    assert PlaceKind.FLAT < PlaceKind.BOX < PlaceKind.BUNDLE
