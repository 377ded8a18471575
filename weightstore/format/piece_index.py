"""The piece index of a pack: a fixed-width binary table of what each piece changes and how.

Everything is little-endian. A header, one row of 88 bytes per piece, then the boxes of
those pieces that have one, then the changed counts of the members of bundle pieces. Where
a piece's streams, box or member counts begin is not stored: it follows from the order.
`docs/format.md` describes every byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from weightstore.codec.piece import GapCoding, Piece, ValueCoding
from weightstore.errors import CorruptObjectError, InputRefusedError
from weightstore.format.index_checks import check_boxes, check_bundles, check_rows
from weightstore.format.index_rows import (
    AREA_COUNT,
    HEADER_DTYPE,
    INDEX_MAGIC,
    ROW_DTYPE,
    ROW_STRUCT,
    PlaceKind,
    Rows,
)
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A flat run of a tensor, or of a box of it.

    Attributes:
        tensor_index: In the schema.
        first_unit: First unit of the run, counted in the tensor or in the box.
        unit_count: Length of the run.
        box: What is counted in; None is the whole tensor.
    """

    tensor_index: int
    first_unit: int
    unit_count: int
    box: Box | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BundlePlace:
    """A whole bundle of small tensors.

    Attributes:
        members: Schema indices.
        starts: First unit of each member in the bundle, then its unit count; int64.
    """

    members: tuple[int, ...]
    starts: NDArray[np.int64]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BundlePlace) and self.members == other.members

    def __hash__(self) -> int:
        return hash(self.members)


PiecePlace: TypeAlias = TensorPlace | BundlePlace


@dataclass(frozen=True, slots=True, eq=False)
class IndexEntry:
    """What the index says of one piece, when a pack is written.

    Attributes:
        kind: What `number` counts.
        number: Index of the tensor in the schema, or of the bundle in its plan.
        first_unit: First unit of the run; 0 for a bundle.
        box: For `PlaceKind.BOX`.
        member_changed_counts: For `PlaceKind.BUNDLE`: int64, one per member.
        piece: The change.
    """

    kind: PlaceKind
    number: int
    first_unit: int
    box: Box | None
    member_changed_counts: NDArray[np.int64] | None
    piece: Piece

    @property
    def order(self) -> tuple[int, int, tuple[int, ...], int]:
        """Entries stand in the ascending order of this; no two have an equal one."""
        box = () if self.box is None else self.box.offsets + self.box.sizes
        return int(self.kind), self.number, box, self.first_unit

    @property
    def size_bytes(self) -> int:
        """Bytes of the entry in the index."""
        box_size = 0 if self.box is None else 16 * len(self.box.sizes)
        counts = self.member_changed_counts
        return ROW_DTYPE.itemsize + box_size + (0 if counts is None else 4 * len(counts))


def encode_index(schema: Schema, entries: Sequence[IndexEntry]) -> bytes:
    """Bytes of an index.

    Args:
        schema: What the numbers of the entries refer to.
        entries: In ascending order; see `IndexEntry.order`.
    """
    boxes = [entry.box for entry in entries if entry.box is not None]
    words = np.array([word for box in boxes for word in box.offsets + box.sizes], "<u8")
    counts = [
        entry.member_changed_counts for entry in entries if entry.member_changed_counts is not None
    ]
    members = np.concatenate(counts).astype("<u4") if counts else np.empty(0, "<u4")
    header = np.zeros((), HEADER_DTYPE)
    header["magic"] = np.void(INDEX_MAGIC)
    header["schema_id"] = np.void(bytes.fromhex(schema.id))
    header["piece_count"] = len(entries)
    header["box_word_count"] = len(words)
    header["member_count"] = len(members)
    rows = b"".join(map(_row, entries))
    return header.tobytes() + rows + words.tobytes() + members.tobytes()


class PieceIndex(Sequence[PiecePlace]):
    """A checked index; as a sequence, the places of its pieces. Values are made on demand.

    Attributes:
        changed_counts: Changed units of each piece; int64.
        stream_starts: First byte of each piece's streams in the four areas, then the areas'
            sizes; int64 of shape (pieces + 1, 4).
    """

    def __init__(self, data: Buffer, schema: Schema, area_sizes: Sequence[int]) -> None:
        """Parse and check.

        Args:
            data: All bytes of the index.
            schema: That of the version; the index names it.
            area_sizes: Sizes in bytes of the four stream areas.

        Raises:
            CorruptObjectError: anything in it is not as `docs/format.md` says.
        """
        row_bytes, words, members = _split(data, schema)
        raw = np.frombuffer(row_bytes, ROW_DTYPE)
        self._schema = schema
        self._row_bytes = row_bytes
        self._words = words
        self._members = members
        self.stream_starts = _stream_starts(raw, area_sizes)
        rows = Rows.of(raw)
        self._rows = rows
        check_rows(rows, schema)
        self._box_starts = check_boxes(rows, words, schema)
        self._member_starts = check_bundles(rows, members, schema)
        self.changed_counts: NDArray[np.int64] = rows.changed_counts
        self._first_box = rows.flat_count
        self._first_bundle = rows.flat_count + rows.box_count

    def __len__(self) -> int:
        return len(self._rows.kinds)

    @overload
    def __getitem__(self, index: int) -> PiecePlace: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[PiecePlace, ...]: ...

    def __getitem__(self, index: int | slice) -> PiecePlace | tuple[PiecePlace, ...]:
        if isinstance(index, slice):
            return tuple(self._place(number) for number in range(*index.indices(len(self))))
        return self._place(self._checked(index))

    @property
    def widths_bytes(self) -> NDArray[np.int64]:
        """Size of a unit of each piece; int64."""
        return self._rows.widths

    @property
    def value_codings(self) -> NDArray[np.uint8]:
        """The `ValueCoding` of each piece; uint8."""
        return np.ascontiguousarray(self._rows.raw["value_coding"])

    @property
    def flat_runs(self) -> NDArray[np.int64]:
        """Tensor, first unit and unit after the last of each piece without a box; int64."""
        part = slice(0, self._first_box)
        firsts = self._rows.first_units[part].astype(np.int64)
        ends = firsts + self._rows.unit_counts[part]
        return np.stack([self._rows.numbers[part], firsts, ends], axis=1)

    @property
    def box_places(self) -> Iterator[TensorPlace]:
        """The places of the pieces that have a box."""
        for index in range(self._first_box, self._first_bundle):
            place = self._place(index)
            assert isinstance(place, TensorPlace)
            yield place

    @property
    def bundle_numbers(self) -> NDArray[np.int64]:
        """The bundle of each bundle piece, ascending; int64."""
        return self._rows.numbers[self._first_bundle :]

    def member_changed_counts(self, index: int) -> NDArray[np.int64]:
        """Changed units of each member of a bundle piece; int64.

        Raises:
            InputRefusedError: the piece is of no bundle.
        """
        bundle_piece = self._checked(index) - self._first_bundle
        if bundle_piece < 0:
            raise InputRefusedError(f"piece {index} is of one tensor", do="Check its place.")
        start, end = self._member_starts[bundle_piece : bundle_piece + 2]
        return self._members[start:end].astype(np.int64)

    def piece(self, index: int, areas: Sequence[memoryview]) -> Piece:
        """A piece over the stream areas, without a copy.

        Args:
            index: Of the piece.
            areas: The four areas, of the sizes given to the constructor.
        """
        index = self._checked(index)
        _, lane, other_lane, hash16, *sizes = ROW_STRUCT.unpack_from(
            self._row_bytes, index * ROW_STRUCT.size
        )
        raw_gaps, raw_values, raw_escapes, raw_words = sizes[:AREA_COUNT]
        _, unit_count, changed_count, _, width_bytes, value_coding, gap_coding = sizes[
            2 * AREA_COUNT :
        ]
        starts, ends = self.stream_starts[index : index + 2].tolist()
        gaps, values, escapes, words = (
            area[start:end] for area, start, end in zip(areas, starts, ends, strict=True)
        )
        return Piece(
            width_bytes=width_bytes,
            unit_count=unit_count,
            changed_count=changed_count,
            value_coding=ValueCoding(value_coding),
            gap_coding=GapCoding(gap_coding),
            raw_sizes=(raw_gaps, raw_values, raw_escapes, raw_words),
            streams=(gaps, values, escapes, words),
            lane_deltas=(lane, other_lane),
            hash16=hash16,
        )

    def _checked(self, index: int) -> int:
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return place

    def _place(self, index: int) -> PiecePlace:
        rows = self._rows
        number = int(rows.numbers[index])
        if index >= self._first_bundle:
            bundle = self._schema.bundles[number]
            return BundlePlace(bundle.members, bundle.starts)
        box = None if index < self._first_box else self._box(index - self._first_box)
        return TensorPlace(number, int(rows.first_units[index]), int(rows.unit_counts[index]), box)

    def _box(self, box_piece: int) -> Box:
        start, end = self._box_starts[box_piece : box_piece + 2].tolist()
        words = self._words[start:end].tolist()
        dim_count = len(words) // 2
        return Box(tuple(words[:dim_count]), tuple(words[dim_count:]))


def _row(entry: IndexEntry) -> bytes:
    piece = entry.piece
    return ROW_STRUCT.pack(
        entry.first_unit,
        *piece.lane_deltas,
        piece.hash16,
        *piece.raw_sizes,
        *(len(stream) for stream in piece.streams),
        entry.number,
        piece.unit_count,
        piece.changed_count,
        entry.kind,
        piece.width_bytes,
        piece.value_coding,
        piece.gap_coding,
    )


def _split(
    data: Buffer, schema: Schema
) -> tuple[memoryview, NDArray[np.uint64], NDArray[np.uint32]]:
    view = memoryview(data).cast("B")
    if len(view) < HEADER_DTYPE.itemsize:
        raise CorruptObjectError(f"a piece index of {len(view)} bytes has no header")
    header = np.frombuffer(view, HEADER_DTYPE, 1)[0]
    if header["magic"].tobytes() != INDEX_MAGIC or header["reserved"] != 0:
        raise CorruptObjectError("a piece index does not begin as one")
    found_id = header["schema_id"].tobytes().hex()
    if found_id != schema.id:
        raise CorruptObjectError(
            f"a piece index is of schema {found_id}, expected {schema.id}",
            facts={"expected": schema.id, "found": found_id},
        )
    piece_count = int(header["piece_count"])
    word_count = int(header["box_word_count"])
    member_count = int(header["member_count"])
    words_start = HEADER_DTYPE.itemsize + piece_count * ROW_DTYPE.itemsize
    members_start = words_start + 8 * word_count
    expected = members_start + 4 * member_count
    if expected != len(view):
        raise CorruptObjectError(f"a piece index of {len(view)} bytes says that it has {expected}")
    return (
        view[HEADER_DTYPE.itemsize : words_start],
        np.frombuffer(view[words_start:members_start], "<u8"),
        np.frombuffer(view[members_start:], "<u4"),
    )


def _stream_starts(raw: NDArray[Any], area_sizes: Sequence[int]) -> NDArray[np.int64]:
    starts = np.zeros((len(raw) + 1, AREA_COUNT), np.int64)
    np.cumsum(raw["stream_sizes"], axis=0, out=starts[1:])
    if starts[-1].tolist() != list(area_sizes):
        raise CorruptObjectError(
            f"the pieces of a pack have {starts[-1].tolist()} bytes of streams, the pack has"
            f" {list(area_sizes)}"
        )
    return starts
