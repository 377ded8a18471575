"""Which units of a piece belong to which tensor, and at which index they count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.lanes import MASK_64
from weightstore.errors import InputRefusedError


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """The tensors of a piece: one box, or the whole tensors of a bundle.

    Attributes:
        starts: Shape (members + 1,), int64: where each begins, and the end.
        offsets: Shape (members,), uint64: added to a unit's place in the piece, modulo 2^64,
            to give its canonical index.
    """

    starts: NDArray[np.int64]
    offsets: NDArray[np.uint64]

    @classmethod
    def of(
        cls,
        unit_count: int,
        *,
        first_index: int,
        member_starts: NDArray[np.int64] | None,
        member_count_max: int,
    ) -> Self:
        """Read the arguments that `encode` and `apply` share.

        Raises:
            InputRefusedError: the starts do not rise from 0 to `unit_count`.
        """
        if member_starts is None:
            starts = np.array([0, unit_count], dtype=np.int64)
            return cls(starts, np.array([first_index & MASK_64], dtype=np.uint64))
        starts = np.ascontiguousarray(member_starts, dtype=np.int64)
        count = starts.size - 1
        in_order = (
            starts.ndim == 1
            and 0 < count <= member_count_max
            and starts[0] == 0
            and starts[-1] == unit_count
            and bool(np.all(starts[1:] > starts[:-1]))
        )
        if not in_order:
            raise InputRefusedError(
                f"member starts do not rise from 0 to {unit_count} in at most "
                f"{member_count_max} steps",
                do="Pass the starts of the schema's bundle.",
                facts={"unit_count": unit_count, "member_count": count},
            )
        return cls(starts, (-starts[:-1]).view(np.uint64))

    @property
    def count(self) -> int:
        """How many tensors."""
        return self.offsets.size

    def bounds(self, positions: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Find the place in rising positions where each member begins, and the end."""
        if self.count == 1:
            return np.array([0, positions.size], dtype=np.int64)
        found = np.searchsorted(positions, self.starts.astype(np.uint32))
        return found.astype(np.int64, copy=False)
