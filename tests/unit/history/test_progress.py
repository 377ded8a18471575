"""Progress: bytes of a phase only rise and end at the total."""

from __future__ import annotations

from weightstore.history.progress import Meter, no_progress


def test_a_meter_adds_up_and_names_its_phase() -> None:
    told: list[tuple[str, int, int]] = []

    def tell(phase: str, done_bytes: int, total_bytes: int, /) -> None:
        told.append((phase, done_bytes, total_bytes))

    meter = Meter(tell, "copy", 10)
    meter.add(4)
    meter.add(6)
    assert told == [("copy", 4, 10), ("copy", 10, 10)]


def test_no_progress_takes_no_note() -> None:
    Meter(no_progress, "copy", 1).add(1)
