"""The phases of a put, in seconds of the clock that was given."""

from __future__ import annotations

from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.trainer_lab import TrainerLab, small_weights
from weightstore.testing.virtual_time import VirtualClock
from weightstore.trainer.watch import PutWatch


def test_each_phase_is_timed_by_itself() -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    with lab.trainer() as trainer:
        trainer.put_step(0, small_weights()).result()
    record = lab.plan().record
    clock = VirtualClock()
    captured = []
    watch = PutWatch(clock, lambda: captured.append(clock.monotonic_s()))
    clock.sleep(1.0)
    watch.captured()
    clock.sleep(2.0)
    watch.written()
    clock.sleep(4.0)
    report = watch.report(record, unit_count=9, notes=("note",))
    assert (report.detect_s, report.write_s, report.commit_s) == (1.0, 2.0, 4.0)
    assert captured == [1001.0]
    assert (report.version, report.run, report.step) == (1, "run", 0)


def test_a_repeat_has_one_phase() -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    with lab.trainer() as trainer:
        trainer.put_step(0, small_weights()).result()
    clock = VirtualClock()
    watch = PutWatch(clock, lambda: None)
    clock.sleep(1.0)
    watch.captured()
    report = watch.report(lab.plan().record, unit_count=9, notes=(), repeated=True)
    assert (report.repeated, report.detect_s, report.commit_s) == (True, 1.0, 0.0)
