"""The dtype table agrees with the safetensors library, and with torch where torch has the type."""

from __future__ import annotations

import re

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from weightstore.errors import DTypeRefusedError, TensorRefusedError
from weightstore.layout.dtypes import TORCH_NAMES, DType
from weightstore.testing.safetensors_files import file_of, read_with_library


def file_with(dtype_name: str, shape: list[int], size_bytes: int) -> bytes:
    entry = {"dtype": dtype_name, "shape": shape, "data_offsets": [0, size_bytes]}
    return file_of({"x": entry}, size_bytes)


def names_the_library_knows() -> set[str]:
    with pytest.raises(safetensors.SafetensorError, match="expected one of") as refused:
        read_with_library(file_with("no such dtype", [1], 1))
    return set(re.findall(r"`(\w+)`", str(refused.value).partition("expected one of")[2]))


def test_the_table_has_exactly_the_dtypes_of_the_library() -> None:
    assert names_the_library_knows() == {dtype.value for dtype in DType}


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("shape", [(), (0,), (8,), (3, 8), (2, 0, 4), (4, 1, 2)])
def test_sizes_are_those_of_the_library(dtype: DType, shape: tuple[int, ...]) -> None:
    try:
        size_bytes = dtype.size_bytes(shape)
    except TensorRefusedError:
        assert dtype.is_packed
        with pytest.raises(safetensors.SafetensorError):
            read_with_library(file_with(dtype.value, list(shape), 1))
        return
    tensor = read_with_library(file_with(dtype.value, list(shape), size_bytes))["x"]
    assert (tensor["dtype"], tensor["shape"]) == (dtype.value, list(shape))
    assert len(tensor["data"]) == size_bytes
    with pytest.raises(safetensors.SafetensorError):
        read_with_library(file_with(dtype.value, list(shape), size_bytes + 1))


@pytest.mark.parametrize("dtype", TORCH_NAMES)
def test_torch_names_name_the_dtype_that_the_library_writes(dtype: DType) -> None:
    torch_dtype = getattr(torch, TORCH_NAMES[dtype])
    unit = torch.zeros(dtype.unit_size_bytes * 4, dtype=torch.uint8).view(torch_dtype)
    stored = read_with_library(safetensors.torch.save({"x": unit}))["x"]
    assert stored["dtype"] == dtype.value
    assert dtype.size_bytes(tuple(stored["shape"])) == len(stored["data"])
    assert torch_dtype.itemsize == dtype.unit_size_bytes


def test_every_torch_dtype_that_the_library_loads_is_in_the_table() -> None:
    loaded = {name: str(dtype) for name, dtype in safetensors.torch._TYPES.items()}
    for name, torch_name in loaded.items():
        assert f"torch.{TORCH_NAMES[DType.parse(name)]}" == torch_name


@pytest.mark.parametrize("dtype", DType)
def test_units_are_unsigned_little_endian_and_as_wide_as_the_element(dtype: DType) -> None:
    assert dtype.unit_dtype.kind == "u"
    assert dtype.unit_dtype.itemsize == dtype.unit_size_bytes == max(1, dtype.bit_count // 8)
    assert np.array([1], dtype.unit_dtype).tobytes()[0] == 1


def test_packed_dtypes_count_bytes() -> None:
    assert DType.F4.unit_count((3, 4)) == 6
    assert DType.F6_E2M3.unit_count((4,)) == 3
    with pytest.raises(TensorRefusedError, match="no whole bytes"):
        DType.F4.unit_count((3, 3))


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    assert DType.parse("BF16") is DType.BF16
    with pytest.raises(DTypeRefusedError, match=r"C128(.|\n)*BF16"):
        DType.parse("C128")
