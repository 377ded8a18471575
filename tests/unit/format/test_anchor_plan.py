"""Anchor plans: files that the safetensors library and its readers accept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch

from weightstore.format.anchor_plan import AnchorFilePlan, hf_index_json, plan_anchor_files
from weightstore.format.safetensors_header import parse_safetensors_header
from weightstore.layout.dtypes import TORCH_NAMES, DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits
from weightstore.testing.safetensors_files import read_with_library

SPECS = [
    TensorSpec("a.bytes", DType.U8, (3,)),
    TensorSpec("b.float", DType.F32, (2, 2)),
    TensorSpec("c.half", DType.BF16, (5,)),
    TensorSpec("d.scalar", DType.F64, ()),
    TensorSpec("e.empty", DType.BF16, (0, 7)),
    TensorSpec("f.packed", DType.F4, (2, 4)),
    TensorSpec("h\n/../é", DType.I64, (1, 1)),
]
SCHEMA = Schema.build(SPECS, aliases=[Alias("tied", "c.half")])
RNG = np.random.default_rng(7)
BITS = {
    spec.name: RNG.integers(0, 256, spec.size_bytes, np.uint8).tobytes() for spec in SCHEMA.tensors
}


def write(plan: AnchorFilePlan) -> bytes:
    parts = [BITS[SCHEMA.tensors[tensor.index].name] for tensor in plan.tensors]
    return plan.header + b"".join(parts)


def test_one_file_holds_every_name_with_its_bits_for_the_library(tmp_path: Path) -> None:
    (plan,) = plan_anchor_files(SCHEMA, 1 << 30)
    assert plan.name == "model.safetensors"
    data = write(plan)
    assert len(data) == plan.size_bytes
    found = read_with_library(data)
    assert found.keys() == {*BITS, "tied"}
    for name, tensor in found.items():
        spec = SCHEMA.tensors[SCHEMA.index_of(name)]
        assert bytes(tensor["data"]) == BITS[spec.name]
        assert (tensor["dtype"], tuple(tensor["shape"])) == (spec.dtype.value, spec.shape)
    path = tmp_path / plan.name
    path.write_bytes(data)
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        for spec in SPECS:
            if spec.dtype is DType.F4:
                continue
            tensor = file.get_tensor(spec.name)
            assert tensor.dtype == getattr(torch, TORCH_NAMES[spec.dtype])
            assert tuple(tensor.shape) == spec.shape


def test_offsets_are_aligned_and_are_those_of_the_header() -> None:
    (plan,) = plan_anchor_files(SCHEMA, 1 << 30)
    for placed in plan.tensors:
        assert placed.file_offset % SCHEMA.tensors[placed.index].dtype.unit_size_bytes == 0
    header = parse_safetensors_header(
        plan.header, file_size_bytes=plan.size_bytes, limits=Limits(), what="the file"
    )
    assert header.data_offset == len(plan.header)
    assert header.metadata == {"format": "pt"}
    assert {tensor.spec.name: tensor.file_offset for tensor in header.tensors} == {
        placed.name: placed.file_offset for placed in plan.tensors
    }


@pytest.mark.parametrize("limit_bytes", [1, 16, 30, 40])
def test_files_stay_below_the_limit_or_hold_one_tensor(limit_bytes: int) -> None:
    plans = plan_anchor_files(SCHEMA, limit_bytes)
    assert len(plans) > 1
    assert [plan.name for plan in plans] == [
        f"model-{n:05d}-of-{len(plans):05d}.safetensors" for n in range(1, len(plans) + 1)
    ]
    for plan in plans:
        data_bytes = sum(tensor.size_bytes for tensor in plan.tensors)
        assert data_bytes <= limit_bytes or len(plan.tensors) == 1
        assert plan.size_bytes == len(plan.header) + data_bytes
    names = [tensor.name for plan in plans for tensor in plan.tensors]
    assert sorted(names) == sorted([*BITS, "tied"])


def test_the_index_names_the_file_of_each_tensor() -> None:
    plans = plan_anchor_files(SCHEMA, 16)
    index = json.loads(hf_index_json(plans))
    assert index["metadata"]["total_size"] == SCHEMA.size_bytes + len(BITS["c.half"])
    assert index["weight_map"]["tied"] in {plan.name for plan in plans}
    for plan in plans:
        assert read_with_library(write(plan)).keys() == {
            name for name, file in index["weight_map"].items() if file == plan.name
        }


def test_a_schema_without_tensors_is_one_empty_file() -> None:
    (plan,) = plan_anchor_files(Schema.build([]), 1)
    assert read_with_library(plan.header) == {}
