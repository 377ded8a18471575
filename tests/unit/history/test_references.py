"""What collection is told about versions: every object they name, and their whole chains."""

from __future__ import annotations

import pytest

from weightstore.errors import LimitError, ObjectMissingError
from weightstore.format.keys import manifest_key
from weightstore.history.log import Log
from weightstore.history.references import References
from weightstore.ids import RunId
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import (
    RealVersions,
    mixed_schema,
    next_weights,
    random_weights,
)

LISTED = ("manifests/", "packs/", "anchors/")


def test_every_stored_object_is_named_by_a_version_and_every_named_one_is_stored() -> None:
    blobs = MemoryBlobStore()
    versions = RealVersions(blobs, mixed_schema())
    weights = random_weights(mixed_schema(), seed=1)
    records = []
    for seed in range(4):
        records.append(versions.put(weights, full=seed in {0, 2}))
        weights = next_weights(weights, seed)
    references = References(blobs, Log(blobs, Limits()), Limits())
    named = {stored.key: stored for each in records for stored in references.objects_of(each)}
    stored = {info.key: info for prefix in LISTED for info in blobs.list(prefix)}
    assert named == stored


def test_a_chain_ends_at_the_nearest_full_form() -> None:
    blobs = MemoryBlobStore()
    versions = RealVersions(blobs, mixed_schema())
    weights = random_weights(mixed_schema(), seed=1)
    records = []
    for seed in range(5):
        records.append(versions.put(weights, full=seed in {0, 3}))
        weights = next_weights(weights, seed)
    references = References(blobs, Log(blobs, Limits()), Limits())
    chains = [list(references.chain_of(record)) for record in records]
    assert chains == [[1], [2, 1], [3, 2, 1], [4], [5, 4]]


def test_a_chain_is_bounded_and_a_missing_manifest_stops_it() -> None:
    blobs = MemoryBlobStore()
    versions = RealVersions(blobs, mixed_schema())
    weights = random_weights(mixed_schema(), seed=1)
    records = []
    for seed in range(3):
        records.append(versions.put(weights, full=seed == 0))
        weights = next_weights(weights, seed)
    short = References(blobs, Log(blobs, Limits()), Limits(chain_count=1))
    with pytest.raises(LimitError, match="version 3"):
        list(short.chain_of(records[2]))
    middle = records[1]
    run = RunId(str(middle.run))
    blobs.delete(manifest_key(run, middle.epoch, middle.version, middle.commit_id))
    with pytest.raises(ObjectMissingError, match="version 2"):
        list(References(blobs, Log(blobs, Limits()), Limits()).chain_of(records[2]))
