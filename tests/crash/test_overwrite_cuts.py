"""Staging that is lost in a mixture: an overwrite set heals it, cut anywhere, repeatedly. (P5)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from weightstore.codec.piece import ValueCoding
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_state import Dirty, NothingStaged, Ready, Way
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.reports import RefitReport
from weightstore.receiver.torch_live import place_tensors
from weightstore.testing.real_versions import next_weights
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
        *(TensorSpec(f"layer.{n}", DType.BF16, (350, 200)) for n in range(6)),
        TensorSpec("mask", DType.BOOL, ()),
    ],
    aliases=[Alias("tied", "layer.0")],
)
ROOMY = replace(SMALL_LAUNCHES, pool_size_bytes=4_000_000)


def lab_of(coding: ValueCoding | None = None, count: int = 3) -> ReceiverLab:
    return ReceiverLab.with_versions(SCHEMA, count, coding=coding)


def was_cut(lab: ReceiverLab, run: Callable[[], object], left: int, way: str) -> bool:
    lab.fuse.set(left, way)
    try:
        run()
    except Cut:
        return True
    finally:
        lab.fuse.set(None)
    return False


def lose_staging(receiver: Receiver) -> None:
    """What is staged is given up for something else, as the documentation of `stage` says."""
    receiver.stage(2)
    assert isinstance(receiver.live, Dirty)
    assert not serves(receiver)


def check_small(report: RefitReport) -> None:
    """Much less than a full load was read and written."""
    assert report.way is Way.OVERWRITE
    assert report.size_bytes.full > 0
    assert report.size_bytes.applied < report.size_bytes.full / 20
    assert report.size_bytes.wire < report.size_bytes.full * 0.6


@pytest.mark.parametrize("way", CUT_WAYS)
@pytest.mark.parametrize("coding", [ValueCoding.ULP, ValueCoding.XOR, ValueCoding.OVERWRITE])
def test_a_change_that_was_cut_at_any_launch_is_healed_without_its_staging(
    way: str, coding: ValueCoding
) -> None:
    lab = lab_of(coding)
    receiver, arrays = lab.host_receiver(ROOMY, at=1)
    launches = 0
    while was_cut(lab, partial(receiver.refit, 3), launches, way):
        lose_staging(receiver)
        report = receiver.recover()
        assert (report.base, report.target) == (1, 3)
        assert "lost" in report.reason
        check_small(report)
        assert lab.is_at(arrays, 3), launches
        assert receiver.verify().version == 3
        assert serves(receiver)
        receiver.refit(1)
        launches += 1
    assert launches >= 16


@pytest.mark.parametrize("way", CUT_WAYS)
@pytest.mark.parametrize("is_staging_lost", [False, True])
def test_the_overwriting_may_be_cut_at_any_write_too(way: str, *, is_staging_lost: bool) -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(ROOMY, at=1)
    writes = 0
    while True:
        assert was_cut(lab, partial(receiver.refit, 3), 5, "half")
        lose_staging(receiver)
        if not was_cut(lab, receiver.recover, writes, way):
            break
        assert not serves(receiver)
        if is_staging_lost:
            lose_staging(receiver)
        check_small(receiver.recover())
        assert lab.is_at(arrays, 3), writes
        assert receiver.verify().version == 3
        receiver.refit(1)
        writes += 1
    assert lab.is_at(arrays, 3)
    assert writes >= 10


@pytest.mark.parametrize("way", CUT_WAYS)
def test_a_stream_that_was_cut_at_any_write_is_overwritten(way: str) -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(STREAMED, at=1)
    writes = 0
    while was_cut(lab, partial(receiver.refit, 3), writes, way):
        assert receiver.staged == NothingStaged()
        report = receiver.recover()
        assert (report.base, report.target, report.way) == (1, 3, Way.OVERWRITE)
        assert report.size_bytes.applied < report.size_bytes.full / 20
        assert lab.is_at(arrays, 3), writes
        assert receiver.verify().version == 3
        receiver.refit(1)
        writes += 1
    assert writes >= 16


@pytest.mark.parametrize("way", CUT_WAYS)
def test_a_rollback_that_was_cut_at_any_launch_is_overwritten_back(way: str) -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(ROOMY, at=1)
    launches = 0
    while True:
        receiver.refit(3)
        if not was_cut(lab, receiver.rollback, launches, way):
            break
        lose_staging(receiver)
        report = receiver.recover()
        assert (report.base, report.target, report.way) == (3, 1, Way.OVERWRITE)
        assert lab.is_at(arrays, 1), launches
        assert receiver.verify().version == 1
        launches += 1
    assert lab.is_at(arrays, 1)
    assert launches >= 16


def test_a_later_refit_heals_the_mixture_first_and_goes_on_by_a_delta() -> None:
    lab = lab_of(count=4)
    receiver, arrays = lab.host_receiver(STREAMED, at=1)
    assert was_cut(lab, partial(receiver.refit, 2), 4, "half")
    report = receiver.refit(4)
    assert (report.base, report.target, report.way) == (2, 4, Way.STREAMED)
    assert lab.is_at(arrays, 4)


def test_a_refit_to_the_version_that_was_cut_reports_how_it_was_healed() -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(ROOMY, at=1)
    assert was_cut(lab, partial(receiver.refit, 3), 4, "half")
    redone = receiver.refit(3)
    assert (redone.way, redone.is_redo, redone.base) == (Way.CHANGE, True, 1)
    receiver.refit(1)
    assert was_cut(lab, partial(receiver.refit, 3), 4, "half")
    lose_staging(receiver)
    check_small(receiver.refit(3))
    assert lab.is_at(arrays, 3)


@pytest.mark.parametrize("way", CUT_WAYS)
def test_boxes_and_copies_are_healed_too(way: str) -> None:
    lab = lab_of()
    boxes = {"layer.1": Box((10, 20), (200, 100)), "layer.2": Box((0, 0), (350, 1))}
    arrays = lab.arrays(tied=True)
    for name, box in boxes.items():
        arrays[name] = np.zeros(box.unit_count, arrays[name].dtype)
    receiver = lab.receiver(partial(place_arrays, targets=dict(arrays), boxes=boxes), ROOMY)
    receiver.refit(1)
    launches = 0
    while was_cut(lab, partial(receiver.refit, 3), launches, way):
        lose_staging(receiver)
        assert receiver.recover().way is Way.OVERWRITE
        for name, units in arrays.items():
            expected = lab.boxed(3, name, boxes[name]) if name in boxes else lab.expected(3, name)
            assert np.array_equal(units, expected), (launches, name)
        assert receiver.verify().version == 3
        receiver.refit(1)
        launches += 4
    assert launches >= 12


@pytest.mark.parametrize("is_transposed", [False, True])
def test_torch_parameters_are_healed_where_they_are(*, is_transposed: bool) -> None:
    lab = lab_of()
    shape = (200, 350) if is_transposed else (350, 200)
    tensors = {f"layer.{n}": torch.zeros(shape, dtype=torch.bfloat16) for n in range(6)}
    tensors |= {"bias": torch.zeros(5), "mask": torch.zeros((), dtype=torch.bool)}
    live = {n: t.t() if is_transposed and t.dim() == 2 else t for n, t in tensors.items()}
    receiver = lab.receiver(partial(place_tensors, targets=live, boxes={}), ROOMY)
    receiver.refit(1)
    addresses = {name: tensor.data_ptr() for name, tensor in live.items()}
    assert was_cut(lab, partial(receiver.refit, 3), 4, "half")
    lose_staging(receiver)
    assert receiver.recover().way is Way.OVERWRITE
    assert {name: tensor.data_ptr() for name, tensor in live.items()} == addresses
    for n in range(6):
        bits = live[f"layer.{n}"].contiguous().view(torch.int16).numpy().view(np.uint16)
        assert np.array_equal(bits.reshape(-1), lab.expected(3, f"layer.{n}"))


def test_a_bit_that_somebody_else_wrote_into_the_mixture_ends_in_the_whole_version() -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(ROOMY, at=1)
    assert was_cut(lab, partial(receiver.refit, 3), 4, "half")
    lose_staging(receiver)
    same = lab.expected(1, "layer.4") == lab.expected(3, "layer.4")
    same &= lab.expected(1, "layer.4") == lab.expected(2, "layer.4")
    arrays["layer.4"][np.flatnonzero(same)[0]] ^= 1
    report = receiver.recover()
    assert (report.base, report.way) == (None, Way.FULL)
    assert "overwrite set" in report.reason
    assert lab.is_at(arrays, 3)


def test_a_damaged_pack_ends_in_another_way_that_says_why() -> None:
    lab = lab_of()
    lab.put(next_weights(lab.weights[3], 9), full=True)
    receiver, arrays = lab.host_receiver(ROOMY, at=3)
    assert was_cut(lab, partial(receiver.refit, 4), 4, "half")
    lose_staging(receiver)
    for key in [each.key for each in lab.blobs.list("packs/") if "/4-" in each.key]:
        lab.blobs.delete(key)
    report = receiver.recover()
    assert (report.base, report.way) == (None, Way.FULL)
    assert "no overwrite set" in report.reason
    assert lab.is_at(arrays, 4)


def test_weights_that_were_given_up_are_no_mixture_any_more() -> None:
    lab = lab_of()
    receiver, arrays = lab.host_receiver(ROOMY, at=1)
    assert was_cut(lab, partial(receiver.refit, 3), 4, "half")
    assert isinstance(receiver.staged, Ready)
    receiver.invalidate()
    assert receiver.recover().way is Way.FULL
    assert lab.is_at(arrays, 3)
