"""Where tensors are in files, and what of them changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weightstore.codec.blocked import BlockedChange
from weightstore.errors import CorruptObjectError, SchemaMismatchError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.host_files.file_layout import FileSpan, map_files, read_file_header
from weightstore.settings import Limits
from weightstore.testing.safetensors_files import file_of

SPECS = [
    TensorSpec("a", DType.U8, (3,)),
    TensorSpec("b", DType.F32, (5,)),
    TensorSpec("c", DType.BF16, (4, 2)),
    TensorSpec("d", DType.U8, ()),
]


def odd_file(path: Path) -> bytes:
    """Tensors one after the other, at whatever offset that is."""
    header, end = {}, 0
    for spec in SPECS:
        start, end = end, end + spec.size_bytes
        header[spec.name] = {
            "dtype": spec.dtype.value,
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
    data = bytearray(file_of(header, end))
    data[-end:] = bytes(range(1, end + 1))
    path.write_bytes(data)
    return bytes(data[-end:])


def test_tensors_at_any_offset_are_found(tmp_path: Path) -> None:
    raw = odd_file(tmp_path / "f")
    schema = Schema.build(SPECS)
    files = map_files(tmp_path, ["f"], schema, Limits())
    start = read_file_header(tmp_path / "f", Limits()).data_offset
    assert len(files.spans) == len(files.placement.storages) == 3
    offset = 0
    for spec in SPECS:
        ((_, place),) = files.placement.by_tensor[schema.index_of(spec.name)]
        units = files.placement.storage_of(place).read(place.extent)
        assert units.tobytes() == raw[offset : offset + spec.size_bytes]
        span = files.spans[place.storage_index]
        at = span.base + place.extent.base * spec.dtype.unit_size_bytes
        assert (span.file, at) == ("f", start + offset)
        offset += spec.size_bytes
    assert files.table(1) is not None


def test_what_is_written_to_a_file_shows_in_the_map(tmp_path: Path) -> None:
    odd_file(tmp_path / "f")
    files = map_files(tmp_path, ["f"], Schema.build(SPECS), Limits())
    before = files.table(1)
    with (tmp_path / "f").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"x")
    after = files.table(1)
    assert before is not None
    assert after is not None
    assert np.any(before != after, axis=1).tolist() == [False, False, False, True]


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    odd_file(tmp_path / "f")
    for specs in (
        SPECS[:-1],
        [*SPECS, TensorSpec("e", DType.U8, ())],
        [*SPECS[:-1], TensorSpec("d", DType.U8, (1,))],
        [*SPECS[:-1], TensorSpec("d", DType.I8, ())],
    ):
        with pytest.raises(SchemaMismatchError):
            map_files(tmp_path, ["f"], Schema.build(specs), Limits())
    (tmp_path / "f").write_bytes(b"short")
    for name in ("f", "nothing"):
        with pytest.raises(CorruptObjectError):
            map_files(tmp_path, [name], Schema.build(SPECS), Limits())


def test_a_change_rises_whatever_order_its_tensors_came_in() -> None:
    """Windows of two tensors may be named twice, the later tensor first."""
    bits = np.array([1, 2, 3], np.uint16)
    mixed = BlockedChange(
        np.array([0, 0], np.int64),
        np.array([0, 2, 3], np.int64),
        np.array([7, 9, 4], np.uint16),
        bits,
        bits + np.uint16(10),
    )
    part = FileSpan("f", 8).part(mixed)
    assert part.change.places().tolist() == [4, 7, 9]
    assert part.change.old_bits.tolist() == [3, 1, 2]
    assert part.change.new_bits.tolist() == [13, 11, 12]
