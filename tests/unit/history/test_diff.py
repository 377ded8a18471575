"""Diffs: counts and measures as NumPy finds them, from packs where that is enough."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.distances import distances
from weightstore.codec.piece import ValueCoding
from weightstore.errors import CorruptError
from weightstore.history.chain import delta_form
from weightstore.history.diff import Differences, Source, diff_versions
from weightstore.layout.dtypes import DType
from weightstore.settings import Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import (
    RealVersions,
    ThreeVersions,
    mixed_schema,
    next_weights,
    random_weights,
)

SETTINGS = Settings()


class CountingBlobs(MemoryBlobStore):
    """Remembers which keys were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        self.read.add(key)
        return super().get(key, max_size_bytes=max_size_bytes)

    def read_into(self, key: str, offset: int, target: object, /) -> None:
        self.read.add(key)
        super().read_into(key, offset, target)  # type: ignore[arg-type]  # a buffer all the same


def found_between(chain: ThreeVersions, a: int, b: int, *, counts: bool) -> Differences:
    plans = [chain.versions.plan(chain.versions.records[index]) for index in (a, b)]
    return diff_versions(chain.blobs, plans[0], plans[1], SETTINGS, counts=counts)


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("old", range(3))
@pytest.mark.parametrize("new", range(3))
def test_every_pair_of_versions_is_told_exactly(
    chain: ThreeVersions, old: int, new: int, *, counts: bool
) -> None:
    found = found_between(chain, old, new, counts=counts)
    before, after = chain.weights[old], chain.weights[new]
    changed = {name: int(np.count_nonzero(before[name] != after[name])) for name in before}
    told = {each.name: each.changed_count for each in found.tensors}
    assert told == {name: count for name, count in changed.items() if count}
    assert found.compared_count == len(before)
    assert found.compared_unit_count == sum(units.size for units in before.values())
    assert found.schema == ()
    neighbours = abs(old - new) == 1 and counts
    expected = Source.PACKS if neighbours else Source.WEIGHTS
    assert found.source is (Source.DIGESTS if old == new else expected)
    for each in found.tensors:
        if counts or each.dtype == "F4":
            assert each.largest_ulps is each.largest_absolute is each.nonfinite_count is None
            continue
        measured = distances(DType.parse(each.dtype), before[each.name], after[each.name])
        where = before[each.name] != after[each.name]
        assert each.largest_ulps == measured.ulps[where].max()
        assert each.largest_absolute == measured.absolutes[where].max()
        assert each.nonfinite_count == np.count_nonzero(~measured.is_finite[where])
        if each.largest_ulps_at is not None:
            flat = np.ravel_multi_index(each.largest_ulps_at, each.shape) if each.shape else 0
            assert measured.ulps[flat] == each.largest_ulps


def test_counts_of_neighbours_read_no_weights() -> None:
    blobs = CountingBlobs()
    versions = RealVersions(blobs, mixed_schema())
    weights = random_weights(versions.schema, 0)
    versions.put(weights)
    versions.put(next_weights(weights, 1))
    plans = [versions.plan(record) for record in versions.records]
    blobs.read = set()
    assert diff_versions(blobs, plans[0], plans[1], SETTINGS, counts=True).source is Source.PACKS
    assert blobs.read == {pack.key for pack in delta_form(plans[1].manifest).packs}
    blobs.read = set()
    assert diff_versions(blobs, plans[1], plans[1], SETTINGS).source is Source.DIGESTS
    assert not blobs.read


def test_a_delta_that_says_all_bits_is_counted_from_the_weights() -> None:
    versions = RealVersions(MemoryBlobStore(), mixed_schema())
    weights = random_weights(versions.schema, 0)
    versions.put(weights)
    after = next_weights(weights, 1)
    versions.put(after, coding=ValueCoding.DENSE_BITS)
    plans = [versions.plan(record) for record in versions.records]
    found = diff_versions(versions.blobs, plans[0], plans[1], SETTINGS, counts=True)
    assert found.source is Source.WEIGHTS
    told = {each.name: each.changed_count for each in found.tensors}
    assert told == {
        name: int(np.count_nonzero(units != after[name]))
        for name, units in weights.items()
        if units.size
    }


@pytest.mark.parametrize("full", [True, False])
def test_a_full_form_between_changes_nothing(*, full: bool) -> None:
    versions = RealVersions(MemoryBlobStore(), mixed_schema())
    states = [random_weights(versions.schema, 0)]
    versions.put(states[0])
    for seed in (1, 2):
        states.append(next_weights(states[-1], seed))
        versions.put(states[-1], full=full)
    plans = [versions.plan(record) for record in versions.records]
    for new in (1, 2):
        told = diff_versions(versions.blobs, plans[0], plans[new], SETTINGS).tensors
        assert {each.name: each.changed_count for each in told} == {
            name: int(np.count_nonzero(units != states[new][name]))
            for name, units in states[0].items()
            if units.size
        }


def test_damage_ends_in_an_error_and_no_answer(chain: ThreeVersions) -> None:
    key = delta_form(chain.versions.plan().deltas[-1]).packs[0].key
    data = bytearray(chain.blobs._blobs[key])
    data[-1] ^= 1
    chain.blobs._blobs[key] = bytes(data)
    for counts in (True, False):
        with pytest.raises(CorruptError):
            found_between(chain, 1, 2, counts=counts)


def test_progress_tells_the_bytes_that_were_compared(chain: ThreeVersions) -> None:
    told: list[tuple[str, int, int]] = []

    def note(phase: str, done_bytes: int, total_bytes: int, /) -> None:
        told.append((phase, done_bytes, total_bytes))

    plans = [chain.versions.plan(chain.versions.records[index]) for index in (0, 2)]
    diff_versions(chain.blobs, plans[0], plans[1], SETTINGS, note, codec=PieceCodec())
    phases, done, totals = zip(*told, strict=True)
    assert set(phases) == {"compare"}
    assert list(done) == sorted(done)
    assert done[-1] == totals[-1] > 0
