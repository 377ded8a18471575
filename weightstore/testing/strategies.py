"""Hypothesis strategies for what a store holds."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units
from weightstore.testing.tensors import hard_units

DIM_COUNT_MAX = 3
TENSOR_COUNT_MAX = 6

tensor_names: st.SearchStrategy[str] = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=16
) | st.sampled_from(["../../etc/x", "/abs", "a\nb", "A", "a", "é", "e\u0301", "CON", "x" * 1024])
"""Names that a tensor may have, those among them that look like paths."""

dtypes: st.SearchStrategy[DType] = st.sampled_from(DType)
"""Every dtype."""


@st.composite
def tensor_specs(
    draw: st.DrawFn, names: st.SearchStrategy[str] = tensor_names, *, dim_size_max: int = 9
) -> TensorSpec:
    """A small tensor of any dtype; 0-d and empty ones too."""
    dtype = draw(dtypes)
    shape = draw(st.lists(st.integers(0, dim_size_max), max_size=DIM_COUNT_MAX))
    if dtype.is_packed:
        # Four elements of four or of six bits are whole bytes.
        shape = [*shape[:-1], 4 * (shape[-1] if shape else 1)]
    return TensorSpec(draw(names), dtype, tuple(shape))


@st.composite
def schemas(draw: st.DrawFn, *, dim_size_max: int = 9) -> Schema:
    """A schema of a few small tensors, some of them tied."""
    # Sorted, since of tied names the least is the stored one.
    names = sorted(draw(st.sets(tensor_names, min_size=1, max_size=TENSOR_COUNT_MAX)))
    stored = draw(st.integers(1, len(names)))
    specs = [
        draw(tensor_specs(st.just(name), dim_size_max=dim_size_max)) for name in names[:stored]
    ]
    aliases = [Alias(name, draw(st.sampled_from(names[:stored]))) for name in names[stored:]]
    return Schema.build(specs, aliases=aliases)


@st.composite
def units(draw: st.DrawFn, dtype: DType, unit_count: int) -> Units:
    """Bits of a dtype: hard patterns, or any."""
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    if draw(st.booleans()):
        return random.choice(hard_units(dtype), unit_count)
    size_bytes = unit_count * dtype.unit_size_bytes
    return np.frombuffer(random.bytes(size_bytes), dtype=dtype.unit_dtype).copy()


@st.composite
def versions(draw: st.DrawFn, schema: Schema) -> dict[str, HostTensor]:
    """All tensors of a schema, by name."""
    return {
        spec.name: HostTensor(spec, draw(units(spec.dtype, spec.unit_count)))
        for spec in schema.tensors
    }


@st.composite
def changed_versions(draw: st.DrawFn, version: dict[str, HostTensor]) -> dict[str, HostTensor]:
    """A version as a step leaves it: some elements of some tensors have other bits."""
    changed = {}
    for name, tensor in version.items():
        new = tensor.units.copy()
        if new.size and draw(st.booleans()):
            positions = draw(st.lists(st.integers(0, new.size - 1), max_size=8))
            new[positions] = draw(units(tensor.spec.dtype, len(positions)))
        changed[name] = HostTensor(tensor.spec, new)
    return changed
