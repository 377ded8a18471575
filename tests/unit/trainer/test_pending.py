"""The handle of a put: when it returns, and which error comes out of what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from weightstore.errors import StorageFullError, StoreBusyError
from weightstore.ids import RunId, Step, VersionId
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.store_lab import store_on
from weightstore.testing.trainer_lab import TrainerLab, lab_settings, small_weights
from weightstore.trainer.pending import PendingVersion, PutReport


def report(*notes: str) -> PutReport:
    return PutReport(
        version=VersionId(7),
        run=RunId("run"),
        step=Step(3),
        repeated=False,
        changed_count=1,
        unit_count=2,
        piece_count=1,
        wire_size_bytes=100,
        full_size_bytes=0,
        device_bytes=0,
        detect_s=0.1,
        write_s=0.2,
        commit_s=0.3,
        notes=notes,
    )


def test_captured_returns_before_the_verdict() -> None:
    pending = PendingVersion(Step(3))
    pending.mark_captured()
    pending.captured()
    with pytest.raises(StoreBusyError, match="step 3"):
        pending.result(timeout_s=0.0)
    pending.succeed(report())
    assert pending.result() == 7
    assert pending.report().wire_size_bytes == 100


def test_an_error_before_the_tensors_were_read_comes_out_of_captured() -> None:
    pending = PendingVersion(Step(3))
    pending.fail(StorageFullError("full"))
    for wait in (pending.captured, pending.result, pending.report):
        with pytest.raises(StorageFullError):
            wait()


def test_an_error_after_the_tensors_were_read_comes_out_of_result_alone() -> None:
    pending = PendingVersion(Step(3))
    pending.mark_captured()
    pending.fail(StorageFullError("full"))
    pending.captured()
    with pytest.raises(StorageFullError):
        pending.result()


def test_a_timeout_error_of_the_put_is_no_timeout_of_the_wait() -> None:
    pending = PendingVersion(Step(3))
    pending.fail(TimeoutError("of the exporter"))
    with pytest.raises(TimeoutError, match="of the exporter"):
        pending.result(timeout_s=0.0)


def test_notes_are_warned_once() -> None:
    pending = PendingVersion(Step(3))
    pending.succeed(report("look at this"))
    with pytest.warns(UserWarning, match="look at this") as caught:
        pending.result()
    assert caught[0].filename == __file__
    assert pending.report().notes == ("look at this",)


def test_another_thread_wakes_the_one_that_waits() -> None:
    pending = PendingVersion(Step(3))
    thread = threading.Thread(target=pending.succeed, args=(report(),))
    thread.start()
    pending.captured()
    pending.wait()
    assert pending.result() == 7
    thread.join()


def test_a_warning_points_at_the_line_that_asks() -> None:
    lab = TrainerLab(MemoryBlobStore(), settings=lab_settings(warn_changed_ratio=0.5)).create()
    with lab.trainer() as trainer:
        trainer.put_step(0, {"w": np.zeros(100, np.float32)}).result()
        pending = trainer.put_step(1, {"w": np.ones(100, np.float32)})
        with pytest.warns(UserWarning, match="100% of all elements") as caught:
            pending.report()
    assert [one.filename for one in caught] == [__file__]


def test_a_warning_points_through_the_facade_at_its_caller() -> None:
    with store_on(MemoryBlobStore(), settings=lab_settings(warn_changed_ratio=0.5)) as store:
        store.put_step(0, {"w": np.zeros(100, np.float32)})
        with pytest.warns(UserWarning, match="100% of all elements") as caught:
            store.put_step(1, {"w": np.ones(100, np.float32)})
    assert [one.filename for one in caught] == [__file__]


def test_a_put_that_could_not_begin_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    lab = TrainerLab(MemoryBlobStore()).create()
    weights = small_weights()
    with lab.trainer() as trainer:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            trainer.put_step(0, weights)
        monkeypatch.undo()
        assert trainer.put_step(0, weights).result() == 1


def test_an_abandoned_put_is_not_started_and_nobody_waits_for_it() -> None:
    pending = PendingVersion(Step(1))
    pending.abandon()
    pending.wait()
    assert not pending.start()
    begun = PendingVersion(Step(2))
    assert begun.start()
    begun.abandon()
    begun.fail(ValueError("the verdict"))
    with pytest.raises(ValueError, match="the verdict"):
        begun.result()
