"""Groups: pieces that change the same units are followed together, all others apart."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from weightstore.errors import CorruptObjectError
from weightstore.format.pack import BundlePlace, TensorPlace
from weightstore.history.manifests import load_table
from weightstore.history.pack_jobs import load_packs
from weightstore.history.workers import Workers
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.piece_groups import (
    PieceGroup,
    PieceRef,
    booked_pieces,
    group_pieces,
    is_here,
    storages_of,
)
from weightstore.settings import Limits
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab


@pytest.fixture(scope="module")
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(mixed_schema(), 3)


def refs_of(lab: ReceiverLab) -> list[PieceRef]:
    plan = lab.versions.plan()
    before, found = plan.first_table, []
    with closing(
        load_packs(lab.blobs, plan.schema, plan.deltas, workers=Workers(1), limits=Limits())
    ) as loaded:
        for manifest in plan.deltas:
            after = load_table(lab.blobs, manifest, plan.schema, Limits())
            for refs in booked_pieces(plan.schema, manifest, loaded, (before, after), Limits()):
                found += refs
            before = after
    return found


def names_of(groups: list[PieceGroup], schema: Schema) -> set[tuple[str, ...]]:
    return {tuple(schema.tensors[member].name for member in group.members) for group in groups}


def test_pieces_of_one_run_in_several_deltas_are_one_group(lab: ReceiverLab) -> None:
    refs = refs_of(lab)
    groups = group_pieces(refs, lab.schema)
    assert sum(len(group.pieces) for group in groups) == len(refs)
    large = [group for group in groups if group.members == (lab.schema.index_of("block.large"),)]
    assert sorted((group.first_index, group.unit_count) for group in large) == [
        (0, 40_000),
        (40_000, 30_000),
    ]
    for group in groups:
        versions = [ref.job.manifest.version for ref in group.pieces]
        assert versions == sorted(versions)
        assert group.changed_count == sum(ref.piece.changed_count for ref in group.pieces)
        assert {type(ref.place) for ref in group.pieces} <= {TensorPlace, BundlePlace}


def test_deltas_that_cut_a_tensor_in_other_places_make_larger_groups(lab: ReceiverLab) -> None:
    other = ReceiverLab.with_versions(mixed_schema(), 2)
    other.versions._piece_unit_count = 30_000
    from weightstore.testing.real_versions import next_weights  # noqa: PLC0415 -- used here alone

    other.put(next_weights(other.weights[2], 8))
    groups = group_pieces(refs_of(other), other.schema)
    large = [group for group in groups if group.members == (lab.schema.index_of("block.large"),)]
    assert [(group.first_index, group.unit_count) for group in large] == [(0, 70_000)]
    assert {group.first_unit(ref) for group in large for ref in group.pieces} == {
        0,
        40_000,
        30_000,
        60_000,
    }


def test_a_delta_that_lacks_a_piece_is_refused_at_its_end(lab: ReceiverLab) -> None:
    plan = lab.versions.plan()
    manifest = plan.deltas[-1]
    assert manifest.delta is not None
    packs = manifest.delta.packs[:-1]
    short = manifest.model_copy(
        update={"delta": manifest.delta.model_copy(update={"packs": packs})}
    )
    before = load_table(lab.blobs, plan.deltas[0], plan.schema, Limits())
    loaded = load_packs(lab.blobs, plan.schema, [short], workers=Workers(1), limits=Limits())
    pieces = booked_pieces(plan.schema, short, loaded, (before, plan.last_table), Limits())
    with pytest.raises(CorruptObjectError):
        list(pieces)


def test_only_groups_that_may_live_here_are_kept(lab: ReceiverLab) -> None:
    schema = lab.schema
    boxes = {
        "block.large": Box((0, 0), (100, 200)),
        "head": Box((0, 0), (0, 250)),
        "tied": Box((0, 0), (0, 200)),
    }
    arrays = lab.arrays()
    arrays["block.large"] = np.zeros(20_000, np.uint16)
    del arrays["head"]
    placement = place_arrays(schema, arrays, boxes)
    groups = group_pieces(refs_of(lab), schema)
    here = [group for group in groups if is_here(group, placement)]
    assert ("head",) not in names_of(here, schema)
    assert [g.first_index for g in here if g.members == (schema.index_of("block.large"),)] == [0]
    for group in here:
        assert storages_of(group, placement)
    gone = next(group for group in groups if group.members == (schema.index_of("head"),))
    assert not storages_of(gone, placement)
