"""Reading full forms: every byte verified, every tensor found once, whatever the layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from weightstore.errors import CorruptObjectError, ObjectMissingError
from weightstore.format.blocks import BLOCK_SIZE_BYTES
from weightstore.format.keys import anchor_key
from weightstore.history import anchors as anchors_module
from weightstore.history.anchors import AnchorReader, open_files, verified_chunks
from weightstore.history.chain import CheckoutPlan
from weightstore.history.import_plan import plan_import
from weightstore.history.progress import no_progress
from weightstore.history.targets import Memory
from weightstore.history.workers import Workers
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits, Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import RealVersions, ThreeVersions, random_weights
from weightstore.testing.toy_store import ToyStore

LIMITS = Limits()


def read(blobs: MemoryBlobStore, plan: CheckoutPlan, memory: Memory | None) -> None:
    with Workers(2) as workers:
        AnchorReader(blobs, plan.full, plan.schema, workers=workers, limits=LIMITS).run(
            memory, no_progress
        )


def big_version(file_size_bytes: int = 1 << 30) -> ThreeVersions:
    """About 20 MiB: tensors that begin and end inside blocks, and many small ones."""
    schema = Schema.build(
        [
            TensorSpec("large.0", DType.BF16, (5_000_001,)),
            TensorSpec("large.1", DType.F32, (1_500_000,)),
            *(TensorSpec(f"small.{n:04}", DType.BF16, (1_000 + n,)) for n in range(1_500)),
        ]
    )
    blobs = MemoryBlobStore()
    store = ToyStore(blobs, settings=Settings(anchor_file_size_bytes=file_size_bytes))
    versions = RealVersions(blobs, schema, store=store)
    weights = random_weights(schema, 5)
    versions.put(weights)
    return ThreeVersions(blobs, versions, (weights,))


@pytest.mark.parametrize("file_size_bytes", [1 << 30, 9_000_000, 1_000])
def test_every_layout_of_files_is_read_exactly(file_size_bytes: int) -> None:
    made = big_version(file_size_bytes)
    plan = made.versions.plan()
    memory = Memory.allocate(plan.schema)
    read(made.blobs, plan, memory)
    for spec, units in zip(plan.schema.tensors, memory.arrays, strict=True):
        assert np.array_equal(units, made.weights[0][spec.name]), spec.name


def test_each_byte_of_each_file_is_covered_by_a_hash(chain: ThreeVersions) -> None:
    plan = chain.versions.plan(chain.versions.records[0])
    for file in plan.full_form.files:
        key = anchor_key(plan.full_form.anchor_id, file.name)
        data = chain.blobs._blobs[key]
        for place in (0, 9, len(data) // 2, len(data) - 1):
            changed = bytearray(data)
            changed[place] ^= 1
            chain.blobs._blobs[key] = bytes(changed)
            for memory in (None, Memory.allocate(plan.schema)):
                with pytest.raises(CorruptObjectError, match=r"version 1: block 0 of anchors/"):
                    read(chain.blobs, plan, memory)
        chain.blobs._blobs[key] = data
    read(chain.blobs, plan, None)


def test_a_damaged_later_block_is_named() -> None:
    made = big_version()
    plan = made.versions.plan()
    key = anchor_key(plan.full_form.anchor_id, "model.safetensors")
    changed = bytearray(made.blobs._blobs[key])
    changed[BLOCK_SIZE_BYTES + 5] ^= 1
    made.blobs._blobs[key] = bytes(changed)
    for memory in (None, Memory.allocate(plan.schema)):
        with pytest.raises(CorruptObjectError) as caught:
            read(made.blobs, plan, memory)
        assert caught.value.facts == {"version": 1, "key": key, "block": 1}


@pytest.mark.parametrize("change", ["missing", "shorter"])
def test_a_lost_file_is_named(chain: ThreeVersions, change: str) -> None:
    plan = chain.versions.plan()
    key = anchor_key(plan.full_form.anchor_id, "model.safetensors")
    data = chain.blobs._blobs.pop(key)
    if change == "shorter":
        chain.blobs._blobs[key] = data[:-1]
    with pytest.raises((ObjectMissingError, CorruptObjectError), match=r"model\.safetensors"):
        read(chain.blobs, plan, Memory.allocate(plan.schema))


def test_damaged_block_hashes_are_found(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    key = plan.full_form.blocks.key
    data = chain.blobs._blobs[key]
    chain.blobs._blobs[key] = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(CorruptObjectError, match="block hashes"):
        open_files(chain.blobs, plan.full, LIMITS)
    chain.blobs.delete(key)
    with pytest.raises(ObjectMissingError, match="block hashes"):
        open_files(chain.blobs, plan.full, LIMITS)


def test_verified_chunks_are_the_whole_file(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    for file, stored in open_files(chain.blobs, plan.full, LIMITS):
        key = anchor_key(plan.full_form.anchor_id, file.name)
        assert b"".join(map(bytes, verified_chunks(stored))) == chain.blobs._blobs[key]


def test_offsets_without_alignment_are_read_exactly(tmp_path: Path) -> None:
    values: dict[str, NDArray[Any]] = {
        "a": np.arange(3, dtype=np.uint8),
        "b": np.arange(70_001, dtype=np.float32),
        "c": np.arange(5, dtype=np.int16),
    }
    write_in_order(tmp_path / "model.safetensors", values)
    blobs = MemoryBlobStore()
    plan = plan_import(tmp_path, LIMITS)
    assert {tensor.file_offset % 4 for tensor in plan.files[0].tensors} != {0}
    versions = RealVersions(blobs, plan.schema)
    versions.put_import(plan)
    memory = Memory.allocate(plan.schema)
    read(blobs, versions.plan(), memory)
    for spec, units in zip(plan.schema.tensors, memory.arrays, strict=True):
        assert units.tobytes() == values[spec.name].tobytes()


def write_in_order(path: Path, values: dict[str, NDArray[Any]]) -> None:
    """A legal file whose tensors lie in the order of their names, without padding."""
    names = {"uint8": "U8", "float32": "F32", "int16": "I16"}
    header, end = {}, 0
    for name, value in values.items():
        start, end = end, end + value.nbytes
        header[name] = {
            "dtype": names[str(value.dtype)],
            "shape": list(value.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    data = b"".join(value.tobytes() for value in values.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    safetensors.numpy.load_file(path)


def header_of(names: list[tuple[str, str, int]]) -> bytes:
    entries, end = {}, 0
    for name, dtype, count in names:
        start, end = end, end + count
        entries[name] = {"dtype": dtype, "shape": [count], "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(end)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([("a", "U8", 3)], "lack 1 tensors, among them 'b'"),
        ([("a", "U8", 3), ("b", "U8", 4), ("c", "U8", 1)], "holds 'c'"),
        ([("a", "U8", 3), ("b", "I8", 4)], "holds 'b' as I8"),
        ([("a", "U8", 3), ("b", "U8", 5)], "holds 'b' as U8 (5,)"),
    ],
)
def test_files_that_hold_other_tensors_than_the_schema_are_refused(
    tmp_path: Path, tensors: list[tuple[str, str, int]], message: str
) -> None:
    (tmp_path / "model.safetensors").write_bytes(header_of(tensors))
    blobs = MemoryBlobStore()
    plan = plan_import(tmp_path, LIMITS)
    versions = RealVersions(blobs, plan.schema)
    versions.put_import(plan)
    full = versions.plan().full
    schema = Schema.build([TensorSpec("a", DType.U8, (3,)), TensorSpec("b", DType.U8, (4,))])
    with Workers(1) as workers, pytest.raises(CorruptObjectError) as caught:
        AnchorReader(blobs, full, schema, workers=workers, limits=LIMITS).run(None, no_progress)
    assert message in caught.value.message


def test_a_tensor_in_two_files_is_refused() -> None:
    made = big_version(9_000_000)
    plan = made.versions.plan()
    with Workers(1) as workers:
        reader = AnchorReader(made.blobs, plan.full, plan.schema, workers=workers, limits=LIMITS)
        stored = open_files(made.blobs, plan.full, LIMITS)[0][1]
        _, header = anchors_module.read_header(stored, LIMITS)
        seen: set[int] = set()
        reader._check_tensors(header, stored, seen)
        with pytest.raises(CorruptObjectError, match="is in two files"):
            reader._check_tensors(header, stored, seen)


def test_parts_tile_every_range_of_a_file(chain: ThreeVersions) -> None:
    plan = chain.versions.plan()
    memory = Memory.allocate(plan.schema)
    stored = open_files(chain.blobs, plan.full, LIMITS)[0][1]
    _, header = anchors_module.read_header(stored, LIMITS)
    parts = anchors_module.FileParts.of(header, stored.size_bytes, memory)
    step = 4_999
    for start in range(0, stored.size_bytes, step):
        end = min(start + step, stored.size_bytes)
        cut = parts.cut(start, end)
        assert sum(size_bytes for size_bytes, _ in cut) == end - start
        assert all(target is None or target.size == size for size, target in cut)
