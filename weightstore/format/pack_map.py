"""Where the pieces of a pack lie, so that single ones can be read without the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import Buffer

from weightstore.codec.piece import Piece, Stream
from weightstore.errors import InputRefusedError
from weightstore.format.index_rows import AREA_COUNT
from weightstore.format.pack import split_pack
from weightstore.format.piece_index import PieceIndex
from weightstore.layout.schema import Schema
from weightstore.settings import Limits

_NOTHING = memoryview(b"")

Range = tuple[int, int]
"""First byte in the file, and size in bytes."""


class PackMap:
    """The index of a pack whose bytes were verified once; keeps nothing else of them.

    A piece that is read later by its ranges is checked against the hash in the index when
    it is decoded, so what changed in the file meanwhile is noticed.

    Args:
        data: All bytes of the pack; not kept.
        schema: That of the version.
        limits: Bounds.

    Raises:
        CorruptObjectError: the bytes are no pack of this schema.
    """

    def __init__(self, data: Buffer, schema: Schema, limits: Limits) -> None:
        view = memoryview(data).cast("B").toreadonly()
        parts = split_pack(view, limits)
        (_, index), *areas = parts
        self._area_offsets = tuple(offset for offset, _ in areas)
        self._index = PieceIndex(bytes(index), schema, [len(area) for _, area in areas])

    @property
    def places(self) -> PieceIndex:
        """Which units each piece changes."""
        return self._index

    def ranges(self, index: int) -> tuple[Range, ...]:
        """Where the four streams of a piece lie in the file; absent ones have size 0."""
        starts, ends = self._index.stream_starts[index : index + 2].tolist()
        return tuple(
            (offset + start, end - start)
            for offset, start, end in zip(self._area_offsets, starts, ends, strict=True)
        )

    def piece(self, index: int, streams: Sequence[Stream]) -> Piece:
        """A piece with streams that were read from its ranges.

        Raises:
            InputRefusedError: not four streams.
        """
        if len(streams) != AREA_COUNT:
            raise InputRefusedError(f"{len(streams)} streams", do="Give the four of the piece.")
        gaps, values, escapes, words = streams
        without = self._index.piece(index, (_NOTHING,) * AREA_COUNT)
        return replace(without, streams=(gaps, values, escapes, words))
