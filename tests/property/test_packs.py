"""A pack carries any change of any tensors, exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weightstore.codec.codec import PieceCodec
from weightstore.format.pack import BundlePlace, PackBuilder, PackReader, TensorPlace
from weightstore.layout.boxes import cut_flat
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.settings import Limits

WORKER = PieceCodec().worker()
SIZES = st.sampled_from([0, 1, 7, 300, 65_535, 65_536, 70_001])
DTYPES = st.sampled_from([DType.BF16, DType.F32, DType.U8, DType.F64, DType.BOOL])


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    sizes = draw(st.lists(st.tuples(DTYPES, SIZES), max_size=6))
    return Schema.build(
        TensorSpec(f"t{number}", dtype, (size,)) for number, (dtype, size) in enumerate(sizes)
    )


def random_units(rng: np.random.Generator, spec: TensorSpec) -> Units:
    high = 2 ** (8 * spec.dtype.unit_size_bytes)
    return rng.integers(0, high, spec.unit_count, spec.dtype.unit_dtype.type)


def changed(rng: np.random.Generator, old: Units, density: float) -> Units:
    new = old.copy()
    where = rng.random(old.size) < density
    new[where] += rng.integers(1, 4, int(where.sum())).astype(old.dtype)
    return new


def pack_change(schema: Schema, old: list[Units], new: list[Units], limit: int) -> bytes:
    builder = PackBuilder(schema)
    bundled = {member for bundle in schema.bundles for member in bundle.members}
    for index, (before, after) in enumerate(zip(old, new, strict=True)):
        for part in () if index in bundled else cut_flat(before.size, limit):
            window = slice(part.first_unit, part.end_unit)
            result = WORKER.encode(before[window], after[window], first_index=part.first_unit)
            if result.piece is not None:
                builder.add(TensorPlace(index, part.first_unit, part.unit_count), result.piece)
    for bundle in schema.bundles:
        joined = [np.concatenate([units[m] for m in bundle.members]) for units in (old, new)]
        result = WORKER.encode(*joined, member_starts=bundle.starts)
        if result.piece is not None:
            place = BundlePlace(bundle.members, bundle.starts)
            builder.add(place, result.piece, result.member_changed_counts)
    return b"".join(builder.finish())


def apply_pack(reader: PackReader, units: list[Units]) -> None:
    for number, place in enumerate(reader.places):
        piece = reader.piece(number)
        if isinstance(place, TensorPlace):
            window = slice(place.first_unit, place.first_unit + place.unit_count)
            WORKER.apply(piece, units[place.tensor_index][window], first_index=place.first_unit)
            continue
        joined = np.concatenate([units[member] for member in place.members])
        WORKER.apply(piece, joined, member_starts=place.starts)
        counts = reader.member_changed_counts(number).tolist()
        for member, start, end, count in zip(
            place.members, place.starts[:-1], place.starts[1:], counts, strict=True
        ):
            assert np.count_nonzero(units[member] != joined[start:end]) == count
            units[member] = joined[start:end].copy()


@settings(max_examples=40)
@given(
    schemas(),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.001, 0.02, 0.9]),
    st.sampled_from([30_000, 65_536, 8 * 1024 * 1024]),
)
def test_what_was_packed_is_what_is_applied(
    schema: Schema, seed: int, density: float, limit: int
) -> None:
    rng = np.random.default_rng(seed)
    old = [random_units(rng, spec) for spec in schema.tensors]
    new = [changed(rng, units, density) for units in old]
    data = pack_change(schema, old, new, limit)
    assert data == pack_change(schema, old, new, limit)
    reader = PackReader(data, schema, Limits())
    total = sum(int(np.count_nonzero(a != b)) for a, b in zip(old, new, strict=True))
    assert reader.changed_counts.sum() == total
    apply_pack(reader, old)
    assert all(np.array_equal(a, b) for a, b in zip(old, new, strict=True))
