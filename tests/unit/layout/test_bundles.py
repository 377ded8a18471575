"""Bundles follow from the schema alone and hold every small tensor once."""

from __future__ import annotations

import pytest

from weightstore.layout import bundles
from weightstore.layout.bundles import BUNDLED_BELOW_UNIT_COUNT, plan_bundles
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import TensorSpec


def specs(*sizes: tuple[DType, int]) -> list[TensorSpec]:
    return [TensorSpec(f"t{n:05d}", dtype, (size,)) for n, (dtype, size) in enumerate(sizes)]


def test_only_tensors_below_the_bound_and_not_empty_are_bundled() -> None:
    bound = BUNDLED_BELOW_UNIT_COUNT
    found = plan_bundles(
        specs((DType.BF16, 0), (DType.BF16, 1), (DType.BF16, bound - 1), (DType.BF16, bound))
    )
    assert [bundle.members for bundle in found] == [(1, 2)]
    assert found[0].starts.tolist() == [0, 1, bound]
    assert found[0].unit_count == bound


def test_dtypes_are_apart_and_bundles_stand_by_their_first_members() -> None:
    found = plan_bundles(specs(*[(DType.F32, 3), (DType.BF16, 5), (DType.F32, 7), (DType.U8, 9)]))
    assert [(bundle.members, bundle.dtype) for bundle in found] == [
        ((0, 2), DType.F32),
        ((1,), DType.BF16),
        ((3,), DType.U8),
    ]


def test_a_bundle_is_closed_before_it_is_too_long() -> None:
    size = BUNDLED_BELOW_UNIT_COUNT // 2
    per_bundle = 8 * 1024 * 1024 // size
    found = plan_bundles(specs(*[(DType.BF16, size)] * (2 * per_bundle + 1)))
    assert [len(bundle.members) for bundle in found] == [per_bundle, per_bundle, 1]
    assert found[0].unit_count == 8 * 1024 * 1024


def test_a_bundle_is_closed_at_its_number_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "BUNDLE_MEMBER_COUNT_MAX", 3)
    found = plan_bundles(specs(*[(DType.BF16, 1)] * 7))
    assert [bundle.members for bundle in found] == [(0, 1, 2), (3, 4, 5), (6,)]


def test_0d_tensors_are_bundled() -> None:
    found = plan_bundles([TensorSpec("scale", DType.F32, ())])
    assert [bundle.members for bundle in found] == [(0,)]
