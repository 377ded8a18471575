"""Changes as absolute values: exact over the base, over the target and over any mixture."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.piece import ValueCoding
from weightstore.errors import CorruptError, WrongBaseError
from weightstore.format.records import VersionRecord
from weightstore.history import overwrite_set
from weightstore.history.delta_path import VersionRef
from weightstore.history.overwrite_set import OverwriteSet, plan_path_between
from weightstore.ids import Sha256
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import Bits, ReceiverLab
from weightstore.testing.store_lab import store_on


def set_of(lab: ReceiverLab, base: VersionRecord, target: VersionRecord) -> OverwriteSet:
    plan = lab.versions.plan(target)
    log, limits = lab.versions.store.log, Limits()
    path = plan_path_between(lab.blobs, log, base, target, limits)
    return OverwriteSet(
        lab.blobs, plan, VersionRef.of(base), path, limits=limits, codec=PieceCodec()
    )


def written_over(found: OverwriteSet, weights: Bits) -> Bits:
    after = {name: units.copy() for name, units in weights.items()}
    for part in found:
        assert np.all(np.diff(part.positions) > 0)
        after[part.name][part.positions] = part.bits
    return after


def equal(left: Bits, right: Bits) -> bool:
    return all(np.array_equal(units, right[name]) for name, units in left.items())


@pytest.mark.parametrize("coding", list(ValueCoding))
@pytest.mark.parametrize("part_unit_count", [7_000, 4_000_000])
def test_every_pair_of_versions_both_ways(
    coding: ValueCoding, part_unit_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overwrite_set, "PART_UNIT_COUNT", part_unit_count)
    lab = ReceiverLab.with_versions(mixed_schema(), 4, coding=coding)
    for base, target in permutations(lab.versions.records, 2):
        found = set_of(lab, base, target)
        assert not found.is_whole
        for start in (base.version, target.version):
            after = written_over(found, lab.weights[start])
            assert equal(after, lab.weights[target.version]), (base.version, target.version)


def test_any_mixture_of_the_two_and_of_those_between_becomes_the_target() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 4)
    generator = np.random.default_rng(7)
    mixed = {
        name: np.choose(
            generator.integers(0, 4, units.size),
            [lab.weights[version][name] for version in range(1, 5)],
        )
        for name, units in lab.weights[1].items()
    }
    found = set_of(lab, lab.versions.records[0], lab.versions.records[3])
    assert not equal(mixed, lab.weights[4])
    assert equal(written_over(found, mixed), lab.weights[4])


def test_only_what_changes_is_named_and_only_its_tensors_are_read() -> None:
    schema = mixed_schema()
    lab = ReceiverLab.with_versions(schema, 1)
    weights = {name: units.copy() for name, units in lab.weights[1].items()}
    weights["head"][[5, 70_000]] ^= 1
    lab.put(weights)
    found = set_of(lab, *lab.versions.records)
    parts = list(found)
    assert [(part.name, part.positions.tolist()) for part in parts] == [("head", [5, 70_000])]
    head_bytes = weights["head"].nbytes
    assert head_bytes < found.read_size_bytes < head_bytes + 10_000
    # Asked for again: another pass over the same bits.
    assert [part.bits.tolist() for part in found] == [part.bits.tolist() for part in parts]


def test_a_full_form_on_the_way_that_has_a_delta_too_is_no_break() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 2)
    for seed, full in ((10, True), (11, False)):
        weights = {name: units.copy() for name, units in lab.weights[seed - 8].items()}
        weights["head"][seed] ^= 3
        lab.put(weights, full=full)
    found = set_of(lab, lab.versions.records[0], lab.versions.records[3])
    assert not found.is_whole
    assert equal(written_over(found, lab.weights[1]), lab.weights[4])


def test_a_way_through_a_version_without_a_delta_is_whole_and_says_so() -> None:
    w = np.arange(70_000, dtype=np.float32)
    with store_on(MemoryBlobStore()) as store:
        store.put_step(0, {"w": w})
        store.put_step(1, {"w": w + 1, "u": w}, new_schema=True)
        found = store.overwrite_set("latest", 1)
        assert found.is_whole
        assert "delta" in found.reason
        parts = {part.name: part for part in found}
    assert sorted(parts) == ["u", "w"]
    assert np.array_equal(parts["w"].positions, np.arange(70_000))
    assert np.array_equal(parts["w"].bits.view(np.float32), w + 1)


def test_a_version_and_itself_differ_nowhere() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 2)
    record = lab.versions.records[1]
    found = set_of(lab, record, record)
    assert (list(found), found.is_whole) == ([], False)


def test_deltas_that_are_damaged_leave_the_full_form_of_the_target() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 1)
    weights = {name: units.copy() for name, units in lab.weights[1].items()}
    weights["head"][5] ^= 1
    lab.put(weights, full=True)
    key = next(iter(lab.blobs.list("packs/"))).key
    lab.blobs.delete(key)
    found = set_of(lab, *lab.versions.records)
    assert found.is_whole
    assert key in found.reason
    assert equal(written_over(found, lab.arrays()), lab.weights[2])


def test_damaged_bits_are_never_given() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 3)
    key = next(blob.key for blob in lab.blobs.list("anchors/") if blob.key.endswith("tensors"))
    data = bytearray(lab.blobs._blobs[key])
    data[-1] ^= 1
    lab.blobs._blobs[key] = bytes(data)
    found = set_of(lab, lab.versions.records[0], lab.versions.records[2])
    with pytest.raises(CorruptError):
        list(found)


def test_a_base_of_another_store_is_refused() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 2)
    base = lab.versions.records[0].model_copy(update={"digest": Sha256("0" * 64)})
    with pytest.raises(WrongBaseError):
        set_of(lab, base, lab.versions.records[1])
