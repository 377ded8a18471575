"""Checkout: exact bits or a typed error; in place, nothing is written before all is checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.errors import (
    CorruptError,
    CorruptObjectError,
    DigestMismatchError,
    ObjectMissingError,
    SchemaMismatchError,
    TargetUnusableError,
)
from weightstore.format.keys import anchor_key
from weightstore.history import checkout as checkout_module
from weightstore.history.chain import CheckoutPlan, delta_form
from weightstore.history.checkout import checkout, checkout_into, verify_plan
from weightstore.layout.tensors import Units
from weightstore.settings import Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Fault, LossyBlobs, Method, cuts
from weightstore.testing.real_versions import (
    RealVersions,
    ThreeVersions,
    mixed_schema,
    next_weights,
    random_weights,
)

SETTINGS = Settings()


def filled(chain: ThreeVersions, value: int = 0xA5) -> dict[str, Units]:
    """Targets that hold something else."""
    return {
        spec.name: np.full(spec.size_bytes, value, np.uint8).view(spec.dtype.unit_dtype)
        for spec in chain.versions.schema.tensors
    }


def damage(blobs: MemoryBlobStore, key: str) -> None:
    data = bytearray(blobs._blobs[key])
    data[-1] ^= 1
    blobs._blobs[key] = bytes(data)


@pytest.mark.parametrize("thread_count", [1, 2, 3])
def test_every_version_comes_out_bit_for_bit(chain: ThreeVersions, thread_count: int) -> None:
    settings = Settings(thread_count=thread_count)
    for record, weights in zip(chain.versions.records, chain.weights, strict=True):
        plan = chain.versions.plan(record)
        found = checkout(chain.blobs, plan, settings)
        assert set(found) == {*weights, "tied"}
        for name, units in weights.items():
            assert found[name].units.tobytes() == units.tobytes(), name
        assert found["tied"].units is found["block.large"].units
        targets = filled(chain)
        checkout_into(chain.blobs, plan, targets, settings)
        for name, units in weights.items():
            assert targets[name].tobytes() == units.tobytes(), name


def test_in_place_keeps_every_array_where_it_is(chain: ThreeVersions) -> None:
    targets = filled(chain)
    held = {name: (units, units.ctypes.data) for name, units in targets.items()}
    checkout_into(chain.blobs, chain.versions.plan(), targets, SETTINGS)
    for name, (units, address) in held.items():
        assert targets[name] is units
        assert units.ctypes.data == address


def test_a_tied_name_held_apart_shows_the_new_bits_too(chain: ThreeVersions) -> None:
    targets = filled(chain)
    targets["tied"] = np.zeros(70_000, "<u2")
    checkout_into(chain.blobs, chain.versions.plan(), targets, SETTINGS)
    assert np.array_equal(targets["tied"], chain.weights[2]["block.large"])
    assert np.array_equal(targets["block.large"], chain.weights[2]["block.large"])


def test_targets_of_another_model_are_listed_and_untouched(chain: ThreeVersions) -> None:
    targets = filled(chain)
    targets["head"] = np.zeros(10, "<u8")
    del targets["flags"]
    before = {name: units.copy() for name, units in targets.items()}
    with pytest.raises(SchemaMismatchError) as caught:
        checkout_into(chain.blobs, chain.versions.plan(), targets, SETTINGS)
    problems = caught.value.facts["problems"]
    assert isinstance(problems, tuple)
    assert len(problems) == 2
    for name, units in before.items():
        assert np.array_equal(targets[name], units)


def test_what_the_first_pass_finds_leaves_the_targets_alone(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    anchor = anchor_key(plan.full_form.anchor_id, "model.safetensors")
    pack = delta_form(plan.deltas[-1]).packs[-1].key
    for key in (anchor, plan.full_form.blocks.key, pack, plan.deltas[0].digests.key):
        data = chain.blobs._blobs[key]
        damage(chain.blobs, key)
        targets = filled(chain)
        with pytest.raises(CorruptError) as caught:
            checkout_into(chain.blobs, plan, targets, SETTINGS)
        assert not isinstance(caught.value, TargetUnusableError)
        for name, units in filled(chain).items():
            assert np.array_equal(targets[name], units), name
        chain.blobs._blobs[key] = data


def test_a_failure_after_the_first_write_says_that_the_target_is_unusable(
    chain: ThreeVersions,
) -> None:
    plan = chain.versions.plan()
    pack = delta_form(plan.deltas[-1]).packs[-1].key
    calls: list[str] = []

    def fault_of(call: Call) -> Fault | None:
        calls.append(call.key)
        # The first pass reads each pack once, the second once more.
        is_second = call.method is Method.GET and calls.count(pack) == 2 and call.key == pack
        return Fault.UNAVAILABLE if is_second else None

    with pytest.raises(TargetUnusableError) as caught:
        checkout_into(LossyBlobs(chain.blobs, fault_of), plan, filled(chain), SETTINGS)
    assert caught.value.__cause__ is not None
    assert "503" in caught.value.message
    assert caught.value.facts == {"version": 3}


def test_bits_that_did_not_land_are_found(
    chain: ThreeVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = filled(chain)
    real = checkout_module._scan

    def spoil(*arguments: object) -> None:
        targets["head"][5] ^= np.uint64(1)
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(checkout_module, "_scan", spoil)
    with pytest.raises(TargetUnusableError) as caught:
        checkout_into(chain.blobs, chain.versions.plan(), targets, SETTINGS)
    cause = caught.value.__cause__
    assert isinstance(cause, DigestMismatchError)
    assert cause.facts["tensors"] == ("head",)


def test_no_bytes_come_back_when_an_object_is_missing(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    chain.blobs.delete(delta_form(plan.deltas[0]).packs[0].key)
    with pytest.raises(ObjectMissingError, match="version 2 names the pack"):
        checkout(chain.blobs, plan, SETTINGS)


def test_verify_reads_every_object_of_the_chain(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    keys = [anchor_key(plan.full_form.anchor_id, file.name) for file in plan.full_form.files]
    keys += [plan.full_form.blocks.key, plan.deltas[0].digests.key]
    keys += [pack.key for delta in plan.deltas for pack in delta_form(delta).packs]
    verify_plan(chain.blobs, plan, SETTINGS)
    for key in keys:
        data = chain.blobs._blobs[key]
        damage(chain.blobs, key)
        with pytest.raises(CorruptObjectError):
            verify_plan(chain.blobs, plan, SETTINGS)
        chain.blobs._blobs[key] = data


def test_a_scan_computes_every_digest_from_the_bits(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    verify_plan(chain.blobs, plan, SETTINGS, scan=True)
    # A table that the objects do not know of: only the bits themselves can tell.
    first = chain.versions.plan(chain.versions.records[0])
    table = first.last_table.copy()
    table[plan.schema.index_of("block.norm"), 0] += np.uint64(1)
    with pytest.raises(DigestMismatchError, match=r"block\.norm"):
        verify_plan(chain.blobs, with_last_table(first, table), SETTINGS, scan=True)
    verify_plan(chain.blobs, with_last_table(first, table), SETTINGS)


def with_last_table(plan: CheckoutPlan, table: NDArray[np.uint64]) -> CheckoutPlan:
    return replace(plan, last_table=table)


def test_progress_names_each_phase_and_ends_at_its_total(chain: ThreeVersions) -> None:
    told: list[tuple[str, int, int]] = []

    def tell(phase: str, done_bytes: int, total_bytes: int, /) -> None:
        told.append((phase, done_bytes, total_bytes))

    checkout_into(chain.blobs, chain.versions.plan(), filled(chain), SETTINGS, tell)
    last = {phase: (done, total) for phase, done, total in told}
    assert list(last) == ["check full", "check delta", "full", "delta", "scan"]
    assert all(done == total for done, total in last.values())


@pytest.mark.parametrize("scan", [False, True])
def test_verifying_tells_of_a_delta_beside_a_full_form_and_of_a_scan(*, scan: bool) -> None:
    versions = RealVersions(MemoryBlobStore(), mixed_schema())
    weights = random_weights(versions.schema, 0)
    versions.put(weights)
    versions.put(next_weights(weights, 1), full=True)
    plan = versions.plan()
    assert plan.deltas == ()
    last: dict[str, tuple[int, int]] = {}

    def tell(phase: str, done_bytes: int, total_bytes: int, /) -> None:
        assert done_bytes >= last.get(phase, (0, 0))[0], "a phase never falls"
        last[phase] = done_bytes, total_bytes

    verify_plan(versions.blobs, plan, SETTINGS, tell, scan=scan)
    assert list(last) == ["full", "delta", *(["build full", "scan"] if scan else [])]
    assert last["delta"][0] == delta_form(plan.manifest).size_bytes > 0
    assert all(done == total for done, total in last.values())


def test_a_checkout_in_place_that_was_cut_anywhere_is_repeated_to_the_same_bits(
    chain: ThreeVersions,
) -> None:
    settings = Settings(thread_count=1)
    plan = chain.versions.plan()
    targets = filled(chain)
    mixed_count = 0
    for cut in cuts(
        lambda: chain.blobs, lambda blobs: checkout_into(blobs, plan, targets, settings)
    ):
        mixed_count += any(
            not np.array_equal(targets[name], units) for name, units in filled(chain).items()
        )
        checkout_into(cut.blobs, plan, targets, settings)
        for name, units in chain.weights[2].items():
            assert targets[name].tobytes() == units.tobytes(), (cut, name)
        for name, units in filled(chain).items():
            targets[name][:] = units
    assert mixed_count >= 5
