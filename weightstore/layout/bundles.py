"""Bundles: small tensors concatenated, so that each of them costs no piece of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.layout.boxes import PIECE_UNIT_COUNT_MAX
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import TensorSpec

BUNDLED_BELOW_UNIT_COUNT = 64 * 1024
"""A tensor with fewer units is bundled. Fixed by the format, since plans must agree."""
BUNDLE_UNIT_COUNT_MAX = PIECE_UNIT_COUNT_MAX
BUNDLE_MEMBER_COUNT_MAX = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """Whole tensors of one dtype, one after the other.

    Attributes:
        members: Schema indices, ascending.
        starts: First unit of each member in the bundle, then the bundle's unit count;
            int64 of length `len(members) + 1`, read-only.
        dtype: Of all members.
    """

    members: tuple[int, ...]
    starts: NDArray[np.int64]
    dtype: DType

    @property
    def unit_count(self) -> int:
        """Units of all members together."""
        return int(self.starts[-1])


def plan_bundles(tensors: Sequence[TensorSpec]) -> tuple[Bundle, ...]:
    """Put every non-empty tensor below 64 Ki units into a bundle.

    Tensors are taken in schema order into the open bundle of their dtype; one that would
    pass 8 Mi units or 65,536 members closes it and begins the next. Bundles are numbered by
    their first members. The plan depends on the tensors alone, so a piece index names a
    bundle by its number.
    """
    groups: list[list[int]] = []
    open_groups: dict[DType, tuple[list[int], int]] = {}
    for index, spec in enumerate(tensors):
        if not 0 < spec.unit_count < BUNDLED_BELOW_UNIT_COUNT:
            continue
        members, unit_count = open_groups.get(spec.dtype, ([], 0))
        is_full = (
            unit_count + spec.unit_count > BUNDLE_UNIT_COUNT_MAX
            or len(members) >= BUNDLE_MEMBER_COUNT_MAX
        )
        if is_full or not members:
            members, unit_count = [], 0
            groups.append(members)
        members.append(index)
        open_groups[spec.dtype] = (members, unit_count + spec.unit_count)
    return tuple(_bundle(tensors, members) for members in groups)


def _bundle(tensors: Sequence[TensorSpec], members: list[int]) -> Bundle:
    starts = np.zeros(len(members) + 1, np.int64)
    np.cumsum([tensors[index].unit_count for index in members], out=starts[1:])
    starts.flags.writeable = False
    return Bundle(tuple(members), starts, tensors[members[0]].dtype)
