"""Decoders of what is stored as binary tables, and of safetensors headers."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from weightstore.codec.codec import PieceCodec
from weightstore.errors import CorruptObjectError
from weightstore.format.anchor_plan import plan_anchor_files
from weightstore.format.blocks import FileBlocks, decode_blocks, encode_blocks
from weightstore.format.digest_table import decode_table, encode_table
from weightstore.format.index_rows import AREA_COUNT, HEADER_DTYPE, ROW_DTYPE
from weightstore.format.manifest import AnchorFile
from weightstore.format.pack import BundlePlace, PackReader
from weightstore.format.piece_index import PieceIndex
from weightstore.format.safetensors_header import (
    SIZE_FIELD_BYTES,
    SafetensorsHeader,
    encode_safetensors_header,
    parse_safetensors_header,
    read_header_size,
)
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.testing.fuzz.decoder import Decoder
from weightstore.testing.fuzz.mutating import Form
from weightstore.testing.fuzz.packs import box_pack, packs_of
from weightstore.testing.real_versions import ThreeVersions

_LIMITS = Limits()


def binary_decoders(store: ThreeVersions) -> Iterator[Decoder]:
    """The decoders of this file.

    Args:
        store: Whose objects are good inputs.
    """
    yield from _table_decoders(store)
    yield from _pack_decoders(store)
    yield Decoder(
        "safetensors headers",
        tuple(_files(store.versions.schema)),
        _decode_file,
        Form.SAFETENSORS,
        (
            "format.safetensors_header:read_header_size",
            "format.safetensors_header:parse_safetensors_header",
        ),
    )


def _table_decoders(store: ThreeVersions) -> Iterator[Decoder]:
    schema = store.versions.schema
    lanes = np.arange(2 * len(schema.tensors), dtype=np.uint64).reshape(-1, 2)
    yield Decoder(
        "digest tables",
        (encode_table(lanes, schema), encode_table(~lanes, schema)),
        partial(_decode_table, schema),
        Form.BYTES,
        ("format.digest_table:decode_table",),
        share=0.5,
    )
    files = (
        FileBlocks("a.safetensors", 8_388_609, (b"a" * 32, b"b" * 32)),
        FileBlocks("b.json", 0, ()),
        FileBlocks("c.json", 7, (b"c" * 32,)),
    )
    yield Decoder(
        "block hashes",
        (encode_blocks(files),),
        partial(_decode_blocks, files),
        Form.BYTES,
        ("format.blocks:decode_blocks",),
        share=0.5,
    )


def _decode_table(schema: Schema, data: bytes) -> None:
    assert encode_table(decode_table(data, schema), schema) == data


def _decode_blocks(files: Sequence[FileBlocks], data: bytes) -> None:
    stated = [
        AnchorFile(name=file.name, size_bytes=file.size_bytes, role="asset") for file in files
    ]
    assert encode_blocks(decode_blocks(data, stated)) == data


def _pack_decoders(store: ThreeVersions) -> Iterator[Decoder]:
    schema = store.versions.schema
    packs = (*packs_of(store), box_pack(schema))
    yield Decoder(
        "packs",
        packs,
        partial(_decode_pack, schema),
        Form.SAFETENSORS,
        ("format.pack:PackReader.__init__", "format.pack:PackReader.piece"),
    )
    yield Decoder(
        "piece indexes",
        tuple(struct.pack("<4I", *areas) + index for index, areas in map(_index_of, packs)),
        partial(_decode_index, schema),
        Form.BYTES,
        (
            "format.piece_index:PieceIndex.__init__",
            "format.index_rows:Rows.of",
            "format.index_checks:check_rows",
            "format.index_checks:check_boxes",
            "format.index_checks:check_bundles",
        ),
        share=2.0,
    )
    yield Decoder(
        "index rows",
        tuple(_index_of(pack)[0] for pack in packs),
        partial(_decode_rows, schema),
        Form.BYTES,
        ("format.index_rows:Rows.of",),
        share=2.0,
    )


def _index_of(pack: bytes) -> tuple[bytes, tuple[int, ...]]:
    """The index of a pack, and the sizes of its areas."""
    header = parse_safetensors_header(
        pack, file_size_bytes=len(pack), limits=_LIMITS, what="a pack"
    )
    found = {tensor.spec.name: tensor for tensor in header.tensors}
    index = found["index"]
    sizes = tuple(found[name].size_bytes for name in ("gaps", "values", "escapes", "words"))
    return pack[index.file_offset : index.file_offset + index.size_bytes], sizes


def _decode_pack(schema: Schema, data: bytes) -> None:
    reader = PackReader(data, schema, _LIMITS)
    _check_places(reader.places, schema)
    worker = PieceCodec().worker()
    for number in range(reader.piece_count):
        worker.check(reader.piece(number))


def _decode_index(schema: Schema, data: bytes) -> None:
    if len(data) < 4 * AREA_COUNT:
        raise CorruptObjectError("the sizes of the areas are missing")
    _check_index(data[4 * AREA_COUNT :], schema, struct.unpack_from("<4I", data))


def _decode_rows(schema: Schema, index: bytes) -> None:
    """An index whose areas are as large as its rows say, so that no row fails by its size."""
    end = HEADER_DTYPE.itemsize + (
        (len(index) - HEADER_DTYPE.itemsize) // ROW_DTYPE.itemsize * ROW_DTYPE.itemsize
    )
    rows = np.frombuffer(index[HEADER_DTYPE.itemsize : max(end, 0)], ROW_DTYPE)
    if len(index) >= HEADER_DTYPE.itemsize:
        rows = rows[: int(np.frombuffer(index, HEADER_DTYPE, 1)[0]["piece_count"])]
    areas = rows["stream_sizes"].sum(axis=0, dtype=np.int64).tolist()
    _check_index(index, schema, areas)


def _check_index(index: bytes, schema: Schema, areas: Sequence[int]) -> None:
    found = PieceIndex(index, schema, areas)
    _check_places(found, schema)
    assert found.stream_starts[-1].tolist() == list(areas)
    for number in range(len(found)):
        # Areas of any size would do here; nothing is read from them before it is asked for.
        piece = found.piece(number, [memoryview(b"")] * AREA_COUNT)
        assert 1 <= piece.changed_count <= piece.unit_count
        assert piece.changed_count == found.changed_counts[number]


def _check_places(places: Sequence[object], schema: Schema) -> None:
    """Every place is inside its tensor, and no unit of a flat tensor is changed twice."""
    ends: dict[int, int] = {}
    for place in places:
        if isinstance(place, BundlePlace):
            assert place.members
            continue
        number, first, count = place.tensor_index, place.first_unit, place.unit_count  # type: ignore[attr-defined]
        box = place.box  # type: ignore[attr-defined]
        spec = schema.tensors[number]
        limit = spec.unit_count if box is None else box.unit_count
        assert 0 <= first < first + count <= limit
        assert box is None or box.is_within(spec.unit_shape)
        if box is None:
            assert first >= ends.get(number, 0)
            ends[number] = first + count


def _files(schema: Schema) -> Iterator[bytes]:
    """Safetensors files: of every dtype, of an anchor in several files, and of one tensor."""
    for plan in plan_anchor_files(schema, 300_000):
        yield plan.header + bytes(min(plan.size_bytes, 1 << 21) - len(plan.header))
    each = [(f"t.{dtype.value}", dtype, (2, 4)) for dtype in DType]
    yield _file(each)
    yield _file([("one", DType.U8, (3,)), ("none", DType.F32, (0, 7)), ("0-d", DType.F64, ())])


def _file(specs: Sequence[tuple[str, DType, tuple[int, ...]]]) -> bytes:
    size_bytes = sum(dtype.size_bytes(shape) for _, dtype, shape in specs)
    return encode_safetensors_header(specs, {"format": "pt", "\u00e9": ""}) + bytes(size_bytes)


def _decode_file(data: bytes) -> None:
    first = data[:SIZE_FIELD_BYTES]
    needed = read_header_size(first, file_size_bytes=len(data), limits=_LIMITS, what="a file")
    assert SIZE_FIELD_BYTES <= needed <= len(data)
    header = parse_safetensors_header(
        data[:needed], file_size_bytes=len(data), limits=_LIMITS, what="a file"
    )
    end = header.data_offset
    for tensor in header.tensors:
        assert tensor.file_offset == end
        assert tensor.size_bytes == tensor.spec.size_bytes
        end += tensor.size_bytes
    assert end == len(data)
    assert _again(header, len(data)) == [tensor.spec for tensor in header.tensors]


def _again(header: SafetensorsHeader, size_bytes: int) -> list[object]:
    """What a header says that was written from what this one said."""
    specs = [(one.spec.name, one.spec.dtype, one.spec.shape) for one in header.tensors]
    again = encode_safetensors_header(specs, header.metadata)
    size_bytes += len(again) - header.data_offset
    found = parse_safetensors_header(
        again, file_size_bytes=size_bytes, limits=_LIMITS, what="a file written again"
    )
    assert found.metadata == header.metadata
    return [tensor.spec for tensor in found.tensors]
