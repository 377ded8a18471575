"""Bytes of manifest, index and digest table for many changed pieces, and the time to parse them.

Two steps: a mixture of experts that changes 200,000 large tensors, and 60,000 tensors of
16 KiB, which travel in bundles. The streams are stand-ins; nothing here depends on them.
The budget is 96 bytes per changed piece and 24 bytes per tensor of the schema.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What one step costs besides its streams; times are medians over the runs."""

    what: str
    tensor_count: int
    piece_count: int
    manifest_bytes: int
    index_bytes: int
    table_bytes: int
    budget_bytes: int
    parse_ms: float
    parse_fastest_ms: float
    parse_slowest_ms: float
    manifest_ms: float
    schema_ms: float


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


def times_ms(work: Callable[[], object], count: int) -> list[float]:
    """Milliseconds of each of `count` runs."""
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - begin))
    return taken


def measure(what: str, schema: Schema, packs: list[bytes], count: int) -> Row:
    """Read the packs of one step `count` times."""
    limits = Limits()
    readers = [PackReader(pack, schema, limits) for pack in packs]
    manifest = encode_model(manifest_of(schema, readers, packs))
    schema_bytes = schema.to_bytes()
    piece_count = sum(reader.piece_count for reader in readers)
    stream_bytes = sum(len(b"gapsvalueescape") * reader.piece_count for reader in readers)
    parses = times_ms(lambda: [PackReader(pack, schema, limits) for pack in packs], count)
    decodes = times_ms(lambda: decode_model(Manifest, manifest, what="it"), count)
    schemas = times_ms(lambda: Schema.from_bytes(schema_bytes), max(1, count // 4))
    table = np.zeros((len(schema.tensors), 2), np.uint64)
    return Row(
        what=what,
        tensor_count=len(schema.tensors),
        piece_count=piece_count,
        manifest_bytes=len(manifest),
        index_bytes=sum(map(len, packs)) - stream_bytes,
        table_bytes=len(encode_table(table, schema)),
        budget_bytes=BYTES_PER_PIECE * piece_count + BYTES_PER_TENSOR * len(schema.tensors),
        parse_ms=statistics.median(parses),
        parse_fastest_ms=min(parses),
        parse_slowest_ms=max(parses),
        manifest_ms=statistics.median(decodes),
        schema_ms=statistics.median(schemas),
    )


def shown(value: object) -> str:
    """A cell of the table."""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_table(rows: list[Row], count: int) -> None:
    """Print what was measured, one column a step."""
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}")
    print(f"times in ms: median of {count}, schema of {max(1, count // 4)}\n")
    for field in asdict(rows[0]):
        print(f"{field:18}", *(f"{shown(asdict(row)[field]):>20}" for row in rows))
    used = [row.manifest_bytes + row.index_bytes + row.table_bytes for row in rows]
    shares = [size / row.budget_bytes for size, row in zip(used, rows, strict=True)]
    print(f"{'share of budget':18}", *(f"{share:>20.3f}" for share in shares))


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20, help="runs of each parse")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    rows = [
        measure("200,000 experts", *experts(200_000), options.count),
        measure("60,000 small", *small_tensors(60_000), options.count),
    ]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print_table(rows, options.count)


if __name__ == "__main__":
    main()
