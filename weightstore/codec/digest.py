"""The digest of a state: two order-free lanes per tensor, one SHA-256 over all of them.

The byte layout and test vectors are in `docs/format.md`, section "State digest".
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.kernels import Kernels, kernels_for
from weightstore.codec.lanes import (
    LANE_COUNT,
    MASK_64,
    NO_LANES,
    Lanes,
    Units,
    add_lanes,
    subtract_lanes,
)
from weightstore.errors import InputRefusedError
from weightstore.ids import Sha256
from weightstore.layout.schema import Schema

__all__ = [
    "DIGEST_MAGIC",
    "NO_LANES",
    "Lanes",
    "StateHasher",
    "add_lanes",
    "lanes_of",
    "member_lanes",
    "state_digest",
    "subtract_lanes",
]

DIGEST_MAGIC = b"weightstore-state-1\n"


def lanes_of(units: Units, *, first_index: int = 0, kernels: Kernels | None = None) -> Lanes:
    """Compute the lanes of a tensor, or of a flat run of it.

    Args:
        units: Shape (units,); may be empty.
        first_index: Canonical flat index of the first unit.
        kernels: The loops to use; None takes what suits the size.
    """
    starts = np.array([0, units.size], dtype=np.int64)
    offsets = np.array([first_index & MASK_64], dtype=np.uint64)
    sums = np.zeros((1, LANE_COUNT), dtype=np.uint64)
    (kernels or kernels_for(units.size)).lane_sums(units, starts, offsets, sums)
    return int(sums[0, 0]), int(sums[0, 1])


def member_lanes(
    units: Units, member_starts: NDArray[np.int64], *, kernels: Kernels | None = None
) -> NDArray[np.uint64]:
    """Compute the lanes of every tensor of a bundle.

    Args:
        units: All members, one after the other.
        member_starts: Shape (members + 1,): where each begins, and the end.
        kernels: The loops to use; None takes what suits the size.

    Returns:
        Shape (members, 2).
    """
    starts = np.ascontiguousarray(member_starts, dtype=np.int64)
    sums = np.zeros((starts.size - 1, LANE_COUNT), dtype=np.uint64)
    offsets = (-starts[:-1]).view(np.uint64)
    (kernels or kernels_for(units.size)).lane_sums(units, starts, offsets, sums)
    return sums


class StateHasher:
    """Digests states of one schema; the part that the schema fixes is hashed once."""

    def __init__(self, schema: Schema) -> None:
        self._tensor_count = len(schema.tensors)
        self._head = hashlib.sha256(_head_bytes(schema))

    def digest(self, table: NDArray[np.uint64]) -> Sha256:
        """Digest one state.

        Args:
            table: Shape (tensors, 2), in schema order.

        Raises:
            InputRefusedError: the table has another shape or dtype.
        """
        shape = (self._tensor_count, LANE_COUNT)
        if table.shape != shape or table.dtype != np.uint64:
            raise InputRefusedError(
                f"a digest table of {table.dtype} {table.shape} does not go with a schema of "
                f"{self._tensor_count} tensors",
                do="Pass uint64 of shape (tensors, 2), in schema order.",
                facts={"expected": shape, "found": table.shape},
            )
        whole = self._head.copy()
        whole.update(np.ascontiguousarray(table, dtype="<u8").data)
        return Sha256(whole.hexdigest())


def state_digest(schema: Schema, table: NDArray[np.uint64]) -> Sha256:
    """Digest a state: SHA-256 over names, dtypes, shapes and lanes of all tensors.

    Args:
        schema: Its tensors are sorted.
        table: Shape (tensors, 2), in schema order.

    Raises:
        InputRefusedError: the table has another shape or dtype.
    """
    return StateHasher(schema).digest(table)


def _head_bytes(schema: Schema) -> bytes:
    """Write what comes before the lanes; every part has its length before it."""
    parts = [DIGEST_MAGIC, struct.pack("<Q", len(schema.tensors))]
    for spec in schema.tensors:
        name, dtype = spec.name.encode(), spec.dtype.value.encode()
        parts += (
            struct.pack("<H", len(name)),
            name,
            struct.pack("<B", len(dtype)),
            dtype,
            struct.pack(f"<B{len(spec.shape)}Q", len(spec.shape), *spec.shape),
        )
    return b"".join(parts)
