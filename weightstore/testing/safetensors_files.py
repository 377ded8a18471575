"""Safetensors files as the library reads them, and files made to be refused."""

from __future__ import annotations

import json
from typing import TypedDict

import safetensors


class LibraryTensor(TypedDict):
    """What the library gives for one tensor."""

    dtype: str
    shape: list[int]
    data: bytes


def read_with_library(data: bytes) -> dict[str, LibraryTensor]:
    """The tensors that the library finds in a file.

    Raises:
        SafetensorError: it refuses the file.
    """
    found: list[tuple[str, LibraryTensor]] = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    return dict(found)


def file_of(header: object, data_size_bytes: int, *, said_size: int | None = None) -> bytes:
    """A safetensors file, right or wrong, whose tensors are zeros.

    Args:
        header: Bytes as they are, or a value to be written as JSON.
        data_size_bytes: Zeros after the header.
        said_size: What the file says of its header's size; None says the truth.
    """
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size_bytes = len(text) if said_size is None else said_size
    return size_bytes.to_bytes(8, "little") + text + bytes(data_size_bytes)
