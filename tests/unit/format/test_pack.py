"""Packs: real pieces through a file that any safetensors tool opens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch

from weightstore.codec.codec import PieceCodec
from weightstore.codec.piece import EncodeResult
from weightstore.errors import CorruptObjectError, InputRefusedError
from weightstore.format.pack import BundlePlace, PackBuilder, PackReader, PiecePlace, TensorPlace
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits

BIG = 96 * 1024
SCHEMA = Schema.build(
    [
        TensorSpec("big.0", DType.BF16, (BIG,)),
        TensorSpec("big.1", DType.F32, (BIG // 256, 256)),
        TensorSpec("small.0", DType.BF16, (50,)),
        TensorSpec("small.1", DType.BF16, ()),
        TensorSpec("small.2", DType.BF16, (70,)),
        TensorSpec("zz.none", DType.BF16, (0,)),
    ]
)
BUNDLE = SCHEMA.bundles[0]
WORKER = PieceCodec().worker()


def change(dtype: DType, unit_count: int, seed: int) -> EncodeResult:
    """A change of one unit in twenty, over a bundle if the units are the bundle's."""
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 60_000, unit_count).astype(dtype.unit_dtype)
    new = old + (rng.random(unit_count) < 0.05).astype(dtype.unit_dtype)
    starts = BUNDLE.starts if unit_count == BUNDLE.unit_count else None
    return WORKER.encode(old, new, member_starts=starts)


CHANGES: list[tuple[PiecePlace, EncodeResult]] = [
    (TensorPlace(0, 0, 5000), change(DType.BF16, 5000, 1)),
    (TensorPlace(0, 5000, BIG - 5000), change(DType.BF16, BIG - 5000, 2)),
    (TensorPlace(1, 0, 2560, Box((0, 0), (10, 256))), change(DType.F32, 2560, 3)),
    (TensorPlace(1, 0, 1280, Box((10, 128), (10, 128))), change(DType.F32, 1280, 4)),
    (BundlePlace(BUNDLE.members, BUNDLE.starts), change(DType.BF16, BUNDLE.unit_count, 5)),
]


def build(changes: list[tuple[PiecePlace, EncodeResult]]) -> bytes:
    builder = PackBuilder(SCHEMA)
    for place, result in changes:
        assert result.piece is not None
        counts = result.member_changed_counts if isinstance(place, BundlePlace) else None
        builder.add(place, result.piece, counts)
    before_bytes, count = builder.size_bytes, builder.piece_count
    parts = builder.finish()
    assert sum(map(len, parts[1:])) == before_bytes
    assert builder.piece_count == count == len(changes)
    return b"".join(parts)


def test_pieces_come_back_with_their_places() -> None:
    reader = PackReader(build(CHANGES), SCHEMA, Limits())
    assert list(reader.places) == [place for place, _ in CHANGES]
    assert reader.piece_count == len(CHANGES)
    for number, (_, result) in enumerate(CHANGES):
        found = reader.piece(number)
        assert found == result.piece
        WORKER.check(found)
        assert reader.changed_counts[number] == found.changed_count
    expected = CHANGES[-1][1].member_changed_counts
    assert np.array_equal(reader.member_changed_counts(len(CHANGES) - 1), expected)


def test_streams_are_views_of_the_given_bytes() -> None:
    data = bytearray(build(CHANGES))
    reader = PackReader(data, SCHEMA, Limits())
    stream = memoryview(reader.piece(0).streams[0])
    place = data.index(bytes(stream))
    data[place] ^= 0xFF
    assert stream[0] == data[place]
    assert stream.readonly


def test_the_bytes_do_not_depend_on_the_order_of_adding() -> None:
    data = build(CHANGES)
    assert build(CHANGES[::-1]) == data
    assert build(CHANGES[2:] + CHANGES[:2]) == data


def test_any_safetensors_tool_opens_a_pack(tmp_path: Path) -> None:
    data = build(CHANGES)
    path = tmp_path / "pack.safetensors"
    path.write_bytes(data)
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "weightstore-pack-1"}
        assert set(file.keys()) == {"index", "gaps", "values", "escapes", "words"}
    tensors = safetensors.torch.load(data)
    gaps = b"".join(bytes(r.piece.streams[0]) for _, r in CHANGES if r.piece is not None)
    assert tensors["gaps"].numpy().tobytes() == gaps


def test_a_pack_without_pieces() -> None:
    reader = PackReader(build([]), SCHEMA, Limits())
    assert (reader.piece_count, list(reader.places)) == (0, [])


def test_a_pack_of_another_schema_is_refused() -> None:
    other = Schema.build(SCHEMA.tensors[:-1])
    with pytest.raises(CorruptObjectError, match=SCHEMA.id):
        PackReader(build(CHANGES), other, Limits())


def test_a_pack_above_the_limit_is_refused() -> None:
    data = build(CHANGES)
    PackReader(data, SCHEMA, Limits(pack_size_bytes=len(data)))
    with pytest.raises(CorruptObjectError, match="above"):
        PackReader(data, SCHEMA, Limits(pack_size_bytes=len(data) - 1))


def test_a_piece_must_fit_its_place() -> None:
    result = change(DType.BF16, 5000, 1)
    assert result.piece is not None
    builder = PackBuilder(SCHEMA)
    with pytest.raises(InputRefusedError, match="5000 units"):
        builder.add(TensorPlace(0, 0, 4999), result.piece)
    with pytest.raises(InputRefusedError, match="member counts"):
        builder.add(TensorPlace(0, 0, 5000), result.piece, np.zeros(1, np.int64))
    with pytest.raises(InputRefusedError, match="member counts"):
        builder.add(CHANGES[-1][0], result.piece)
    with pytest.raises(InputRefusedError, match="no bundle"):
        builder.add(BundlePlace((2, 3), BUNDLE.starts[:3]), result.piece)
    assert builder.piece_count == 0


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ([TensorPlace(0, 0, 5000), TensorPlace(0, 4999, 5000)], "overlaps"),
        ([TensorPlace(0, 0, 5000), TensorPlace(0, 0, 5000)], "overlaps"),
        ([TensorPlace(0, BIG - 4999, 5000)], "ends after"),
        ([TensorPlace(9, 0, 5000)], "no tensor"),
        ([TensorPlace(1, 0, 5000)], "width"),
        ([TensorPlace(2, 0, 5000)], "belongs to a bundle"),
        ([TensorPlace(0, 0, 5000, Box((0,), (BIG,))), TensorPlace(0, 5000, 5000)], "also has"),
        (
            [
                TensorPlace(0, 0, 5000, Box((0,), (5000,))),
                TensorPlace(0, 0, 5000, Box((9,), (5000,))),
            ],
            "overlap",
        ),
    ],
)
def test_pieces_that_change_the_same_or_no_units_make_no_pack(
    places: list[TensorPlace], why: str
) -> None:
    result = change(DType.BF16, 5000, 1)
    assert result.piece is not None
    builder = PackBuilder(SCHEMA)
    for place in places:
        builder.add(place, result.piece)
    with pytest.raises(InputRefusedError, match=why):
        builder.finish()


def test_a_bundle_is_in_a_pack_once() -> None:
    with pytest.raises(InputRefusedError, match="out of order"):
        build([CHANGES[-1], CHANGES[-1]])
