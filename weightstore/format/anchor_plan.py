"""Which safetensors files a full form consists of, and where each tensor is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weightstore.format.safetensors_header import encode_safetensors_header
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema

INDEX_FILE_NAME = "model.safetensors.index.json"
SINGLE_FILE_NAME = "model.safetensors"

# transformers loads only files that say so.
_METADATA = {"format": "pt"}


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A name in an anchor's file.

    Attributes:
        name: Of a tensor or of an alias; both names of a tied tensor have its bytes, since
            loaders look for either.
        index: Of the tensor in the schema.
        file_offset: First byte, counted from the start of the file; a multiple of the unit.
        size_bytes: Of the tensor.
    """

    name: str
    index: int
    file_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class AnchorFilePlan:
    """One safetensors file to be written: the header, then the tensors one after the other.

    Attributes:
        name: File name as Hugging Face loaders expect it.
        header: First bytes of the file, up to the first tensor.
        tensors: In the order of their bytes, without gaps.
        size_bytes: Of the whole file.
    """

    name: str
    header: bytes
    tensors: tuple[PlacedTensor, ...]
    size_bytes: int


def plan_anchor_files(schema: Schema, file_limit_bytes: int) -> tuple[AnchorFilePlan, ...]:
    """Spread the tensors of a schema over files, in schema order.

    Args:
        schema: What to store.
        file_limit_bytes: A file is closed before its tensors pass this, but holds at least
            one tensor.

    Returns:
        At least one file; each sorts wide units first, so that every tensor is aligned.
    """
    groups: list[list[tuple[str, int]]] = [[]]
    size_bytes = 0
    for name, index in _names(schema):
        tensor_bytes = schema.tensors[index].size_bytes
        if groups[-1] and size_bytes + tensor_bytes > file_limit_bytes:
            groups.append([])
            size_bytes = 0
        groups[-1].append((name, index))
        size_bytes += tensor_bytes
    if len(groups) == 1:
        return (_plan_file(schema, SINGLE_FILE_NAME, groups[0]),)
    return tuple(
        _plan_file(schema, f"model-{number:05d}-of-{len(groups):05d}.safetensors", group)
        for number, group in enumerate(groups, 1)
    )


def hf_index_json(plans: Sequence[AnchorFilePlan]) -> bytes:
    """The `model.safetensors.index.json` of several files."""
    weight_map = {tensor.name: plan.name for plan in plans for tensor in plan.tensors}
    total_bytes = sum(tensor.size_bytes for plan in plans for tensor in plan.tensors)
    value = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True).encode("utf-8")


def _names(schema: Schema) -> Iterator[tuple[str, int]]:
    names = [(spec.name, index) for index, spec in enumerate(schema.tensors)]
    names += [(alias.name, schema.index_of(alias.target)) for alias in schema.aliases]
    return iter(sorted(names))


def _plan_file(schema: Schema, name: str, group: Sequence[tuple[str, int]]) -> AnchorFilePlan:
    ordered = sorted(
        group, key=lambda entry: (-schema.tensors[entry[1]].dtype.unit_size_bytes, entry[0])
    )
    specs: list[tuple[str, DType, tuple[int, ...]]] = [
        (tensor_name, schema.tensors[index].dtype, schema.tensors[index].shape)
        for tensor_name, index in ordered
    ]
    header = encode_safetensors_header(specs, _METADATA)
    tensors = []
    offset = len(header)
    for tensor_name, index in ordered:
        size_bytes = schema.tensors[index].size_bytes
        tensors.append(PlacedTensor(tensor_name, index, offset, size_bytes))
        offset += size_bytes
    return AnchorFilePlan(name, header, tuple(tensors), offset)
