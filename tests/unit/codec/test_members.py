"""Where the tensors of a piece begin, and at which index they count."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.codec.members import Members
from weightstore.errors import InputRefusedError


def members(starts: object, unit_count: int = 10, most: int = 3) -> Members:
    return Members.of(
        unit_count,
        first_index=5,
        member_starts=None if starts is None else np.array(starts),
        member_count_max=most,
    )


def test_a_box_is_one_member_that_counts_from_its_first_index() -> None:
    whole = members(None)
    assert whole.count == 1
    assert whole.starts.tolist() == [0, 10]
    assert whole.offsets.tolist() == [5]


def test_members_of_a_bundle_count_from_zero() -> None:
    bundle = members([0, 4, 9, 10])
    for start, offset in zip([0, 4, 9], bundle.offsets, strict=True):
        assert (np.array([start], dtype=np.uint64) + offset).tolist() == [0]


def test_bounds_share_positions_out_among_members() -> None:
    positions = np.array([0, 3, 4, 9], dtype=np.uint32)
    assert members([0, 4, 9, 10]).bounds(positions).tolist() == [0, 2, 3, 4]
    assert members([0, 1, 2, 10]).bounds(positions).tolist() == [0, 1, 1, 4]
    assert members([0, 4, 10]).bounds(positions[:0]).tolist() == [0, 0, 0]
    assert members(None).bounds(positions).tolist() == [0, 4]


@pytest.mark.parametrize(
    "starts",
    [
        [],
        [0],
        [0, 9],
        [1, 10],
        [0, 11],
        [0, 4, 4, 10],
        [0, 6, 5, 10],
        [0, -1, 10],
        [0, 1, 2, 3, 10],
        [[0, 10]],
    ],
    ids=str,
)
def test_starts_that_do_not_rise_to_the_end_are_refused(starts: list[int]) -> None:
    with pytest.raises(InputRefusedError, match="member starts"):
        members(starts)
