"""Ctrl-C at the beginning of a put: what comes next waits for it, or it never begins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from numpy.typing import NDArray

from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.trainer_lab import TrainerLab, bits_of, changed, small_weights


@pytest.fixture
def lab() -> TrainerLab:
    return TrainerLab(MemoryBlobStore()).create()


def test_an_interrupted_start_of_the_worker_leaves_no_claim(
    lab: TrainerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("weightstore-put"):
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lab.trainer()
    monkeypatch.undo()
    with lab.trainer("other") as trainer:
        assert trainer.put_step(0, small_weights()).result() == 1


def test_no_put_starts_a_thread_that_an_interrupt_could_leave_behind(
    lab: TrainerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = small_weights()
    begun: list[str] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("weightstore-put"):
            begun.append(thread.name)
            raise KeyboardInterrupt

    with lab.trainer() as trainer:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        assert trainer.put_step(0, weights).result() == 1
    assert begun == []


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_put_waits_for_one_whose_call_was_interrupted(
    lab: TrainerLab, monkeypatch: pytest.MonkeyPatch, *, is_queued: bool
) -> None:
    weights = small_weights()
    after = changed(weights, 1)
    running = threading.Event()
    release = threading.Event()
    submit = ThreadPoolExecutor.submit

    def export() -> Iterator[tuple[str, NDArray[Any]]]:
        running.set()
        release.wait()
        yield from weights.items()

    def interrupted(
        executor: ThreadPoolExecutor, work: Callable[..., object], *given: object
    ) -> None:
        if is_queued:
            submit(executor, work, *given)
            running.wait()
        raise KeyboardInterrupt

    with lab.trainer() as trainer:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.put_step(0, export())
        monkeypatch.undo()
        begun: list[object] = []
        second = threading.Thread(target=lambda: begun.append(trainer.put_step(1, after)))
        second.start()
        second.join(0.1 if is_queued else 20)
        assert second.is_alive() is is_queued
        release.set()
        second.join(20)
        assert not second.is_alive()
        expected = 2 if is_queued else 1
        assert trainer.put_step(1, after).report().repeated
        assert trainer.put_step(2, weights).result() == expected + 1
    assert lab.bits(expected) == bits_of(after)


def test_an_interrupted_put_that_never_began_is_not_begun_later(
    lab: TrainerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Callable[[], object]] = []
    submit = ThreadPoolExecutor.submit

    def interrupted(
        executor: ThreadPoolExecutor, work: Callable[..., object], *given: object
    ) -> None:
        kept.append(lambda: submit(executor, work, *given))
        raise KeyboardInterrupt

    with lab.trainer() as trainer:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.put_step(0, small_weights(7))
        monkeypatch.undo()
        assert trainer.put_step(1, small_weights()).result() == 1
        kept[0]()
        assert trainer.put_step(2, small_weights()).result() == 2
    assert lab.steps() == {1: ("run", 1), 2: ("run", 2)}
