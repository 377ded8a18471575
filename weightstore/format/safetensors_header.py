"""Headers of safetensors files: written for packs and anchors, read from anybody's files.

A file is the header's size as 8 little-endian bytes, the header as JSON, and the tensors'
bytes without gaps. Reading here is as strict as the library's, and refuses besides: names
given twice, names that no schema can hold, and more dims than `DIM_COUNT_MAX`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TypeAlias

from typing_extensions import Buffer

from weightstore.errors import CorruptObjectError, InputRefusedError, RefusedError
from weightstore.format.canonical import Json
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import TENSOR_SIZE_BYTES_MAX, TensorSpec
from weightstore.settings import Limits

SIZE_FIELD_BYTES = 8
HEADER_SIZE_BYTES_MAX = 100_000_000
"""The safetensors library reads no larger header."""
DATA_ALIGNMENT_BYTES = 8

HeaderError: TypeAlias = type[CorruptObjectError] | type[InputRefusedError]
"""What a bad header raises: the first for stored files, the second for a user's."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is in a safetensors file.

    Attributes:
        spec: Name, dtype and shape.
        file_offset: First byte, counted from the start of the file; any alignment.
        size_bytes: That of `spec`.
    """

    spec: TensorSpec
    file_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """A checked header.

    Attributes:
        tensors: In the order of their bytes in the file, which they fill without gaps.
        metadata: The `__metadata__` texts.
        data_offset: First byte after the header, counted from the start of the file.
    """

    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, str]
    data_offset: int


def read_header_size(
    first_bytes: Buffer,
    *,
    file_size_bytes: int,
    limits: Limits,
    what: str,
    error: HeaderError = CorruptObjectError,
) -> int:
    """How many bytes from the start of the file `parse_safetensors_header` needs.

    Args:
        first_bytes: The first 8 bytes of the file, or more.
        file_size_bytes: Size of the whole file.
        limits: Bound on the header.
        what: The file, for messages.
        error: What to raise.

    Raises:
        CorruptObjectError: the header would pass the file or the bound.
        InputRefusedError: the same for a user's file.
    """
    size_field = bytes(memoryview(first_bytes).cast("B")[:SIZE_FIELD_BYTES])
    if len(size_field) < SIZE_FIELD_BYTES:
        raise error(f"{what} is no safetensors file: it has {len(size_field)} bytes")
    size_bytes = int.from_bytes(size_field, "little")
    if size_bytes > file_size_bytes - SIZE_FIELD_BYTES:
        raise error(
            f"{what} is no safetensors file: a header of {size_bytes} bytes would pass its end"
            f" at {file_size_bytes}"
        )
    bound = min(limits.safetensors_header_size_bytes, HEADER_SIZE_BYTES_MAX)
    if size_bytes > bound:
        raise error(f"{what} has a header of {size_bytes} bytes, above {bound}")
    return SIZE_FIELD_BYTES + size_bytes


def parse_safetensors_header(
    head: Buffer,
    *,
    file_size_bytes: int,
    limits: Limits,
    what: str,
    error: HeaderError = CorruptObjectError,
) -> SafetensorsHeader:
    """Check a header against the file's size; every legal file passes.

    Args:
        head: The file's first bytes, at least as many as `read_header_size` says.
        file_size_bytes: Size of the whole file.
        limits: Bound on the header.
        what: The file, for messages.
        error: What to raise.

    Raises:
        CorruptObjectError: anything else than a legal header that fits the file.
        InputRefusedError: the same for a user's file.
        DTypeRefusedError, LimitError, NameRefusedError, TensorRefusedError: a tensor that
            cannot be stored, in a user's file.
    """
    data_offset = read_header_size(
        head, file_size_bytes=file_size_bytes, limits=limits, what=what, error=error
    )
    text = bytes(memoryview(head).cast("B")[SIZE_FIELD_BYTES:data_offset])
    if len(text) < data_offset - SIZE_FIELD_BYTES:
        raise error(f"{what}: the header ends before its {data_offset - SIZE_FIELD_BYTES} bytes")
    try:
        entries = _parse_object(text)
        metadata = _parse_metadata(entries.pop("__metadata__", {}))
        tensors = [_parse_entry(name, entry, data_offset) for name, entry in entries.items()]
        # An empty tensor stands where a full one begins, and comes first.
        tensors.sort(key=attrgetter("file_offset", "size_bytes"))
        _check_tiling(tensors, data_offset, file_size_bytes)
    except (ValueError, RecursionError) as cause:
        raise error(f"{what} has a bad safetensors header: {cause}") from cause
    except RefusedError as cause:
        if error is InputRefusedError:
            raise
        raise error(f"{what} has a bad safetensors header: {cause.message}") from cause
    return SafetensorsHeader(tuple(tensors), metadata, data_offset)


def encode_safetensors_header(
    specs: Sequence[tuple[str, DType, tuple[int, ...]]], metadata: Mapping[str, str]
) -> bytes:
    """The size field and header of a file that holds tensors in the order given.

    Args:
        specs: Name, dtype and shape of each.
        metadata: The `__metadata__` texts.

    Returns:
        Padded with spaces, so that the tensors' bytes begin at a multiple of 8.
    """
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, dtype, shape in specs:
        start, end = end, end + dtype.size_bytes(shape)
        entries[name] = {"dtype": dtype.value, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(SIZE_FIELD_BYTES + len(text)) % DATA_ALIGNMENT_BYTES)
    return len(text).to_bytes(SIZE_FIELD_BYTES, "little") + text


def _parse_object(text: bytes) -> dict[str, Json]:
    found: Json = json.loads(
        text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
    )
    if not isinstance(found, dict):
        raise ValueError("it is no object")  # noqa: TRY004 -- becomes a typed error
    return found


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = sorted(name for name, _ in pairs)
        twice = next(name for name, following in pairwise(names) if name == following)
        raise ValueError(f"the name {twice!r} is there twice")
    return found


def _refuse_constant(text: str) -> Json:
    raise ValueError(f"{text} is no JSON")


def _parse_metadata(value: Json) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("its metadata is no object")  # noqa: TRY004 -- becomes a typed error
    metadata = {key: text for key, text in value.items() if isinstance(text, str)}
    if len(metadata) != len(value):
        raise ValueError("its metadata holds something else than text")
    for key, text in metadata.items():
        (key + text).encode("utf-8")  # refuses lone surrogates, as the library does
    return metadata


def _parse_entry(name: str, entry: Json, data_offset: int) -> StoredTensor:
    if not isinstance(entry, dict):
        raise ValueError(f"tensor {name!r} is no object")  # noqa: TRY004 -- becomes a typed error
    dtype_name = entry.get("dtype")
    if not isinstance(dtype_name, str):
        raise ValueError(f"tensor {name!r} has no dtype")  # noqa: TRY004 -- becomes a typed error
    shape = _integers(entry.get("shape"), name, "shape")
    offsets = _integers(entry.get("data_offsets"), name, "data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:  # noqa: PLR2004 -- start and end
        raise ValueError(f"data_offsets {offsets} of {name!r} are no range")
    _check_product(name, shape)
    spec = TensorSpec(name, DType.parse(dtype_name), shape)
    size_bytes = offsets[1] - offsets[0]
    if spec.size_bytes != size_bytes:
        raise ValueError(
            f"tensor {name!r} needs {spec.size_bytes} bytes and has"
            f" {size_bytes} in data_offsets {offsets}"
        )
    return StoredTensor(spec, data_offset + offsets[0], size_bytes)


def _integers(value: Json, name: str, what: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError(f"the {what} of {name!r} is no list")  # noqa: TRY004 -- becomes a typed error
    numbers = tuple([number for number in value if type(number) is int])
    if len(numbers) != len(value) or (
        numbers and not 0 <= min(numbers) <= max(numbers) <= TENSOR_SIZE_BYTES_MAX
    ):
        raise ValueError(
            f"the {what} of {name!r} holds something else than whole numbers below 2^53"
        )
    return numbers


def _check_product(name: str, shape: tuple[int, ...]) -> None:
    """The library multiplies in 64 bits and refuses an overflow, a later zero or not."""
    product = 1
    for dim in shape:
        product *= dim
        if product >= 2**64:
            raise ValueError(f"shape {shape} of {name!r} overflows")


def _check_tiling(tensors: list[StoredTensor], data_offset: int, file_size_bytes: int) -> None:
    end = data_offset
    for tensor in tensors:
        if tensor.file_offset != end:
            raise ValueError(
                f"tensor {tensor.spec.name!r} begins at byte {tensor.file_offset} of the file;"
                f" the one before it ends at {end}"
            )
        end += tensor.size_bytes
    if end != file_size_bytes:
        raise ValueError(f"its tensors end at byte {end} and the file at {file_size_bytes}")
