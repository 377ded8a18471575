"""Counts of a delta from its packs: those of the bits, or an error, or no answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weightstore.codec.piece import ValueCoding
from weightstore.errors import CorruptObjectError, DigestMismatchError, ObjectMissingError
from weightstore.history.chain import delta_form
from weightstore.history.pack_counts import changed_counts
from weightstore.settings import Settings
from weightstore.testing.real_versions import ThreeVersions, next_weights


@pytest.mark.parametrize("thread_count", [1, 3])
def test_every_tensor_has_the_count_of_its_bits(chain: ThreeVersions, thread_count: int) -> None:
    plans = [chain.versions.plan(record) for record in chain.versions.records]
    settings = Settings(thread_count=thread_count)
    for number in (1, 2):
        older, newer = plans[number - 1 : number + 1]
        found = changed_counts(chain.blobs, newer.manifest, older, newer, settings)
        assert found is not None
        before, after = chain.weights[number - 1 : number + 1]
        names = [spec.name for spec in newer.schema.tensors]
        assert found.tolist() == [np.count_nonzero(before[n] != after[n]) for n in names]


def test_packs_that_say_all_bits_tell_no_count(chain: ThreeVersions) -> None:
    older = chain.versions.plan()
    chain.versions.put(next_weights(chain.weights[2], 3), coding=ValueCoding.DENSE_BITS)
    newer = chain.versions.plan()
    assert changed_counts(chain.blobs, newer.manifest, older, newer, Settings()) is None


def test_what_does_not_fit_is_an_error_and_no_count(chain: ThreeVersions) -> None:
    older, newer = (chain.versions.plan(record) for record in chain.versions.records[:2])
    delta = delta_form(newer.manifest)
    more = newer.manifest.model_copy(
        update={"delta": delta.model_copy(update={"changed_count": delta.changed_count + 1})}
    )
    with pytest.raises(CorruptObjectError, match="version 2: its packs have"):
        changed_counts(chain.blobs, more, older, newer, Settings())
    twice = newer.manifest.model_copy(
        update={"delta": delta.model_copy(update={"packs": (delta.packs[0],) * 2})}
    )
    with pytest.raises(CorruptObjectError, match="change the same units"):
        changed_counts(chain.blobs, twice, older, newer, Settings())
    moved = replace(newer, last_table=newer.last_table + np.uint64(1))
    with pytest.raises(DigestMismatchError):
        changed_counts(chain.blobs, newer.manifest, older, moved, Settings())
    chain.blobs.delete(delta.packs[-1].key)
    with pytest.raises(ObjectMissingError, match="version 2 names the pack"):
        changed_counts(chain.blobs, newer.manifest, older, newer, Settings())
