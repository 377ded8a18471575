"""Each object is read once, and damage is told of the version that the object is of."""

from __future__ import annotations

import gc
from collections import Counter

import numpy as np
import pytest

from weightstore.errors import CorruptError, DigestMismatchError
from weightstore.history import manifests
from weightstore.history.progress import no_progress
from weightstore.history.references import References
from weightstore.history.verify_each import verify_each
from weightstore.layout.schema import Schema
from weightstore.settings import Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import (
    RealVersions,
    ThreeVersions,
    mixed_schema,
    next_weights,
    random_weights,
)

SETTINGS = Settings(thread_count=1)


class CountingBlobs(MemoryBlobStore):
    """Counts how often each key is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        self.reads[key] += 1
        return super().get(key, max_size_bytes=max_size_bytes)


def outcomes(chain: ThreeVersions, skip: int = 0) -> dict[int, str | None]:
    found = verify_each(chain.blobs, chain.versions.records[skip:], SETTINGS, no_progress)
    return {version: None if error is None else type(error).__name__ for version, error in found}


def test_a_whole_store_passes_with_one_read_of_each_pack() -> None:
    blobs = CountingBlobs()
    versions = RealVersions(blobs, mixed_schema(), pieces_per_pack=2, piece_unit_count=40_000)
    weights = random_weights(versions.schema, 0)
    for seed in range(5):
        versions.put(weights, full=seed == 3)
        weights = next_weights(weights, seed)
    blobs.reads.clear()
    found = list(verify_each(blobs, versions.records, SETTINGS, no_progress))
    assert [(int(version), error) for version, error in found] == [(n, None) for n in range(1, 6)]
    packs = {key: count for key, count in blobs.reads.items() if key.startswith("packs/")}
    assert len(packs) > 8
    assert set(packs.values()) == {1}


def test_every_damaged_object_is_told_of_its_version(chain: ThreeVersions) -> None:
    store = chain.versions.store
    references = References(chain.blobs, store.log, store.settings.limits)
    shared = {each.key for each in references.objects_of(chain.versions.records[0])}
    for record in chain.versions.records:
        for stored in references.objects_of(record):
            if record.version > 1 and stored.key in shared:
                continue  # the schema, which all of them name
            before = chain.blobs._blobs[stored.key]
            chain.blobs._blobs[stored.key] = before[:-1] + bytes([before[-1] ^ 1])
            found = outcomes(chain)
            assert found[record.version] is not None, stored.key
            if stored.key.startswith(("packs/", "anchors/")):
                others = {v: error for v, error in found.items() if v != record.version}
                assert set(others.values()) == {None}, stored.key
            chain.blobs._blobs[stored.key] = before
    assert set(outcomes(chain).values()) == {None}


def test_a_delta_whose_base_is_not_there_is_checked_without_its_sum(chain: ThreeVersions) -> None:
    assert outcomes(chain, skip=1) == {2: None, 3: None}


def test_pieces_that_do_not_lead_to_the_table_are_told(
    chain: ThreeVersions, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weightstore.history import verify_each as module  # noqa: PLC0415 -- to replace a name

    load = manifests.load_table

    def moved(*arguments: object) -> object:
        table = load(*arguments)  # type: ignore[arg-type]  # passed on as they are
        return table + np.uint64(1) if arguments[1].version == 2 else table  # type: ignore[attr-defined]

    monkeypatch.setattr(module, "load_table", moved)
    monkeypatch.setattr(module, "check_state_digest", lambda *_: None)
    found = dict(verify_each(chain.blobs, chain.versions.records, SETTINGS, no_progress))
    errors = {int(version): error for version, error in found.items()}
    assert errors[1] is None
    assert isinstance(errors[2], DigestMismatchError | CorruptError)
    assert isinstance(errors[3], DigestMismatchError | CorruptError)


def schema_count() -> int:
    """Schemas in memory."""
    gc.collect()
    return sum(type(each) is Schema for each in gc.get_objects())


def test_schemas_do_not_pile_up_although_every_schema_object_is_read() -> None:
    blobs = CountingBlobs()
    versions = RealVersions(blobs, mixed_schema())
    weights = random_weights(versions.schema, 0)
    for seed in range(6):
        versions._schema_ref = None  # each version names an object of its own
        versions.put(weights)
        weights = next_weights(weights, seed)
    keys = {versions.plan(record).manifest.schema_ref.key for record in versions.records}
    assert len(keys) == 6
    blobs.reads.clear()
    before = schema_count()
    for _, error in verify_each(blobs, versions.records, SETTINGS, no_progress):
        assert error is None
        assert schema_count() <= before + 1
    assert {key: blobs.reads[key] for key in keys} == dict.fromkeys(keys, 1)


def test_progress_tells_of_every_pack_also_without_the_base(chain: ThreeVersions) -> None:
    told: list[tuple[str, int, int]] = []

    def tell(phase: str, done_bytes: int, total_bytes: int, /) -> None:
        told.append((phase, done_bytes, total_bytes))

    for skip in (0, 1):
        told.clear()
        records = chain.versions.records[skip:]
        assert all(error is None for _, error in verify_each(chain.blobs, records, SETTINGS, tell))
        sizes = [
            manifest.delta.size_bytes
            for record in chain.versions.records[1:]
            if (manifest := chain.versions.plan(record).manifest).delta is not None
        ]
        ends = [done for phase, done, total in told if phase == "delta" and done == total]
        assert ends == sizes
