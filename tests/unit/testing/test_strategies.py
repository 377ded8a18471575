"""Everything that the strategies draw is what a store takes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.testing.strategies import changed_versions, schemas, tensor_specs, versions


@given(tensor_specs())
def test_specs_are_small(spec: TensorSpec) -> None:
    assert spec.size_bytes <= 8 * 4 * 9**3


@given(st.data())
def test_versions_fit_their_schema_and_changes_keep_it(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    assert Schema.from_bytes(schema.to_bytes()) == schema
    version = data.draw(versions(schema))
    assert list(version) == [spec.name for spec in schema.tensors]
    before = {name: tensor.units.copy() for name, tensor in version.items()}
    changed = data.draw(changed_versions(version))
    assert {name: tensor.spec for name, tensor in changed.items()} == {
        name: tensor.spec for name, tensor in version.items()
    }
    for name, tensor in version.items():
        assert np.array_equal(tensor.units, before[name])
        assert not np.shares_memory(tensor.units, changed[name].units) or tensor.units.size == 0
