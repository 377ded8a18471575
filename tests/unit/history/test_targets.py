"""Where a checkout writes: layout of private memory, and every fault of a caller's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest

from weightstore.errors import InputRefusedError, SchemaMismatchError
from weightstore.history.targets import ALIGNMENT_BYTES, Memory, Target
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units
from weightstore.testing.real_versions import mixed_schema, random_weights

SCHEMA = mixed_schema()


def arrays() -> dict[str, Units]:
    return random_weights(SCHEMA, 1)


def given(targets: Mapping[str, Target]) -> Memory:
    return Memory.given(SCHEMA, targets)


def test_private_memory_has_every_tensor_apart_and_aligned_for_its_units() -> None:
    memory = Memory.allocate(SCHEMA)
    spans = []
    for spec, units in zip(SCHEMA.tensors, memory.arrays, strict=True):
        assert units.dtype == spec.dtype.unit_dtype
        assert units.shape == (spec.unit_count,)
        assert units.flags.aligned
        assert units.flags.writeable
        start = units.ctypes.data
        if spec.unit_count >= 65_536:
            assert start % ALIGNMENT_BYTES == 0
        if units.nbytes:
            spans.append((start, start + units.nbytes))
    spans.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_members_of_a_bundle_are_one_run_of_private_memory() -> None:
    memory = Memory.allocate(SCHEMA)
    for number, bundle in enumerate(SCHEMA.bundles):
        joined = memory.joined(bundle.members)
        assert joined is not None
        assert joined.size == bundle.unit_count
        joined[:] = number + 1
        for index in bundle.members:
            assert np.all(memory.arrays[index] == number + 1)


def test_tensors_that_lie_apart_are_not_joined() -> None:
    memory = Memory.allocate(SCHEMA)
    large, head = SCHEMA.index_of("block.large"), SCHEMA.index_of("head")
    assert memory.joined([large, head]) is None
    assert given(arrays()).joined(SCHEMA.bundles[0].members) is None


def test_a_schema_without_bytes_can_be_allocated() -> None:
    empty = Schema.build([TensorSpec("e", DType.BF16, (0,))])
    assert Memory.allocate(empty).tensors()["e"].units.size == 0
    assert Memory.allocate(Schema.build([])).tensors() == {}


def test_tied_names_show_the_same_memory() -> None:
    tensors = Memory.allocate(SCHEMA).tensors()
    assert tensors["tied"].units is tensors["block.large"].units
    assert tensors["tied"].spec == TensorSpec("tied", DType.BF16, (350, 200))


def test_everything_wrong_is_listed_at_once() -> None:
    targets: dict[str, Target] = dict(arrays())
    del targets["flags"]
    targets["stranger"] = np.zeros(1, np.uint8)
    targets["head"] = np.zeros(75_000, np.uint16)
    targets["block.norm"] = np.zeros(199, np.uint16)
    targets["head.bias"] = HostTensor(TensorSpec("head.bias", DType.F16, (7,)), np.zeros(7, "<u2"))
    targets["packed"] = HostTensor(TensorSpec("packed", DType.F4, (6, 2)), np.zeros(6, np.uint8))
    with pytest.raises(SchemaMismatchError) as caught:
        given(targets)
    problems = caught.value.facts["problems"]
    assert isinstance(problems, tuple)
    assert sorted(str(problem).split(":")[0] for problem in problems) == [
        "dtype",
        "dtype",
        "missing",
        "not in the version",
        "shape",
        "shape",
    ]
    for name in ("flags", "stranger", "head", "block.norm", "head.bias", "packed"):
        assert repr(name) in caught.value.message


def test_a_tied_name_may_stand_for_its_tensor() -> None:
    targets: dict[str, Target] = dict(arrays())
    held = targets.pop("block.large")
    targets["tied"] = held
    memory = given(targets)
    assert memory.arrays[SCHEMA.index_of("block.large")] is held
    assert memory.copies == ()


def test_a_tied_name_of_its_own_memory_gets_the_bits_at_the_end() -> None:
    targets: dict[str, Target] = dict(arrays())
    apart = np.zeros(70_000, "<u2")
    targets["tied"] = apart
    memory = given(targets)
    memory.fill_copies()
    assert np.array_equal(apart, memory.arrays[SCHEMA.index_of("block.large")])


def test_a_tied_name_in_the_same_memory_is_no_copy() -> None:
    targets: dict[str, Target] = dict(arrays())
    large = targets["block.large"]
    assert isinstance(large, np.ndarray)
    targets["tied"] = large[:]
    assert given(targets).copies == ()


def test_read_only_and_strided_arrays_are_refused_by_name() -> None:
    targets: dict[str, Target] = dict(arrays())
    frozen = np.zeros(200, "<u2")
    frozen.flags.writeable = False
    targets["block.norm"] = frozen
    targets["head.bias"] = np.zeros(14, "<u2")[::2]
    with pytest.raises(InputRefusedError) as caught:
        given(targets)
    assert "read-only: 'block.norm'" in caught.value.message
    assert "not contiguous or not aligned: 'head.bias'" in caught.value.message


def test_tensors_that_are_not_tied_must_not_share_memory() -> None:
    targets: dict[str, Target] = dict(arrays())
    shared = np.zeros(206, "<u2")
    targets["block.norm"], targets["head.bias"] = shared[:200], shared[199:206]
    with pytest.raises(InputRefusedError, match=r"'block.norm' and 'head.bias'"):
        given(targets)
