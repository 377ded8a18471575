"""One owner at a time: who is refused, who may take over, and what a claim knows."""

from __future__ import annotations

import pytest

from weightstore.errors import (
    FencedError,
    InputRefusedError,
    RecordRefusedError,
    StoreOwnedError,
)
from weightstore.format.records import ClaimRecord
from weightstore.history.claim import (
    Claim,
    Owner,
    close_claim,
    last_step_of_run,
    open_claim,
    owns,
)
from weightstore.history.commit import Build, LogWriter
from weightstore.history.log import StoredRecord
from weightstore.ids import Epoch, RunId, Slot, Step
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import OWNER, ToyStore

RUN = RunId("grpo")


@pytest.fixture
def blobs() -> MemoryBlobStore:
    return MemoryBlobStore()


@pytest.fixture
def store(blobs: MemoryBlobStore) -> ToyStore:
    made = ToyStore(blobs, "one")
    made.create()
    return made


def record_of(store: ToyStore, claim: Claim) -> ClaimRecord:
    record = store.log.stored_at(claim.slot).record
    assert isinstance(record, ClaimRecord)
    return record


def test_a_first_claim_begins_epoch_one(store: ToyStore) -> None:
    claim = store.trainer().claim
    assert (claim.epoch, claim.slot, claim.last_step, claim.newest) == (1, 1, None, None)
    record = record_of(store, claim)
    assert (record.take_over, record.rewind_to, record.host) == (False, None, OWNER.host)


def test_a_second_trainer_is_told_who_owns_the_store_and_how_to_take_over(
    blobs: MemoryBlobStore, store: ToyStore
) -> None:
    store.trainer("grpo", session="a" * 32)
    other = ToyStore(blobs, "two")
    with pytest.raises(StoreOwnedError) as caught:
        other.trainer("sft")
    assert caught.value.facts == {
        "run": "grpo",
        "host": "toy",
        "process": 1,
        "slot": 1,
        "session": "a" * 32,
    }
    assert "take_over=True" in caught.value.do
    assert store.log.tail().next_slot == 2, "nothing was written"


def test_take_over_fences_the_owner(blobs: MemoryBlobStore, store: ToyStore) -> None:
    old = store.trainer()
    old.put(1)
    new = ToyStore(blobs, "two").trainer(take_over=True)
    assert (new.claim.epoch, new.claim.last_step) == (2, 1)
    assert record_of(store, new.claim).take_over
    with pytest.raises(FencedError) as caught:
        old.put(2)
    assert caught.value.facts == {"epoch": 1, "newer_epoch": 2}
    assert new.put(2).version == 2


def test_a_proof_that_the_owner_is_dead_implies_take_over(
    blobs: MemoryBlobStore, store: ToyStore
) -> None:
    store.trainer(session="a" * 32)
    asked = []

    def is_owner_dead(session: str, boot_id: str) -> bool:
        asked.append((session, boot_id))
        return len(asked) > 1

    other = ToyStore(blobs, "two")
    writer = other.writer()
    with pytest.raises(StoreOwnedError):
        open_claim(writer, run=RUN, owner=OWNER, is_owner_dead=is_owner_dead)
    claim = open_claim(writer, run=RUN, owner=OWNER, is_owner_dead=is_owner_dead)
    assert (claim.epoch, record_of(other, claim).take_over) == (2, True)
    assert asked == [("a" * 32, OWNER.boot_id)] * 2


def test_the_same_session_finds_its_own_claim(blobs: MemoryBlobStore, store: ToyStore) -> None:
    first = store.trainer(session="a" * 32)
    first.put(5)
    again = ToyStore(blobs, "two").trainer(session="a" * 32)
    assert again.claim.slot == first.claim.slot
    assert again.claim.last_step == 5
    assert again.claim.newest is not None
    assert store.log.tail().next_slot == 3, "no second claim"
    with pytest.raises(StoreOwnedError):
        ToyStore(blobs, "three").trainer("sft", session="a" * 32)


def test_closing_frees_the_store_and_is_repeatable(blobs: MemoryBlobStore, store: ToyStore) -> None:
    trainer = store.trainer()
    trainer.put(1)
    trainer.close()
    trainer.close()
    prefix = store.log.tail()
    assert (prefix.now.claim, prefix.next_slot) == (None, 4)
    with pytest.raises(FencedError, match="closed"):
        trainer.put(2)
    other = ToyStore(blobs, "two").trainer("sft")
    assert other.claim.epoch == 2
    trainer.close()
    assert owns(store.log.tail().now, other.claim), "a closed claim closes nobody else's"


def test_closing_leaves_a_successor_alone(blobs: MemoryBlobStore, store: ToyStore) -> None:
    old = store.trainer()
    new = ToyStore(blobs, "two").trainer(take_over=True)
    close_claim(old.writer, old.claim, owner=OWNER)
    assert owns(store.log.tail().now, new.claim)


def test_a_claim_that_is_taken_over_at_once_is_fenced_at_once(
    blobs: MemoryBlobStore, store: ToyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = store.writer()

    def put_and_lose_it(build: Build) -> StoredRecord:
        stored = LogWriter.put(writer, build)
        ToyStore(blobs, "two").trainer(take_over=True)
        return stored

    monkeypatch.setattr(writer, "put", put_and_lose_it)
    with pytest.raises(FencedError):
        open_claim(writer, run=RUN, owner=OWNER)


def test_the_last_step_of_a_run_is_found_behind_other_runs(
    blobs: MemoryBlobStore, store: ToyStore
) -> None:
    for number, (run, steps) in enumerate(
        [("base", [0]), ("grpo", [1, 2, 9]), ("sft", []), ("sft", [4]), ("empty", []), ("dpo", [3])]
    ):
        trainer = ToyStore(blobs, number).trainer(run)
        for step in steps:
            trainer.put(step)
        trainer.close()
    prefix = store.log.tail()
    found = {
        run: last_step_of_run(store.log, prefix, RunId(run))
        for run in ("base", "grpo", "sft", "empty", "dpo", "never")
    }
    assert found == {"base": 0, "grpo": 9, "sft": 4, "empty": None, "dpo": 3, "never": None}
    again = ToyStore(blobs, "again").trainer("grpo")
    assert again.claim.last_step == 9
    assert again.put(10).version == 7


def test_rewinding_makes_later_steps_new_versions(blobs: MemoryBlobStore, store: ToyStore) -> None:
    trainer = store.trainer()
    for step in (1, 2, 3):
        trainer.put(step, b"old")
    trainer.close()
    back = ToyStore(blobs, "two").trainer(rewind_to=1)
    assert (record_of(store, back.claim).rewind_to, back.claim.last_step) == (1, 1)
    assert back.put(2, b"new").version == 4
    assert back.put(3, b"new").version == 5
    back.close()
    # Without the word the run goes on after its newest version.
    assert ToyStore(blobs, "three").trainer().claim.last_step == 3


def test_rewinding_to_a_step_that_was_not_passed_is_an_ordinary_claim(
    blobs: MemoryBlobStore, store: ToyStore
) -> None:
    first = store.trainer(rewind_to=7)
    assert (record_of(store, first.claim).rewind_to, first.claim.last_step) == (None, None)
    first.put(3)
    first.close()
    for number, step in enumerate((3, 4)):
        again = ToyStore(blobs, number).trainer(rewind_to=step)
        assert (record_of(store, again.claim).rewind_to, again.claim.last_step) == (None, 3)
        again.close()


def test_rewinding_again_in_the_session_that_owns_the_store(
    blobs: MemoryBlobStore, store: ToyStore
) -> None:
    for step in (1, 2, 3):
        store.trainer(session="a" * 32).put(step)
    rewound = ToyStore(blobs, "two").trainer(session="a" * 32, rewind_to=2, take_over=True)
    assert rewound.claim.last_step == 2
    repeated = ToyStore(blobs, "three").trainer(session="a" * 32, rewind_to=2)
    assert repeated.claim == rewound.claim
    assert rewound.put(3, b"other").version == 4
    repeated = ToyStore(blobs, "four").trainer(session="a" * 32, rewind_to=2)
    assert repeated.claim.slot == rewound.claim.slot, "what was rewound is not rewound again"
    assert repeated.put(3, b"other").version == 4


@pytest.mark.parametrize("step", [-1, 2**53, True])
def test_a_rewind_to_no_step_is_refused(store: ToyStore, step: int) -> None:
    with pytest.raises(InputRefusedError):
        store.trainer(rewind_to=step)


def test_an_owner_that_does_not_fit_a_record_is_refused(store: ToyStore) -> None:
    with pytest.raises(InputRefusedError):
        open_claim(store.writer(), run=RUN, owner=Owner("h" * 300, 1, ""))


def test_nothing_is_claimed_where_no_store_was_made(blobs: MemoryBlobStore) -> None:
    with pytest.raises(RecordRefusedError):
        ToyStore(blobs, "x").trainer()
    assert list(blobs.list("")) == []


def test_owning_means_this_claim_and_no_other_of_the_run(store: ToyStore) -> None:
    claim = store.trainer(session="a" * 32).claim
    now = store.log.tail().now
    assert owns(now, claim)
    other_slot = Claim(RUN, Epoch(1), claim.session, Slot(9), Step(0), None)
    assert not owns(now, other_slot)
