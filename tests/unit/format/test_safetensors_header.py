"""Reading headers: every legal file, with the same answers as the library."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.torch
import torch

from weightstore.errors import CorruptObjectError, InputRefusedError, NameRefusedError
from weightstore.format.safetensors_header import (
    SafetensorsHeader,
    encode_safetensors_header,
    parse_safetensors_header,
    read_header_size,
)
from weightstore.layout.dtypes import TORCH_NAMES, DType
from weightstore.settings import Limits
from weightstore.testing.safetensors_files import file_of, read_with_library


def parse(data: bytes) -> SafetensorsHeader:
    return parse_safetensors_header(
        data, file_size_bytes=len(data), limits=Limits(), what="the file"
    )


def test_files_of_the_library_are_read_with_its_offsets() -> None:
    tensors = {
        "0d": torch.tensor(1.5),
        "empty": torch.zeros(0, 3, dtype=torch.float16),
        "é\n": torch.arange(6, dtype=torch.int16).reshape(2, 3),
        "n1": torch.zeros(4, 1, dtype=torch.bfloat16),
        "packed": torch.arange(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    }
    for dtype, name in TORCH_NAMES.items():
        raw = torch.arange(8 * dtype.unit_size_bytes, dtype=torch.uint8)
        tensors[f"all.{dtype.value}"] = raw.view(getattr(torch, name))
    data = safetensors.torch.save(tensors, {"who": "it"})
    header = parse(data)
    assert header.metadata == {"who": "it"}
    expected = read_with_library(data)
    assert {tensor.spec.name for tensor in header.tensors} == expected.keys()
    for tensor in header.tensors:
        other = expected[tensor.spec.name]
        assert tensor.spec.dtype.value == other["dtype"]
        assert list(tensor.spec.shape) == other["shape"]
        part = data[tensor.file_offset : tensor.file_offset + tensor.size_bytes]
        assert part == bytes(other["data"])


def test_offsets_need_no_alignment() -> None:
    bits = np.arange(3 + 8 + 4, dtype=np.uint8).tobytes()
    header = {
        "half": {"dtype": "BF16", "shape": [2], "data_offsets": [11, 15]},
        "bytes": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "float": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
    }
    data = file_of(header, 0) + bits
    found = {
        tensor.spec.name: data[tensor.file_offset : tensor.file_offset + tensor.size_bytes]
        for tensor in parse(data).tensors
    }
    assert found == {"bytes": bits[:3], "float": bits[3:11], "half": bits[11:]}
    assert [tensor.spec.name for tensor in parse(data).tensors] == ["bytes", "float", "half"]


def test_what_is_written_is_what_the_library_reads() -> None:
    header = encode_safetensors_header(
        [("b", DType.U8, (3,)), ("a", DType.F32, ()), ("é", DType.BF16, (0, 2))], {"k": "v"}
    )
    assert len(header) % 8 == 0
    found = read_with_library(header + b"\x01\x02\x03" + b"\x04" * 4)
    assert bytes(found["b"]["data"]) == b"\x01\x02\x03"
    assert bytes(found["a"]["data"]) == b"\x04" * 4
    assert found["é"]["shape"] == [0, 2]


def test_unknown_fields_are_passed_over_as_the_library_does() -> None:
    entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], "more": [1.5, {"x": None}]}
    data = file_of({"a": entry}, 1)
    assert read_with_library(data)
    assert [tensor.spec.name for tensor in parse(data).tensors] == ["a"]


def test_only_the_head_of_a_large_file_is_needed() -> None:
    entry = {"dtype": "U8", "shape": [2**40], "data_offsets": [0, 2**40]}
    data = file_of({"a": entry}, 0)
    size_bytes = len(data) + 2**40
    assert read_header_size(data[:8], file_size_bytes=size_bytes, limits=Limits(), what="x") == len(
        data
    )
    header = parse_safetensors_header(
        data, file_size_bytes=size_bytes, limits=Limits(), what="the file"
    )
    assert header.tensors[0].size_bytes == 2**40


def test_the_caller_says_whose_fault_it_is() -> None:
    entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    bad, bad_name = file_of(b"[]", 0), file_of({"": entry}, 1)
    for data in (bad, bad_name):
        with pytest.raises(CorruptObjectError, match="the file"):
            parse(data)
    with pytest.raises(InputRefusedError, match="my file"):
        parse_safetensors_header(
            bad,
            file_size_bytes=len(bad),
            limits=Limits(),
            what="my file",
            error=InputRefusedError,
        )
    with pytest.raises(NameRefusedError):
        parse_safetensors_header(
            bad_name,
            file_size_bytes=len(bad_name),
            limits=Limits(),
            what="my file",
            error=InputRefusedError,
        )
