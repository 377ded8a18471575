"""A put that is cut at any storage call loses nothing and shows nothing by halves.

After each cut a reader must see only whole versions, and a new trainer that puts the same
step again must end with exactly the versions that a put without a cut makes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from weightstore.errors import UnknownOutcomeError, WeightStoreError
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Fault, LossyBlobs, Method, cuts
from weightstore.testing.trainer_lab import (
    Bits,
    TrainerLab,
    Weights,
    bits_of,
    changed,
    lab_settings,
    small_weights,
)
from weightstore.trainer.inputs import TensorSource
from weightstore.trainer.session import TrainerSession

SETTINGS = lab_settings(pack_size_bytes=512, anchor_file_size_bytes=100_000)
FIRST = small_weights()
SECOND = changed(FIRST, 1)
OTHER = {name: SECOND[name] for name in ("embed", "scale")}


@dataclass(frozen=True)
class Put:
    """A kind of put: what is there before, and what it puts as step 1.

    Attributes:
        before: What step 0 holds; None for an empty store.
        after: What step 1 holds.
        put: Puts step 1.
    """

    before: Weights | None
    after: Weights
    put: Callable[[TrainerSession], object]

    @property
    def model(self) -> dict[int, Bits]:
        """Version to bits when all is done."""
        states = [self.after] if self.before is None else [self.before, self.after]
        return {number: bits_of(state) for number, state in enumerate(states, start=1)}


def of(
    given: Callable[[], TensorSource], *, anchor: bool = False, new_schema: bool = False
) -> Callable[[TrainerSession], object]:
    return lambda trainer: trainer.put_step(
        1, given(), anchor=anchor, new_schema=new_schema
    ).result()


PUTS = {
    "first": Put(None, FIRST, of(lambda: FIRST)),
    "first of a stream": Put(None, FIRST, of(lambda: iter(FIRST.items()))),
    "delta": Put(FIRST, SECOND, of(lambda: SECOND)),
    "empty delta": Put(FIRST, FIRST, of(lambda: FIRST)),
    "delta of a stream": Put(FIRST, SECOND, of(lambda: iter(reversed(SECOND.items())))),
    "delta with its full form": Put(FIRST, SECOND, of(lambda: SECOND, anchor=True)),
    "new schema": Put(FIRST, OTHER, of(lambda: OTHER, new_schema=True)),
}


def copy_of(blobs: BlobStore) -> MemoryBlobStore:
    copy = MemoryBlobStore()
    for one in blobs.list(""):
        copy.put_if_absent(one.key, blobs.get(one.key, max_size_bytes=one.size_bytes))
    return copy


def store_before(put: Put) -> MemoryBlobStore:
    blobs = MemoryBlobStore()
    lab = TrainerLab(blobs, "before", SETTINGS).create()
    if put.before is not None:
        with lab.trainer() as trainer:
            trainer.put_step(0, put.before).result()
    return blobs


def check_whole(blobs: BlobStore, model: dict[int, Bits]) -> set[int]:
    """Every version that a reader sees is a whole one; their numbers."""
    reader = TrainerLab(blobs, "reader", SETTINGS)
    seen = set(reader.steps())
    for version in seen:
        assert reader.bits(version) == model[version]
    return seen


@pytest.mark.parametrize("kind", PUTS)
def test_a_cut_put_can_be_put_again(kind: str) -> None:
    put = PUTS[kind]
    start = store_before(put)

    def run(blobs: BlobStore) -> None:
        with TrainerLab(blobs, "cut", SETTINGS).trainer() as trainer:
            put.put(trainer)

    cut_count = 0
    for cut in cuts(lambda: copy_of(start), run):
        cut_count += 1
        before = check_whole(cut.blobs, put.model)
        assert before >= set(put.model) - {max(put.model)}
        again = TrainerLab(cut.blobs, "again", SETTINGS)
        with again.trainer(take_over=True) as trainer:
            put.put(trainer)
            trainer.put_step(2, put.after).result()
        model = put.model
        model[max(model) + 1] = model[max(model)]
        assert check_whole(cut.blobs, model) == set(model)
    assert cut_count > 20


def test_a_recovery_that_is_cut_can_be_repeated() -> None:
    put = PUTS["delta"]
    start = store_before(put)

    def run(blobs: BlobStore) -> None:
        with TrainerLab(blobs, "cut", SETTINGS).trainer() as trainer:
            put.put(trainer)

    def recover(blobs: BlobStore) -> None:
        with TrainerLab(blobs, "again", SETTINGS).trainer(take_over=True) as trainer:
            put.put(trainer)

    firsts = [cut for cut in cuts(lambda: copy_of(start), run) if cut.call.method is Method.PUT]
    assert len(firsts) > 6
    for number, first in enumerate(firsts):
        left = copy_of(first.blobs)
        for cut in cuts(lambda: copy_of(left), recover):  # noqa: B023 -- used in this turn
            if (cut.call.index + number) % 13:
                continue
            check_whole(cut.blobs, put.model)
            with TrainerLab(cut.blobs, "last", SETTINGS).trainer(take_over=True) as trainer:
                put.put(trainer)
            assert check_whole(cut.blobs, put.model) == {1, 2}


FAULTS = list(Fault)


def fault_of(faults: dict[int, Fault], call: Call) -> Fault | None:
    """The fault of a call; only a write can still arrive after it was given up."""
    fault = faults.get(call.index)
    return None if fault is Fault.DELAYED and not call.method.is_write else fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.value)
@pytest.mark.parametrize("kind", ["first", "delta", "delta with its full form"])
def test_after_a_lost_request_or_answer_the_same_session_puts_again(
    kind: str, fault: Fault
) -> None:
    put = PUTS[kind]
    start = store_before(put)
    for index in range(1000):
        inner = copy_of(start)
        faults: dict[int, Fault] = {}
        blobs = LossyBlobs(inner, partial(fault_of, faults))
        with TrainerLab(blobs, "lossy", SETTINGS).trainer() as trainer:
            faulty_call = len(blobs.calls) + index
            faults[faulty_call] = fault
            try:
                put.put(trainer)
            except WeightStoreError as error:
                unknown = isinstance(error, UnknownOutcomeError)
                assert unknown or max(put.model) not in check_whole(inner, put.model)
            was_faulty = len(blobs.calls) > faulty_call
            faults.clear()
            # What was delayed arrives while this goes on.
            put.put(trainer)
            trainer.put_step(2, put.after).result()
        model = put.model
        model[max(model) + 1] = model[max(model)]
        assert check_whole(inner, model) == set(model)
        if not was_faulty:
            break
    assert index > 5


def test_a_put_on_a_local_store_survives_cuts(tmp_path: Path) -> None:
    put = PUTS["delta"]
    places = iter(range(10_000))

    def prepare() -> LocalBlobStore:
        blobs = LocalBlobStore(tmp_path / str(next(places)), create=True)
        lab = TrainerLab(blobs, "before", SETTINGS).create()
        with lab.trainer() as trainer:
            trainer.put_step(0, FIRST).result()
        return blobs

    def run(blobs: BlobStore) -> None:
        with TrainerLab(blobs, "cut", SETTINGS).trainer() as trainer:
            put.put(trainer)

    for cut in cuts(prepare, run):
        if cut.call.index % 3:
            continue
        check_whole(cut.blobs, put.model)
        with TrainerLab(cut.blobs, "again", SETTINGS).trainer(take_over=True) as trainer:
            put.put(trainer)
        assert check_whole(cut.blobs, put.model) == {1, 2}
