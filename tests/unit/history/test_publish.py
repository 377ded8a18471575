"""An attempt ends once, in the log: committed, voided, or fenced; repeats learn which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from typing_extensions import Buffer

from weightstore.errors import (
    AttemptVoidedError,
    BlobExistsError,
    BlobOutcomeUnknownError,
    CommitUnknownError,
    FencedError,
    InputRefusedError,
    RecordRefusedError,
    StepConflictError,
    StepOrderError,
)
from weightstore.format.keys import LOG_PREFIX
from weightstore.format.records import VersionRecord, VoidRecord
from weightstore.format.rules import EMPTY_PREFIX
from weightstore.history.claim import Claim
from weightstore.history.log import Log, sha256_of
from weightstore.history.publish import (
    Publication,
    commit_version,
    committed_step,
    void_attempt,
)
from weightstore.history.tags import put_tag
from weightstore.history.versions import list_versions
from weightstore.ids import Attempt, Sha256, Step, TagName, VersionId
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore, ToyTrainer


class DelayingBlobs(MemoryBlobStore):
    """Runs `before` ahead of the next write to the log, or keeps requests back."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], object] | None = None
        self.is_delaying = False
        self.delayed: list[tuple[str, bytes]] = []

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        if key.startswith(LOG_PREFIX):
            before, self.before = self.before, None
            if before is not None:
                before()
            elif self.is_delaying:
                self.delayed.append((key, bytes(data)))
                raise BlobOutcomeUnknownError("no answer")
        super().put_if_absent(key, data, durable=durable)

    def land(self) -> None:
        """Let the first request that was kept back arrive."""
        super().put_if_absent(*self.delayed[0])


@pytest.fixture
def blobs() -> DelayingBlobs:
    return DelayingBlobs()


@pytest.fixture
def trainer(blobs: DelayingBlobs) -> ToyTrainer:
    store = ToyStore(blobs, "one")
    store.create()
    made = store.trainer()
    made.put(1, b"first")
    return made


def versions(blobs: MemoryBlobStore) -> Sequence[tuple[int, int]]:
    """Version and step of every committed version, oldest first."""
    log = Log(blobs, Limits())
    listed = list_versions(log, log.follow(EMPTY_PREFIX))
    return [(each.record.version, each.record.step) for each in listed][::-1]


def draft(trainer: ToyTrainer, step: int, text: bytes = b"") -> Publication:
    return trainer.draft(trainer.store.log.tail(), step, text)


def commit(trainer: ToyTrainer, publication: Publication) -> VersionRecord:
    return commit_version(trainer.writer, trainer.claim, publication)


def void(trainer: ToyTrainer, publication: Publication) -> VersionRecord | VoidRecord:
    return void_attempt(
        trainer.writer,
        trainer.claim,
        version=publication.version,
        attempt=publication.attempt,
        attempt_commit_id=publication.commit_id,
    )


def restarted(trainer: ToyTrainer, seed: str = "again") -> ToyTrainer:
    """The same launch's view from a fresh process."""
    store = ToyStore(trainer.store.blobs, seed)
    return ToyTrainer(store, store.writer(trainer.claim.session), trainer.claim)


def test_a_commit_says_what_was_published(trainer: ToyTrainer) -> None:
    publication = draft(trainer, 2, b"second")
    record = commit(trainer, publication)
    assert trainer.store.log.stored_at(record.slot).record == record
    assert (record.version, record.run, record.epoch, record.step) == (2, "grpo", 1, 2)
    for name in Publication.__dataclass_fields__:
        assert getattr(record, name) == getattr(publication, name), name


def test_repeating_a_commit_is_the_same_version(blobs: DelayingBlobs, trainer: ToyTrainer) -> None:
    publication = draft(trainer, 2, b"second")
    first = commit(trainer, publication)
    assert commit(trainer, publication) == first
    assert commit(restarted(trainer), publication) == first
    assert commit(trainer, draft(trainer, 2, b"second")) == first, "another attempt, same bytes"
    assert trainer.put(1, b"first").version == 1
    assert versions(blobs) == [(1, 1), (2, 2)]


def test_other_bytes_under_a_committed_step_are_refused(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    trainer.put(5, b"fifth")
    with pytest.raises(StepConflictError) as caught:
        trainer.put(1, b"other")
    assert caught.value.facts == {"run": "grpo", "step": 1, "version": 1}
    with pytest.raises(StepConflictError):
        commit(trainer, draft(trainer, 5, b"other"))
    with pytest.raises(StepOrderError):
        trainer.put(3, b"third")
    with pytest.raises(StepOrderError):
        commit(trainer, draft(trainer, 0, b""))
    assert versions(blobs) == [(1, 1), (2, 5)]


def test_after_a_rewind_the_steps_above_are_new_and_those_below_are_not(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    trainer.put(2, b"second")
    trainer.put(4, b"fourth")
    again = ToyStore(blobs, "two").trainer(take_over=True, rewind_to=2)
    assert again.put(2, b"second").version == 2
    with pytest.raises(StepConflictError):
        again.put(2, b"other")
    assert again.put(4, b"other").version == 4
    assert again.put(4, b"other").version == 4
    assert versions(blobs) == [(1, 1), (2, 2), (3, 4), (4, 4)]


def test_a_stale_trainer_commits_nothing_and_learns_it(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    zombie = draft(trainer, 2, b"stale")
    successor = ToyStore(blobs, "two").trainer("sft", take_over=True)
    successor.put(9, b"fresh")
    with pytest.raises(FencedError):
        commit(trainer, zombie)
    with pytest.raises(FencedError):
        trainer.put(2, b"stale")
    assert versions(blobs) == [(1, 1), (2, 9)]


def test_a_claim_that_comes_between_check_and_write_fences(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    publication = draft(trainer, 2, b"second")
    blobs.before = lambda: ToyStore(blobs, "two").trainer(take_over=True)
    with pytest.raises(FencedError):
        commit(trainer, publication)
    assert versions(blobs) == [(1, 1)]


def test_a_request_that_lands_after_a_take_over_finds_its_slot_taken(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    publication = draft(trainer, 2, b"second")
    blobs.is_delaying = True
    with pytest.raises(CommitUnknownError):
        commit(trainer, publication)
    blobs.is_delaying = False
    ToyStore(blobs, "two").trainer(take_over=True)
    with pytest.raises(BlobExistsError, match="already there"):
        blobs.land()
    with pytest.raises(FencedError):
        commit(trainer, publication)
    assert versions(blobs) == [(1, 1)]


def test_what_was_committed_before_a_take_over_is_success_when_it_is_asked_for_again(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    publication = draft(trainer, 2, b"second")
    blobs.is_delaying = True
    with pytest.raises(CommitUnknownError):
        commit(trainer, publication)
    blobs.is_delaying = False
    blobs.land()
    successor = ToyStore(blobs, "two").trainer(take_over=True, rewind_to=1)
    assert successor.put(2, b"another second").version == 3
    assert commit(trainer, publication).version == 2
    with pytest.raises(FencedError):
        commit(trainer, replace(publication, digest=sha256_of(b"third")))
    assert versions(blobs) == [(1, 1), (2, 2), (3, 2)]


def test_a_tag_in_the_way_only_moves_the_commit(blobs: DelayingBlobs, trainer: ToyTrainer) -> None:
    publication = draft(trainer, 2, b"second")
    tagger = ToyStore(blobs, "two").writer()
    blobs.before = lambda: put_tag(tagger, TagName("x"), 1, owner="me")
    record = commit(trainer, publication)
    assert record.commit_id == publication.commit_id
    assert record.slot == trainer.claim.slot + 3
    assert versions(blobs) == [(1, 1), (2, 2)]


def test_an_unknown_commit_that_lands_later_is_found_by_the_repeat(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    publication = draft(trainer, 2, b"second")
    blobs.is_delaying = True
    with pytest.raises(CommitUnknownError):
        commit(trainer, publication)
    blobs.is_delaying = False
    other = draft(trainer, 2, b"second")
    blobs.before = blobs.land
    record = commit(trainer, other)
    assert record.commit_id == publication.commit_id
    assert versions(blobs) == [(1, 1), (2, 2)]


def test_a_voided_attempt_is_never_committed(blobs: DelayingBlobs, trainer: ToyTrainer) -> None:
    publication = draft(trainer, 2, b"second")
    ended = void(trainer, publication)
    assert isinstance(ended, VoidRecord)
    assert void(trainer, publication) == ended
    assert void(restarted(trainer), publication) == ended
    with pytest.raises(AttemptVoidedError):
        commit(trainer, publication)
    again = draft(trainer, 2, b"second")
    assert again.attempt == 2
    assert commit(trainer, again).version == 2
    assert void(trainer, publication) == ended, "also after the next attempt's commit"
    assert versions(blobs) == [(1, 1), (2, 2)]


def test_a_commit_request_that_lands_after_the_void_finds_its_slot_taken(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    publication = draft(trainer, 2, b"second")
    blobs.is_delaying = True
    with pytest.raises(CommitUnknownError):
        commit(trainer, publication)
    blobs.is_delaying = False
    assert isinstance(void(trainer, publication), VoidRecord)
    with pytest.raises(BlobExistsError, match="already there"):
        blobs.land()
    assert versions(blobs) == [(1, 1)]


def test_a_commit_that_lands_before_the_void_is_the_verdict(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    publication = draft(trainer, 2, b"second")
    blobs.is_delaying = True
    with pytest.raises(CommitUnknownError):
        commit(trainer, publication)
    blobs.is_delaying = False
    blobs.before = blobs.land
    verdict = void(trainer, publication)
    assert isinstance(verdict, VersionRecord)
    assert verdict.commit_id == publication.commit_id
    trainer.put(3, b"third")
    assert void(trainer, publication) == verdict
    assert versions(blobs) == [(1, 1), (2, 2), (3, 3)]


def test_an_attempt_of_an_older_epoch_is_ended_by_the_claim(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    publication = draft(trainer, 2, b"second")
    successor = ToyStore(blobs, "two").trainer(take_over=True)
    with pytest.raises(FencedError):
        void(trainer, publication)
    assert isinstance(void(successor, draft(successor, 2)), VoidRecord)
    with pytest.raises(FencedError):
        void(trainer, publication)
    successor.put(2, b"mine")
    with pytest.raises(FencedError):
        void(trainer, publication)
    assert versions(blobs) == [(1, 1), (2, 2)]


def test_a_void_of_an_attempt_that_is_not_the_open_one_is_refused(trainer: ToyTrainer) -> None:
    publication = draft(trainer, 2, b"second")
    for wrong in (
        replace(publication, attempt=Attempt(2)),
        replace(publication, version=VersionId(3)),
    ):
        with pytest.raises(RecordRefusedError):
            void(trainer, wrong)


@pytest.mark.parametrize("step", [-1, 2**53, True])
def test_a_step_that_no_record_can_hold_is_refused(trainer: ToyTrainer, step: int) -> None:
    with pytest.raises(InputRefusedError):
        commit(trainer, replace(draft(trainer, 2), step=Step(step)))


def test_a_delta_that_does_not_start_at_the_newest_version_is_refused(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    stale = draft(trainer, 3, b"third")
    trainer.put(2, b"second")
    with pytest.raises(RecordRefusedError):
        commit(trainer, replace(stale, version=VersionId(3)))
    assert versions(blobs) == [(1, 1), (2, 2)]


def test_whether_a_step_is_done_can_be_asked_before_any_work(
    blobs: DelayingBlobs, trainer: ToyTrainer
) -> None:
    log, claim = trainer.store.log, trainer.claim
    found = committed_step(log, log.tail(), claim, Step(1), sha256_of(b"first"))
    assert found is not None
    assert found.version == 1
    assert committed_step(log, log.tail(), claim, Step(2), sha256_of(b"first")) is None
    with pytest.raises(StepConflictError):
        committed_step(log, log.tail(), claim, Step(1), sha256_of(b"second"))
    closed = Claim(claim.run, claim.epoch, claim.session, claim.slot, None, None)
    trainer.close()
    with pytest.raises(FencedError):
        committed_step(log, log.tail(), closed, Step(1), Sha256("0" * 64))
    assert versions(blobs) == [(1, 1)]
