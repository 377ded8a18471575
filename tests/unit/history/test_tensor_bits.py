"""Bits of single tensors: those of a checkout, verified, without the memory of one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.errors import (
    CorruptError,
    CorruptObjectError,
    DigestMismatchError,
    ObjectMissingError,
)
from weightstore.format.keys import anchor_key
from weightstore.history import tensor_bits
from weightstore.history.chain import CheckoutPlan, delta_form
from weightstore.history.tensor_bits import DeltaBits, FullBits, Group, VersionBits, groups_of
from weightstore.layout.tensors import Units
from weightstore.settings import Limits
from weightstore.testing.real_versions import ThreeVersions

LIMITS = Limits()


def bits_of(chain: ThreeVersions, plan: CheckoutPlan) -> VersionBits:
    return VersionBits(
        FullBits(chain.blobs, plan.full, plan.schema, LIMITS),
        [DeltaBits(chain.blobs, manifest, plan.schema, LIMITS) for manifest in plan.deltas],
        schema=plan.schema,
        table=plan.last_table,
        codec=PieceCodec(),
    )


def every_tensor(bits: Callable[[], VersionBits], plan: CheckoutPlan) -> None:
    for index in range(len(plan.schema.tensors)):
        bits().tensor(index)


def damage(chain: ThreeVersions, key: str) -> None:
    data = bytearray(chain.blobs._blobs[key])
    data[-1] ^= 1
    chain.blobs._blobs[key] = bytes(data)


@pytest.mark.parametrize("block_size_bytes", [None, 1000])
def test_every_tensor_has_the_bits_of_its_version(
    chain: ThreeVersions, monkeypatch: pytest.MonkeyPatch, block_size_bytes: int | None
) -> None:
    if block_size_bytes is not None:
        monkeypatch.setattr(tensor_bits, "KEPT_SIZE_BYTES", block_size_bytes)
    for record, weights in zip(chain.versions.records, chain.weights, strict=True):
        plan = chain.versions.plan(record)
        bits = bits_of(chain, plan)
        for index in np.random.default_rng(1).permutation(len(plan.schema.tensors)).tolist():
            name = plan.schema.tensors[index].name
            assert bits.tensor(index).tobytes() == weights[name].tobytes(), name


def test_a_version_on_top_of_an_older_one_leaves_its_bits_alone(chain: ThreeVersions) -> None:
    first, last = chain.versions.plan(chain.versions.records[0]), chain.versions.plan()
    lower = bits_of(chain, first)
    deltas = [DeltaBits(chain.blobs, each, last.schema, LIMITS) for each in last.deltas]
    upper = VersionBits(
        lower, deltas, schema=last.schema, table=last.last_table, codec=PieceCodec()
    )
    for index, spec in enumerate(last.schema.tensors):
        assert upper.tensor(index).tobytes() == chain.weights[2][spec.name].tobytes()
        assert lower.tensor(index).tobytes() == chain.weights[0][spec.name].tobytes()


def test_no_more_groups_are_kept_than_fit(
    chain: ThreeVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_bits, "KEPT_SIZE_BYTES", 150_000)
    plan = chain.versions.plan()
    bits = bits_of(chain, plan)
    for index in range(len(plan.schema.tensors)):
        bits.tensor(index)
        sizes = [units.nbytes for units in bits._made.values()]
        assert sum(sizes) - max(sizes) <= 150_000


def test_older_groups_are_dropped_before_a_new_one_is_made(
    chain: ThreeVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no more than the newest of each layer is ever there beside what is kept."""
    monkeypatch.setattr(tensor_bits, "KEPT_SIZE_BYTES", 0)
    plan = chain.versions.plan()
    bits = bits_of(chain, plan)
    made = bits._make

    def checked(group: Group) -> Units:
        assert not any(units.nbytes for units in bits._made.values())
        return made(group)

    monkeypatch.setattr(bits, "_make", checked)
    every_tensor(lambda: bits, plan)
    assert bits._made


def test_large_tensors_do_not_push_out_the_bundles_between_them(
    chain: ThreeVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_bits, "KEPT_SIZE_BYTES", 100_000)
    plan = chain.versions.plan()
    bits = bits_of(chain, plan)
    large, bundled = plan.schema.index_of("head"), plan.schema.index_of("block.norm")
    first = bits.tensor(bundled)
    assert bits.tensor(large).nbytes > 100_000
    bits.tensor(plan.schema.index_of("block.large"))
    assert bits.tensor(bundled).base is first.base


def test_a_delta_that_miscounts_its_pieces_is_refused_before_any_bit(chain: ThreeVersions) -> None:
    manifest = chain.versions.plan().deltas[0]
    delta = delta_form(manifest)
    pack = delta.packs[0].model_copy(update={"piece_count": delta.packs[0].piece_count + 1})
    packs = (pack, *delta.packs[1:])
    for wrong, match in (
        (delta.model_copy(update={"packs": packs}), "pieces, the manifest says"),
        (delta.model_copy(update={"changed_count": 1}), "changes, the manifest says"),
    ):
        lying = manifest.model_copy(update={"delta": wrong})
        with pytest.raises(CorruptObjectError, match=match) as caught:
            DeltaBits(chain.blobs, lying, chain.versions.schema, LIMITS)
        assert caught.value.facts["version"] == 2


def test_the_bits_cannot_be_written(chain: ThreeVersions) -> None:
    units = bits_of(chain, chain.versions.plan()).tensor(0)
    with pytest.raises(ValueError, match="read-only"):
        units[0] = 1


def test_groups_cover_every_tensor_once(chain: ThreeVersions) -> None:
    schema = chain.versions.schema
    groups = groups_of(schema)
    assert set(groups) == set(range(len(schema.tensors)))
    members = sorted(index for group in {g.key: g for g in groups.values()}.values()
                     for index in group.members)  # fmt: skip
    assert members == list(range(len(schema.tensors)))


def test_damage_is_found_before_any_bit_is_given(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    anchor = anchor_key(plan.full_form.anchor_id, "model.safetensors")
    pack = delta_form(plan.deltas[-1]).packs[-1].key
    for key in (anchor, pack):
        before = chain.blobs._blobs[key]
        damage(chain, key)
        with pytest.raises(CorruptError):
            every_tensor(lambda: bits_of(chain, plan), plan)
        del chain.blobs._blobs[key]
        with pytest.raises(ObjectMissingError):
            bits_of(chain, plan)
        chain.blobs._blobs[key] = before


def test_a_pack_that_changes_after_it_was_verified_is_noticed(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    bits = bits_of(chain, plan)
    for pack in delta_form(plan.deltas[-1]).packs:
        damage(chain, pack.key)
    with pytest.raises(CorruptObjectError, match=r"version 3, tensor .*, pack packs/") as caught:
        every_tensor(lambda: bits, plan)
    assert (caught.value.facts["version"], caught.value.facts["base"]) == (3, 2)


def test_bits_that_do_not_have_the_digest_are_not_given(chain: ThreeVersions) -> None:
    first, last = chain.versions.plan(chain.versions.records[0]), chain.versions.plan()
    wrong = VersionBits(
        FullBits(chain.blobs, first.full, first.schema, LIMITS),
        (),
        schema=first.schema,
        table=last.last_table,
        codec=PieceCodec(),
    )
    with pytest.raises(DigestMismatchError, match=r"version 1: .*block\.large"):
        wrong.tensor(first.schema.index_of("block.large"))
