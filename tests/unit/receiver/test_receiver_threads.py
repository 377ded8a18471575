"""`Receiver`: several threads, and adapters that lose something."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from weightstore.codec.blocked import BlockedChange
from weightstore.errors import (
    LiveWeightsError,
    NotReadyError,
    SchemaMismatchError,
    VersionNotFoundError,
)
from weightstore.layout.schema import Schema
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_state import (
    Dirty,
    Ready,
    VersionRef,
    Way,
)
from weightstore.receiver.live_storage import ScatterCounts
from weightstore.receiver.placement import Placement
from weightstore.receiver.reports import Report
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import (
    SMALL_LAUNCHES,
    Cut,
    FusedStorage,
    ReceiverLab,
    kinds_listed,
)
from weightstore.testing.waiting import WAIT_S, wait_until


@pytest.fixture
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(mixed_schema(), 4)


class WatchedLock:
    """Tells when somebody comes to a lock."""

    def __init__(self, inner: threading.RLock) -> None:
        self._inner = inner
        self.is_waited_for = threading.Event()

    def __enter__(self) -> bool:
        self.is_waited_for.set()
        return self._inner.__enter__()

    def __exit__(self, *_: object) -> None:
        self._inner.release()


def test_of_two_refits_at_once_the_newer_version_wins(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    inside, go_on = threading.Event(), threading.Event()

    def callback(_: VersionRef) -> None:
        inside.set()
        assert go_on.wait(WAIT_S)

    receiver.on_applied(callback)
    reports = {}
    told: list[Report] = []
    receiver.on_report(told.append)

    def refit(version: int) -> None:
        reports[version] = receiver.refit(version)

    newer = threading.Thread(target=refit, args=(4,))
    newer.start()
    assert inside.wait(WAIT_S)
    receiver._refits.lock = lock = WatchedLock(receiver._refits.lock)  # type: ignore[assignment]
    older = threading.Thread(target=refit, args=(2,))
    older.start()
    assert lock.is_waited_for.wait(WAIT_S)
    go_on.set()
    newer.join(WAIT_S)
    older.join(WAIT_S)
    assert reports[4].target == 4
    assert (reports[2].superseded_by, reports[2].way) == (4, Way.NOTHING)
    assert told == [reports[4], reports[2]]
    assert lab.is_at(arrays, 4)
    assert receiver.refit(2).target == 2


def test_many_threads_leave_one_whole_version(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    start = threading.Barrier(6)

    def refit(version: int) -> None:
        start.wait(WAIT_S)
        receiver.refit(version)

    threads = [threading.Thread(target=refit, args=(1 + one % 4,)) for one in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    version = receiver.version
    assert version is not None
    assert lab.versions_of(arrays) == [version]
    assert receiver.verify().version == version


def test_a_cancelled_refit_does_not_stop_the_other(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(SMALL_LAUNCHES, at=1)
    lab.fuse.set(2)
    with pytest.raises(Cut):
        receiver.refit(2)
    lab.fuse.set(None)
    thread = threading.Thread(target=receiver.refit, args=(4,))
    thread.start()
    thread.join(30)
    assert lab.is_at(arrays, 4)


def test_a_reader_that_hashes_in_a_loop_sees_whole_versions_alone(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(SMALL_LAUNCHES, at=1)
    stop = threading.Event()
    seen: list[int] = []
    wrong: list[int] = []

    def read() -> None:
        while not stop.is_set():
            try:
                with receiver.serving() as version:
                    found = {name: units.tobytes() for name, units in arrays.items()}
            except NotReadyError:
                continue
            expected = {name: lab.expected(version, name).tobytes() for name in arrays}
            (seen if found == expected else wrong).append(version)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        for version in (2, 3, 4, 1, 3, 4, 2, 4):
            receiver.refit(version)
    finally:
        stop.set()
        reader.join(30)
    assert not reader.is_alive()
    assert not wrong
    assert len(set(seen)) > 1


def test_a_memory_that_drops_a_part_of_a_whole_version_is_found(
    lab: ReceiverLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, _ = lab.host_receiver()
    monkeypatch.setattr(FusedStorage, "write", lambda *_: None)
    with pytest.raises(LiveWeightsError, match="do not have the digests"):
        receiver.refit(2)
    assert receiver.version is None


def test_arrays_of_another_model_are_refused_with_every_difference(lab: ReceiverLab) -> None:
    arrays = lab.arrays()
    arrays["head"] = arrays["head"][:-1].copy()
    arrays["head.bias"] = arrays["head.bias"].astype(np.uint32)
    arrays["extra"] = np.zeros(3, np.uint8)
    del arrays["flags"]
    before = {name: units.tobytes() for name, units in arrays.items()}
    with pytest.raises(SchemaMismatchError, match="nothing was written") as caught:
        lab.receiver(partial(place_arrays, targets=arrays, boxes={}))
    kinds = {
        "shape: 'head' ",
        "dtype: 'head.bias' ",
        "missing: 'flags' ",
        "not in the version: 'extra'",
    }
    assert kinds_listed(caught.value, kinds) == kinds
    assert {name: units.tobytes() for name, units in arrays.items()} == before


def test_ready_names_base_target_and_way(lab: ReceiverLab) -> None:
    receiver, _ = lab.host_receiver(at=1)
    refs = [VersionRef.of(record) for record in lab.versions.records]
    assert receiver.stage(3) == Ready(refs[0], refs[2], Way.CHANGE)
    assert receiver.stage(1) == Ready(refs[0], refs[0], Way.NOTHING)


def test_a_store_without_versions_has_no_receiver() -> None:
    lab = ReceiverLab(mixed_schema())
    with pytest.raises(VersionNotFoundError):
        lab.host_receiver()


def test_a_placement_that_lacks_a_tensor_is_refused(lab: ReceiverLab) -> None:
    arrays = lab.arrays()

    def dropping(schema: Schema) -> Placement:
        found = place_arrays(schema, arrays, {})
        head = schema.index_of("head")
        kept = tuple(each for each in found.destinations if each.tensor_index != head)
        return replace(found, destinations=kept)

    with pytest.raises(SchemaMismatchError, match="'head'"):
        lab.receiver(dropping)


def test_a_memory_that_drops_writes_is_found_at_apply(
    lab: ReceiverLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, _ = lab.host_receiver(at=1)
    scatter = FusedStorage.scatter

    def drop_all_but_one(
        storage: FusedStorage, change: BlockedChange, *, redo: bool
    ) -> ScatterCounts:
        return scatter(storage, next(change.cut(1)), redo=redo)

    monkeypatch.setattr(FusedStorage, "scatter", drop_all_but_one)
    with pytest.raises(LiveWeightsError, match="units were written") as caught:
        receiver.refit(2)
    expected, found = caught.value.facts["expected"], caught.value.facts["found"]
    assert isinstance(expected, int)
    assert isinstance(found, int)
    assert found < expected


def test_what_is_invalidated_under_a_change_is_served_by_nobody(lab: ReceiverLab) -> None:
    """Whoever changes the weights opens the gate at the end, and may not know of it."""
    receiver, _ = lab.host_receiver(at=1)
    held = VersionRef.of(lab.versions.records[0])
    with receiver.exclusive():
        gives_up = threading.Thread(target=receiver.invalidate, args=("others write",), daemon=True)
        gives_up.start()
        wait_until(lambda: "others write" in receiver.status().why_not)
        receiver._gate.open(held)
        with pytest.raises(NotReadyError, match="others write"), receiver.serving():
            pytest.fail("foreign bits are served")
        assert gives_up.is_alive()
    gives_up.join(WAIT_S)
    assert isinstance(receiver.live, Dirty)
    with pytest.raises(NotReadyError, match="others write"), receiver.serving():
        pytest.fail("foreign bits are served")
    receiver.refit(2)
    with receiver.serving() as version:
        assert version == 2
