"""Following pieces over live bits: absolute bits out, or refused; nothing is written."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.piece import ValueCoding
from weightstore.errors import CorruptObjectError, WrongBaseError
from weightstore.history.manifests import load_table
from weightstore.history.pack_jobs import load_packs
from weightstore.history.workers import Workers
from weightstore.layout.boxes import Box
from weightstore.layout.tensors import Units
from weightstore.receiver.evaluation import Evaluator, GroupChange
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.piece_groups import PieceGroup, booked_pieces, group_pieces
from weightstore.settings import Limits
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab


def groups_of(lab: ReceiverLab, version: int | None = None) -> list[PieceGroup]:
    record = lab.versions.records[version - 1] if version else None
    plan = lab.versions.plan(record)
    loaded = load_packs(lab.blobs, plan.schema, plan.deltas, workers=Workers(1), limits=Limits())
    before, refs = plan.first_table, []
    for manifest in plan.deltas:
        after = load_table(lab.blobs, manifest, plan.schema, Limits())
        for found in booked_pieces(plan.schema, manifest, loaded, (before, after), Limits()):
            refs += found
        before = after
    return group_pieces(refs, plan.schema)


def at_version(lab: ReceiverLab, version: int) -> dict[str, Units]:
    return {name: lab.expected(version, name).copy() for name in lab.arrays(tied=True)}


@pytest.mark.parametrize("coding", list(ValueCoding))
def test_writing_the_segments_makes_the_version(coding: ValueCoding) -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 4, share=0.2, coding=coding)
    arrays = at_version(lab, 1)
    placement = place_arrays(lab.schema, arrays, {})
    evaluator = Evaluator(placement, PieceCodec())
    found = [evaluator.evaluate(group) for group in groups_of(lab)]
    assert lab.is_at(arrays, 1)
    for change in found:
        assert change.missed_count == 0
        for segment in change.segments:
            destination = placement.destinations[segment.destination]
            counts = placement.storage_of(destination).scatter(segment.change, redo=False)
            assert counts == (segment.change.count, 0)
            assert segment.lane_deltas is None
    assert lab.is_at(arrays, 4)


def test_bits_that_are_not_the_base_are_refused_at_the_piece_that_finds_them() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 2)
    for name in ("block.large", "head.bias", "block.scale", "flags"):
        arrays = at_version(lab, 1)
        place = np.flatnonzero(lab.expected(1, name) != lab.expected(2, name))[0]
        arrays[name][place] ^= 1
        if name == "block.large":
            arrays["tied"][place] ^= 1
        evaluator = Evaluator(place_arrays(lab.schema, arrays, {}), PieceCodec())
        with pytest.raises(WrongBaseError) as caught:
            list(map(evaluator.evaluate, groups_of(lab)))
        assert caught.value.facts["version"] == 2
        assert caught.value.facts["base"] == 1


def test_a_part_gets_its_share_and_says_what_it_adds_to_its_digest() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 3)
    boxes = {"head": Box((10, 20), (200, 100)), "tied": Box((0, 50), (350, 100))}
    arrays = at_version(lab, 1)
    for name, box in boxes.items():
        arrays[name] = lab.boxed(1, name, box)
    placement = place_arrays(lab.schema, arrays, boxes)
    evaluator = Evaluator(placement, PieceCodec())
    lanes = {
        number: np.array(placement.storage_of(each).lanes(each.extent), np.uint64)
        for number, each in enumerate(placement.destinations)
    }
    changes: list[GroupChange] = [evaluator.evaluate(group) for group in groups_of(lab)]
    for segment in (segment for change in changes for segment in change.segments):
        destination = placement.destinations[segment.destination]
        placement.storage_of(destination).scatter(segment.change, redo=False)
        assert (segment.lane_deltas is None) is destination.is_whole
        if segment.lane_deltas is not None:
            lanes[segment.destination] += segment.lane_deltas
    for number, destination in enumerate(placement.destinations):
        if not destination.is_whole:
            found = placement.storage_of(destination).lanes(destination.extent)
            assert tuple(lanes[number].tolist()) == found
    for name, box in boxes.items():
        assert np.array_equal(arrays[name], lab.boxed(3, name, box))
    missed = sum(change.missed_count for change in changes)
    outside = sum(change.position_count for change in changes)
    assert 0 < missed < outside


def test_a_damaged_piece_says_where_it_is() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 2)
    group = groups_of(lab)[0]
    ref = group.pieces[0]
    streams = (*ref.piece.streams[:-1], b"x" * len(ref.piece.streams[-1]))
    damaged = type(ref.piece)(
        **{
            **{name: getattr(ref.piece, name) for name in ref.piece.__slots__},
            "streams": streams,
            "hash16": b"0" * 16,
        }
    )
    broken = type(ref)(ref.job, ref.number, ref.place, damaged)
    evaluator = Evaluator(place_arrays(lab.schema, at_version(lab, 1), {}), PieceCodec())
    with pytest.raises(CorruptObjectError) as caught:
        evaluator.evaluate(PieceGroup(group.members, group.starts, group.first_index, (broken,)))
    assert caught.value.facts["key"] == ref.job.pack.key
