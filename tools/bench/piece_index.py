"""Bytes of manifest, index and digest table for many changed pieces, and the time to parse them.

python tools/bench/piece_index.py --json FILE
"""

from __future__ import annotations

import sys

import numpy as np

from tools.bench.bench import Bench, Findings, Options, run
from tools.bench.report import Side, against, alone, at_most
from tools.bench.turns import in_turns, seconds, timed
from weightstore.codec.piece import GapCoding, Piece, ValueCoding
from weightstore.format.canonical import decode_model, encode_model
from weightstore.format.digest_table import encode_table
from weightstore.format.keys import digest_table_key, pack_key, schema_key
from weightstore.format.manifest import DeltaForm, Manifest, PackRef
from weightstore.format.objects import ObjectRef
from weightstore.format.pack import BundlePlace, PackBuilder, PackReader, TensorPlace
from weightstore.format.records import Base
from weightstore.ids import (
    Attempt,
    CommitId,
    Epoch,
    RunId,
    SessionId,
    Sha256,
    Step,
    VersionId,
)
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits

RUN, EPOCH, VERSION, ATTEMPT = RunId("bench"), Epoch(1), VersionId(2), Attempt(1)
COMMIT, SHA = CommitId("c" * 32), Sha256("ab" * 32)
PIECES_PER_PACK = 10_000
BYTES_PER_PIECE = 96
BYTES_PER_TENSOR = 24
PARSE_MS = 50
MS = 1000


def piece_of(unit_count: int, changed_count: int) -> Piece:
    """A bf16 piece with a few bytes in place of its streams."""
    return Piece(
        width_bytes=2,
        unit_count=unit_count,
        changed_count=changed_count,
        value_coding=ValueCoding.ULP,
        gap_coding=GapCoding.BYTE,
        raw_sizes=(changed_count, changed_count // 4 + 1, 9, 0),
        streams=(b"gaps", b"value", b"escape", b""),
        lane_deltas=(1, 2),
        hash16=bytes(16),
    )


def experts(tensor_count: int) -> tuple[Schema, list[bytes]]:
    """Every tensor is one piece of 512 Ki elements."""
    shape = (512, 1024)
    schema = Schema.build(
        TensorSpec(f"model.layers.{n // 256}.mlp.experts.{n % 256}.up.weight", DType.BF16, shape)
        for n in range(tensor_count)
    )
    piece = piece_of(512 * 1024, 5000)
    packs = []
    for start in range(0, tensor_count, PIECES_PER_PACK):
        builder = PackBuilder(schema)
        for index in range(start, min(start + PIECES_PER_PACK, tensor_count)):
            builder.add(TensorPlace(index, 0, 512 * 1024), piece)
        packs.append(b"".join(builder.finish()))
    return schema, packs


def small_tensors(tensor_count: int) -> tuple[Schema, list[bytes]]:
    """Every tensor has 16 KiB, and all bundles change."""
    schema = Schema.build(
        TensorSpec(f"model.blocks.{n}.adapter.weight", DType.BF16, (8, 1024))
        for n in range(tensor_count)
    )
    builder = PackBuilder(schema)
    for bundle in schema.bundles:
        counts = np.full(len(bundle.members), 80, np.int64)
        piece = piece_of(bundle.unit_count, int(counts.sum()))
        builder.add(BundlePlace(bundle.members, bundle.starts), piece, counts)
    return schema, [b"".join(builder.finish())]


def manifest_of(schema: Schema, readers: list[PackReader], packs: list[bytes]) -> Manifest:
    """The manifest of a step that has these packs."""
    refs = tuple(
        PackRef(
            key=pack_key(RUN, EPOCH, VERSION, ATTEMPT, 0, f"{number:032x}"),
            size_bytes=len(pack),
            sha256=SHA,
            rank=0,
            piece_count=reader.piece_count,
        )
        for number, (reader, pack) in enumerate(zip(readers, packs, strict=True))
    )

    def reference(key: str) -> ObjectRef:
        return ObjectRef(key=key, size_bytes=1, sha256=SHA)

    size_bytes = sum(map(len, packs))
    return Manifest(
        version=VERSION,
        run=RUN,
        epoch=EPOCH,
        session=SessionId("5" * 32),
        commit_id=COMMIT,
        attempt=ATTEMPT,
        step=Step(1),
        base=Base(version=VersionId(1), digest=SHA),
        schema_ref=reference(schema_key(RUN, EPOCH, VersionId(1), COMMIT)),
        schema_id=schema.id,
        digests=reference(digest_table_key(RUN, EPOCH, VERSION, COMMIT)),
        digest=SHA,
        delta=DeltaForm(
            packs=refs,
            changed_count=sum(int(reader.changed_counts.sum()) for reader in readers),
            piece_count=sum(reader.piece_count for reader in readers),
            size_bytes=size_bytes,
        ),
        full=None,
        chain_count=1,
        chain_size_bytes=size_bytes,
    )


def measure_step(
    what: str, schema: Schema, packs: list[bytes], turn_count: int, findings: Findings
) -> None:
    """Count the bytes of one step besides its streams, and parse them in turns."""
    limits = Limits()
    readers = [PackReader(pack, schema, limits) for pack in packs]
    manifest = encode_model(manifest_of(schema, readers, packs))
    schema_bytes = schema.to_bytes()
    piece_count = sum(reader.piece_count for reader in readers)
    stream_bytes = sum(len(b"gapsvalueescape") * reader.piece_count for reader in readers)
    table = np.zeros((len(schema.tensors), 2), np.uint64)
    used = sum(map(len, packs)) - stream_bytes + len(manifest) + len(encode_table(table, schema))
    budget = BYTES_PER_PIECE * piece_count + BYTES_PER_TENSOR * len(schema.tensors)
    taken = in_turns(
        {
            "index": timed(lambda: [PackReader(pack, schema, limits) for pack in packs]),
            "manifest": timed(lambda: decode_model(Manifest, manifest, what="it")),
        },
        turn_count,
    )
    schema_s = [seconds(lambda: Schema.from_bytes(schema_bytes)) for _ in range(2)]
    parse_ms = [index + other for index, other in zip(*taken.values(), strict=True)]
    findings.add(
        against(
            f"{what}: manifest, index and digests",
            "B",
            [used],
            f"{BYTES_PER_PIECE} B a piece + {BYTES_PER_TENSOR} B a tensor",
            [budget],
            target=at_most(1),
            note=f"{piece_count:,} pieces, {len(schema.tensors):,} tensors",
        ),
        alone(
            f"{what}: parsing manifest and index",
            "ms",
            [MS * each for each in parse_ms],
            target=at_most(PARSE_MS, of=Side.MEASURED),
        ),
        alone(f"{what}: parsing the schema, once a process", "ms", [MS * s for s in schema_s]),
    )


def measure(options: Options, findings: Findings) -> None:
    """Measure both steps."""
    large, small = (2_000, 1_000) if options.is_small else (200_000, 60_000)
    turns = options.turns(15)
    measure_step(f"{large:,} experts", *experts(large), turns, findings)
    measure_step(f"{small:,} small tensors", *small_tensors(small), turns, findings)


BENCH = Bench(
    name="piece_index",
    summary=(
        "What a step costs besides its streams, and the time to parse it: a mixture of experts "
        "that changes 200,000 tensors of a piece each, and 60,000 tensors of 16 KiB, which "
        "travel in bundles. The streams are stand-ins; nothing here depends on them."
    ),
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run(BENCH))
