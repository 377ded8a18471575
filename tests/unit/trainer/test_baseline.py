"""The baseline's layout: every tensor has its place, bundles are contiguous."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weightstore.layout.boxes import FlatRange
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.trainer.baseline import Baseline, plan_layout

COUNTS = st.lists(
    st.tuples(st.sampled_from([0, 1, 7, 65_535, 65_536, 70_001]), st.sampled_from(list(DType))),
    min_size=1,
    max_size=12,
)


def schema_of(counts: list[tuple[int, DType]]) -> Schema:
    return Schema.build(
        TensorSpec(f"t{i}", dtype, (8 * count if dtype.is_packed else count,))
        for i, (count, dtype) in enumerate(counts)
    )


@given(COUNTS)
def test_tensors_are_aligned_and_do_not_overlap(counts: list[tuple[int, DType]]) -> None:
    schema = schema_of(counts)
    layout = plan_layout(schema)
    baseline = Baseline(layout, np.zeros(layout.size_bytes, np.uint8))
    for index in range(len(schema.tensors)):
        baseline.units(index)[:] = index + 1
    for index, spec in enumerate(schema.tensors):
        units = baseline.units(index)
        assert (units.dtype, units.size) == (spec.dtype.unit_dtype, spec.unit_count)
        assert bool(np.all(units == index + 1))
        if index not in layout.bundle_of:
            assert layout.offsets[index] % 64 == 0


@given(COUNTS)
def test_a_bundle_is_its_members_one_after_the_other(counts: list[tuple[int, DType]]) -> None:
    schema = schema_of(counts)
    layout = plan_layout(schema)
    rng = np.random.default_rng(1)
    baseline = Baseline(layout, rng.integers(0, 256, layout.size_bytes, np.uint8))
    for number, bundle in enumerate(layout.bundles):
        parts = [baseline.units(index) for index in bundle.members]
        assert np.array_equal(baseline.bundle_units(number), np.concatenate(parts))
        for place, index in enumerate(bundle.members):
            assert layout.bundle_of[index] == (number, place)


def test_a_range_is_a_view() -> None:
    layout = plan_layout(schema_of([(70_000, DType.BF16)]))
    baseline = Baseline(layout, np.zeros(layout.size_bytes, np.uint8))
    baseline.units(0, FlatRange(69_990, 10))[9] = 5
    assert baseline.units(0)[69_999] == 5
    assert set(baseline.targets()) == {"t0"}
