"""Given tensors under a schema: what is tied, what is missing, what must be cast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.errors import DTypeRefusedError, SchemaMismatchError, StepConflictError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.trainer_lab import TrainerLab
from weightstore.trainer.binding import Binding, derive_schema
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.inputs import MappedInputs, open_tensors

EMBED = np.arange(100, dtype=np.uint16)
TIED = Schema.build(
    [TensorSpec("embed", DType.U16, (100,)), TensorSpec("norm", DType.U16, (3,))],
    aliases=[Alias("head", "embed")],
)
NORM = np.arange(3, dtype=np.uint16)


def names(source: dict[str, NDArray[Any]], schema: Schema = TIED) -> list[tuple[str, bool]]:
    binding = Binding(schema, open_tensors(source), CastRules())
    return [(bound.found.spec.name, bound.repeats) for bound in binding.tensors()]


def test_a_mapping_comes_in_schema_order() -> None:
    assert names({"norm": NORM, "embed": EMBED}) == [("embed", False), ("norm", False)]


def test_tied_names_are_read_once_where_they_are_the_same_memory() -> None:
    assert names({"head": EMBED, "norm": NORM, "embed": EMBED}) == [
        ("embed", False),
        ("norm", False),
    ]


def test_tied_names_in_other_memory_are_compared() -> None:
    assert names({"head": EMBED.copy(), "norm": NORM, "embed": EMBED}) == [
        ("embed", False),
        ("norm", False),
        ("head", True),
    ]


def test_one_of_the_tied_names_is_enough() -> None:
    assert names({"head": EMBED, "norm": NORM}) == [("head", False), ("norm", False)]


def test_a_tied_name_that_the_schema_lacks_is_refused_or_a_new_schema() -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    given = {"embed": EMBED, "new_head": EMBED}
    with lab.trainer() as trainer:
        trainer.put_step(0, {"embed": EMBED, "head": EMBED}).result()
        with pytest.raises(StepConflictError, match="new_head"):
            trainer.put_step(0, given).result()
        with pytest.raises(SchemaMismatchError, match="new_head") as caught:
            trainer.put_step(1, given).result()
        assert len(caught.value.facts["differences"]) == 1  # type: ignore[arg-type]
        trainer.put_step(1, given, new_schema=True).result()
    assert lab.plan(2).schema.aliases == (Alias("new_head", "embed"),)


def test_a_first_version_stores_the_least_of_tied_names() -> None:
    inputs = open_tensors({"z": EMBED, "b": EMBED, "norm": NORM, "m": EMBED, "part": EMBED[:50]})
    assert isinstance(inputs, MappedInputs)
    schema = derive_schema(inputs, CastRules())
    assert [spec.name for spec in schema.tensors] == ["b", "norm", "part"]
    assert schema.aliases == (Alias("m", "b"), Alias("z", "b"))


def test_tied_masters_with_different_casts_are_two_tensors() -> None:
    shared = np.ones(4, np.float32)
    inputs = open_tensors({"a": shared, "b": shared})
    assert isinstance(inputs, MappedInputs)
    schema = derive_schema(inputs, CastRules.parse({"b": "bf16"}))
    assert [(s.name, s.dtype.value) for s in schema.tensors] == [("a", "F32"), ("b", "BF16")]


@pytest.mark.parametrize("streamed", [False, True])
def test_untied_names_are_refused_naming_both(*, streamed: bool) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    tied = {"embed": EMBED, "head": EMBED}
    with lab.trainer() as trainer:
        trainer.put_step(0, tied).result()
        equal = {"embed": EMBED, "head": EMBED.copy()}
        trainer.put_step(1, iter(equal.items()) if streamed else equal).result()
        untied = {"embed": EMBED, "head": EMBED ^ 1}
        with pytest.raises(SchemaMismatchError, match=r"'head' and 'embed' are tied"):
            trainer.put_step(2, iter(untied.items()) if streamed else untied).result()
        trainer.put_step(2, untied, new_schema=True).result()
    assert lab.bits(2) == {"embed": EMBED.tobytes(), "head": EMBED.tobytes()}
    assert lab.bits(3) == {"embed": EMBED.tobytes(), "head": (EMBED ^ 1).tobytes()}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_delta_of_one_tied_name_shows_under_both(*, streamed: bool) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    with lab.trainer() as trainer:
        trainer.put_step(0, {"embed": EMBED, "head": EMBED}).result()
        after = {"head": EMBED ^ 3}
        trainer.put_step(1, iter(after.items()) if streamed else after).result()
    assert lab.bits(2) == {"embed": (EMBED ^ 3).tobytes(), "head": (EMBED ^ 3).tobytes()}


def test_every_difference_is_listed() -> None:
    schema = Schema.build([TensorSpec(name, DType.U16, (4,)) for name in "abcd"])
    given = {
        "a": np.zeros(4, np.uint16),
        "b": np.zeros(5, np.uint16),
        "c": np.zeros(4, np.int16),
        "e": np.zeros(4, np.uint16),
    }
    with pytest.raises(SchemaMismatchError) as caught:
        names(given, schema)
    listed = caught.value.facts["differences"]
    assert isinstance(listed, tuple)
    assert [line.split("'")[1] for line in map(str, listed)] == ["b", "c", "d", "e"]


def test_only_what_a_cast_would_mend_is_said_to_need_one() -> None:
    schema = Schema.build([TensorSpec(name, DType.F16, (4,)) for name in "ab"])
    wide = {"a": np.zeros(4, np.float32), "b": np.zeros(4, np.float32)}
    with pytest.raises(DTypeRefusedError, match="a: found F32, expected F16"):
        names(wide, schema)
    with pytest.raises(SchemaMismatchError, match=r"(?s)'a'.*'b'"):
        names({**wide, "b": np.zeros(5, np.float32)}, schema)
    declared = Binding(schema, open_tensors(wide), CastRules.parse({"*": "fp16"}))
    assert len(list(declared.tensors())) == 2
    other = CastRules.parse({"*": "bf16"})
    with pytest.raises(DTypeRefusedError):
        Binding(schema, open_tensors(wide), other)
