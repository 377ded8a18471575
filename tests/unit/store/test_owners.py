"""One trainer owns a store; the others are other processes, alive, dead or taken over."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from weightstore.errors import FencedError, StoreOwnedError
from weightstore.storage.machine import host_name
from weightstore.store.facade import WeightStore
from weightstore.testing.store_lab import (
    LAB_SETTINGS,
    OTHER_RUN,
    OtherTrainer,
    other_weights,
    tree,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS).close()
    return tmp_path / "store"


def test_a_second_trainer_is_refused_and_told_who_owns_the_store(place: Path) -> None:
    with WeightStore.open(place, settings=LAB_SETTINGS) as store, OtherTrainer(place) as other:
        assert other.attached == "attached"
        before = tree(place / "log")
        with pytest.raises(StoreOwnedError) as caught:
            store.put_step(0, other_weights(0))
        assert host_name() in caught.value.message
        assert str(other.process_id) in caught.value.message
        assert "take_over" in caught.value.do
        with pytest.raises(StoreOwnedError):
            store.trainer("another")
        with pytest.raises(StoreOwnedError):
            store.import_checkpoint(_checkpoint(place.parent))
        assert tree(place / "log") == before
        assert other.put(0) == "version 1"
    with WeightStore.open(place, settings=LAB_SETTINGS) as store:
        assert store.put_step(1, other_weights(1), run=OTHER_RUN) == 2


def test_readers_and_taggers_need_no_claim(place: Path) -> None:
    with OtherTrainer(place) as other, WeightStore.open(place, settings=LAB_SETTINGS) as store:
        assert other.put(0) == "version 1"
        found = store.checkout().host["w"].units.view(np.float32)
        assert np.array_equal(found, other_weights(0)["w"])
        store.tag("best")
        assert other.put(1) == "version 2"
        assert store.version().version == 2
        owner = store.state().owner
    assert owner == f"run {OTHER_RUN} on {host_name()}, process {other.process_id}"


def test_the_claim_of_a_killed_trainer_is_free_at_once(place: Path) -> None:
    with OtherTrainer(place) as other:
        assert other.put(0) == "version 1"
        other.kill()
        with WeightStore.open(place, settings=LAB_SETTINGS) as store:
            assert store.put_step(1, other_weights(1), run=OTHER_RUN) == 2
            assert store.version(2).base == 1


def test_locks_of_dead_owners_are_gone_after_a_claim_and_after_a_close(place: Path) -> None:
    locks = place / "locks"
    for _ in range(3):
        with OtherTrainer(place, take_over=True) as other:
            assert other.attached == "attached"
            assert len(list(locks.iterdir())) == 1
            other.kill()
    (left,) = locks.iterdir()
    with WeightStore.open(place, settings=LAB_SETTINGS) as store:
        store.put_step(1, other_weights(1), run=OTHER_RUN)
        (own,) = locks.iterdir()
        assert own.name != left.name
    assert list(locks.iterdir()) == []


def test_a_close_removes_what_a_fenced_owner_has_left(place: Path) -> None:
    with WeightStore.open(place, settings=LAB_SETTINGS) as store, OtherTrainer(place) as other:
        with store.trainer(OTHER_RUN, take_over=True):
            assert len(list((place / "locks").iterdir())) == 2
            other.kill()
        assert list((place / "locks").iterdir()) == []


def test_p7_a_trainer_that_was_taken_over_is_fenced_and_nothing_of_it_is_visible(
    place: Path,
) -> None:
    with OtherTrainer(place) as first:
        assert first.put(0) == "version 1"
        with OtherTrainer(place, take_over=True) as second:
            assert second.attached == "attached"
            assert second.put(1) == "version 2"
            assert first.put(7) == "FencedError"
            assert second.put(2) == "version 3"
            assert first.put(8) == "FencedError"
        with WeightStore.open(place, settings=LAB_SETTINGS) as store:
            listed = [(info.version, info.step) for info in store.versions()]
            assert listed == [(3, 2), (2, 1), (1, 0)]
            for version in (1, 2, 3):
                found = store.checkout(version).host["w"].units.view(np.float32)
                assert np.array_equal(found, other_weights(version - 1)["w"])


def test_a_fenced_trainer_may_close_its_handle(place: Path) -> None:
    with WeightStore.open(place, settings=LAB_SETTINGS) as store:
        store.put_step(0, other_weights(0), run=OTHER_RUN)
        with OtherTrainer(place, take_over=True) as other:
            assert other.put(1) == "version 2"
            with pytest.raises(FencedError):
                store.put_step(5, other_weights(5), run=OTHER_RUN)
            store.close()
            assert other.put(2) == "version 3"


def test_an_error_in_the_with_block_gives_up_the_claim(place: Path) -> None:
    def fail() -> None:
        with WeightStore.open(place, settings=LAB_SETTINGS) as store:
            store.put_step(0, other_weights(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with WeightStore.open(place, settings=LAB_SETTINGS) as store:
        assert store.state().owner is None


def test_threads_may_read_one_handle_while_it_puts(place: Path) -> None:
    wrong: list[str] = []
    with WeightStore.open(place, settings=LAB_SETTINGS) as store:
        store.put_step(0, other_weights(0))

        def read() -> None:
            for _ in range(15):
                taken = store.checkout()
                found = taken.host["w"].units.view(np.float32)
                if not np.array_equal(found, other_weights(taken.info.step)["w"]):
                    wrong.append(f"version {taken.info.version}")

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        try:
            for step in range(1, 8):
                store.put_step(step, other_weights(step), anchor=step % 3 == 0)
        finally:
            for reader in readers:
                reader.join()
    assert not wrong


def test_threads_that_put_the_same_first_step_share_one_claim(place: Path) -> None:
    with WeightStore.open(place, settings=LAB_SETTINGS) as store:
        barrier = threading.Barrier(4)

        def put() -> int:
            barrier.wait()
            return store.put_step(0, other_weights(0))

        with ThreadPoolExecutor(4) as threads:
            found = [future.result() for future in [threads.submit(put) for _ in range(4)]]
        assert found == [1, 1, 1, 1]
        assert store.state().epoch == 1


def _checkpoint(folder: Path) -> Path:
    with WeightStore.open(folder / "source", create=True, settings=LAB_SETTINGS) as source:
        source.put_step(0, other_weights(0))
        source.checkout_to_file(1, folder / "model.safetensors")
    return folder / "model.safetensors"
