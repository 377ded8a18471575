"""Names, shapes and host tensors: what is stored as it is, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.errors import LimitError, NameRefusedError, TensorRefusedError
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import HostTensor, TensorSpec, check_tensor_name


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/x",
        "/abs",
        "line\nbreak",
        "A",
        "a",
        "é",
        "e\u0301",
        "CON",
        " ",
        ".",
        "..",
        "a" * 1024,
        "é" * 512,
        "\U0001f9e0",
    ],
)
def test_names_are_data_and_may_be_anything(name: str) -> None:
    check_tensor_name(name)
    assert TensorSpec(name, DType.U8, (1,)).name == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("\ud800", "lone surrogate"),
        ("a" * 1025, "1025 bytes"),
        ("é" * 513, "1026 bytes"),
        ("a" * 5000, "5000 bytes"),
    ],
)
def test_refused_names_say_why_and_print(name: str, why: str) -> None:
    with pytest.raises(NameRefusedError, match=why) as refused:
        check_tensor_name(name)
    with pytest.raises(NameRefusedError, match=why):
        TensorSpec(name, DType.U8, (1,))
    str(refused.value).encode("utf-8")
    assert len(str(refused.value)) < 600


def test_composed_and_decomposed_names_are_two_names() -> None:
    assert TensorSpec("é", DType.U8, ()) != TensorSpec("e\u0301", DType.U8, ())


@pytest.mark.parametrize(
    ("shape", "unit_count"), [((), 1), ((0,), 0), ((5, 0, 3), 0), ((2, 1, 3), 6)]
)
def test_unit_counts(shape: tuple[int, ...], unit_count: int) -> None:
    spec = TensorSpec("x", DType.BF16, shape)
    assert spec.unit_count == unit_count
    assert spec.size_bytes == 2 * unit_count
    assert spec.unit_shape == shape


def test_units_of_packed_dtypes_are_bytes() -> None:
    assert TensorSpec("x", DType.F4, (3, 4)).unit_shape == (3, 2)
    assert TensorSpec("x", DType.F6_E3M2, (2, 4)).unit_shape == (2, 3)
    # Rows that share a byte leave only the flat order.
    assert TensorSpec("x", DType.F4, (2, 3)).unit_shape == (3,)
    assert TensorSpec("x", DType.F4, (0, 3)).unit_shape == (0,)


@pytest.mark.parametrize("shape", [(-1,), (2**53,), (True,), (1.0,), (None,)])
def test_dims_are_whole_numbers(shape: tuple[int, ...]) -> None:
    with pytest.raises(TensorRefusedError, match="dim"):
        TensorSpec("x", DType.U8, shape)


def test_shapes_are_bounded() -> None:
    TensorSpec("x", DType.U8, (1,) * 64)
    with pytest.raises(LimitError, match="65 dims"):
        TensorSpec("x", DType.U8, (1,) * 65)
    TensorSpec("x", DType.U8, (2**53 - 1,))
    with pytest.raises(LimitError, match="larger than any storage"):
        TensorSpec("x", DType.U16, (2**52,))
    with pytest.raises(LimitError, match="larger than any storage"):
        TensorSpec("x", DType.U8, (2**40, 2**40))


@pytest.mark.parametrize(
    "units",
    [
        np.zeros(5, np.uint16),
        np.zeros((2, 3), np.uint16),
        np.zeros(6, np.int16),
        np.zeros(6, np.uint32),
        np.zeros(6, ">u2"),
        np.zeros(12, np.uint16)[::2],
        np.zeros(12, np.uint8),
    ],
)
def test_units_of_a_host_tensor_are_checked(units: np.ndarray[tuple[int, ...], np.dtype]) -> None:
    spec = TensorSpec("x", DType.BF16, (2, 3))
    HostTensor(spec, np.zeros(6, np.uint16))
    with pytest.raises(TensorRefusedError, match="'x'"):
        HostTensor(spec, units)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_0d_and_empty_host_tensors(shape: tuple[int, ...]) -> None:
    spec = TensorSpec("x", DType.F64, shape)
    assert HostTensor(spec, np.zeros(spec.unit_count, np.uint64)).spec is spec
