"""Packs of deltas come in order and verified; errors of pieces say where."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing

import pytest

from weightstore.errors import CorruptObjectError, ObjectMissingError, WrongBaseError
from weightstore.format.pack import BundlePlace, PackReader
from weightstore.format.pack_map import PackMap
from weightstore.history.chain import delta_form
from weightstore.history.pack_jobs import explained, load_packs, read_pack
from weightstore.history.workers import Workers
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.testing.real_versions import ThreeVersions


@pytest.mark.parametrize("thread_count", [1, 3])
def test_packs_come_in_the_order_of_the_deltas(chain: ThreeVersions, thread_count: int) -> None:
    plan = chain.versions.plan()
    with (
        Workers(thread_count) as workers,
        closing(
            load_packs(chain.blobs, plan.schema, plan.deltas, workers=workers, limits=Limits())
        ) as loaded,
    ):
        found = [job.pack.key for job in loaded]
    assert found == [pack.key for each in plan.deltas for pack in delta_form(each).packs]
    assert len(found) > len(plan.deltas)


@pytest.mark.parametrize("change", ["lost", "damaged"])
def test_a_pack_that_is_not_what_was_committed_is_refused(
    chain: ThreeVersions, change: str
) -> None:
    plan = chain.versions.plan()
    key = delta_form(plan.deltas[0]).packs[-1].key
    data = chain.blobs.get(key, max_size_bytes=1 << 20)
    chain.blobs.delete(key)
    if change == "damaged":
        chain.blobs.put_if_absent(key, data[:-1] + bytes([data[-1] ^ 1]))
    loaded = load_packs(chain.blobs, plan.schema, plan.deltas, workers=Workers(1), limits=Limits())
    expected = CorruptObjectError if change == "damaged" else ObjectMissingError
    with pytest.raises(expected) as caught:
        list(loaded)
    assert caught.value.facts["key"] == key


@pytest.mark.parametrize("parse", [PackReader, PackMap])
def test_a_pack_that_cannot_be_parsed_is_named_whoever_reads_it(
    chain: ThreeVersions, parse: Callable[[bytes, Schema, Limits], PackReader | PackMap]
) -> None:
    manifest = chain.versions.plan().deltas[0]
    pack = delta_form(manifest).packs[0]
    data = b"no pack"
    chain.blobs._blobs[pack.key] = data
    sha256 = hashlib.sha256(data).hexdigest()
    stated = pack.model_copy(update={"size_bytes": len(data), "sha256": sha256})
    with pytest.raises(CorruptObjectError, match=f"version 2, pack {pack.key}: ") as caught:
        read_pack(chain.blobs, chain.versions.schema, manifest, stated, Limits(), parse=parse)
    assert caught.value.facts["key"] == pack.key


@pytest.mark.parametrize("parse", [PackReader, PackMap])
@pytest.mark.parametrize("move", [-1, 1])
def test_a_pack_of_other_pieces_than_stated_is_refused_whoever_reads_it(
    chain: ThreeVersions, parse: Callable[[bytes, Schema, Limits], PackReader | PackMap], move: int
) -> None:
    manifest = chain.versions.plan().deltas[0]
    pack = delta_form(manifest).packs[0]
    read_pack(chain.blobs, chain.versions.schema, manifest, pack, Limits(), parse=parse)
    stated = pack.model_copy(update={"piece_count": pack.piece_count + move})
    with pytest.raises(CorruptObjectError, match="pieces, the manifest says") as caught:
        read_pack(chain.blobs, chain.versions.schema, manifest, stated, Limits(), parse=parse)
    assert caught.value.facts == {"version": 2, "key": pack.key}


def test_an_error_of_a_piece_names_version_base_and_tensors(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    jobs = list(
        load_packs(chain.blobs, plan.schema, plan.deltas, workers=Workers(1), limits=Limits())
    )
    seen = set()
    for job in jobs:
        for place in job.reader.places:
            error = explained(WrongBaseError("no fit", facts={"found": "x"}), job, place)
            assert isinstance(error, WrongBaseError)
            assert error.facts["found"] == "x"
            assert error.facts["version"] == job.manifest.version
            assert job.manifest.base is not None
            assert error.facts["base_digest"] == job.manifest.base.digest
            seen.add(isinstance(place, BundlePlace))
    assert seen == {True, False}
