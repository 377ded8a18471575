"""Placements: every tensor has its places, or everything that is wrong is listed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from weightstore.errors import LiveWeightsError, SchemaMismatchError
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.live_storage import HostStorage
from weightstore.receiver.placement import LiveTensor, box_of, mismatch, plan_placement

ADDRESSES = itertools.count(4096, 4096)
SCHEMA = Schema.build(
    [TensorSpec("a", DType.BF16, (4, 6)), TensorSpec("b", DType.F32, (3,))],
    aliases=[Alias("c", "a")],
)


def live(name: str, sizes: tuple[int, ...], dtype: str = "u2", **changes: Any) -> LiveTensor:  # noqa: ANN401 -- any field
    count = int(np.prod(sizes, dtype=int))
    strides = tuple(int(np.prod(sizes[dim + 1 :], dtype=int)) for dim in range(len(sizes)))
    found = LiveTensor(
        name, HostStorage(np.zeros(count, dtype)), 0, sizes, strides, next(ADDRESSES).__int__
    )
    return replace(found, **changes)


A, B = live("a", (4, 6)), live("b", (3,), "u4")


def test_each_tensor_has_its_places_and_a_copy_one_more() -> None:
    copy = live("c", (4, 6))
    placement = plan_placement(SCHEMA, [B, copy, A], {})
    assert [each.tensor_index for each in placement.destinations] == [0, 0, 1]
    assert all(each.is_whole for each in placement.destinations)
    assert {placement.storage_of(each) for _, each in placement.by_tensor[0]} == {
        A.storage,
        copy.storage,
    }
    assert placement.size_bytes == 2 * 48 + 12
    assert placement.boxed == frozenset()


def test_a_tied_name_in_the_same_memory_is_no_second_place() -> None:
    placement = plan_placement(SCHEMA, [A, replace(A, name="c"), B], {})
    assert len(placement.destinations) == 2


def test_a_box_is_a_part_of_its_tensor() -> None:
    part = live("a", (2, 3))
    placement = plan_placement(SCHEMA, [part, B], {"a": Box((1, 2), (2, 3))})
    destination = placement.by_tensor[0][0][1]
    assert not destination.is_whole
    assert destination.extent.first_index == 8
    assert placement.boxed == {0}
    placement.check_complete()


def test_a_tensor_that_is_elsewhere_is_said_by_an_empty_box() -> None:
    placement = plan_placement(SCHEMA, [B], {"a": Box((0, 0), (0, 6))})
    assert 0 not in placement.by_tensor
    placement.check_complete()


@pytest.mark.parametrize(
    ("tensors", "boxes", "words"),
    [
        ([A], {}, "missing: 'b'"),
        ([A, B, live("d", (1,))], {}, "not in the version: 'd'"),
        ([live("a", (6, 4)), B], {}, "shape: 'a'"),
        ([live("a", (4, 6), "u4"), B], {}, "dtype: 'a'"),
        ([replace(A, base=1), B], {}, "ends after its memory: 'a'"),
        ([A, B], {"a": Box((1, 2), (2, 3))}, "shape: 'a'"),
        ([A, B], {"a": Box((3, 0), (4, 6))}, "not within its tensor"),
        ([A, B], {"x": Box((), ())}, "a box of no tensor of the version: 'x'"),
        ([B], {"a": Box((1, 2), (2, 3))}, "a box without a live tensor: 'a'"),
    ],
)
def test_what_does_not_fit_is_named(
    tensors: list[LiveTensor], boxes: dict[str, Box], words: str
) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        plan_placement(SCHEMA, tensors, boxes)
    assert words in str(caught.value)
    assert "nothing was written" in str(caught.value)


def test_everything_is_listed_at_once() -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        plan_placement(SCHEMA, [live("a", (6, 4), "u4"), live("d", (1,))], {})
    problems = caught.value.facts["problems"]
    assert isinstance(problems, tuple)
    assert len(problems) == 4


def test_a_long_list_is_cut_in_the_message_alone() -> None:
    error = mismatch(f"line {number}" for number in range(70))
    assert "and 20 more" in error.message
    problems = error.facts["problems"]
    assert isinstance(problems, tuple)
    assert len(problems) == 70


def test_packed_rows_that_are_no_whole_bytes_are_taken_by_their_own_dims() -> None:
    spec = TensorSpec("p", DType.F6_E2M3, (4, 2))
    assert spec.unit_shape == (6,)
    assert box_of(spec, None, (2, 3)) == ((2, 3), Box.whole((2, 3)))
    assert box_of(spec, None, (7,)) == ((6,), Box.whole((6,)))


def test_a_tensor_that_was_moved_is_noticed() -> None:
    address = [64]
    placement = plan_placement(SCHEMA, [replace(A, address=lambda: address[0]), B], {})
    placement.check_addresses()
    address[0] = 128
    with pytest.raises(LiveWeightsError) as caught:
        placement.check_addresses()
    assert caught.value.facts["tensors"] == ("a",)


def test_a_place_that_was_dropped_is_noticed() -> None:
    placement = plan_placement(SCHEMA, [A, B], {})
    placement.check_complete()
    with pytest.raises(SchemaMismatchError, match="no place: 'b'"):
        replace(placement, destinations=placement.destinations[:1]).check_complete()
