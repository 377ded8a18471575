"""Packs: the pieces of a delta as one safetensors file.

Five tensors of bytes: the binary piece index, then the gaps, values, escapes and wide words
of all pieces in the index's order. Any safetensors tool opens it; what is in it is checked
by `PackReader` before the first byte is used.
"""

from __future__ import annotations

from typing import assert_never

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from weightstore.codec.piece import Piece
from weightstore.errors import CorruptObjectError, InputRefusedError
from weightstore.format.index_rows import AREA_COUNT, HEADER_DTYPE, PlaceKind
from weightstore.format.piece_index import (
    BundlePlace,
    IndexEntry,
    PieceIndex,
    PiecePlace,
    TensorPlace,
    encode_index,
)
from weightstore.format.safetensors_header import (
    encode_safetensors_header,
    parse_safetensors_header,
)
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.settings import Limits

__all__ = [
    "PACK_FORMAT",
    "BundlePlace",
    "PackBuilder",
    "PackReader",
    "PiecePlace",
    "TensorPlace",
    "split_pack",
]

PACK_FORMAT = "weightstore-pack-1"
AREA_NAMES = ("gaps", "values", "escapes", "words")
TENSOR_NAMES = ("index", *AREA_NAMES)
HEADER_SIZE_BYTES_MAX = 4096


class PackBuilder:
    """Collects pieces and writes them as one pack.

    The bytes depend on the pieces alone, not on the order in which they were added.

    Attributes:
        size_bytes: Size of the pack without its safetensors header, so far.
        piece_count: Pieces so far; stays after `finish`.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._bundle_numbers = {
            bundle.members[0]: number for number, bundle in enumerate(schema.bundles)
        }
        self._entries: list[IndexEntry] = []
        self.size_bytes = HEADER_DTYPE.itemsize
        self.piece_count = 0

    def add(
        self,
        place: PiecePlace,
        piece: Piece,
        member_changed_counts: NDArray[np.int64] | None = None,
    ) -> None:
        """Take a piece.

        Args:
            place: Which units the piece changes.
            piece: The change.
            member_changed_counts: For a bundle: changed units of each member, int64.

        Raises:
            InputRefusedError: place, piece and schema do not fit each other.
        """
        entry = self._entry(place, piece, member_changed_counts)
        self._entries.append(entry)
        self.size_bytes += entry.size_bytes + piece.size_bytes
        self.piece_count += 1

    def finish(self) -> list[bytes]:
        """The pack as buffers, to be written one after the other. The builder is empty then.

        Raises:
            InputRefusedError: two pieces change the same units.
        """
        entries = sorted(self._entries, key=lambda entry: entry.order)
        self._entries = []
        index = encode_index(self._schema, entries)
        areas = [
            b"".join([entry.piece.streams[area] for entry in entries]) for area in range(AREA_COUNT)
        ]
        try:
            PieceIndex(index, self._schema, [len(area) for area in areas])
        except CorruptObjectError as error:
            raise InputRefusedError(
                f"these pieces make no pack: {error.message}", do="Give each unit to one piece."
            ) from error
        header = encode_safetensors_header(
            [
                (name, DType.U8, (len(part),))
                for name, part in zip(TENSOR_NAMES, (index, *areas), strict=True)
            ],
            {"format": PACK_FORMAT},
        )
        return [header, index, *areas]

    def _entry(
        self, place: PiecePlace, piece: Piece, counts: NDArray[np.int64] | None
    ) -> IndexEntry:
        match place:
            case TensorPlace():
                kind = PlaceKind.FLAT if place.box is None else PlaceKind.BOX
                number, first_unit, box = place.tensor_index, place.first_unit, place.box
                unit_count = place.unit_count
                member_count = None
            case BundlePlace():
                kind, first_unit, box = PlaceKind.BUNDLE, 0, None
                number = self._bundle_number(place)
                unit_count = int(place.starts[-1])
                member_count = len(place.members)
            case _:
                assert_never(place)
        if piece.unit_count != unit_count or member_count != (
            None if counts is None else len(counts)
        ):
            raise InputRefusedError(
                f"a piece of {piece.unit_count} units with"
                f" {None if counts is None else len(counts)} member counts is not of a place of"
                f" {unit_count} units and {member_count} members",
                do="Give the piece's own place.",
            )
        return IndexEntry(kind, number, first_unit, box, counts, piece)

    def _bundle_number(self, place: BundlePlace) -> int:
        number = self._bundle_numbers.get(place.members[0]) if place.members else None
        if number is None or self._schema.bundles[number].members != place.members:
            raise InputRefusedError(
                f"{len(place.members)} tensors are no bundle of the schema",
                do="Use the bundles of bundle_plan.",
            )
        return number


class PackReader:
    """The pieces of a pack, checked; made on demand without copies of the data.

    Args:
        data: All bytes of the pack; kept alive by the pieces.
        schema: That of the version.
        limits: Bounds.

    Raises:
        CorruptObjectError: the bytes are no pack of this schema.
    """

    def __init__(self, data: Buffer, schema: Schema, limits: Limits) -> None:
        view = memoryview(data).cast("B").toreadonly()
        index, *self._areas = [part for _, part in split_pack(view, limits)]
        self._index = PieceIndex(index, schema, [len(area) for area in self._areas])

    @property
    def piece_count(self) -> int:
        """Pieces in the pack."""
        return len(self._index)

    @property
    def places(self) -> PieceIndex:
        """Which units each piece changes."""
        return self._index

    @property
    def changed_counts(self) -> NDArray[np.int64]:
        """Changed units of each piece; int64."""
        return self._index.changed_counts

    def member_changed_counts(self, index: int) -> NDArray[np.int64]:
        """Changed units of each member of a bundle piece; int64.

        The positions of a bundle piece ascend, so the first count says how many of them are
        the first member's, and so on: a member can be applied or refused by itself.

        Raises:
            InputRefusedError: the piece is of no bundle.
        """
        return self._index.member_changed_counts(index)

    def piece(self, index: int) -> Piece:
        """A piece, its streams as views of the data. The codec checks what is in them."""
        return self._index.piece(index, self._areas)


def split_pack(view: memoryview, limits: Limits) -> list[tuple[int, memoryview]]:
    """The index and the four stream areas of a pack, each with its first byte in the file.

    Raises:
        CorruptObjectError: the bytes are no pack.
    """
    if len(view) > limits.pack_size_bytes:
        raise CorruptObjectError(f"a pack of {len(view)} bytes is above {limits.pack_size_bytes}")
    header = parse_safetensors_header(
        view[: 8 + HEADER_SIZE_BYTES_MAX], file_size_bytes=len(view), limits=limits, what="a pack"
    )
    found = {tensor.spec.name: tensor for tensor in header.tensors}
    if header.metadata.get("format") != PACK_FORMAT or found.keys() != set(TENSOR_NAMES):
        raise CorruptObjectError(
            f"a safetensors file with tensors {sorted(found)} is no pack of {PACK_FORMAT!r}"
        )
    parts = []
    for name in TENSOR_NAMES:
        tensor = found[name]
        if tensor.spec.dtype is not DType.U8 or len(tensor.spec.shape) != 1:
            raise CorruptObjectError(f"tensor {name!r} of a pack is not of bytes")
        end = tensor.file_offset + tensor.size_bytes
        parts.append((tensor.file_offset, view[tensor.file_offset : end]))
    return parts
