"""Every way into place has a report whose phases and bytes add up, and so has every failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from weightstore.errors import (
    CorruptObjectError,
    InputRefusedError,
    LiveWeightsError,
    SelectorError,
    VersionNotFoundError,
    WeightStoreError,
)
from weightstore.layout.boxes import Box
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_state import Way
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.reports import Phase, RefitFailure, RefitReport, Report
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import SMALL_LAUNCHES, STREAMED, Bits, Cut, ReceiverLab
from weightstore.testing.virtual_time import VirtualClock

BEFORE = {Phase.DISCOVER, Phase.FETCH, Phase.VERIFY, Phase.DECODE}
PAUSED = {Phase.WAIT, Phase.PAUSE, Phase.APPLY, Phase.RESUME}
PHASES = {
    Way.NOTHING: {Phase.DISCOVER},
    Way.CHANGE: BEFORE | PAUSED | {Phase.STAGE},
    Way.STREAMED: BEFORE | PAUSED,
    Way.OVERWRITE: BEFORE | PAUSED,
    Way.FULL: {Phase.DISCOVER, Phase.FETCH, Phase.VERIFY} | PAUSED,
}


class TickingClock(VirtualClock):
    """Each look takes a second, so that no second may be counted twice or left out."""

    def monotonic_s(self) -> float:
        self.sleep(1)
        return super().monotonic_s()


@dataclass
class Followed:
    """A receiver, its arrays, and everything that it reported."""

    receiver: Receiver
    arrays: Bits
    reports: list[Report]

    @classmethod
    def of(cls, lab: ReceiverLab, settings: ReceiverSettings = SMALL_LAUNCHES) -> Followed:
        receiver, arrays = lab.host_receiver(settings)
        followed = cls(receiver, arrays, [])
        receiver.on_report(followed.reports.append)
        return followed


@pytest.fixture
def lab() -> ReceiverLab:
    found = ReceiverLab.with_versions(mixed_schema(), 3)
    found.versions.store.clock = TickingClock()
    return found


def cut(lab: ReceiverLab, run: Callable[[], object], left: int = 3) -> None:
    lab.fuse.set(left)
    with pytest.raises(Cut):
        run()
    lab.fuse.set(None)


def nothing(_lab: ReceiverLab, followed: Followed) -> RefitReport:
    followed.receiver.refit(2)
    return followed.receiver.refit(2)


def change(_lab: ReceiverLab, followed: Followed) -> RefitReport:
    followed.receiver.refit(1)
    return followed.receiver.refit(3)


def overwrite(lab: ReceiverLab, followed: Followed) -> RefitReport:
    followed.receiver.refit(1)
    cut(lab, partial(followed.receiver.refit, 3))
    followed.receiver.stage(2)
    return followed.receiver.recover()


def full(_lab: ReceiverLab, followed: Followed) -> RefitReport:
    return followed.receiver.refit(3)


def back(_lab: ReceiverLab, followed: Followed) -> RefitReport:
    followed.receiver.refit(3)
    return followed.receiver.refit(1)


@pytest.mark.parametrize(
    ("way", "go", "settings", "base", "target"),
    [
        (Way.NOTHING, nothing, SMALL_LAUNCHES, 2, 2),
        (Way.CHANGE, change, SMALL_LAUNCHES, 1, 3),
        (Way.STREAMED, change, STREAMED, 1, 3),
        (Way.OVERWRITE, overwrite, SMALL_LAUNCHES, 1, 3),
        (Way.FULL, full, SMALL_LAUNCHES, None, 3),
        (Way.FULL, back, SMALL_LAUNCHES, 3, 1),
    ],
)
def test_phases_and_bytes_of_each_way(
    lab: ReceiverLab,
    way: Way,
    go: Callable[[ReceiverLab, Followed], RefitReport],
    settings: ReceiverSettings,
    base: int | None,
    target: int,
) -> None:
    followed = Followed.of(lab, settings)
    report = go(lab, followed)
    assert followed.reports[-1] is report
    assert (report.way, report.base, report.target) == (way, base, target)
    assert set(report.seconds) - {Phase.SCAN} == PHASES[way]
    # Only what is wholly there can be looked at.
    assert (Phase.SCAN in report.seconds) == (base is not None and way is not Way.OVERWRITE)
    assert all(seconds > 0 for seconds in report.seconds.values())
    size_bytes = report.size_bytes
    assert size_bytes.full == sum(units.nbytes for units in followed.arrays.values())
    moves = way is not Way.NOTHING
    assert (size_bytes.wire > 0) == (size_bytes.applied > 0) == moves
    assert (report.applied_count > 0) == (report.launch_count > 0) == moves
    assert (size_bytes.decoded > 0) == (way in {Way.CHANGE, Way.STREAMED, Way.OVERWRITE})
    assert size_bytes.skipped == 0
    assert bool(report.reason) == (way in {Way.STREAMED, Way.OVERWRITE, Way.FULL})
    if way is not Way.FULL:
        assert size_bytes.applied < size_bytes.full / 10
    inner_s = sum(report.seconds.get(phase, 0) for phase in (Phase.APPLY, Phase.RESUME))
    assert inner_s < report.pause_s or not moves


def test_no_second_is_counted_twice(lab: ReceiverLab) -> None:
    """All phases but the pause, which holds others, are together no more than it all took."""
    for settings in (SMALL_LAUNCHES, STREAMED):
        receiver, _ = lab.host_receiver(settings)
        receiver.refit(1)
        clock = lab.versions.store.clock
        start_s = clock.slept_s
        report = receiver.refit(3)
        took_s = clock.slept_s - start_s
        own_s = sum(s for phase, s in report.seconds.items() if phase is not Phase.PAUSE)
        assert took_s / 3 < own_s <= took_s


def test_a_version_staged_before_counts_its_staging_in_the_same_report(lab: ReceiverLab) -> None:
    followed = Followed.of(lab)
    followed.receiver.refit(1)
    followed.receiver.stage(3)
    assert len(followed.reports) == 1
    report = followed.receiver.apply()
    assert set(report.seconds) == PHASES[Way.CHANGE] | {Phase.SCAN}
    assert report.size_bytes.wire > 0


def test_a_redo_reads_nothing(lab: ReceiverLab) -> None:
    followed = Followed.of(lab)
    followed.receiver.refit(1)
    cut(lab, partial(followed.receiver.refit, 3))
    report = followed.receiver.recover()
    assert (report.way, report.base, report.target, report.is_redo) == (Way.CHANGE, 1, 3, True)
    assert (set(report.seconds), report.size_bytes.wire) == (PAUSED, 0)
    assert followed.receiver.rollback().target == 1
    kinds = [type(each).__name__ for each in followed.reports]
    assert kinds == ["RefitReport", "RefitFailure", "RefitReport", "RefitReport"]


def test_a_healing_on_the_way_to_another_version_has_a_report_of_its_own(
    lab: ReceiverLab,
) -> None:
    followed = Followed.of(lab)
    followed.receiver.refit(1)
    cut(lab, partial(followed.receiver.refit, 2))
    del followed.reports[:]
    last = followed.receiver.refit(3)
    assert followed.reports[-1] is last
    healing, changing = followed.reports
    assert isinstance(healing, RefitReport)
    assert isinstance(changing, RefitReport)
    assert [healing.is_redo, healing.base, healing.target] == [True, 1, 2]
    assert [changing.is_redo, changing.base, changing.target] == [False, 2, 3]
    # Each has what is its own: a redo reads nothing.
    assert (healing.size_bytes.wire, set(healing.seconds)) == (0, PAUSED | {Phase.DISCOVER})
    assert changing.size_bytes.wire > 0
    assert lab.is_at(followed.arrays, 3)


def test_a_failure_after_a_healing_names_what_was_healed(lab: ReceiverLab) -> None:
    followed = Followed.of(lab)
    followed.receiver.refit(1)
    cut(lab, partial(followed.receiver.refit, 2))
    for blob in [*lab.blobs.list("packs/"), *lab.blobs.list("anchors/")]:
        lab.blobs.delete(blob.key)
    with pytest.raises(WeightStoreError):
        followed.receiver.refit(3)
    healing, failure = followed.reports[-2:]
    assert isinstance(failure, RefitFailure)
    assert (healing.base, healing.target) == (1, 2)
    assert (failure.base, failure.target) == (2, 3)


def test_what_lives_elsewhere_is_skipped(lab: ReceiverLab) -> None:
    arrays = lab.arrays()
    boxes = {"head": Box((0, 0), (150, 250)), "block.large": Box((0, 0), (0, 0))}
    arrays["head"] = np.zeros(boxes["head"].unit_count, np.uint64)
    del arrays["block.large"]
    receiver = lab.receiver(partial(place_arrays, targets=dict(arrays), boxes=boxes))
    receiver.refit(1)
    report = receiver.refit(3)
    assert report.size_bytes.skipped > report.size_bytes.applied / 2
    assert report.size_bytes.full == sum(units.nbytes for units in arrays.values())


def failed(
    followed: Followed, kind: type[BaseException], run: Callable[[], object]
) -> RefitFailure:
    count = len(followed.reports)
    with pytest.raises(kind):
        run()
    assert len(followed.reports) == count + 1
    report = followed.reports[-1]
    assert isinstance(report, RefitFailure)
    expected = kind.code if issubclass(kind, WeightStoreError) else kind.__name__
    assert report.error_code == expected
    return report


def test_every_failure_is_reported_with_its_code(lab: ReceiverLab) -> None:
    followed = Followed.of(lab)
    receiver, go = followed.receiver, followed.receiver.refit
    unknown = failed(followed, VersionNotFoundError, partial(go, 9))
    assert (unknown.base, unknown.target) == (None, None)
    failed(followed, SelectorError, partial(go, "newest?"))
    go(1)
    lab.fuse.set(2)
    torn = failed(followed, Cut, partial(go, 3))
    lab.fuse.set(None)
    assert (torn.base, torn.target) == (1, 3)
    assert torn.applied_count > 0
    assert Phase.PAUSE in torn.seconds
    receiver.recover()
    go(1)
    receiver.on_applied(lambda _: 1 / 0)  # type: ignore[arg-type]
    assert failed(followed, ZeroDivisionError, partial(go, 3)).message == "division by zero"


def test_weights_that_somebody_wrote_and_objects_that_are_damaged(lab: ReceiverLab) -> None:
    followed = Followed.of(lab)
    followed.receiver.refit(1)
    followed.receiver.stage(2)
    followed.arrays["head"] ^= 1
    written = failed(followed, LiveWeightsError, followed.receiver.apply)
    assert (written.base, written.target) == (1, 2)
    for blob in [*lab.blobs.list("packs/"), *lab.blobs.list("anchors/")]:
        data = bytearray(lab.blobs._blobs[blob.key])
        data[-1] ^= 1
        lab.blobs._blobs[blob.key] = bytes(data)
    damaged = failed(followed, CorruptObjectError, partial(followed.receiver.refit, 3))
    assert damaged.target == 3


def test_a_slip_of_the_caller_is_no_refit(lab: ReceiverLab) -> None:
    followed = Followed.of(lab)
    with pytest.raises(InputRefusedError):
        followed.receiver.apply()
    with pytest.raises(SelectorError):
        followed.receiver.refit(1.5)  # type: ignore[arg-type]
    assert followed.reports == []
