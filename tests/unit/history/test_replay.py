"""Replaying deltas: exact bits, errors that say where, and nothing that depends on threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.piece import ValueCoding
from weightstore.errors import (
    CorruptObjectError,
    DigestMismatchError,
    ObjectMissingError,
    UpgradeRequiredError,
    WrongBaseError,
)
from weightstore.format.manifest import PackRef
from weightstore.format.pack import TensorPlace
from weightstore.history import replay as replay_module
from weightstore.history.chain import CheckoutPlan, delta_form
from weightstore.history.progress import no_progress
from weightstore.history.replay import Replay
from weightstore.history.targets import Memory
from weightstore.history.workers import Workers
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import (
    RealVersions,
    ThreeVersions,
    next_weights,
    random_weights,
)


def memory_of(chain: ThreeVersions, number: int) -> Memory:
    weights = chain.weights[number]
    return Memory.given(chain.versions.schema, {name: a.copy() for name, a in weights.items()})


def run(
    chain: ThreeVersions, plan: CheckoutPlan, memory: Memory | None, thread_count: int = 2
) -> None:
    with Workers(thread_count) as workers:
        codec = PieceCodec()
        Replay(chain.blobs, plan, codec=codec, workers=workers, limits=Limits()).run(
            memory, no_progress
        )


def packs(plan: CheckoutPlan) -> list[PackRef]:
    return [pack for delta in plan.deltas for pack in delta_form(delta).packs]


@pytest.mark.parametrize("thread_count", [1, 2, 4])
def test_the_bits_of_the_full_form_become_those_of_the_version(
    chain: ThreeVersions, thread_count: int
) -> None:
    plan = chain.versions.plan()
    for memory in (memory_of(chain, 0), Memory.allocate(plan.schema)):
        for spec, units in zip(plan.schema.tensors, memory.arrays, strict=True):
            units[:] = chain.weights[0][spec.name]
        run(chain, plan, memory, thread_count)
        for spec, units in zip(plan.schema.tensors, memory.arrays, strict=True):
            assert np.array_equal(units, chain.weights[2][spec.name]), spec.name


@pytest.mark.parametrize("coding", list(ValueCoding))
def test_every_coding_of_values_replays(coding: ValueCoding) -> None:
    blobs = MemoryBlobStore()
    schema = Schema.build(
        [TensorSpec("w", DType.BF16, (70_000,)), TensorSpec("b", DType.I32, (5,))]
    )
    versions = RealVersions(blobs, schema)
    before = random_weights(schema, 3)
    after = next_weights(before, 4)
    versions.put(before)
    versions.put(after, coding=coding)
    chain = ThreeVersions(blobs, versions, (before, after))
    memory = memory_of(chain, 0)
    run(chain, versions.plan(), memory)
    run(chain, versions.plan(), None)
    assert np.array_equal(memory.arrays[schema.index_of("w")], after["w"])
    assert np.array_equal(memory.arrays[schema.index_of("b")], after["b"])


def test_checking_needs_no_target(chain: ThreeVersions) -> None:
    run(chain, chain.versions.plan(), None)


def test_other_bits_below_are_refused_with_tensor_base_and_digests(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    memory = memory_of(chain, 1)
    with pytest.raises(WrongBaseError) as caught:
        run(chain, plan, memory, 1)
    error = caught.value
    base = plan.deltas[0].base
    assert base is not None
    assert (error.facts["version"], error.facts["base"]) == (2, 1)
    assert error.facts["base_digest"] == base.digest
    assert base.digest in error.message
    assert isinstance(error.facts["expected"], tuple)
    assert isinstance(error.facts["found"], tuple)
    assert "tensor" in error.message
    assert error.do


def test_a_refused_piece_has_written_nothing(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    memory = memory_of(chain, 1)
    before = [units.copy() for units in memory.arrays]
    with pytest.raises(WrongBaseError):
        run(chain, plan, memory, 1)
    for left, right in zip(before, memory.arrays, strict=True):
        assert np.array_equal(left, right)


def test_a_missing_pack_is_named(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    gone = packs(plan)[-1]
    chain.blobs.delete(gone.key)
    with pytest.raises(ObjectMissingError) as caught:
        run(chain, plan, None)
    assert caught.value.facts == {"version": 3, "key": gone.key}


def test_one_changed_byte_of_a_pack_is_found(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    pack = packs(plan)[0]
    data = bytearray(chain.blobs._blobs[pack.key])
    for place in (8, len(data) // 2, len(data) - 1):
        data[place] ^= 0x10
        chain.blobs._blobs[pack.key] = bytes(data)
        with pytest.raises(CorruptObjectError, match="version 2: the pack"):
            run(chain, plan, None)
        data[place] ^= 0x10


def test_tables_that_do_not_follow_from_the_pieces_are_refused(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    other = chain.versions.plan(chain.versions.records[1]).first_table.copy()
    other[0, 0] += np.uint64(1)
    wrong = replace(plan, first_table=other)
    with pytest.raises(DigestMismatchError, match="version 2"):
        run(chain, wrong, None)


def test_an_empty_delta_changes_nothing(chain: ThreeVersions) -> None:
    record = chain.versions.put(chain.weights[2])
    plan = chain.versions.plan(record)
    assert delta_form(plan.deltas[-1]).packs == ()
    memory = memory_of(chain, 0)
    run(chain, plan, memory)
    for spec, units in zip(plan.schema.tensors, memory.arrays, strict=True):
        assert np.array_equal(units, chain.weights[2][spec.name])


def test_progress_tells_the_bytes_of_every_pack(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    told: list[tuple[str, int, int]] = []

    def tell(phase: str, done_bytes: int, total_bytes: int, /) -> None:
        told.append((phase, done_bytes, total_bytes))

    with Workers(2) as workers:
        Replay(chain.blobs, plan, codec=PieceCodec(), workers=workers, limits=Limits()).run(
            None, tell
        )
    assert len(told) == len(packs(plan))
    assert told[-1] == ("delta", plan.delta_size_bytes, plan.delta_size_bytes)


def test_a_box_of_whole_rows_is_a_run_and_a_column_is_refused() -> None:
    schema = Schema.build([TensorSpec("w", DType.BF16, (400, 300))])
    rows = TensorPlace(0, 7, 10, Box((100, 0), (50, 300)))
    assert replay_module.first_unit_of(rows, schema) == 100 * 300 + 7
    column = TensorPlace(0, 0, 10, Box((0, 1), (400, 1)))
    with pytest.raises(UpgradeRequiredError, match="no contiguous run"):
        replay_module.first_unit_of(column, schema)


def test_a_pack_of_more_or_fewer_pieces_than_stated_is_named(chain: ThreeVersions) -> None:
    plan = chain.versions.plan(chain.versions.records[1])
    delta = delta_form(plan.deltas[0])
    first, second, *rest = delta.packs
    moved = (
        first.model_copy(update={"piece_count": first.piece_count + 1}),
        second.model_copy(update={"piece_count": second.piece_count - 1}),
        *rest,
    )
    wrong = plan.deltas[0].model_copy(update={"delta": delta.model_copy(update={"packs": moved})})
    with pytest.raises(CorruptObjectError) as caught:
        run(chain, replace(plan, deltas=(wrong,)), None)
    assert caught.value.facts == {"version": 2, "key": first.key}
