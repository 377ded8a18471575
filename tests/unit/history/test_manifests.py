"""Loading a version's small objects: verified by size, hash and agreement, named when missing."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from weightstore.codec.digest import lanes_of
from weightstore.errors import CorruptObjectError, DigestMismatchError, ObjectMissingError
from weightstore.format.keys import manifest_key
from weightstore.format.manifest import decode_manifest
from weightstore.history.chain import delta_form
from weightstore.history.manifests import (
    check_state_digest,
    fetch_object,
    load_manifest,
    load_schema,
    load_table,
)
from weightstore.ids import RunId, Sha256
from weightstore.settings import Limits
from weightstore.testing.real_versions import ThreeVersions

LIMITS = Limits()


def test_what_is_loaded_is_what_was_put(chain: ThreeVersions) -> None:
    record = chain.versions.records[2]
    manifest = load_manifest(chain.blobs, record, LIMITS)
    assert (manifest.version, manifest.digest) == (record.version, record.digest)
    schema = load_schema(chain.blobs, manifest, LIMITS)
    assert schema == chain.versions.schema
    table = load_table(chain.blobs, manifest, schema, LIMITS)
    assert table.tolist() == [
        list(lanes_of(chain.weights[2][spec.name])) for spec in schema.tensors
    ]
    check_state_digest(manifest, schema, table)


def test_a_missing_object_is_named_with_its_version(chain: ThreeVersions) -> None:
    record = chain.versions.records[1]
    manifest = load_manifest(chain.blobs, record, LIMITS)
    schema = load_schema(chain.blobs, manifest, LIMITS)
    chain.blobs.delete(manifest.digests.key)
    with pytest.raises(ObjectMissingError) as caught:
        load_table(chain.blobs, manifest, schema, LIMITS)
    assert caught.value.facts == {"version": 2, "key": manifest.digests.key}
    assert "version 2 names the digest table" in caught.value.message


def test_a_missing_manifest_is_named(chain: ThreeVersions) -> None:
    record = chain.versions.records[1]
    key = manifest_key(RunId("grpo"), record.epoch, record.version, record.commit_id)
    chain.blobs.delete(key)
    with pytest.raises(ObjectMissingError, match="version 2 names the manifest"):
        load_manifest(chain.blobs, record, LIMITS)


def test_a_manifest_that_reads_well_and_is_another_is_refused(chain: ThreeVersions) -> None:
    record = chain.versions.records[1]
    count = delta_form(load_manifest(chain.blobs, record, LIMITS)).changed_count
    key = manifest_key(RunId("grpo"), record.epoch, record.version, record.commit_id)
    said, other = (b'"changed_count":%d' % each for each in (count, count - 1))
    chain.blobs._blobs[key] = changed = chain.blobs._blobs[key].replace(said, other)
    assert len(changed) == record.manifest_size_bytes
    its_own = record.model_copy(update={"manifest_sha256": hashlib.sha256(changed).hexdigest()})
    assert delta_form(decode_manifest(changed, its_own)).changed_count == count - 1
    with pytest.raises(CorruptObjectError, match="is not what was committed"):
        load_manifest(chain.blobs, record, LIMITS)


@pytest.mark.parametrize("change", ["flip", "longer", "shorter"])
def test_other_bytes_are_refused_with_both_hashes(chain: ThreeVersions, change: str) -> None:
    manifest = load_manifest(chain.blobs, chain.versions.records[1], LIMITS)
    ref = manifest.schema_ref
    data = chain.blobs._blobs[ref.key]
    chain.blobs._blobs[ref.key] = {
        "flip": data[:-1] + bytes([data[-1] ^ 1]),
        "longer": data + b" ",
        "shorter": data[:-1],
    }[change]
    with pytest.raises(CorruptObjectError) as caught:
        load_schema(chain.blobs, manifest, LIMITS)
    if change != "longer":  # a longer one is refused before it is read
        assert caught.value.facts["expected"] == ref.sha256
        assert caught.value.facts["found"] != ref.sha256


def test_an_object_above_its_bound_is_not_read(chain: ThreeVersions) -> None:
    manifest = load_manifest(chain.blobs, chain.versions.records[1], LIMITS)
    with pytest.raises(CorruptObjectError, match="more than the 10 allowed"):
        fetch_object(
            chain.blobs,
            manifest.schema_ref,
            version=manifest.version,
            what="schema",
            max_size_bytes=10,
        )


def test_a_schema_of_another_id_is_refused(chain: ThreeVersions) -> None:
    manifest = load_manifest(chain.blobs, chain.versions.records[1], LIMITS)
    other = manifest.model_copy(update={"schema_id": Sha256("0" * 64)})
    with pytest.raises(CorruptObjectError, match="has the id"):
        load_schema(chain.blobs, other, LIMITS)


def test_a_cached_schema_is_not_read_again(chain: ThreeVersions) -> None:
    manifest = load_manifest(chain.blobs, chain.versions.records[1], LIMITS)
    cache: dict[Sha256, Any] = {}
    first = load_schema(chain.blobs, manifest, LIMITS, cache)
    chain.blobs.delete(manifest.schema_ref.key)
    assert load_schema(chain.blobs, manifest, LIMITS, cache) is first


def test_a_table_that_does_not_sum_to_the_digest_is_refused(chain: ThreeVersions) -> None:
    manifest = load_manifest(chain.blobs, chain.versions.records[1], LIMITS)
    schema = load_schema(chain.blobs, manifest, LIMITS)
    table = np.array(load_table(chain.blobs, manifest, schema, LIMITS))
    table[0, 0] += 1
    with pytest.raises(DigestMismatchError) as caught:
        check_state_digest(manifest, schema, table)
    assert caught.value.facts["expected"] == manifest.digest
    assert caught.value.facts["found"] != manifest.digest
