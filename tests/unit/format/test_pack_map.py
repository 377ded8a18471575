"""A map of a pack finds every piece by ranges, as the reader of the whole pack does."""

from __future__ import annotations

import pytest

from weightstore.errors import CorruptObjectError, InputRefusedError
from weightstore.format.pack import PackReader
from weightstore.format.pack_map import PackMap
from weightstore.history.chain import delta_form
from weightstore.settings import Limits
from weightstore.testing.real_versions import three_versions

LIMITS = Limits()


def packs() -> list[bytes]:
    """The packs of two deltas, and their schema's store."""
    made = three_versions()
    plan = made.versions.plan()
    return [
        made.blobs.get(pack.key, max_size_bytes=pack.size_bytes)
        for manifest in plan.deltas
        for pack in delta_form(manifest).packs
    ]


def test_every_piece_is_found_by_its_ranges() -> None:
    schema = three_versions().versions.schema
    kinds = set()
    for data in packs():
        whole, found = PackReader(data, schema, LIMITS), PackMap(data, schema, LIMITS)
        assert list(found.places) == list(whole.places)
        for index in range(whole.piece_count):
            streams = [data[start : start + size] for start, size in found.ranges(index)]
            expected, piece = whole.piece(index), found.piece(index, streams)
            assert [bytes(stream) for stream in expected.streams] == streams
            assert (piece.hash16, piece.raw_sizes) == (expected.hash16, expected.raw_sizes)
            assert piece.lane_deltas == expected.lane_deltas
            kinds.add(type(found.places[index]).__name__)
    assert kinds == {"TensorPlace", "BundlePlace"}


def test_what_is_no_pack_is_refused_and_four_streams_are_asked_for() -> None:
    schema = three_versions().versions.schema
    data = packs()[0]
    with pytest.raises(CorruptObjectError):
        PackMap(data[:-1], schema, LIMITS)
    with pytest.raises(InputRefusedError, match="3 streams"):
        PackMap(data, schema, LIMITS).piece(0, [b"", b"", b""])
