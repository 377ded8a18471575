"""`store.diff`: selectors, order, schema changes, and versions that are gone."""

from __future__ import annotations

import tracemalloc
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch

from weightstore.errors import VersionGoneError, VersionNotFoundError
from weightstore.settings import Settings
from weightstore.store import SchemaChange, WeightStore
from weightstore.testing.store_lab import LAB_SETTINGS


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three versions of one run; the third one has another schema."""
    weights = {
        "few": torch.zeros(1000, dtype=torch.bfloat16),
        "gone": torch.zeros(3, dtype=torch.uint8),
        "many": torch.zeros((10, 10)),
        "retyped": torch.zeros(2),
    }
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        store.put_step(0, weights)
        weights["few"][7] = 1.0
        weights["many"][3, 4:6] = torch.tensor([-2.0, 0.5])
        store.put_step(1, weights)
        del weights["gone"]
        weights["retyped"] = weights["retyped"].to(torch.bfloat16)
        weights["added"] = torch.ones((), dtype=torch.int64)
        weights["tied"] = weights["few"]
        weights["many"][0, 0] = float("nan")
        store.put_step(2, weights, new_schema=True)
    return tmp_path / "store"


def test_neighbours_differ_by_what_was_put_the_densest_first(place: Path) -> None:
    found = WeightStore.open(place).diff(1, "main@1")
    assert (found.old.version, found.new.version, found.source) == (1, 2, "weights")
    assert (found.changed_count, found.compared_count) == (3, 4)
    assert found.density == 3 / 1105
    many, few = found.tensors
    assert (many.name, many.changed_count, many.density) == ("many", 2, 0.02)
    # From 0 to -2 there are more floats than from 0 to 0.5.
    assert (many.largest_ulps, many.largest_ulps_at) == (0x40000000, (3, 4))
    assert (many.largest_absolute, many.nonfinite_count) == (2.0, 0)
    assert (few.name, few.changed_count, few.density) == ("few", 1, 0.001)
    assert (few.dtype, few.shape, few.unit_count) == ("BF16", (1000,), 1000)
    assert (few.largest_ulps, few.largest_ulps_at) == (0x3F80, (7,))
    with pytest.raises(FrozenInstanceError):
        few.changed_count = 3  # type: ignore[misc]  # that is the point


def test_counts_alone_come_from_the_packs(place: Path) -> None:
    found = WeightStore.open(place).diff(2, 1, counts=True)
    assert (found.old.version, found.new.version, found.source) == (2, 1, "packs")
    assert [(each.name, each.changed_count) for each in found.tensors] == [("many", 2), ("few", 1)]
    assert all(each.largest_ulps is None for each in found.tensors)


def test_other_schemas_are_listed_and_the_rest_is_compared(place: Path) -> None:
    found = WeightStore.open(place).diff(1)
    assert found.schema == (
        SchemaChange("added", None, "I64 ()"),
        SchemaChange("gone", "U8 (3,)", None),
        SchemaChange("retyped", "F32 (2,)", "BF16 (2,)"),
        SchemaChange("tied", None, "tied to few"),
    )
    assert found.compared_count == 2
    assert {each.name: each.changed_count for each in found.tensors} == {"few": 1, "many": 3}
    (many,) = (each for each in found.tensors if each.name == "many")
    assert (many.nonfinite_count, many.largest_absolute) == (1, 2.0)


def test_a_version_and_itself_are_equal(place: Path) -> None:
    found = WeightStore.open(place).diff("latest", 3)
    assert (found.tensors, found.schema, found.source) == ((), (), "digests")
    assert (found.changed_count, found.density) == (0, 0.0)


def test_versions_that_are_not_there_are_named(place: Path) -> None:
    with WeightStore.open(place) as store:
        with pytest.raises(VersionNotFoundError):
            store.diff(1, 9)
        store.retire(keep_newest=1)
        with pytest.raises(VersionGoneError):
            store.diff(1, 3)


def test_a_long_chain_is_compared_as_its_ends_are(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    states = [{"w": generator.integers(0, 9, 70_000).astype(np.int16)}]
    with WeightStore.open(tmp_path / "s", create=True, settings=LAB_SETTINGS) as store:
        store.put_step(0, states[0])
        for step in range(1, 6):
            after = states[-1]["w"].copy()
            after[generator.integers(0, after.size, 500)] += 1
            states.append({"w": after})
            store.put_step(step, states[-1], anchor=step == 3)
        for old in range(6):
            for new in range(6):
                expected = int(np.count_nonzero(states[old]["w"] != states[new]["w"]))
                assert store.diff(old + 1, new + 1).changed_count == expected


def test_memory_is_that_of_the_largest_tensor_and_not_of_the_model(
    tmp_path: Path,
) -> None:
    tensor_count, unit_count = 4, 4 * 1024 * 1024
    size_bytes = 4 * unit_count
    weights = {f"w{index}": np.zeros(unit_count, np.float32) for index in range(tensor_count)}
    settings = Settings(thread_count=1, full_after_chain_ratio=1e6)
    with WeightStore.open(tmp_path / "s", create=True, settings=settings) as store:
        for step in range(3):
            for units in weights.values():
                units[step :: unit_count // 1000] += 1
            store.put_step(step, weights)
        del weights, units
        store.diff(1, 2)  # whatever is loaded and compiled once
        for old, new in ((1, 3), (3, 1), (2, 3)):
            tracemalloc.start()
            try:
                found = store.diff(old, new)
                peak_bytes = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert found.source == "weights"
            assert len(found.tensors) == tensor_count
            # Both copies; the block that is read and what is decoded with are half a tensor.
            assert peak_bytes < 3 * size_bytes < tensor_count * size_bytes
