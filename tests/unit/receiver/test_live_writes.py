"""Writing a staged change: everything it overwrites is compared, everything it writes counted."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.codec.blocked import BlockedChange
from weightstore.errors import LiveWeightsError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.receiver.change import StagedChange, StoragePart
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_writes import check_lanes, write_change
from weightstore.receiver.reports import Tally
from weightstore.receiver.rolling_scan import scan
from weightstore.testing.virtual_time import VirtualClock

SCHEMA = Schema.build([TensorSpec("w", DType.BF16, (200_000,))])


def change_of(units: Units) -> StagedChange:
    places = np.array([1, 70_000, 140_000, 199_999])
    change = BlockedChange.of(places, units[places], units[places] + np.uint16(1))
    table = np.zeros((1, 2), np.uint64)
    return StagedChange((StoragePart(0, change),), table, table)


@pytest.mark.parametrize("is_redo", [False, True])
def test_bits_of_neither_side_are_an_error(is_redo: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    units = np.zeros(200_000, np.uint16)
    placement = place_arrays(SCHEMA, {"w": units}, {})
    change = change_of(units)
    units[70_000] = 9
    units[140_000] = 1
    tally = Tally(VirtualClock())
    with pytest.raises(LiveWeightsError) as caught:
        write_change(placement, change, 1, tally, is_redo=is_redo)
    assert caught.value.facts["strange_count"] == (1 if is_redo else 2)
    assert tally.launch_count == 4


def test_a_redo_over_any_part_of_itself_is_fine() -> None:
    units = np.zeros(200_000, np.uint16)
    placement = place_arrays(SCHEMA, {"w": units}, {})
    change = change_of(units)
    units[[1, 199_999]] = 1
    write_change(placement, change, 1, Tally(VirtualClock()), is_redo=True)
    assert np.flatnonzero(units).tolist() == [1, 70_000, 140_000, 199_999]


def test_what_has_landed_is_looked_at() -> None:
    units = np.arange(200_000).astype(np.uint16)
    placement = place_arrays(SCHEMA, {"w": units}, {})
    expected = scan(placement, [0], 1)
    check_lanes(placement, [0], expected, 1, Tally(VirtualClock()))
    units[17] ^= 4
    with pytest.raises(LiveWeightsError) as caught:
        check_lanes(placement, [0], expected, 1, Tally(VirtualClock()))
    assert caught.value.facts["tensors"] == ("w",)
