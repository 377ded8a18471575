"""Attempts that end badly: nothing is shown, nothing is lost, and the next put goes on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import pytest

from weightstore.errors import (
    CommitUnknownError,
    FencedError,
    StorageFullError,
    StoreReadOnlyError,
    UnavailableError,
)
from weightstore.format.keys import LOG_PREFIX
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Fault, LossyBlobs, Method, RecordingBlobs
from weightstore.testing.trainer_lab import (
    TrainerLab,
    bits_of,
    changed,
    lab_settings,
    small_weights,
)

Result = TypeVar("Result")
FIRST = small_weights()
SECOND = changed(FIRST, 1)
THIRD = changed(SECOND, 2)


class DeafLog:
    """A schedule: the next record's put meets a fault, and then no answer of the log is heard."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self._met = False

    def __call__(self, call: Call) -> Fault | None:
        if self.fault is None or not call.key.startswith(LOG_PREFIX):
            return None
        if call.method is Method.PUT and not self._met:
            self._met = True
            return self.fault
        return Fault.UNAVAILABLE if self._met else None

    def heal(self) -> None:
        """Everything is answered again."""
        self.fault = None


@pytest.fixture
def inner() -> MemoryBlobStore:
    blobs = MemoryBlobStore()
    with TrainerLab(blobs, "before").create().trainer() as trainer:
        trainer.put_step(0, FIRST).result()
    return blobs


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.DELAYED])
def test_an_unknown_outcome_is_resolved_by_the_next_put(
    inner: MemoryBlobStore, fault: Fault
) -> None:
    deaf = DeafLog()
    lab = TrainerLab(LossyBlobs(inner, deaf, delay_count=100))
    reader = TrainerLab(inner, "reader")
    with lab.trainer() as trainer:
        deaf.fault = fault
        with pytest.raises(CommitUnknownError):
            trainer.put_step(1, SECOND).result()
        landed = len(reader.steps()) == 2
        assert landed == (fault is Fault.LOST_ANSWER)
        deaf.heal()
        report = trainer.put_step(1, SECOND).report()
        assert (report.version, report.repeated) == (2, landed)
        lab.blobs.deliver_all()  # type: ignore[attr-defined]
        trainer.put_step(2, THIRD).result()
    assert reader.steps() == {1: ("run", 0), 2: ("run", 1), 3: ("run", 2)}
    assert reader.bits(2) == bits_of(SECOND)
    assert reader.bits(3) == bits_of(THIRD)


def test_while_the_log_is_silent_every_put_says_that_it_is_unknown(inner: MemoryBlobStore) -> None:
    deaf = DeafLog()
    with TrainerLab(LossyBlobs(inner, deaf)).trainer() as trainer:
        deaf.fault = Fault.LOST_ANSWER
        for _ in range(3):
            with pytest.raises((CommitUnknownError, UnavailableError)):
                trainer.put_step(1, SECOND).result()
        deaf.heal()
        assert trainer.put_step(2, THIRD).report().version == 3
    assert TrainerLab(inner, "reader").bits(3) == bits_of(THIRD)


def test_a_record_that_arrives_after_its_claim_was_closed_is_not_seen(
    inner: MemoryBlobStore,
) -> None:
    deaf = DeafLog()
    blobs = LossyBlobs(inner, deaf, delay_count=1000)
    with TrainerLab(blobs).trainer() as trainer:
        deaf.fault = Fault.DELAYED
        with pytest.raises(CommitUnknownError):
            trainer.put_step(1, SECOND).result()
        deaf.heal()
    blobs.deliver_all()
    lab = TrainerLab(inner, "next")
    assert lab.steps() == {1: ("run", 0)}
    with lab.trainer() as trainer:
        trainer.put_step(1, THIRD).result()
    assert lab.bits(2) == bits_of(THIRD)


def test_a_zombie_that_sends_late_shows_nothing(inner: MemoryBlobStore) -> None:
    deaf = DeafLog()
    blobs = LossyBlobs(inner, deaf, delay_count=1000)
    zombie = TrainerLab(blobs, "zombie").trainer()
    deaf.fault = Fault.DELAYED
    with pytest.raises(CommitUnknownError):
        zombie.put_step(1, SECOND).result()
    lab = TrainerLab(inner, "successor")
    with lab.trainer(take_over=True) as trainer:
        blobs.deliver_all()
        deaf.heal()
        with pytest.raises(FencedError):
            zombie.put_step(1, SECOND).result()
        trainer.put_step(1, THIRD).result()
        with pytest.raises(FencedError):
            zombie.put_step(2, SECOND).result()
        zombie.close()
        trainer.put_step(2, FIRST).result()
    assert [lab.bits(version) for version in (1, 2, 3)] == [
        bits_of(weights) for weights in (FIRST, THIRD, FIRST)
    ]


class RefusingBlobs(RecordingBlobs):
    """A store that takes a number of writes, and then refuses all.

    Attributes:
        left: Writes that it still takes; None takes all.
    """

    def __init__(self, inner: MemoryBlobStore, error: type[UnavailableError]) -> None:
        super().__init__(inner)
        self.left: int | None = None
        self._error = error

    def _happen(self, call: Call, effect: Callable[[], Result]) -> Result:
        if call.method.is_write and self.left is not None:
            if self.left == 0:
                raise self._error(f"{call.key}: refused")
            self.left -= 1
        return effect()


@pytest.mark.parametrize("anchor", [False, True])
@pytest.mark.parametrize("error", [StorageFullError, StoreReadOnlyError])
def test_a_full_or_read_only_store_is_a_typed_error_and_loses_nothing(
    inner: MemoryBlobStore, error: type[UnavailableError], *, anchor: bool
) -> None:
    blobs = RefusingBlobs(inner, error)
    reader = TrainerLab(inner, "reader")
    failed_count = 0
    with TrainerLab(blobs).trainer() as trainer:
        while True:
            blobs.left = failed_count
            pending = trainer.put_step(1, SECOND, anchor=anchor)
            try:
                version = pending.result()
            except error:
                failed_count += 1
                assert set(reader.steps()) == {1}
                continue
            break
        assert version == 2
        blobs.left = None
        trainer.put_step(2, THIRD).result()
    assert failed_count > 4
    assert reader.bits(2) == bits_of(SECOND)
    assert reader.bits(3) == bits_of(THIRD)


def test_the_full_form_is_written_when_the_chain_is_long(inner: MemoryBlobStore) -> None:
    lab = TrainerLab(inner, settings=lab_settings(full_after_chain_count=3))
    weights = FIRST
    with lab.trainer() as trainer:
        for step in range(1, 9):
            weights = changed(weights, step, 0.0001)
            trainer.put_step(step, weights).result()
    manifests = {version: lab.plan(version).manifest for version in lab.steps()}
    assert [v for v, one in sorted(manifests.items()) if one.full] == [1, 5, 9]
    assert manifests[5].delta is not None
    assert manifests[4].chain_count == 3
    assert lab.bits(9) == bits_of(weights)
    for version in (5, 6):
        assert len(lab.plan(version).deltas) == version - 5


def test_the_full_form_is_written_when_the_chain_is_large(inner: MemoryBlobStore) -> None:
    lab = TrainerLab(inner, settings=lab_settings(full_after_chain_ratio=0.05))
    weights = FIRST
    with lab.trainer() as trainer:
        for step in range(1, 5):
            weights = changed(weights, step, 0.02)
            trainer.put_step(step, weights).result()
    limit = 0.05 * lab.plan().schema.size_bytes
    manifests = [lab.plan(version).manifest for version in range(1, 6)]
    for before, manifest in pairwise(manifests):
        assert manifest.delta is not None
        size_bytes = before.chain_size_bytes + manifest.delta.size_bytes
        assert bool(manifest.full) == (size_bytes > limit)
    assert sum(bool(manifest.full) for manifest in manifests) == 2
    assert lab.bits() == bits_of(weights)
