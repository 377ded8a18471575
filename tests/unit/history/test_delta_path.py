"""From a held version to a later one by deltas alone: found, refused, or said to be broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weightstore.errors import CorruptObjectError, ObjectMissingError, WrongBaseError
from weightstore.format.records import VersionRecord
from weightstore.history.delta_path import (
    DeltaPath,
    NoDeltaPath,
    PathBreak,
    VersionRef,
    plan_delta_path,
)
from weightstore.ids import Sha256
from weightstore.settings import Limits
from weightstore.testing.real_versions import ThreeVersions, next_weights


def record(chain: ThreeVersions, version: int) -> VersionRecord:
    return chain.versions.records[version - 1]


def path(
    chain: ThreeVersions,
    version: int,
    base: int | VersionRef = 1,
    limits: Limits | None = None,
) -> DeltaPath | NoDeltaPath:
    held = base if isinstance(base, VersionRef) else VersionRef.of(record(chain, base))
    return plan_delta_path(
        chain.blobs, chain.versions.store.log, record(chain, version), held, limits or Limits()
    )


def lose(chain: ThreeVersions, prefix: str, part: str) -> None:
    keys = [blob.key for blob in chain.blobs.list(prefix) if part in blob.key]
    assert keys
    for key in keys:
        chain.blobs.delete(key)


def test_all_deltas_on_the_way_are_named_oldest_first(chain: ThreeVersions) -> None:
    found = path(chain, 3)
    assert isinstance(found, DeltaPath)
    assert [each.version for each in found.deltas] == [2, 3]
    assert (found.base.version, found.target) == (1, VersionRef.of(record(chain, 3)))
    assert found.schema == chain.versions.schema
    plan = chain.versions.plan()
    assert np.array_equal(found.last_table, plan.last_table)
    assert found.size_bytes == plan.delta_size_bytes
    assert found.changed_count == sum(
        int(np.count_nonzero(chain.weights[step][name] != chain.weights[step + 1][name]))
        for step in (0, 1)
        for name in chain.weights[0]
    )


def test_nothing_of_the_base_is_read(chain: ThreeVersions) -> None:
    # All but the schema, which the versions after it share.
    for blob in [*chain.blobs.list("manifests/"), *chain.blobs.list("anchors/")]:
        is_of_base = "/1-" in blob.key or "-1-1/" in blob.key
        if is_of_base and not blob.key.endswith(".schema"):
            chain.blobs.delete(blob.key)
    found = path(chain, 3, 1)
    assert isinstance(found, DeltaPath)
    assert [each.version for each in found.deltas] == [2, 3]


@pytest.mark.parametrize(("version", "base"), [(1, 2), (2, 2)])
def test_there_is_no_way_back(chain: ThreeVersions, version: int, base: int) -> None:
    found = path(chain, version, base)
    assert found == NoDeltaPath(PathBreak.OLDER, record(chain, version).version)
    assert str(found) == f"version {version}: it is not later than the one that is held"


def test_a_base_with_another_digest_is_refused_naming_both(chain: ThreeVersions) -> None:
    held = replace(VersionRef.of(record(chain, 1)), digest=Sha256("0" * 64))
    with pytest.raises(WrongBaseError) as caught:
        path(chain, 3, held)
    assert caught.value.facts["found"] == "0" * 64
    assert caught.value.facts["expected"] == record(chain, 1).digest


def test_a_lost_version_on_the_way_breaks_it(chain: ThreeVersions) -> None:
    lose(chain, "manifests/", "/2-")
    found = path(chain, 3)
    assert found == NoDeltaPath(PathBreak.GONE, record(chain, 2).version)
    assert "version 2" in str(found)


def test_a_lost_target_is_an_error(chain: ThreeVersions) -> None:
    lose(chain, "manifests/", "/3-")
    with pytest.raises(ObjectMissingError):
        path(chain, 3)


def test_a_version_without_a_delta_breaks_the_way(chain: ThreeVersions) -> None:
    chain.versions._manifest = None
    chain.versions.put(next_weights(chain.weights[2], 9), full=True)
    found = path(chain, 4)
    assert found == NoDeltaPath(PathBreak.NO_DELTA, record(chain, 4).version)


def test_a_way_is_as_long_as_a_chain_may_be(chain: ThreeVersions) -> None:
    assert isinstance(path(chain, 3, 1, Limits(chain_count=2)), DeltaPath)
    found = path(chain, 3, 1, Limits(chain_count=1))
    assert found == NoDeltaPath(PathBreak.LONG, record(chain, 2).version)


def test_a_full_form_on_the_way_is_no_hindrance(chain: ThreeVersions) -> None:
    chain.versions.put(next_weights(chain.weights[2], 9), full=True)
    found = path(chain, 4)
    assert isinstance(found, DeltaPath)
    assert [each.version for each in found.deltas] == [2, 3, 4]


def test_a_damaged_target_is_an_error(chain: ThreeVersions) -> None:
    keys = [blob.key for blob in chain.blobs.list("manifests/") if "/3-" in blob.key]
    key = next(each for each in keys if "." not in each)
    data = chain.blobs.get(key, max_size_bytes=1 << 20)
    chain.blobs.delete(key)
    chain.blobs.put_if_absent(key, data[:-2] + b"x}")
    with pytest.raises(CorruptObjectError):
        path(chain, 3)
