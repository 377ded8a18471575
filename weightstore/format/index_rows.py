"""The rows of a piece index as NumPy sees them: the layout, and columns ready for checks."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

INDEX_MAGIC = b"WSPIECE1"
AREA_COUNT = 4
"""Gaps, values, escapes, wide words."""


class PlaceKind(enum.IntEnum):
    """What a piece changes. Pieces stand in this order."""

    FLAT = 0
    """A flat run of a tensor."""
    BOX = 1
    """A flat run of a box of a tensor."""
    BUNDLE = 2
    """A whole bundle of small tensors."""


HEADER_DTYPE = np.dtype(
    [
        ("magic", "V8"),
        ("schema_id", "V32"),
        ("piece_count", "<u4"),
        ("box_word_count", "<u4"),
        ("member_count", "<u4"),
        ("reserved", "<u4"),
    ]
)
ROW_DTYPE = np.dtype(
    [
        ("first_unit", "<u8"),
        ("lane_deltas", "<u8", 2),
        ("hash16", "V16"),
        ("raw_sizes", "<u4", AREA_COUNT),
        ("stream_sizes", "<u4", AREA_COUNT),
        ("number", "<u4"),
        ("unit_count", "<u4"),
        ("changed_count", "<u4"),
        ("kind", "u1"),
        ("width_bytes", "u1"),
        ("value_coding", "u1"),
        ("gap_coding", "u1"),
    ]
)
ROW_STRUCT = struct.Struct("<3Q16s11I4B")
"""The same row for one piece at a time: `struct` takes it apart four times faster."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Columns of the rows as contiguous int64, so that sums cannot wrap.

    Attributes:
        raw: The rows themselves.
        flat_count: How many rows of `PlaceKind.FLAT` come first.
        box_count: How many rows of `PlaceKind.BOX` follow them; the rest are bundles.
    """

    raw: NDArray[Any]
    kinds: NDArray[np.uint8]
    numbers: NDArray[np.int64]
    first_units: NDArray[np.uint64]
    unit_counts: NDArray[np.int64]
    changed_counts: NDArray[np.int64]
    widths: NDArray[np.int64]
    flat_count: int
    box_count: int

    @classmethod
    def of(cls, raw: NDArray[Any]) -> Rows:
        """Take the columns out of rows that may hold anything."""
        kinds = np.ascontiguousarray(raw["kind"])
        return cls(
            raw=raw,
            kinds=kinds,
            numbers=raw["number"].astype(np.int64),
            first_units=np.ascontiguousarray(raw["first_unit"]),
            unit_counts=raw["unit_count"].astype(np.int64),
            changed_counts=raw["changed_count"].astype(np.int64),
            widths=raw["width_bytes"].astype(np.int64),
            flat_count=int(np.count_nonzero(kinds == PlaceKind.FLAT)),
            box_count=int(np.count_nonzero(kinds == PlaceKind.BOX)),
        )
