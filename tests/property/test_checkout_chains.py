"""Whatever was put comes out again, bit for bit, along every path and any chain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightstore.codec.piece import ValueCoding
from weightstore.history.checkout import checkout, checkout_into, verify_plan
from weightstore.history.export import export_checkpoint
from weightstore.history.import_plan import plan_import
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.settings import Limits, Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import RealVersions, random_weights
from weightstore.testing.toy_store import ToyStore
from weightstore.testing.virtual_time import SeededEntropy

SHAPES = st.sampled_from(
    [(), (0,), (1,), (5, 1), (1, 7), (3, 0, 2), (2, 3, 4), (65_535,), (65_536,), (300, 250)]
)
DTYPES = st.sampled_from([dtype for dtype in DType if not dtype.is_packed])


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    kinds = draw(st.lists(st.tuples(DTYPES, SHAPES), min_size=1, max_size=6))
    specs = [TensorSpec(f"t{n}", dtype, shape) for n, (dtype, shape) in enumerate(kinds)]
    aliases = [Alias("z.tied", "t0")] if draw(st.booleans()) else []
    return Schema.build(specs, aliases=aliases)


@st.composite
def edits(draw: st.DrawFn) -> tuple[int, float, bool]:
    """A seed, which share of the units becomes any bits, and whether the version is full."""
    return (
        draw(st.integers(0, 2**32)),
        draw(st.sampled_from([0.0, 0.0001, 0.01, 0.3, 1.0])),
        draw(st.booleans()),
    )


def edited(weights: dict[str, Units], seed: int, share: float) -> dict[str, Units]:
    generator = np.random.default_rng(seed)
    after = {}
    for name, units in weights.items():
        places = np.flatnonzero(generator.random(units.size) < share)
        new = units.copy()
        new[places] = generator.integers(0, 2 ** (8 * units.itemsize), places.size, units.dtype)
        after[name] = new
    return after


@settings(max_examples=40)
@given(
    schema=schemas(),
    steps=st.lists(edits(), min_size=1, max_size=4),
    thread_count=st.integers(1, 3),
    pieces_per_pack=st.integers(1, 3),
    file_size_bytes=st.sampled_from([1, 100_000, 1 << 30]),
)
def test_each_version_of_any_chain_comes_out(
    schema: Schema,
    steps: list[tuple[int, float, bool]],
    thread_count: int,
    pieces_per_pack: int,
    file_size_bytes: int,
) -> None:
    used = Settings(thread_count=thread_count, anchor_file_size_bytes=file_size_bytes)
    blobs = MemoryBlobStore()
    versions = RealVersions(
        blobs,
        schema,
        pieces_per_pack=pieces_per_pack,
        piece_unit_count=30_000,
        store=ToyStore(blobs, settings=used),
    )
    states = [random_weights(schema, 0)]
    versions.put(states[0])
    for seed, share, full in steps:
        states.append(edited(states[-1], seed, share))
        versions.put(states[-1], full=full)
    targets = random_weights(schema, 99)
    for record, weights in zip(versions.records, states, strict=True):
        plan = versions.plan(record)
        verify_plan(blobs, plan, used, scan=True)
        found = checkout(blobs, plan, used)
        checkout_into(blobs, plan, targets, used)
        for name, units in weights.items():
            assert found[name].units.tobytes() == units.tobytes()
            assert targets[name].tobytes() == units.tobytes()
        for alias in schema.aliases:
            assert found[alias.name].units is found[alias.target].units


ALL_PATTERNS = np.arange(65_536, dtype="<u2")
HARD_WORDS = np.concatenate(
    [
        np.array([0, 1 << 31, 0x7F800001, 0x7FC00000, 0xFFC12345, 1, 0x3F800000], "<u4"),
        np.random.default_rng(1).integers(0, 2**32, 70_000, np.uint32),
    ]
)


def hard_weights(turn: int) -> dict[str, Units]:
    """Every 16-bit pattern, each in another place at each turn, and hard 32-bit ones."""
    return {
        "bf16": np.roll(ALL_PATTERNS, turn * 77),
        "bf16.small": np.roll(ALL_PATTERNS, turn * 5)[:4_096].copy(),
        "fp16": np.roll(ALL_PATTERNS, -turn * 31),
        "fp32": np.roll(HARD_WORDS, turn),
    }


@pytest.mark.parametrize("coding", list(ValueCoding))
def test_every_pattern_survives_every_path(tmp_path: Path, coding: ValueCoding) -> None:
    schema = Schema.build(
        [
            TensorSpec("bf16", DType.BF16, (256, 256)),
            TensorSpec("bf16.small", DType.BF16, (4_096,)),
            TensorSpec("fp16", DType.F16, (65_536,)),
            TensorSpec("fp32", DType.F32, (HARD_WORDS.size,)),
        ]
    )
    blobs = MemoryBlobStore()
    versions = RealVersions(blobs, schema)
    used = Settings()
    for turn in range(3):
        versions.put(hard_weights(turn), coding=coding)
    for turn, record in enumerate(versions.records):
        plan = versions.plan(record)
        targets = hard_weights(turn + 1)
        checkout_into(blobs, plan, targets, used)
        export_checkpoint(blobs, plan, tmp_path / str(turn), entropy=SeededEntropy(), settings=used)
        again = RealVersions(MemoryBlobStore(), schema)
        again.put_import(plan_import(tmp_path / str(turn), Limits()))
        found = checkout(blobs, plan, used)
        imported = checkout(again.blobs, again.plan(), used)
        for name, units in hard_weights(turn).items():
            assert found[name].units.tobytes() == units.tobytes()
            assert imported[name].units.tobytes() == units.tobytes()
            assert targets[name].tobytes() == units.tobytes()
