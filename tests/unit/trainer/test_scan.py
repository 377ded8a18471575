"""Digest tables of given tensors and of baselines, against one tensor at a time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.codec.digest import lanes_of
from weightstore.codec.kernels import numpy_kernels
from weightstore.history.workers import Workers
from weightstore.settings import Limits
from weightstore.testing.trainer_lab import small_weights
from weightstore.trainer.baseline import plan_layout
from weightstore.trainer.baseline_places import MemoryPlace
from weightstore.trainer.benches import make_benches
from weightstore.trainer.binding import Binding, derive_schema
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.inputs import MappedInputs, StreamedInputs, open_tensors
from weightstore.trainer.scan import Scan, fill_from_spool

WEIGHTS = small_weights()
INPUTS = open_tensors(WEIGHTS)
assert isinstance(INPUTS, MappedInputs)
SCHEMA = derive_schema(INPUTS, CastRules())


@pytest.fixture(params=[1, 3])
def scan(request: pytest.FixtureRequest) -> Scan:
    limits = Limits(piece_element_count=10_000)
    return Scan(Workers(request.param), make_benches(PieceCodec(numpy_kernels())), limits)


def expected_table() -> NDArray[np.uint64]:
    rows = []
    for spec in SCHEMA.tensors:
        array = WEIGHTS[spec.name].reshape(-1)
        rows.append(lanes_of(array.view(spec.dtype.unit_dtype)))
    return np.array(rows, np.uint64)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_table_is_that_of_each_tensor_by_itself(scan: Scan, *, streamed: bool) -> None:
    source = iter(reversed(WEIGHTS.items())) if streamed else WEIGHTS
    layout = plan_layout(SCHEMA)
    into = MemoryPlace().create(layout)
    scanned = scan.run(Binding(SCHEMA, open_tensors(source), CastRules()), into=into)
    assert np.array_equal(scanned.table, expected_table())
    assert np.array_equal(scan.baseline_table(into), expected_table())
    for index, spec in enumerate(SCHEMA.tensors):
        assert into.units(index).tobytes() == WEIGHTS[spec.name].tobytes()


def test_rows_of_tensors_that_are_not_given_stay_zero(scan: Scan) -> None:
    part = {name: WEIGHTS[name] for name in ("layer.1.bias", "scale")}
    binding = Binding(SCHEMA, open_tensors(part), CastRules(), missing="unchanged")
    scanned = scan.run(binding)
    names = [spec.name for spec in SCHEMA.tensors]
    assert {names[i] for i in scanned.unmentioned} == set(names) - set(part)
    expected = expected_table()
    expected[list(scanned.unmentioned)] = 0
    assert np.array_equal(scanned.table, expected)


def test_a_spooled_stream_is_its_own_copy(scan: Scan) -> None:
    buffer = np.arange(5, dtype=np.float32)
    inputs = open_tensors(iter([("b", buffer), ("a", buffer)]))
    assert isinstance(inputs, StreamedInputs)
    spooled = scan.spool(inputs, CastRules.parse({"b": "bf16"}))
    buffer[:] = -1
    assert spooled["b"].units.tolist() == [0, 0x3F80, 0x4000, 0x4040, 0x4080]
    assert spooled["a"].units.view("<f4").tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_spool_is_emptied_into_the_baseline(scan: Scan) -> None:
    inputs = open_tensors(iter(WEIGHTS.items()))
    assert isinstance(inputs, StreamedInputs)
    spooled = scan.spool(inputs, CastRules())
    into = MemoryPlace().create(plan_layout(SCHEMA))
    fill_from_spool(SCHEMA, spooled, into)
    assert not spooled
    assert np.array_equal(scan.baseline_table(into), expected_table())
