"""The way to a version: down to the nearest full form, every link checked before any weight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weightstore.errors import CorruptLogError, CorruptObjectError, LimitError
from weightstore.format.records import Base, Record
from weightstore.history import chain as chain_module
from weightstore.history.chain import delta_form, plan_checkout
from weightstore.history.log import Log, StoredRecord
from weightstore.ids import Sha256, Slot, VersionId
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.testing.real_versions import ThreeVersions, next_weights

LIMITS = Limits()


class OtherLog:
    """The log of a chain, with records replaced by slot."""

    def __init__(self, log: Log, replaced: dict[int, Record | None]) -> None:
        self._log = log
        self._replaced = replaced

    def read(self, slot: Slot, /) -> StoredRecord | None:
        if slot in self._replaced:
            record = self._replaced[slot]
            return None if record is None else StoredRecord(record, Sha256("0" * 64))
        return self._log.read(slot)


def test_a_plan_goes_from_the_full_form_through_every_delta(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    assert plan.full.version == 1
    assert [delta.version for delta in plan.deltas] == [2, 3]
    assert plan.manifest.version == plan.record.version == 3
    assert plan.full_size_bytes == sum(file.size_bytes for file in plan.full_form.files)
    packs = [pack for delta in plan.deltas for pack in delta_form(delta).packs]
    assert plan.delta_size_bytes == sum(pack.size_bytes for pack in packs) > 0
    assert not np.array_equal(plan.first_table, plan.last_table)
    assert str(plan) == (
        f"version 3: full form of version 1 ({plan.full_size_bytes} bytes), then 2 deltas "
        f"({plan.delta_size_bytes} bytes)"
    )


def test_a_full_version_needs_nothing_else(chain: ThreeVersions) -> None:
    plan = chain.versions.plan(chain.versions.records[0])
    assert plan.deltas == ()
    assert plan.manifest is plan.full
    assert plan.last_table is plan.first_table


def test_the_nearest_full_form_is_taken(chain: ThreeVersions) -> None:
    weights = next_weights(chain.weights[-1], 7)
    both = chain.versions.put(weights, full=True)
    last = chain.versions.put(next_weights(weights, 8))
    assert chain.versions.plan(both).deltas == ()
    assert chain.versions.plan(last).full.version == both.version


def test_a_plan_reads_no_weights(chain: ThreeVersions) -> None:
    for key in list(chain.blobs._blobs):
        if key.startswith(("packs/", "anchors/")):
            chain.blobs.delete(key)
    assert chain.versions.plan().manifest.version == 3


def test_a_chain_longer_than_the_limit_is_refused(chain: ThreeVersions) -> None:
    log, record = chain.versions.store.log, chain.versions.records[2]
    plan_checkout(chain.blobs, log, record, replace(LIMITS, chain_count=2))
    with pytest.raises(LimitError, match="more than 1 delta"):
        plan_checkout(chain.blobs, log, record, replace(LIMITS, chain_count=1))


def test_a_base_record_that_is_no_such_version_is_refused(chain: ThreeVersions) -> None:
    versions = chain.versions
    base, record = versions.records[1], versions.records[2]
    claim = versions.store.log.stored_at(Slot(1)).record
    others: tuple[Record | None, ...] = (
        None,
        claim,
        base.model_copy(update={"digest": Sha256("1" * 64)}),
        base.model_copy(update={"version": VersionId(9)}),
    )
    for other in others:
        log = OtherLog(versions.store.log, {base.slot: other})
        with pytest.raises(CorruptLogError, match="is not that version"):
            plan_checkout(chain.blobs, log, record, LIMITS)


def test_a_base_that_was_not_the_newest_is_refused(chain: ThreeVersions) -> None:
    record = chain.versions.records[2]
    older = record.model_copy(update={"now": record.now.model_copy(update={"newest": None})})
    with pytest.raises(CorruptLogError, match="the newest version before it is None"):
        plan_checkout(chain.blobs, chain.versions.store.log, older, LIMITS)


def test_a_link_names_both_digests_when_they_differ(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    base, delta = plan.deltas
    wrong = Base(version=base.version, digest=Sha256("2" * 64))
    with pytest.raises(CorruptObjectError) as caught:
        chain_module.check_link(base, delta.model_copy(update={"base": wrong}))
    assert caught.value.facts == {
        "version": 3,
        "expected": "2" * 64,
        "found": base.digest,
    }
    assert "2" * 64 in caught.value.message
    assert base.digest in caught.value.message


def test_a_link_between_two_schemas_is_refused(chain: ThreeVersions) -> None:
    base, delta = chain.versions.plan().deltas
    other = base.model_copy(update={"schema_id": Sha256("3" * 64)})
    with pytest.raises(CorruptObjectError, match="has the schema"):
        chain_module.check_link(other, delta)


def test_a_delta_of_another_schema_than_its_base_is_no_chain(chain: ThreeVersions) -> None:
    versions = chain.versions
    versions.schema = Schema.build(
        versions.schema.tensors, atomic_groups=[("block.large", "block.scale")]
    )
    versions._schema_ref = None
    record = versions.put(next_weights(chain.weights[2], 5))
    with pytest.raises(CorruptObjectError, match="version 4 has the schema"):
        versions.plan(record)
