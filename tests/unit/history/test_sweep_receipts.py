"""What attempts of real trainers leave goes when no record can need it any more, and not before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weightstore.errors import WeightStoreError
from weightstore.format.keys import parse_trainer_key
from weightstore.history.references import References
from weightstore.history.sweep import SweepReport, sweep
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Fault, LossyBlobs, Method
from weightstore.testing.trainer_lab import TrainerLab, Weights, bits_of, changed, small_weights

FIRST = small_weights()
SECOND = changed(FIRST, 1)
THIRD = changed(SECOND, 2)


class OneFault(LossyBlobs):
    """The next put under a prefix is refused, once a prefix is said."""

    def __init__(self, inner: MemoryBlobStore) -> None:
        super().__init__(inner, self._fault_of)
        self.prefix = ""

    def _fault_of(self, call: Call) -> Fault | None:
        if self.prefix and call.method is Method.PUT and call.key.startswith(self.prefix):
            self.prefix = ""
            return Fault.UNAVAILABLE
        return None


@pytest.fixture
def inner() -> MemoryBlobStore:
    return MemoryBlobStore()


@pytest.fixture
def blobs(inner: MemoryBlobStore) -> OneFault:
    return OneFault(inner)


def swept(lab: TrainerLab) -> SweepReport:
    references = References(lab.blobs, lab.log, lab.settings.limits)
    return sweep(lab.blobs, lab.log, objects_of=references.objects_of)


def keys_of(blobs: MemoryBlobStore, **said: int) -> set[str]:
    """Keys of trainer objects whose names say these numbers."""
    found = set()
    for key in blobs._blobs:
        parsed = parse_trainer_key(key)
        if parsed and all(getattr(parsed, name) == value for name, value in said.items()):
            found.add(key)
    return found


def receipts(blobs: MemoryBlobStore) -> set[str]:
    return {key for key in blobs._blobs if key.startswith("receipts/")}


def failed_put(blobs: OneFault, put: Callable[[], object], prefix: str) -> None:
    blobs.prefix = prefix
    with pytest.raises(WeightStoreError):
        put()


def versions_read(lab: TrainerLab, *expected: Weights) -> bool:
    """Whether the versions from 1 on have these bits."""
    return all(lab.bits(n) == bits_of(one) for n, one in enumerate(expected, start=1))


def test_receipts_of_committed_versions_go_and_the_versions_stay(
    inner: MemoryBlobStore, blobs: OneFault
) -> None:
    lab = TrainerLab(blobs).create()
    with lab.trainer() as trainer:
        for step, weights in enumerate((FIRST, SECOND, THIRD)):
            trainer.put_step(step, weights).result()
        assert len(receipts(inner)) == 3
        kept = set(inner._blobs) - receipts(inner)
        assert swept(lab).deleted_count == 3
        assert set(inner._blobs) == kept
        # The trainer goes on: it needs none of them.
        trainer.put_step(3, FIRST).result()
    assert versions_read(lab, FIRST, SECOND, THIRD, FIRST)


@pytest.mark.parametrize("prefix", ["packs/", "manifests/"])
def test_an_attempt_without_a_verdict_is_left_until_the_next_claim(
    inner: MemoryBlobStore, blobs: OneFault, prefix: str
) -> None:
    lab = TrainerLab(blobs).create()
    trainer = lab.trainer()
    trainer.put_step(0, FIRST).result()
    failed_put(blobs, lambda: trainer.put_step(1, SECOND).result(), prefix)
    swept(lab)
    left = keys_of(inner, version=2)
    assert any(key.startswith("receipts/") for key in left)
    with TrainerLab(blobs, "two").trainer(take_over=True):
        swept(lab)
        assert not keys_of(inner, version=2), "nothing of an older epoch can be named any more"
        assert not receipts(inner)
    assert versions_read(lab, FIRST)


def test_the_drafts_of_a_voided_attempt_go_with_the_version_that_another_one_makes(
    inner: MemoryBlobStore, blobs: OneFault
) -> None:
    lab = TrainerLab(blobs).create()
    with lab.trainer() as trainer:
        trainer.put_step(0, FIRST).result()
        failed_put(blobs, lambda: trainer.put_step(1, SECOND).result(), "manifests/")
        draft = keys_of(inner, version=2, attempt=1)
        assert {key.partition("/")[0] for key in draft} == {"packs", "receipts"}
        trainer.put_step(1, THIRD).result()
        assert draft <= set(inner._blobs), "the next attempt reuses no name of the first"
        swept(lab)
        assert not keys_of(inner, version=2, attempt=1)
        assert keys_of(inner, version=2, attempt=2)
    assert versions_read(lab, FIRST, THIRD)
