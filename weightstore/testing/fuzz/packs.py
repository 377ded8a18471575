"""Packs as inputs for a fuzzer: of every kind of place, and of every coding of values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weightstore.codec.codec import PieceCodec
from weightstore.codec.piece import Piece, ValueCoding
from weightstore.format.pack import PackBuilder, TensorPlace
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.testing.real_versions import ThreeVersions


def packs_of(store: ThreeVersions) -> Iterator[bytes]:
    """The packs of a store."""
    for info in store.blobs.list("packs/"):
        yield store.blobs.get(info.key, max_size_bytes=info.size_bytes)


def box_pack(schema: Schema) -> bytes:
    """A pack whose pieces are of boxes of the schema's largest bf16 tensor."""
    number = schema.index_of("block.large")
    builder = PackBuilder(schema)
    for box in (Box((0, 0), (10, 200)), Box((10, 50), (20, 100)), Box((349, 0), (1, 200))):
        builder.add(TensorPlace(number, 0, box.unit_count, box), small_piece(box.unit_count))
    return b"".join(builder.finish())


def small_piece(unit_count: int, coding: ValueCoding | None = None) -> Piece:
    """A few changes of a zero tensor of 16-bit units."""
    old = np.zeros(unit_count, np.uint16)
    new = old.copy()
    new[[0, unit_count // 2, -1]] = (1, 7, 40_000)
    piece = PieceCodec().worker().encode(old, new, coding=coding).piece
    assert piece is not None
    return piece
