"""Two versions with the same schema in two objects: one object does not vouch for the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from weightstore.errors import CorruptError
from weightstore.format.records import VersionRecord
from weightstore.history.log import Log
from weightstore.history.manifests import load_manifest
from weightstore.history.progress import no_progress
from weightstore.history.verify_each import verify_each
from weightstore.history.versions import list_versions
from weightstore.settings import Limits, Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.testing.machine.places import Damage, damaged
from weightstore.testing.store_lab import store_on

A = {"w": np.arange(10, dtype=np.uint16)}
B = {"w": np.arange(12, dtype=np.uint16)}


@pytest.fixture
def blobs() -> MemoryBlobStore:
    """Versions 1 and 3 have equal schemas, and an object each."""
    blobs = MemoryBlobStore()
    with store_on(blobs) as store, store.trainer("grpo") as trainer:
        for step, weights in enumerate((A, B, A)):
            trainer.put_step(step, weights, new_schema=True).result()
    return blobs


def records(blobs: MemoryBlobStore) -> list[VersionRecord]:
    log = Log(blobs, Limits())
    return [one.record for one in list_versions(log, log.tail())][::-1]


def damaged_schemas(blobs: MemoryBlobStore) -> Iterator[Damage]:
    """The schema of version 3, damaged in every way."""
    first, _, last = [load_manifest(blobs, each, Limits()) for each in records(blobs)]
    key = last.schema_ref.key
    assert first.schema_id == last.schema_id
    assert first.schema_ref.key != key
    good = blobs._blobs[key]
    for how in Damage:
        bad = damaged(good, how, 77, b"something else")
        del blobs._blobs[key]
        if bad is not None:
            blobs._blobs[key] = bad
        yield how
        blobs._blobs[key] = good


def reader_of(blobs: MemoryBlobStore) -> WeightStore:
    """A handle that has read version 1, and so knows the schema."""
    store = store_on(blobs, seed="reader")
    store.checkout(1)
    return store


def test_verify_reads_the_schema_of_its_own_version(blobs: MemoryBlobStore) -> None:
    store = reader_of(blobs)
    for _ in damaged_schemas(blobs):
        with pytest.raises(CorruptError, match="schema"):
            store.verify(3)
    store.verify(3)


def test_verifying_each_version_reads_each_schema(blobs: MemoryBlobStore) -> None:
    for how in damaged_schemas(blobs):
        found = dict(verify_each(blobs, records(blobs), Settings(), no_progress))
        assert isinstance(found.pop(3), CorruptError), how  # type: ignore[call-overload]
        assert set(found.values()) == {None}


def test_a_reader_that_knows_the_schema_gives_the_very_bits(blobs: MemoryBlobStore) -> None:
    store = reader_of(blobs)
    for _ in damaged_schemas(blobs):
        assert store.checkout(3).host["w"].units.tobytes() == A["w"].tobytes()
