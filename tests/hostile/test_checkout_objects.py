"""Stores whose objects lie: each ends in a typed error, before bytes are returned or written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.piece import Piece, ValueCoding, hash_streams
from weightstore.errors import (
    BlobNotFoundError,
    CorruptError,
    CorruptObjectError,
    DigestMismatchError,
    RefusedError,
    WrongBaseError,
)
from weightstore.format.blocks import FileBlocks, encode_blocks
from weightstore.format.keys import anchor_key
from weightstore.format.manifest import AnchorFile, DeltaForm
from weightstore.history.chain import CheckoutPlan
from weightstore.history.checkout import checkout, checkout_into, verify_plan
from weightstore.history.import_plan import plan_import
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.settings import Limits, Settings
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import (
    RealVersions,
    ThreeVersions,
    mixed_schema,
    next_weights,
    random_weights,
    three_versions,
)
from weightstore.testing.safetensors_files import file_of

SETTINGS = Settings()


def refused(
    blobs: MemoryBlobStore, plan: Callable[[], CheckoutPlan], weights: dict[str, Units]
) -> None:
    """Every way to read ends in a typed error, and targets keep their bits."""
    with pytest.raises(CorruptError):
        verify_plan(blobs, plan(), SETTINGS)
    with pytest.raises(CorruptError):
        checkout(blobs, plan(), SETTINGS)
    targets = {name: units.copy() for name, units in weights.items()}
    with pytest.raises(CorruptError):
        checkout_into(blobs, plan(), targets, SETTINGS)
    for name, units in weights.items():
        assert np.array_equal(targets[name], units), name


@pytest.fixture(scope="module")
def three() -> ThreeVersions:
    return three_versions()


def test_any_byte_of_any_object_changed_is_noticed(three: ThreeVersions) -> None:
    stored = three.blobs._blobs
    keys = [key for key in stored if not key.startswith(("log/", "head", "FORMAT"))]
    assert len(keys) >= 12
    generator = np.random.default_rng(0)
    for key in keys:
        data = stored[key]
        places = {0, len(data) - 1, *generator.integers(0, len(data), 3).tolist()}
        for place in places:
            changed = bytearray(data)
            changed[place] ^= 1 << int(generator.integers(0, 8))
            stored[key] = bytes(changed)
            with pytest.raises(CorruptError):
                verify_plan(three.blobs, three.versions.plan(), SETTINGS)
        stored[key] = data
    verify_plan(three.blobs, three.versions.plan(), SETTINGS)


@pytest.mark.parametrize("how", ["missing", "empty", "shorter", "longer"])
def test_any_object_of_another_size_is_noticed(three: ThreeVersions, how: str) -> None:
    stored = three.blobs._blobs
    for key in [key for key in stored if not key.startswith(("log/", "head", "FORMAT"))]:
        data = stored.pop(key)
        if how != "missing":
            stored[key] = {"empty": b"", "shorter": data[:-1], "longer": data + b"x"}[how]
        refused(three.blobs, three.versions.plan, three.weights[0])
        stored[key] = data


class Liar(RealVersions):
    """Commits objects that its hashes vouch for, but that lie inside."""

    def __init__(self, blobs: MemoryBlobStore, schema: Schema) -> None:
        super().__init__(blobs, schema)
        self.twist: Callable[[Piece], Piece] | None = None
        real = self._worker

        class Twisted:
            def encode(inner, *arguments: object, **named: object) -> object:  # noqa: N805 -- outer self is used
                found = real.encode(*arguments, **named)  # type: ignore[arg-type]
                if self.twist is None or found.piece is None:
                    return found
                return type(found)(
                    piece=self.twist(found.piece),
                    member_changed_counts=found.member_changed_counts,
                    member_lane_deltas=found.member_lane_deltas,
                )

        self._worker = Twisted()  # type: ignore[assignment]


def resealed(piece: Piece, **changes: object) -> Piece:
    """The piece with other fields and a hash that vouches for them."""
    fields = {name: getattr(piece, name) for name in Piece.__slots__} | changes
    fields["hash16"] = hash_streams(fields["streams"])
    return Piece(**fields)


def test_lane_differences_that_lie_are_found_before_any_write() -> None:
    schema = mixed_schema()
    weights = random_weights(schema, 0)
    liar = Liar(MemoryBlobStore(), schema)
    liar.put(weights)
    liar.twist = lambda piece: resealed(piece, lane_deltas=(piece.lane_deltas[0] ^ 1, 7))
    liar.put(next_weights(weights, 1))
    with pytest.raises(DigestMismatchError):
        verify_plan(liar.blobs, liar.plan(), SETTINGS)
    with pytest.raises((DigestMismatchError, WrongBaseError)):
        checkout(liar.blobs, liar.plan(), SETTINGS)
    refused(_memory(liar), liar.plan, weights)


def test_a_stream_that_says_other_changes_is_found() -> None:
    """The lanes are right for the tables, the stream turns other units into other bits."""
    schema = Schema.build([TensorSpec("w", DType.BF16, (70_000,))])
    weights = random_weights(schema, 0)
    after = next_weights(weights, 1)
    other = PieceCodec().worker().encode(weights["w"], next_weights(weights, 2)["w"]).piece
    assert other is not None
    liar = Liar(MemoryBlobStore(), schema)
    liar.put(weights)
    liar.twist = lambda piece: resealed(other, lane_deltas=piece.lane_deltas)
    liar.put(after)
    with pytest.raises(WrongBaseError, match=r"tensor 'w'"):
        checkout(liar.blobs, liar.plan(), SETTINGS)


def test_a_bomb_in_a_committed_pack_is_refused_before_it_is_unpacked() -> None:
    schema = Schema.build([TensorSpec("w", DType.BF16, (70_000,))])
    weights = random_weights(schema, 0)
    liar = Liar(MemoryBlobStore(), schema)
    liar.put(weights)

    def bomb(piece: Piece) -> Piece:
        # A frame whose header declares 1 GiB; the index goes on saying the true size.
        frame = b"\x28\xb5\x2f\xfd\xa0" + (1 << 30).to_bytes(4, "little") + b"\x01\x00\x00"
        return resealed(piece, streams=(frame, *piece.streams[1:]))

    liar.twist = bomb
    liar.put(next_weights(weights, 1))
    refused(_memory(liar), liar.plan, weights)


def test_new_bits_for_a_part_of_a_tensor_hide_nothing() -> None:
    schema = Schema.build([TensorSpec("w", DType.BF16, (70_000,))])
    weights = random_weights(schema, 0)
    versions = RealVersions(MemoryBlobStore(), schema, piece_unit_count=40_000)
    versions.put(weights)
    after = {"w": weights["w"].copy()}
    after["w"][5] ^= np.uint16(1)
    versions.put(after, coding=ValueCoding.DENSE_BITS)
    found = checkout(versions.blobs, versions.plan(), SETTINGS)
    # Both halves are said, so the whole tensor is; the digest follows from them.
    assert np.array_equal(found["w"].units, after["w"])


def test_counts_that_the_manifest_makes_up_are_refused(three: ThreeVersions) -> None:
    plan = three.versions.plan()
    last = plan.deltas[-1]
    assert last.delta is not None
    for update in ({"changed_count": last.delta.changed_count + 1}, {"piece_count": 99}):
        delta = DeltaForm.model_construct(**{**dict(last.delta), **update})
        wrong = last.model_copy(update={"delta": delta})
        lying = replace(plan, deltas=(*plan.deltas[:-1], wrong))
        with pytest.raises(CorruptObjectError, match="the manifest says"):
            verify_plan(three.blobs, lying, SETTINGS)


def vouched(tmp_path: Path, data: bytes) -> tuple[MemoryBlobStore, CheckoutPlan]:
    """A committed full form of one 3-byte tensor whose weight file was exchanged for `data`,
    with block hashes that vouch for it."""
    header = {"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}}
    (tmp_path / "model.safetensors").write_bytes(file_of(header, 3))
    blobs = MemoryBlobStore()
    plan = plan_import(tmp_path, Limits())
    versions = RealVersions(blobs, plan.schema)
    versions.put_import(plan)
    made = versions.plan()
    full = made.full_form
    key = anchor_key(full.anchor_id, "model.safetensors")
    blobs._blobs[key] = data
    hashes = (hashlib.sha256(data).digest(),) if data else ()
    sidecar = encode_blocks([FileBlocks("model.safetensors", len(data), hashes)])
    blobs._blobs[full.blocks.key] = sidecar
    forged = full.model_copy(
        update={
            "files": (AnchorFile(name="model.safetensors", size_bytes=len(data), role="weights"),),
            "size_bytes": len(data),
            "blocks": full.blocks.model_copy(
                update={
                    "size_bytes": len(sidecar),
                    "sha256": hashlib.sha256(sidecar).hexdigest(),
                }
            ),
        }
    )
    return blobs, replace(
        made,
        full=made.full.model_copy(update={"full": forged}),
        full_size_bytes=len(data),
    )


ENTRY = {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        bytes(8),
        file_of({"a": ENTRY}, 3, said_size=1 << 62),
        file_of({"a": ENTRY}, 2),
        file_of({"a": {"dtype": "U8", "shape": [1 << 40], "data_offsets": [0, 1 << 40]}}, 3),
        file_of({"a": {"dtype": "U8", "shape": [3], "data_offsets": [1, 4]}}, 4),
        file_of({"a": ENTRY, "b": {"dtype": "U8", "shape": [0], "data_offsets": [3, 3]}}, 3),
        file_of({}, 0),
        file_of(b"[" * 100_000, 0),
    ],
    ids=range(10),
)
def test_a_weight_file_that_its_own_hashes_vouch_for_is_still_checked(
    tmp_path: Path, data: bytes
) -> None:
    blobs, plan = vouched(tmp_path, data)
    refused(blobs, lambda: plan, {"a": np.array([7, 8, 9], np.uint8)})


@pytest.mark.parametrize("shape", [(8_000,), (1 << 30, 1 << 20)])
def test_a_schema_larger_than_its_files_is_refused_before_memory_is_taken(
    three: ThreeVersions, shape: tuple[int, ...]
) -> None:
    plan = three.versions.plan()
    bigger = [TensorSpec("block.norm", DType.BF16, shape)]
    bigger += [spec for spec in plan.schema.tensors if spec.name != "block.norm"]
    forged = replace(plan, schema=Schema.build(bigger))
    shrunk = sum(file.size_bytes for file in plan.full_form.files)
    if forged.schema.size_bytes <= shrunk:
        with pytest.raises(CorruptObjectError, match=r"holds 'block\.norm'"):
            checkout(three.blobs, forged, SETTINGS)
    else:
        with pytest.raises(CorruptObjectError, match="bytes, the weight files have"):
            checkout(three.blobs, forged, SETTINGS)


@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_what_is_no_plain_file_in_the_store_is_refused(tmp_path: Path, what: str) -> None:
    schema = Schema.build([TensorSpec("w", DType.BF16, (70_000,))])
    blobs = LocalBlobStore(tmp_path / "store", create=True)
    versions = RealVersions(blobs, schema)
    weights = random_weights(schema, 0)
    versions.put(weights)
    key = anchor_key(versions.plan().full_form.anchor_id, "model.safetensors")
    path = blobs.root / key
    path.rename(tmp_path / "elsewhere")
    if what == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(CorruptError):
        checkout(blobs, versions.plan(), SETTINGS)


def test_names_of_tensors_never_become_paths(tmp_path: Path) -> None:
    odd = ("../../etc/x", "/abs", "a\nb", "A", "a", "e\u0301", "\u00e9", "CON", "x" * 1_024)
    schema = Schema.build([TensorSpec(name, DType.U8, (2,)) for name in odd])
    blobs = LocalBlobStore(tmp_path / "store", create=True)
    versions = RealVersions(blobs, schema)
    weights = random_weights(schema, 0)
    versions.put(weights)
    versions.put(next_weights(weights, 1))
    found = checkout(blobs, versions.plan(), SETTINGS)
    assert set(found) == set(odd)
    for path in (tmp_path / "store").rglob("*"):
        assert "etc" not in path.name
        assert "abs" not in path.name


def test_an_unknown_key_in_a_plan_is_no_way_out(three: ThreeVersions) -> None:
    plan = three.versions.plan()
    blocks = plan.full_form.blocks.model_copy(update={"key": "../../../etc/passwd"})
    full = plan.full_form.model_copy(update={"blocks": blocks})
    forged = replace(
        plan,
        full=plan.full.model_copy(update={"full": full}),
        deltas=(),
        last_table=plan.first_table,
    )
    with pytest.raises((RefusedError, CorruptError, BlobNotFoundError)):
        checkout(three.blobs, forged, SETTINGS)


def _memory(versions: RealVersions) -> MemoryBlobStore:
    assert isinstance(versions.blobs, MemoryBlobStore)
    return versions.blobs
