"""A piece that lives in one run of host memory is followed as any other, only quicker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.codec import PieceCodec
from weightstore.codec.lanes import Units
from weightstore.codec.live_kernels import LiveKernels, numpy_live_kernels
from weightstore.codec.numba_live import NumbaLiveKernels
from weightstore.codec.piece import Piece, ValueCoding, hash_streams
from weightstore.codec.sparse import SparseChange
from weightstore.errors import CorruptError, LiveWeightsError, WeightStoreError
from weightstore.history.manifests import load_table
from weightstore.history.pack_jobs import load_packs
from weightstore.history.workers import Workers
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.receiver.evaluation import Evaluator, GroupChange
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_storage import HostStorage
from weightstore.receiver.piece_feed import WrongAnswerError
from weightstore.receiver.piece_groups import PieceGroup, booked_pieces, group_pieces
from weightstore.receiver.placement import Placement
from weightstore.settings import Limits
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab
from weightstore.testing.tensors import hard_units
from weightstore.testing.wrapped_storage import WrappedStorage

CODINGS = (None, *ValueCoding)
KERNELS: list[LiveKernels] = [numpy_live_kernels(), NumbaLiveKernels()]
BOXES = {"head": Box((100, 0), (200, 250)), "block.large": Box((10, 5), (330, 100))}
"""Rows, which hold one of two pieces wholly, and columns, which hold none."""


class WatchedStorage(HostStorage):
    """Host memory that counts the pieces that are followed in one run."""

    followed_count = 0

    def follow(self, first: int, change: SparseChange, /) -> BlockedChange:
        self.followed_count += 1
        return super().follow(first, change)


@dataclass(frozen=True)
class OthersPieces:
    """Pieces as somebody else decoded them, perhaps wrongly."""

    change: SparseChange

    def sparse(self, _number: int, /) -> SparseChange:
        return self.change


def step_of(schema: Schema, before: dict[str, Units], seed: int) -> dict[str, Units]:
    rng = np.random.default_rng(seed)
    after = {name: units.copy() for name, units in before.items()}
    for spec in schema.tensors:
        units = after[spec.name]
        if units.size:
            places = rng.integers(0, units.size, 1 + units.size // 10)
            units[places] = rng.choice(hard_units(spec.dtype), places.size)
            units[-1] ^= 1
    return after


@cache
def lab_of(coding: ValueCoding | None) -> tuple[ReceiverLab, list[PieceGroup]]:
    """A step of hard values, and its pieces."""
    lab, rng = ReceiverLab(mixed_schema()), np.random.default_rng(1)
    before = {
        spec.name: rng.choice(hard_units(spec.dtype), spec.unit_count)
        for spec in lab.schema.tensors
    }
    lab.put(before)
    lab.put(step_of(lab.schema, before, 2), coding=coding)
    plan = lab.versions.plan(None)
    loaded = load_packs(lab.blobs, plan.schema, plan.deltas, workers=Workers(1), limits=Limits())
    table = load_table(lab.blobs, plan.deltas[0], plan.schema, Limits())
    tables = (plan.first_table, table)
    packs = booked_pieces(plan.schema, plan.deltas[0], loaded, tables, Limits())
    refs = [ref for found in packs for ref in found]
    return lab, group_pieces(refs, plan.schema)


def arrays_of(lab: ReceiverLab, *, is_boxed: bool) -> dict[str, Units]:
    arrays = {spec.name: lab.expected(1, spec.name).copy() for spec in lab.schema.tensors}
    if is_boxed:
        arrays |= {name: lab.boxed(1, name, box).copy() for name, box in BOXES.items()}
    return arrays


def placed(lab: ReceiverLab, arrays: dict[str, Units], *, is_boxed: bool) -> Placement:
    return place_arrays(lab.schema, arrays, BOXES if is_boxed else {})


def outcome(placement: Placement, group: PieceGroup) -> object:
    """All that an evaluation says, for comparing."""
    try:
        found: GroupChange = Evaluator(placement, PieceCodec()).evaluate(group)
    except WeightStoreError as error:
        return type(error), error.message, dict(error.facts)
    except WrongAnswerError as error:
        return type(error), str(error)
    segments = [
        (
            each.destination,
            None if each.lane_deltas is None else each.lane_deltas.tolist(),
            [
                (array.dtype, array.tobytes())
                for array in (
                    each.change.block_starts,
                    each.change.block_firsts,
                    each.change.offsets,
                    each.change.old_bits,
                    each.change.new_bits,
                )
            ],
        )
        for each in found.segments
    ]
    return segments, found.position_count, found.missed_count, found.decoded_size_bytes


def both_ways(placement: Placement, group: PieceGroup, kernels: LiveKernels) -> list[object]:
    memories = [each for each in placement.storages if isinstance(each, HostStorage)]
    assert len(memories) == len(placement.storages)
    for memory in memories:
        memory._kernels = kernels  # sizes in this test would take one kind alone
    others = replace(placement, storages=tuple(map(WrappedStorage, memories)))
    return [outcome(placement, group), outcome(others, group)]


def flipped(piece: Piece, rng: np.random.Generator) -> tuple[bytes, bytes, bytes, bytes]:
    streams = [bytearray(each) for each in piece.streams]
    chosen = int(rng.choice([number for number in range(4) if streams[number]]))
    streams[chosen][int(rng.integers(len(streams[chosen])))] ^= 1 << int(rng.integers(8))
    first, second, third, fourth = map(bytes, streams)
    return first, second, third, fourth


def rehashed(piece: Piece, rng: np.random.Generator) -> Piece:
    streams = flipped(piece, rng)
    return replace(piece, streams=streams, hash16=hash_streams(streams))


DAMAGES: dict[str, Callable[[Piece, np.random.Generator], Piece]] = {
    "none": lambda piece, _: piece,
    "a flipped bit": lambda piece, rng: replace(piece, streams=flipped(piece, rng)),
    "a flipped bit and its hash": rehashed,
    "other lanes": lambda piece, _: replace(
        piece, lane_deltas=(piece.lane_deltas[0], piece.lane_deltas[1] ^ 1)
    ),
    "fewer changes": lambda piece, _: replace(piece, changed_count=piece.changed_count - 1),
    "fewer units": lambda piece, _: replace(piece, unit_count=piece.unit_count - 1),
    "more units": lambda piece, _: replace(piece, unit_count=piece.unit_count + 100_000),
    "another coding": lambda piece, rng: replace(
        piece, value_coding=ValueCoding(int(rng.integers(len(ValueCoding))))
    ),
}


@given(
    coding=st.sampled_from(CODINGS),
    is_boxed=st.booleans(),
    kernels=st.sampled_from(KERNELS),
    damage=st.sampled_from(sorted(DAMAGES)),
    is_touched=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_one_run_says_what_the_general_way_says(
    coding: ValueCoding | None,
    is_boxed: bool,  # noqa: FBT001 -- drawn
    kernels: LiveKernels,
    damage: str,
    is_touched: bool,  # noqa: FBT001 -- drawn
    seed: int,
) -> None:
    lab, groups = lab_of(coding)
    rng = np.random.default_rng(seed)
    arrays = arrays_of(lab, is_boxed=is_boxed)
    if is_touched:
        for units in arrays.values():
            places = rng.integers(0, max(units.size, 1), units.size // 50)
            units[places] ^= rng.integers(0, 3, places.size).astype(units.dtype)
    before = {name: units.copy() for name, units in arrays.items()}
    placement = placed(lab, arrays, is_boxed=is_boxed)
    for group in groups:
        ref = group.pieces[0]
        hostile = replace(ref, piece=DAMAGES[damage](ref.piece, rng))
        first, second = both_ways(placement, replace(group, pieces=(hostile,)), kernels)
        assert first == second
    assert all(np.array_equal(arrays[name], units) for name, units in before.items())


@pytest.mark.parametrize("rows", [(0, 100), (0, 160), (160, 140), (160, 139), (161, 139)])
@pytest.mark.parametrize("coding", CODINGS)
def test_rows_of_a_tensor_get_their_share_and_lanes(
    coding: ValueCoding | None, rows: tuple[int, int]
) -> None:
    lab, groups = lab_of(coding)
    box = Box((rows[0], 0), (rows[1], 250))
    arrays = {**arrays_of(lab, is_boxed=False), "head": lab.boxed(1, "head", box).copy()}
    placement = place_arrays(lab.schema, arrays, {"head": box})
    for group in groups:
        first, second = both_ways(placement, group, KERNELS[0])
        assert first == second
        assert isinstance(first, tuple)
        assert isinstance(first[0], list)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda each: each.name)
@pytest.mark.parametrize("coding", CODINGS)
def test_wrong_bits_and_wrong_answers_are_told_apart_as_in_the_general_way(
    coding: ValueCoding | None, kernels: LiveKernels
) -> None:
    lab, groups = lab_of(coding)
    arrays = arrays_of(lab, is_boxed=False)
    placement = placed(lab, arrays, is_boxed=False)
    group = max(groups, key=lambda each: each.unit_count)
    ref = group.pieces[0]
    right = PieceCodec().worker().sparse(ref.piece)
    words = right.words.copy()
    words[0] ^= 1
    wrong = replace(right, words=words)
    for change, expected in ((right, None), (wrong, WrongAnswerError)):
        job = replace(ref.job, decoded=OthersPieces(change))
        first, second = both_ways(
            placement, replace(group, pieces=(replace(ref, job=job),)), kernels
        )
        assert first == second
        assert isinstance(first, tuple)
        assert expected is None or first[0] is expected


@pytest.mark.parametrize("is_boxed", [False, True])
def test_which_pieces_go_the_short_way(is_boxed: bool) -> None:  # noqa: FBT001 -- a parameter
    lab, groups = lab_of(None)
    placement = placed(lab, arrays_of(lab, is_boxed=is_boxed), is_boxed=is_boxed)
    watched = tuple(
        WatchedStorage(each._units)  # the same memory, watched
        for each in placement.storages
        if isinstance(each, HostStorage)
    )
    evaluator = Evaluator(replace(placement, storages=watched), PieceCodec())
    for group in groups:
        evaluator.evaluate(group)
    counts = {
        lab.schema.tensors[each.tensor_index].name: watched[each.storage_index].followed_count
        for each in placement.destinations
    }
    # Bundles, columns and a piece that is here in part do not.
    whole = {"block.large": 2, "head": 2}
    boxed = {"block.large": 0, "head": 1}
    assert {name: counts[name] for name in whole} == (boxed if is_boxed else whole)
    assert counts["block.norm"] == counts["flags"] == 0


def test_a_piece_that_does_not_fit_names_its_version() -> None:
    lab, groups = lab_of(None)
    arrays = arrays_of(lab, is_boxed=False)
    arrays["head"] ^= np.uint64(1)
    evaluator = Evaluator(placed(lab, arrays, is_boxed=False), PieceCodec())
    group = next(each for each in groups if each.members == (lab.schema.index_of("head"),))
    with pytest.raises(CorruptError) as caught:
        evaluator.evaluate(group)
    assert not isinstance(caught.value, LiveWeightsError)
    assert caught.value.facts["version"] == 2
