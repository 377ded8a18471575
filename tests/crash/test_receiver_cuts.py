"""A receiver cut at each write of live memory is dirty, and doing it again is exact. (P4, P5)"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weightstore.codec.piece import ValueCoding
from weightstore.errors import InputRefusedError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.receiver.live_state import Dirty, NothingStaged, Ready, VersionRef, Way
from weightstore.receiver.receiver import Receiver
from weightstore.testing.receiver_lab import (
    CUT_WAYS,
    SMALL_LAUNCHES,
    STREAMED,
    Cut,
    ReceiverLab,
    serves,
)

SCHEMA = Schema.build(
    [
        TensorSpec("bias", DType.F32, (5,)),
        TensorSpec("embed", DType.BF16, (700, 300)),
        TensorSpec("mask", DType.BOOL, ()),
    ],
    aliases=[Alias("head", "embed")],
)


def lab_of(coding: ValueCoding | None = None, count: int = 3) -> ReceiverLab:
    return ReceiverLab.with_versions(SCHEMA, count, coding=coding, piece_unit_count=90_000)


def cut_refit(lab: ReceiverLab, receiver: Receiver, left: int, way: str, version: int) -> bool:
    """Refit with one write cut; whether it was."""
    lab.fuse.set(left, way)
    try:
        receiver.refit(version)
    except Cut:
        assert isinstance(receiver.live, Dirty)
        assert receiver.version is None
        assert not serves(receiver)
        return True
    finally:
        lab.fuse.set(None)
    return False


@pytest.mark.parametrize("way", CUT_WAYS)
@pytest.mark.parametrize("coding", list(ValueCoding))
def test_a_change_that_was_cut_at_any_launch_is_done_again(way: str, coding: ValueCoding) -> None:
    lab = lab_of(coding)
    # Of dense pieces every unit is written, in both places.
    settings = replace(SMALL_LAUNCHES, pool_size_bytes=4_000_000)
    receiver, arrays = lab.host_receiver(settings, at=1)
    launches = 0
    while cut_refit(lab, receiver, launches, way, 3):
        assert isinstance(receiver.staged, Ready)
        report = receiver.apply()
        assert report.is_redo
        assert lab.is_at(arrays, 3), launches
        assert receiver.version == 3
        receiver.verify()
        receiver.refit(1)
        launches += 1
    assert lab.is_at(arrays, 3)
    # `embed` has 4 windows, two of which are shared by two pieces, and so has its copy; the
    # small tensors have one each.
    assert launches == 10


@pytest.mark.parametrize("way", CUT_WAYS)
def test_the_redo_may_be_cut_too_any_number_of_times(way: str) -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(SMALL_LAUNCHES, at=1)
    assert cut_refit(lab, receiver, 5, way, 3)
    for left in (0, 7, 3, 3, 9, 1):
        lab.fuse.set(left, way)
        with pytest.raises(Cut):
            receiver.apply()
        assert isinstance(receiver.live, Dirty)
    lab.fuse.set(None)
    receiver.apply()
    assert lab.is_at(arrays, 3)
    assert receiver.verify().version == 3


def test_a_difference_written_directly_would_not_survive_this() -> None:
    """The control: the same cut and repeat with XOR in place leaves a mixture."""
    lab = lab_of(ValueCoding.XOR)
    old, new = lab.weights[1]["embed"].copy(), lab.weights[3]["embed"]
    words = old ^ new
    old[: old.size // 2] ^= words[: old.size // 2]
    old ^= words
    assert not np.array_equal(old, new)


@pytest.mark.parametrize("way", CUT_WAYS)
def test_a_later_version_after_a_cut_finishes_the_cut_one_first(way: str) -> None:
    lab = lab_of(count=4)
    receiver, arrays = lab.host_receiver(SMALL_LAUNCHES, at=1)
    assert cut_refit(lab, receiver, 3, way, 2)
    report = receiver.refit(4)
    assert (report.base, report.way) == (2, Way.CHANGE)
    assert lab.is_at(arrays, 4)


@pytest.mark.parametrize("way", CUT_WAYS)
def test_a_change_that_was_cut_can_be_undone(way: str) -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(SMALL_LAUNCHES, at=1)
    for left in range(10):
        assert cut_refit(lab, receiver, left, way, 3)
        report = receiver.rollback()
        assert (report.target, report.is_redo) == (1, True)
        assert lab.is_at(arrays, 1)
        assert receiver.verify().version == 1


@pytest.mark.parametrize("way", CUT_WAYS)
def test_a_rollback_that_was_cut_at_any_launch_is_done_again(way: str) -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(SMALL_LAUNCHES, at=1)
    for left in range(10):
        receiver.refit(3)
        lab.fuse.set(left, way)
        with pytest.raises(Cut):
            receiver.rollback()
        lab.fuse.set(None)
        assert not serves(receiver)
        assert receiver.recover().target == 1
        assert lab.is_at(arrays, 1)


@pytest.mark.parametrize("way", CUT_WAYS)
def test_a_whole_version_that_was_cut_at_any_write_is_written_again(way: str) -> None:
    lab = lab_of()
    writes = 0
    while True:
        receiver, arrays = lab.host_receiver(SMALL_LAUNCHES)
        if not cut_refit(lab, receiver, writes, way, 3):
            break
        assert receiver.recover().way is Way.FULL
        assert lab.is_at(arrays, 3)
        assert receiver.verify().version == 3
        writes += 1
    assert writes == 4


@pytest.mark.parametrize("way", CUT_WAYS)
def test_a_stream_that_was_cut_at_any_write_is_not_written_again(way: str) -> None:
    lab = lab_of()
    writes = 0
    while True:
        receiver, arrays = lab.host_receiver(STREAMED, at=1)
        if not cut_refit(lab, receiver, writes, way, 3):
            break
        # Its base is lost, so it must not be written again.
        assert receiver.staged == NothingStaged()
        with pytest.raises(InputRefusedError):
            receiver.apply()
        report = receiver.refit(3)
        assert (report.base, report.way) == (1, Way.OVERWRITE)
        assert lab.is_at(arrays, 3)
        writes += 1
    assert writes >= 10


def test_a_callback_that_fails_is_called_again_before_anything_is_served() -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(SMALL_LAUNCHES, at=1)
    seen: list[int] = []

    def callback(ref: VersionRef) -> None:
        seen.append(ref.version)
        assert not serves(receiver)
        if len(seen) < 3:
            raise RuntimeError("the prefix cache did not answer")

    receiver.on_applied(callback)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            receiver.refit(2) if not seen else receiver.apply()
        assert isinstance(receiver.live, Dirty)
        assert not serves(receiver)
    assert receiver.apply().is_redo
    assert seen == [2, 2, 2]
    assert serves(receiver)
    assert lab.is_at(arrays, 2)


def test_what_was_between_is_a_mixture_of_old_and_new_alone() -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(SMALL_LAUNCHES, at=1)
    assert cut_refit(lab, receiver, 4, "half", 3)

    def parts(units: Units, name: str) -> bool:
        old, new = lab.expected(1, name), lab.expected(3, name)
        return bool(np.all((units == old) | (units == new)))

    assert all(parts(units, name) for name, units in arrays.items())
    assert not lab.versions_of(arrays)
