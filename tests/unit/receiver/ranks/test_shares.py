"""Who answers for which box: every element once, and partial digests that add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from weightstore.codec.digest import lanes_of
from weightstore.codec.lanes import index_words, mix
from weightstore.errors import (
    CorruptObjectError,
    InputRefusedError,
    RanksDisagreeError,
    SchemaMismatchError,
)
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.ranks.shares import (
    Place,
    decode_boxes,
    encode_boxes,
    places_of,
    plan_accounts,
)
from weightstore.settings import Limits

Table = NDArray[np.uint64]
SCHEMA = Schema.build(
    [
        TensorSpec("a", DType.BF16, (4, 6)),
        TensorSpec("b", DType.F32, ()),
        TensorSpec("e", DType.U8, (0, 3)),
    ]
)
A, B, E = (Box.whole(spec.unit_shape) for spec in SCHEMA.tensors)
TOP, BOTTOM = Box((0, 0), (1, 6)), Box((1, 0), (3, 6))
LEFT, RIGHT = Box((0, 0), (4, 5)), Box((0, 5), (4, 1))
NOTHING = Box((0, 0), (0, 0))


def plan(*shares: list[Place]) -> tuple[list[list[bool]], int]:
    found = plan_accounts(SCHEMA, shares, Limits())
    return [each.tolist() for each in found.accounts], len(found.replicas)


@pytest.mark.parametrize("parts", [(TOP, BOTTOM), (LEFT, RIGHT), (BOTTOM, TOP)])
def test_rows_and_columns_have_one_rank_each_and_replicas_the_lowest(
    parts: tuple[Box, Box],
) -> None:
    shares: list[list[Place]] = [[(0, part), (1, B), (2, E)] for part in parts]
    assert plan(*shares) == ([[True, True, True], [True, False, False]], 2)


def test_a_tensor_may_live_on_one_rank_alone() -> None:
    assert plan([(0, A), (1, B)], [(0, NOTHING)]) == ([[True, True], [True]], 0)


def test_tied_copies_on_one_rank_are_replicas_too() -> None:
    assert plan([(0, A), (0, A), (1, B)]) == ([[True, False, True]], 1)


def test_gaps_and_overlaps_are_all_listed() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        plan([(0, LEFT)], [(0, BOTTOM)])
    message = str(caught.value)
    assert "ranks 0 and 1 overlap: 'a'" in message
    assert "no rank has 1 of 1 units: 'b'" in message
    with pytest.raises(SchemaMismatchError, match="no rank has 6 of 24 units: 'a'"):
        plan([(0, BOTTOM), (1, B)], [(0, BOTTOM)])


def test_more_boxes_than_the_bound_are_refused() -> None:
    rows: list[Place] = [(0, Box((row, 0), (1, 6))) for row in range(4)]
    with pytest.raises(SchemaMismatchError, match="more boxes than can be compared"):
        plan_accounts(SCHEMA, [[*rows, (1, B)]], Limits(box_pair_count=5))


def lanes_of_places(units: Units, share: list[Place]) -> Table:
    """Digest lanes of boxes of the tensor `a`, by the definition."""
    shape = SCHEMA.tensors[0].unit_shape
    indices = np.arange(24, dtype=np.uint64).reshape(shape)
    found = []
    for _, box in share:
        part = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
        bits = units.reshape(shape)[part].astype(np.uint64)
        found.append(
            [mix(bits ^ index_words(indices[part], lane)).sum(dtype=np.uint64) for lane in (0, 1)]
        )
    return np.array(found, np.uint64).reshape(-1, 2)


def table_of(units: Units) -> Table:
    table = np.zeros((3, 2), np.uint64)
    table[0] = lanes_of(units)
    return table


UNITS: Units = np.arange(24, dtype=np.uint16) * np.uint16(2731)
COPY: Place = (0, LEFT)
SHARES: list[list[Place]] = [[(0, LEFT)], [(0, RIGHT), COPY], [COPY]]


def checked(lanes: list[Table | None], expected: Table) -> None:
    schema = Schema.build([TensorSpec("a", DType.BF16, (4, 6))])
    plan_accounts(schema, SHARES, Limits()).check(lanes, expected[:1], what="it")


def test_partial_digests_add_up() -> None:
    checked([lanes_of_places(UNITS, share) for share in SHARES], table_of(UNITS))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_that_is_off_by_one_bit_is_found(rank: int) -> None:
    lanes: list[Table | None] = [lanes_of_places(UNITS, share) for share in SHARES]
    own = lanes[rank]
    assert own is not None
    own[0, 0] ^= np.uint64(1)
    with pytest.raises(RanksDisagreeError, match="'a'"):
        checked(lanes, table_of(UNITS))


def test_replicas_that_differ_name_both_ranks() -> None:
    lanes: list[Table | None] = [lanes_of_places(UNITS, share) for share in SHARES]
    lanes[2] = lanes_of_places(UNITS + np.uint16(1), SHARES[2])
    with pytest.raises(RanksDisagreeError, match="ranks 0 and 2") as caught:
        checked(lanes, table_of(UNITS))
    assert caught.value.facts["ranks"] == (0, 2)


def test_a_tensor_is_compared_only_where_all_of_it_is_known() -> None:
    checked([lanes_of_places(UNITS, SHARES[0]), None, None], table_of(UNITS + np.uint16(1)))
    checked([None, None, None], table_of(UNITS))


def test_a_table_of_another_length_is_refused() -> None:
    with pytest.raises(RanksDisagreeError, match="says digests of 3 places"):
        checked([np.zeros((3, 2), np.uint64), None, None], table_of(UNITS))


def test_boxes_come_back_from_words() -> None:
    places: list[Place] = [(0, TOP), (1, B), (2, E), (0, NOTHING)]
    assert decode_boxes(encode_boxes(places), SCHEMA, what="it") == tuple(places)
    assert decode_boxes(np.empty(0, np.int64), SCHEMA, what="it") == ()


@pytest.mark.parametrize(
    "words",
    [[0], [3, 0], [-1, 0], [0, -1], [0, 65], [0, 2, 0, 0, 4], [0, 2, 0, 0, 5, 6], [0, 1, 0, 4],
     [0, 2, -1, 0, 4, 6], [0, 2, 0, 0, 4, 6, 1]],
)  # fmt: skip
def test_words_that_are_no_boxes_are_refused(words: list[int]) -> None:
    with pytest.raises(CorruptObjectError):
        decode_boxes(np.array(words, np.int64), SCHEMA, what="it")


@given(st.data())
def test_the_box_of_a_destination_is_the_box_that_was_declared(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), max_size=4)))
    offsets = tuple(data.draw(st.integers(0, dim - 1)) for dim in shape)
    sizes = tuple(
        data.draw(st.integers(1, dim - first)) for dim, first in zip(shape, offsets, strict=True)
    )
    box = Box(offsets, sizes)
    schema = Schema.build([TensorSpec("a", DType.BF16, shape)])
    placement = place_arrays(schema, {"a": np.zeros(box.unit_count, np.uint16)}, {"a": box})
    assert places_of(placement) == ((0, box),)


def test_packed_and_empty_tensors_have_boxes() -> None:
    schema = Schema.build([TensorSpec("p", DType.F4, (2, 6)), TensorSpec("e", DType.U8, (0, 3))])
    arrays: dict[str, Units] = {"p": np.zeros(6, np.uint8), "e": np.zeros(0, np.uint8)}
    shapes = [spec.unit_shape for spec in schema.tensors]
    found = places_of(place_arrays(schema, dict(arrays), {}))
    assert found == tuple((index, Box.whole(shape)) for index, shape in enumerate(shapes))


def test_what_is_no_box_is_refused() -> None:
    schema = Schema.build([TensorSpec("a", DType.BF16, (4, 6))])
    placement = place_arrays(schema, {"a": np.zeros(8, np.uint16)}, {"a": Box((0, 0), (2, 4))})
    wide = replace(placement.destinations[0].extent, sizes=(2, 4), index_strides=(5, 1))
    broken = replace(placement, destinations=(replace(placement.destinations[0], extent=wide),))
    with pytest.raises(InputRefusedError, match="no box of it"):
        places_of(broken)
