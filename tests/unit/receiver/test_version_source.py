"""What a receiver reads of a store: versions, ways to them, and that they are gone."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.errors import (
    NotReadyError,
    ObjectMissingError,
    VersionGoneError,
    VersionNotFoundError,
)
from weightstore.history.delta_path import DeltaPath, NoDeltaPath, VersionRef
from weightstore.receiver.live_state import Way
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab
from weightstore.testing.store_lab import LAB_SETTINGS, other_weights, store_on


def test_versions_are_found_by_what_names_them() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 3)
    record = lab.source.find(2)
    assert record.version == 2
    assert lab.source.find("latest").version == 3
    assert lab.source.schema(record) == lab.schema
    with pytest.raises(VersionNotFoundError):
        lab.source.find(9)
    other = VersionRef(record.version, lab.source.find(3).digest)
    assert lab.source.kept(other) is None, "it holds something else"


def test_a_way_and_a_plan_lead_to_the_same_version() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 3)
    records = lab.versions.records
    path = lab.source.path(records[2], VersionRef.of(records[0]))
    assert isinstance(path, DeltaPath)
    assert path.target == VersionRef.of(lab.source.plan(records[2]).record)
    assert isinstance(lab.source.path(records[0], path.target), NoDeltaPath)


def test_a_version_that_is_retired_under_its_reader_is_gone_not_damaged() -> None:
    store: WeightStore = store_on(MemoryBlobStore(), settings=LAB_SETTINGS)
    with store:
        for step in range(3):
            store.put_step(step, other_weights(step), anchor=True)
        source = store.receiver({"w": np.zeros(8, np.uint32)})._source
        record = source.find(1)
        assert source.kept(VersionRef.of(record)) == record
        with source.gone_if_retired(record):
            pass
        store.retire()
        assert source.kept(VersionRef.of(record)) is None
        with pytest.raises(VersionGoneError), source.gone_if_retired(record):
            raise ObjectMissingError("a pack")
        newest = source.find(3)
        with pytest.raises(ObjectMissingError), source.gone_if_retired(newest):
            raise ObjectMissingError("a pack")


def test_p9_a_version_retired_while_it_is_streamed_is_gone_and_never_damaged() -> None:
    blobs = MemoryBlobStore()
    with store_on(blobs, settings=LAB_SETTINGS) as store:
        weights = other_weights(0)
        for step, is_anchor in enumerate((True, False, True)):
            weights = {name: units + 1 for name, units in weights.items()}
            store.put_step(step, weights, anchor=is_anchor)
        receiver = store.receiver(
            {name: np.zeros(units.size, np.uint32) for name, units in weights.items()},
            settings=ReceiverSettings(pool_size_bytes=1),
        )
        receiver.refit(1)
        assert receiver.stage(2).way is Way.STREAMED
        store.retire()
        with pytest.raises(VersionGoneError, match="newest kept version is 3"):
            receiver.apply()
        with pytest.raises(NotReadyError), receiver.serving():
            raise AssertionError
        assert receiver.refit().target == 3
