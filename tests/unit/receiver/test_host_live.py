"""Host arrays as live weights: written in place, or refused before a write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.errors import InputRefusedError, SchemaMismatchError
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units
from weightstore.receiver.host_live import place_arrays

SCHEMA = Schema.build(
    [
        TensorSpec("a", DType.BF16, (4, 6)),
        TensorSpec("b", DType.F32, ()),
        TensorSpec("e", DType.U8, (0, 3)),
    ],
    aliases=[Alias("c", "a")],
)


def arrays() -> dict[str, Units | HostTensor]:
    return {
        "a": np.zeros(24, np.uint16),
        "b": np.zeros(1, np.uint32),
        "e": np.zeros(0, np.uint8),
    }


def test_what_is_written_is_in_the_arrays() -> None:
    given = arrays()
    placement = place_arrays(SCHEMA, given, {})
    for destination in placement.destinations:
        storage, extent = placement.storage_of(destination), destination.extent
        units = np.arange(extent.unit_count).astype(f"u{storage.width_bytes}") + storage.read(
            extent
        )
        storage.write(extent, units)
    first = given["a"]
    assert isinstance(first, np.ndarray)
    assert first.tolist() == list(range(24))


def test_a_host_tensor_says_what_it_is() -> None:
    spec = TensorSpec("a", DType.F16, (6, 4))
    given = {**arrays(), "a": HostTensor(spec, np.zeros(24, np.uint16))}
    with pytest.raises(SchemaMismatchError) as caught:
        place_arrays(SCHEMA, given, {})
    assert "dtype: 'a' is F16" in str(caught.value)
    assert "shape: 'a' is (6, 4)" in str(caught.value)


def test_a_box_is_an_array_of_its_own_size() -> None:
    boxes = {"a": Box((1, 1), (2, 3))}
    given = {**arrays(), "a": np.zeros(6, np.uint16)}
    placement = place_arrays(SCHEMA, given, boxes)
    assert placement.by_tensor[0][0][1].extent.unit_count == 6
    with pytest.raises(SchemaMismatchError, match="shape: 'a'"):
        place_arrays(SCHEMA, arrays(), boxes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": np.zeros(23, np.uint16)}, "shape: 'a'"),
        ({"a": np.zeros((4, 6), np.uint16)}, "shape: 'a'"),
        ({"b": np.zeros(1, np.uint16)}, "dtype: 'b'"),
        ({"x": np.zeros(1, np.uint16)}, "not in the version: 'x'"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Units], words: str) -> None:
    with pytest.raises(SchemaMismatchError, match=words):
        place_arrays(SCHEMA, {**arrays(), **change}, {})


def test_arrays_of_numbers_are_told_how_to_be_bits() -> None:
    numbers: NDArray[Any] = np.zeros(1, np.float32)
    with pytest.raises(SchemaMismatchError) as caught:
        place_arrays(SCHEMA, {**arrays(), "b": numbers}, {})
    assert "`array.reshape(-1).view(np.uint32)` for 'b'" in caught.value.do
    place_arrays(SCHEMA, {**arrays(), "b": numbers.reshape(-1).view(np.uint32)}, {})
    # Flattened it would be a copy, and what is written would reach nobody.
    turned = np.zeros((6, 4), np.uint16).T
    with pytest.raises(SchemaMismatchError) as caught:
        place_arrays(SCHEMA, {**arrays(), "a": turned}, {})
    assert "Build the model" in caught.value.do


def test_arrays_that_cannot_be_written_are_refused() -> None:
    frozen = np.zeros(24, np.uint16)
    frozen.flags.writeable = False
    for array in (frozen, np.zeros(48, np.uint16)[::2]):
        with pytest.raises(InputRefusedError, match="'a'"):
            place_arrays(SCHEMA, {**arrays(), "a": array}, {})


def test_only_tied_names_share_memory() -> None:
    given = arrays()
    assert len(place_arrays(SCHEMA, {**given, "c": given["a"]}, {}).destinations) == 3
    behind = np.zeros(30, np.uint16)
    shifted = {**given, "a": behind[:24], "c": behind[1:25]}
    with pytest.raises(InputRefusedError, match="in the same memory"):
        place_arrays(SCHEMA, shifted, {})
