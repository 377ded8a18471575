"""Schemas: order, identity, what they refuse, and what differs between two."""

from __future__ import annotations

import hashlib
import json
import pickle

import pytest

from weightstore.errors import LimitError, NameRefusedError, RefusedError
from weightstore.layout import schema as schema_module
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema, bundle_plan, schema_differences
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits

EMBED = TensorSpec("embed", DType.BF16, (8, 4))
HEAD = TensorSpec("head", DType.BF16, (4, 8))
SCALE = TensorSpec("head.scale", DType.F32, ())


def test_tensors_are_sorted_by_the_bytes_of_their_names() -> None:
    names = ["b", "a", "A", "a.b", "a-b", "é", "e\u0301", "\U0001f9e0", "\uffff", "a\nb", "z"]
    found = Schema.build(TensorSpec(name, DType.U8, (1,)) for name in names)
    assert [spec.name for spec in found.tensors] == sorted(names, key=lambda name: name.encode())


def test_the_id_is_the_hash_of_the_canonical_bytes() -> None:
    schema = Schema.build(
        [SCALE, HEAD, EMBED], aliases=[Alias("lm", "embed")], atomic_groups=[["head.scale", "head"]]
    )
    assert schema.to_bytes() == (
        b'{"aliases":[["lm","embed"]],"atomic_groups":[["head","head.scale"]],"format":1,'
        b'"tensors":[["embed","BF16",[8,4]],["head","BF16",[4,8]],["head.scale","F32",[]]]}'
    )
    assert schema.id == hashlib.sha256(schema.to_bytes()).hexdigest()
    again = Schema.from_bytes(schema.to_bytes())
    assert again == schema
    assert hash(again) == hash(schema)
    assert (again.tensors, again.aliases, again.atomic_groups) == (
        schema.tensors,
        schema.aliases,
        schema.atomic_groups,
    )


def test_names_go_into_the_bytes_as_they_are() -> None:
    name = 'é\n"\\\x7f\u2028'
    schema = Schema.build([TensorSpec(name, DType.U8, (1,))])
    assert json.loads(schema.to_bytes())["tensors"][0][0] == name
    assert Schema.from_bytes(schema.to_bytes()) == schema


def test_lookup_by_name_and_alias() -> None:
    schema = Schema.build([EMBED, HEAD], aliases=[Alias("lm", "head")])
    assert [schema.index_of(name) for name in ("embed", "head", "lm")] == [0, 1, 1]
    assert "lm" in schema
    assert "other" not in schema
    with pytest.raises(NameRefusedError, match="'other'"):
        schema.index_of("other")


def test_totals_count_tied_bytes_once() -> None:
    schema = Schema.build([EMBED, HEAD, SCALE], aliases=[Alias("lm", "head")])
    assert schema.unit_count == 65
    assert schema.size_bytes == 132
    assert schema.unit_counts.tolist() == [32, 32, 1]
    assert schema.unit_sizes_bytes.tolist() == [2, 2, 4]
    assert [bundle.members for bundle in bundle_plan(schema)] == [(0, 1), (2,)]
    assert Schema.build([]).unit_count == 0


def test_a_schema_pickles() -> None:
    schema = Schema.build([EMBED, HEAD])
    assert schema.bundles
    assert pickle.loads(pickle.dumps(schema)) == schema


@pytest.mark.parametrize(
    ("aliases", "why"),
    [
        ([Alias("x", "missing")], "missing 'missing'"),
        ([Alias("head", "embed")], "both a tensor and an alias"),
        ([Alias("a", "embed")], "less than its target"),
        ([Alias("x", "embed"), Alias("x", "head")], "'x' is given twice"),
        ([Alias("x", "embed"), Alias("y", "x")], "missing 'x'"),
        ([Alias("", "embed")], "empty"),
    ],
)
def test_wrong_aliases_are_refused(aliases: list[Alias], why: str) -> None:
    with pytest.raises(NameRefusedError, match=why):
        Schema.build([EMBED, HEAD], aliases=aliases)


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ([["embed"]], "fewer than two"),
        ([["embed", "missing"]], "'missing'"),
        ([["embed", "embed"]], "given twice"),
        ([["embed", "head"], ["head", "head.scale"]], "'head' is in two"),
    ],
)
def test_wrong_groups_are_refused(groups: list[list[str]], why: str) -> None:
    with pytest.raises(NameRefusedError, match=why):
        Schema.build([EMBED, HEAD, SCALE], atomic_groups=groups)


def test_a_name_twice_and_a_wrong_order_are_refused() -> None:
    with pytest.raises(NameRefusedError, match="'head' is given twice"):
        Schema.build([HEAD, HEAD])
    with pytest.raises(RefusedError, match="out of order"):
        Schema((HEAD, EMBED))


def test_the_number_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "Limits", lambda: Limits(tensor_count=2))
    assert len(Schema.build([EMBED, HEAD]).tensors) == 2
    for specs, aliases in (([EMBED, HEAD, SCALE], []), ([EMBED, HEAD], [Alias("lm", "head")])):
        with pytest.raises(LimitError, match="above 2"):
            Schema.build(specs, aliases=aliases)


def test_every_difference_is_listed() -> None:
    expected = Schema.build(
        [EMBED, HEAD, SCALE], aliases=[Alias("lm", "head")], atomic_groups=[["head", "head.scale"]]
    )
    found = Schema.build(
        [
            TensorSpec("embed", DType.F32, (8, 5)),
            HEAD,
            TensorSpec("extra", DType.U8, (2,)),
        ],
        aliases=[Alias("tied", "head")],
    )
    assert [str(one) for one in schema_differences(expected, found)] == [
        "dtype of 'embed': expected BF16, found F32",
        "shape of 'embed': expected (8, 4), found (8, 5)",
        "tensor 'extra' is not in the schema (found U8 (2,))",
        "atomic group 'head' is missing (expected ('head', 'head.scale'))",
        "tensor 'head.scale' is missing (expected F32 ())",
        "alias 'lm' is missing (expected an alias of 'head')",
        "alias 'tied' is not in the schema (found an alias of 'head')",
    ]
    assert schema_differences(expected, expected) == ()
    moved = Schema.build(
        [EMBED, HEAD, SCALE], aliases=[Alias("lm", "embed")], atomic_groups=[["head", "head.scale"]]
    )
    assert [str(one) for one in schema_differences(expected, moved)] == [
        "alias of 'lm': expected an alias of 'head', found an alias of 'embed'"
    ]


def test_packed_experts_are_another_schema_than_single_ones() -> None:
    packed = Schema.build([TensorSpec("experts.w", DType.BF16, (2, 4, 4))])
    single = Schema.build(TensorSpec(f"experts.{n}.w", DType.BF16, (4, 4)) for n in range(2))
    assert packed.id != single.id
    assert [one.name for one in schema_differences(packed, single)] == [
        "experts.0.w",
        "experts.1.w",
        "experts.w",
    ]
