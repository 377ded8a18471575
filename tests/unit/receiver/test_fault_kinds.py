"""Kinds of fault that a receiver must stand, each through the receiver as it is used."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from weightstore import WeightStore
from weightstore.format.manifest import Manifest, PackRef
from weightstore.history.pack_jobs import PackJob
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import Units
from weightstore.receiver import receiver as receiver_module
from weightstore.receiver.delta_work import DeltaWork
from weightstore.receiver.live_state import Way
from weightstore.receiver.piece_feed import OwnFeed
from weightstore.receiver.pool import SLACK_BYTES
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.version_source import VersionSource
from weightstore.settings import KIB, MIB, Limits
from weightstore.storage.blobs import BlobStore
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab
from weightstore.testing.store_lab import LAB_SETTINGS
from weightstore.testing.trainer_lab import lab_settings

TIMEOUT_S = 90
SMALL_POOL = ReceiverSettings(pool_size_bytes=64)
UNIT_COUNT = 5000
T = TypeVar("T")


class DoublingFeed(OwnFeed):
    """Gives one pack once more in the place of each other pack of a delta."""

    def load(self, schema: Schema, manifest: Manifest, pack: PackRef, /) -> PackJob:
        """The first pack, whatever is asked for."""
        del pack
        assert manifest.delta is not None
        return super().load(schema, manifest, manifest.delta.packs[0])


@pytest.mark.parametrize("settings", [ReceiverSettings(), SMALL_POOL], ids=["staged", "streamed"])
def test_a_pack_that_comes_in_the_place_of_another_is_never_written(
    settings: ReceiverSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packs are loaded by several threads, no more at once than the workers take."""
    lab = ReceiverLab.with_versions(mixed_schema(), 3, share=0.05)
    receiver, arrays = lab.host_receiver(settings, at=1)
    made = DeltaWork.__init__

    def doubling(work: DeltaWork, *given: Any) -> None:  # noqa: ANN401 -- as the product's
        made(work, *given)
        work._feed = DoublingFeed(lab.blobs, lab.source.settings.limits)

    monkeypatch.setattr(DeltaWork, "__init__", doubling)
    receiver._weights._maker.seat(receiver.placement)
    assert receiver.stage(2).way is Way.FULL
    assert lab.is_at(arrays, 1), "written before it was known to fit"
    report = receiver.apply()
    assert "the deltas cannot be used" in report.reason
    assert lab.is_at(arrays, 2)


SMALL_POOLS = pytest.mark.parametrize(
    "lack_bytes", [0, SLACK_BYTES, None], ids=["just fits", "just too small", "far too small"]
)


def at_once(*jobs: Callable[[], T]) -> list[T]:
    """What jobs give that begin together in threads of their own; a deadlock ends in an error."""
    start = threading.Barrier(len(jobs), timeout=TIMEOUT_S)

    def run(job: Callable[[], T], found: Future[T]) -> None:
        try:
            start.wait()
            found.set_result(job())
        except BaseException as error:  # noqa: BLE001 -- the caller's to raise
            found.set_exception(error)

    pairs = [(job, Future[T]()) for job in jobs]
    for pair in pairs:
        threading.Thread(target=run, args=pair, daemon=True).start()
    return [found.result(TIMEOUT_S) for _, found in pairs]


class TwiceFeed(OwnFeed):
    """Gets each pack twice, in two threads at once.

    Attributes:
        is_in_turn: The second one comes in the place of the pack that is asked for next;
            else it is dropped.
        twice_count: Of so many packs both were given.
        held_count: Packs that were asked for and not released.
        most_held_count: The largest of that.
    """

    def __init__(self, blobs: BlobStore, limits: Limits, *, is_in_turn: bool) -> None:
        super().__init__(blobs, limits)
        self.is_in_turn = is_in_turn
        self.twice_count = self.held_count = self.most_held_count = 0
        self._lock = threading.Lock()
        self._numbers = count()
        self._pairs: dict[int, Future[list[PackJob]]] = {}

    def load(self, schema: Schema, manifest: Manifest, pack: PackRef, /) -> PackJob:
        """The pack, or the second one of the pack that was asked for before it."""
        with self._lock:
            self.held_count += 1
            self.most_held_count = max(self.most_held_count, self.held_count)
            number = next(self._numbers)
            is_second = self.is_in_turn and number % 2 == 1
            pair = self._pairs[number // 2] if is_second else Future[list[PackJob]]()
            if self.is_in_turn and not is_second:
                self._pairs[number // 2] = pair
            self.twice_count += is_second
        if not is_second:
            one = super().load
            pair.set_result(at_once(*[lambda: one(schema, manifest, pack)] * 2))
        return pair.result(TIMEOUT_S)[is_second]

    def release(self, job: PackJob, /) -> None:
        """One less is held."""
        del job
        with self._lock:
            self.held_count -= 1

    def release_all(self) -> None:
        """The next delta begins anew."""
        with self._lock:
            self.held_count = 0
            self._numbers = count()
            self._pairs.clear()


def twice_fed(
    monkeypatch: pytest.MonkeyPatch, thread_count: int, *, is_in_turn: bool
) -> tuple[ReceiverLab, TwiceFeed]:
    """A lab whose receivers have few workers and get each pack twice."""
    lab = ReceiverLab.with_versions(mixed_schema(), 3, share=0.05)
    settings = replace(lab.source.settings, thread_count=thread_count)
    lab.source = VersionSource(lab.blobs, lab.versions.store.log, settings)
    feed = TwiceFeed(lab.blobs, settings.limits, is_in_turn=is_in_turn)
    monkeypatch.setattr(receiver_module, "feed_of", lambda *_: feed)
    return lab, feed


def just_enough(lab: ReceiverLab) -> int:
    """The size of the smallest pool that a change to version 2 fits, to `SLACK_BYTES`."""
    receiver, _ = lab.host_receiver(at=1)
    receiver.stage(2)
    return receiver._weights._maker._pool.used_bytes


@pytest.mark.parametrize("thread_count", [1, 2])
@SMALL_POOLS
def test_a_pack_that_comes_twice_at_once_is_written_once(
    thread_count: int, lack_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While two threads want the version, workers are few, and the pool is as small as can be."""
    lab, feed = twice_fed(monkeypatch, thread_count, is_in_turn=False)
    size_bytes = 64 if lack_bytes is None else just_enough(lab) - lack_bytes
    settings = ReceiverSettings(pool_size_bytes=size_bytes)
    receiver, arrays = lab.host_receiver(settings, at=1)
    changed_count = sum(
        int(np.count_nonzero(lab.expected(1, name) != lab.expected(2, name))) for name in arrays
    )
    feed.most_held_count = 0
    reports = at_once(*[lambda: receiver.refit(2)] * 2)
    assert sorted(each.applied_count for each in reports) == [0, changed_count]
    done = max(reports, key=lambda each: each.applied_count)
    assert done.way is (Way.STREAMED if lack_bytes != 0 else Way.CHANGE)
    assert lab.is_at(arrays, 2)
    assert receiver.verify().version == 2
    if lack_bytes is None:
        assert 1 <= feed.most_held_count <= thread_count + 1
    # As without the second packs, to the last byte.
    monkeypatch.setattr(receiver_module, "feed_of", lambda *_: None)
    plain, _ = lab.host_receiver(settings, at=1)
    expected = plain.refit(2)
    assert (done.size_bytes, done.applied_count) == (expected.size_bytes, expected.applied_count)
    assert receiver.refit(3).target == 3
    assert lab.is_at(arrays, 3)


@pytest.mark.parametrize("thread_count", [1, 2])
@SMALL_POOLS
def test_a_pack_that_comes_twice_in_turn_is_never_written(
    thread_count: int, lack_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were made at once, and the second one takes the place of another."""
    lab, feed = twice_fed(monkeypatch, thread_count, is_in_turn=False)
    size_bytes = 64 if lack_bytes is None else just_enough(lab) - lack_bytes
    receiver, arrays = lab.host_receiver(ReceiverSettings(pool_size_bytes=size_bytes), at=1)
    feed.is_in_turn = True
    reports = at_once(*[lambda: receiver.stage(2)] * 2)
    assert {each.way for each in reports} == {Way.FULL}
    assert feed.twice_count >= 1
    assert lab.is_at(arrays, 1), "written before it was known to fit"
    report = receiver.apply()
    assert "the deltas cannot be used" in report.reason
    assert lab.is_at(arrays, 2)
    assert receiver.verify().version == 2
    feed.is_in_turn = False
    assert receiver.refit(3).way is not Way.FULL
    assert lab.is_at(arrays, 3)


def weights(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    units = np.arange(UNIT_COUNT, dtype=np.uint16)
    units[rng.integers(0, UNIT_COUNT, 50)] ^= np.uint16(step)
    return {"w": units}


@pytest.fixture
def store(tmp_path: Path) -> Any:  # noqa: ANN401 -- a fixture
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as opened:
        yield opened


def is_equal(live: Mapping[str, Units], wanted: Mapping[str, np.ndarray]) -> bool:
    return all(np.array_equal(units, wanted[name]) for name, units in live.items())


def test_a_receiver_whose_version_was_retired_takes_the_whole_newest(store: WeightStore) -> None:
    """Its chain begins at what is gone, and nothing of it is applied. (C4)"""
    store.put_step(1, weights(1))
    live = {"w": np.zeros(UNIT_COUNT, np.uint16)}
    receiver = store.receiver(live)
    receiver.refit(1)
    store.put_step(2, weights(2))
    store.put_step(3, weights(3), anchor=True)
    store.put_step(4, weights(4))
    store.retire()
    report = receiver.refit()
    assert (report.base, report.target, report.way) == (1, 4, Way.FULL)
    assert "retired" in report.reason
    assert is_equal(live, weights(4))


def test_steps_that_a_resumed_trainer_put_again_are_other_versions(store: WeightStore) -> None:
    """No receiver takes the old bytes of a step for its new ones. (C6)"""
    for step in (1, 2, 3):
        store.put_step(step, weights(step), run="grpo")
    store.close()
    with WeightStore.open(store.location, settings=LAB_SETTINGS) as again:
        live = {"w": np.zeros(UNIT_COUNT, np.uint16)}
        receiver = again.receiver(live)
        receiver.refit("grpo@3")
        assert is_equal(live, weights(3))
        with again.trainer("grpo", rewind_to=1) as trainer:
            for step in (2, 3):
                trainer.put_step(step, weights(10 + step)).result()
                report = receiver.refit(f"grpo@{step}")
                assert (report.target, report.way) == (step + 2, Way.CHANGE)
                assert is_equal(live, weights(10 + step))
        again.put_step(1, weights(21), run="other")
        assert receiver.refit("latest").target == 6
        assert is_equal(live, weights(21))
        assert receiver.refit("grpo@3").target == 5
        assert is_equal(live, weights(13))


FORKED = """
import os, sys
import numpy as np
from weightstore import WeightStore
from weightstore.errors import StoreClosedError
with WeightStore.open(sys.argv[1]) as store:
    live = {"w": np.zeros(5000, np.uint16)}
    receiver = store.receiver(live)
    receiver.refit(1)
    receiver.stage(2)
    child = os.fork()
    code = 1
    try:
        if child:
            receiver.refit(2)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            receiver.refit(3)
            assert receiver.verify().version == 3
        else:
            try:
                receiver.refit(3)
            except StoreClosedError:
                own = store.receiver({"w": np.zeros(5000, np.uint16)})
                own.refit(3)
                code = 0 if own.verify().version == 3 else 2
    finally:
        os._exit(code)
"""


def test_a_fork_keeps_its_receiver_to_the_parent_and_may_make_its_own(store: WeightStore) -> None:
    """What a lock of the parent holds is for ever held in the child. (K7)"""
    for step in (1, 2, 3):
        store.put_step(step, weights(step))
    words = [sys.executable, "-c", FORKED, store.location]
    assert subprocess.run(words, timeout=TIMEOUT_S, check=False).returncode == 0


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from weightstore import ReceiverSettings, Settings, WeightStore
with WeightStore.open(sys.argv[1], settings=Settings(thread_count=1)) as store:
    size = int(sys.argv[2])
    live = {"w": np.zeros(size, np.uint16)}
    receiver = store.receiver(live, settings=ReceiverSettings(pool_ratio=0.01))
    receiver.refit(1)
    # The first refit by each way imports and compiles.
    ways = [receiver.refit(version).way.value for version in (2,)]
    now_bytes = 1024 * int(Path("/proc/self/status").read_text().split("VmSize:")[1].split()[0])
    most_bytes = now_bytes + int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    try:
        np.ones(2 * size, np.uint16)
        raise AssertionError("the limit is none")
    except MemoryError:
        pass
    ways += [receiver.refit(version).way.value for version in (3,)]
    receiver.verify()
    print(*ways, int(live["w"].sum(dtype=np.uint64)))
"""


def test_a_step_that_changes_everything_needs_little_memory(tmp_path: Path) -> None:
    """No second copy of the model, by a limit that the kernel enforces."""
    size = 8 * MIB
    pieces = lab_settings(
        limits=Limits(piece_element_count=32 * KIB), pack_size_bytes=MIB, thread_count=1
    )
    units = np.arange(size, dtype=np.uint32).astype(np.uint16)
    with WeightStore.open(tmp_path / "store", create=True, settings=pieces) as store:
        for step in range(1, 4):
            store.put_step(step, {"w": units})
            expected = int(units.sum(dtype=np.uint64))
            units ^= np.uint16(0x5A5A + step)
        location = store.location
    words = [sys.executable, "-c", LIMITED, location, str(size), str(3 * size // 2)]
    found = subprocess.run(words, timeout=TIMEOUT_S, check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["streamed"] * 2 + [str(expected)]
