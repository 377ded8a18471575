"""Packs of deltas come in order and verified; errors of pieces say where."""

from __future__ import annotations

from contextlib import closing

import pytest

from weightstore.errors import CorruptObjectError, ObjectMissingError, WrongBaseError
from weightstore.format.pack import BundlePlace
from weightstore.history.chain import delta_form
from weightstore.history.pack_jobs import explained, load_packs
from weightstore.history.workers import Workers
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
