"""Scans: every unit is looked at in each round, and a difference names its tensor."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from weightstore.codec.digest import lanes_of
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.rolling_scan import RollingScan, damaged_tensors, scan

SIZES = [5, 100, 0, 1, 1000, 33, 33, 2]
SCHEMA = Schema.build([TensorSpec(f"t{n}", DType.U8, (size,)) for n, size in enumerate(SIZES)])
ARRAYS = {spec.name: np.arange(spec.unit_count, dtype=np.uint8) for spec in SCHEMA.tensors}
place = partial(place_arrays, SCHEMA, boxes={})


@pytest.mark.parametrize("thread_count", [1, 3])
def test_a_scan_gives_the_digest_of_each_place(thread_count: int) -> None:
    placement = place(ARRAYS)
    found = scan(placement, [4, 1, 2], thread_count)
    assert found.tolist() == [list(lanes_of(ARRAYS[name])) for name in ("t4", "t1", "t2")]


def test_only_tensors_that_differ_are_named() -> None:
    arrays = {name: units.copy() for name, units in ARRAYS.items()}
    placement = place(arrays)
    expected = scan(placement, range(8), 1)
    assert damaged_tensors(placement, range(8), expected, 2) == ()
    arrays["t5"][7] ^= 128
    arrays["t3"][0] ^= 1
    assert damaged_tensors(placement, range(8), expected, 2) == ("t3", "t5")
    assert damaged_tensors(placement, [0, 5], expected, 2) == ("t5",)


@pytest.mark.parametrize("refit_count", [1, 2, 3, 8, 100, 10_000])
def test_a_round_sees_everything_from_any_point_on(refit_count: int) -> None:
    rolling = RollingScan(place(ARRAYS), refit_count)
    taken = [rolling.take() for _ in range(3 * refit_count)]
    total = sum(SIZES)
    for start in range(0, 2 * refit_count, max(1, refit_count // 3)):
        window = taken[start : start + refit_count]
        assert {number for share in window for number in share} == set(range(8))
    for share in taken:
        assert sum(SIZES[number] for number in share) >= total / refit_count
        assert len(share) <= 8


def test_a_model_without_elements_is_scanned_too() -> None:
    schema = Schema.build([TensorSpec("e", DType.U8, (0,))])
    placement = place_arrays(schema, {"e": np.zeros(0, np.uint8)}, {})
    assert RollingScan(placement, 4).take() == []
    assert scan(placement, [0], 1).tolist() == [[0, 0]]
