"""Laws of schemas, names and bundles over random tensors."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weightstore.errors import RefusedError
from weightstore.layout.bundles import BUNDLE_UNIT_COUNT_MAX, BUNDLED_BELOW_UNIT_COUNT
from weightstore.layout.canonical_names import WRAPPER_RULES, canonical_name, refuse_wrapped
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema, schema_differences
from weightstore.layout.tensors import NAME_SIZE_BYTES_MAX, TensorSpec, check_tensor_name

ANY_TEXT = st.text(st.characters(), max_size=12)  # with NUL and lone surrogates
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
)
WHOLE_DTYPES = st.sampled_from([dtype for dtype in DType if not dtype.is_packed])
SHAPES = st.lists(st.sampled_from([0, 1, 2, 255, 256, 257]), max_size=3).map(tuple)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    names = sorted(draw(st.sets(NAMES, max_size=8)))
    stored, tied = names[: len(names) // 2 + 1], names[len(names) // 2 + 1 :]
    specs = [TensorSpec(name, draw(WHOLE_DTYPES), draw(SHAPES)) for name in stored]
    aliases = [Alias(name, draw(st.sampled_from(stored))) for name in tied]
    groups = [stored[:2]] if len(stored) > 1 and draw(st.booleans()) else []
    return Schema.build(specs, aliases=aliases, atomic_groups=groups)


@given(schemas())
def test_a_schema_survives_its_bytes(schema: Schema) -> None:
    again = Schema.from_bytes(schema.to_bytes())
    assert again == schema
    assert again.tensors == schema.tensors
    assert again.aliases == schema.aliases
    assert again.atomic_groups == schema.atomic_groups
    assert schema_differences(schema, again) == ()


@given(schemas(), st.randoms())
def test_the_order_of_building_does_not_matter(schema: Schema, random: Random) -> None:
    specs = random.sample(schema.tensors, len(schema.tensors))
    aliases = random.sample(schema.aliases, len(schema.aliases))
    groups = [group[::-1] for group in schema.atomic_groups]
    assert Schema.build(specs, aliases=aliases, atomic_groups=groups).id == schema.id


@given(schemas(), schemas())
def test_schemas_are_equal_exactly_when_nothing_differs(first: Schema, second: Schema) -> None:
    forward, back = schema_differences(first, second), schema_differences(second, first)
    assert (first == second) == (forward == ())
    assert [(one.name, one.what, one.expected, one.found) for one in forward] == [
        (one.name, one.what, one.found, one.expected) for one in back
    ]


@given(schemas())
def test_bundles_hold_each_small_tensor_once(schema: Schema) -> None:
    found = [member for bundle in schema.bundles for member in bundle.members]
    small = [
        index
        for index, spec in enumerate(schema.tensors)
        if 0 < spec.unit_count < BUNDLED_BELOW_UNIT_COUNT
    ]
    assert sorted(found) == small
    firsts = [bundle.members[0] for bundle in schema.bundles]
    assert firsts == sorted(firsts)
    for bundle in schema.bundles:
        assert list(bundle.members) == sorted(bundle.members)
        assert {schema.tensors[member].dtype for member in bundle.members} == {bundle.dtype}
        sizes = [schema.tensors[member].unit_count for member in bundle.members]
        assert np.diff(bundle.starts).tolist() == sizes
        assert bundle.unit_count == sum(sizes) <= BUNDLE_UNIT_COUNT_MAX


@given(ANY_TEXT)
def test_a_name_is_allowed_exactly_when_it_is_storable_utf8(name: str) -> None:
    try:
        is_storable = 0 < len(name.encode()) <= NAME_SIZE_BYTES_MAX and "\0" not in name
    except UnicodeEncodeError:
        is_storable = False
    try:
        check_tensor_name(name)
        is_allowed = True
    except RefusedError:
        is_allowed = False
    assert is_allowed == is_storable


PARTS = st.sampled_from(
    ["module", "_orig_mod", "_fsdp_wrapped_module", "base_model", "model", "base_layer", "w", ""]
)


@given(st.lists(PARTS, max_size=8), st.permutations(WRAPPER_RULES))
def test_canonical_names_are_fixed_points_that_pass(parts: list[str], rules: list[str]) -> None:
    name = ".".join([*parts, "weight"])
    once = canonical_name(name, rules)
    assert canonical_name(once, rules) == once
    refuse_wrapped([once])
