"""Versions with real objects, put piece by piece: what checkouts are tested against."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.codec.digest import lanes_of, state_digest
from weightstore.codec.piece import ValueCoding
from weightstore.format.canonical import encode_model
from weightstore.format.digest_table import encode_table
from weightstore.format.keys import (
    digest_table_key,
    manifest_key,
    pack_key,
    schema_key,
    trainer_anchor_id,
)
from weightstore.format.manifest import DeltaForm, FullForm, Manifest, PackRef
from weightstore.format.objects import ObjectRef
from weightstore.format.pack import BundlePlace, PackBuilder, TensorPlace
from weightstore.format.records import Base, VersionRecord
from weightstore.format.rules import next_version
from weightstore.history.anchor_writer import write_anchor
from weightstore.history.chain import CheckoutPlan, plan_checkout
from weightstore.history.import_checkpoint import run_import
from weightstore.history.import_plan import ImportPlan
from weightstore.history.publish import Publication, commit_version
from weightstore.ids import Attempt, CommitId, Epoch, RunId, Sha256, Step, VersionId
from weightstore.layout.boxes import cut_flat
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore, ToyTrainer

Weights = Mapping[str, Units]
"""Bits of every tensor of a schema, by name."""


def mixed_schema() -> Schema:
    """Every kind of place: large, bundled, 0-d, empty, odd sizes, several widths, an alias."""
    return Schema.build(
        [
            TensorSpec("block.large", DType.BF16, (350, 200)),
            TensorSpec("block.norm", DType.BF16, (200,)),
            TensorSpec("block.scale", DType.F32, ()),
            TensorSpec("block.unused", DType.BF16, (0, 4)),
            TensorSpec("flags", DType.U8, (3,)),
            TensorSpec("head", DType.F64, (300, 250)),
            TensorSpec("head.bias", DType.BF16, (7,)),
            TensorSpec("packed", DType.F4, (2, 6)),
        ],
        aliases=[Alias("tied", "block.large")],
    )


def random_weights(schema: Schema, seed: int) -> dict[str, Units]:
    """Uniform bits: every pattern of every dtype occurs, NaNs of all kinds among them."""
    generator = np.random.default_rng(seed)
    return {
        spec.name: generator.integers(
            0, 2 ** (8 * spec.dtype.unit_size_bytes), spec.unit_count, spec.dtype.unit_dtype
        )
        for spec in schema.tensors
    }


def next_weights(weights: Weights, seed: int, share: float = 0.01) -> dict[str, Units]:
    """A step: a share of the units of each tensor, at least one, moves by a few patterns."""
    generator = np.random.default_rng(seed)
    after = {name: units.copy() for name, units in weights.items()}
    for units in after.values():
        if units.size:
            places = generator.integers(0, units.size, max(1, int(units.size * share)))
            units[places] += generator.integers(1, 4, places.size).astype(units.dtype)
    return after


@dataclass(frozen=True, slots=True)
class _Names:
    """What the keys of one attempt are made of."""

    run: RunId
    epoch: Epoch
    version: VersionId
    attempt: Attempt
    commit_id: CommitId


class RealVersions:
    """Puts versions of one schema with the product's codec and formats, in one thread.

    Args:
        blobs: Where to.
        schema: Of every version.
        pieces_per_pack: A small number makes several packs.
        piece_unit_count: Longest run of one piece.
        store: Log, clock, names and settings; None makes one.
    """

    def __init__(
        self,
        blobs: BlobStore,
        schema: Schema,
        *,
        pieces_per_pack: int = 1000,
        piece_unit_count: int = 8 * 1024 * 1024,
        store: ToyStore | None = None,
    ) -> None:
        self.blobs = blobs
        self.schema = schema
        self.store = store or ToyStore(blobs)
        self.store.create()
        self.trainer: ToyTrainer = self.store.trainer()
        self.records: list[VersionRecord] = []
        self._pieces_per_pack = pieces_per_pack
        self._piece_unit_count = piece_unit_count
        self._worker = PieceCodec().worker()
        self._before: list[Units] = []
        self._manifest: Manifest | None = None
        self._schema_ref: ObjectRef | None = None

    def put(
        self,
        weights: Weights,
        *,
        full: bool = False,
        coding: ValueCoding | None = None,
    ) -> VersionRecord:
        """Put a version; the first is full.

        After a crash: no version, or the whole version.
        """
        names = self._names()
        arrays = [np.array(weights[spec.name]) for spec in self.schema.tensors]
        table = self._table(arrays)
        has_base = self._manifest is not None
        delta = self._delta(names, arrays, coding) if has_base else None
        anchor = self._anchor(names, arrays) if full or not has_base else None
        record = self._commit(names, table, delta, anchor)
        self._before = arrays
        return record

    def put_import(self, plan: ImportPlan) -> VersionRecord:
        """Commit an imported checkpoint as the first version.

        After a crash: no version, or the whole version.
        """
        names = self._names()
        anchor_id = trainer_anchor_id(names.run, names.epoch, names.version, names.attempt)
        form = run_import(self.blobs, plan, anchor_id, settings=self.store.settings)
        self.schema = form.schema
        return self._commit(names, form.table, None, form.full)

    def plan(self, record: VersionRecord | None = None) -> CheckoutPlan:
        """Plan the checkout of a version, or of the newest."""
        return plan_checkout(
            self.blobs,
            self.store.log,
            record or self.records[-1],
            self.store.settings.limits,
        )

    def start_from(self, weights: Weights) -> None:
        """Say what the newest version holds, after an import."""
        self._before = [np.array(weights[spec.name]) for spec in self.schema.tensors]

    def _names(self) -> _Names:
        now = self.store.log.tail().now
        claim, writer = self.trainer.claim, self.trainer.writer
        return _Names(
            claim.run,
            claim.epoch,
            next_version(now),
            now.lowest_open_attempt,
            writer.new_commit_id(),
        )

    def _table(self, arrays: Sequence[Units]) -> NDArray[np.uint64]:
        return np.array([lanes_of(units) for units in arrays], np.uint64).reshape(-1, 2)

    def _anchor(self, names: _Names, arrays: Sequence[Units]) -> FullForm:
        def units_of(index: int, first_unit: int, unit_count: int) -> Units:
            return arrays[index][first_unit : first_unit + unit_count]

        return write_anchor(
            self.blobs,
            trainer_anchor_id(names.run, names.epoch, names.version, names.attempt),
            self.schema,
            units_of,
            settings=self.store.settings,
            assets_from=self._manifest if self._manifest and self._manifest.full else None,
        )

    def _delta(
        self, names: _Names, arrays: Sequence[Units], coding: ValueCoding | None
    ) -> DeltaForm:
        packs: list[PackRef] = []
        changed_count = 0
        builder = PackBuilder(self.schema)
        for place, old, new, first_index in self._pieces(arrays):
            starts = place.starts if isinstance(place, BundlePlace) else None
            found = self._worker.encode(
                old, new, first_index=first_index, member_starts=starts, coding=coding
            )
            if found.piece is None:
                continue
            changed_count += found.piece.changed_count
            counts = None if starts is None else found.member_changed_counts
            builder.add(place, found.piece, counts)
            if builder.piece_count >= self._pieces_per_pack:
                packs.append(self._put_pack(names, builder))
                builder = PackBuilder(self.schema)
        if builder.piece_count:
            packs.append(self._put_pack(names, builder))
        return DeltaForm(
            packs=tuple(packs),
            changed_count=changed_count,
            piece_count=sum(pack.piece_count for pack in packs),
            size_bytes=sum(pack.size_bytes for pack in packs),
        )

    def _pieces(
        self, arrays: Sequence[Units]
    ) -> list[tuple[TensorPlace | BundlePlace, Units, Units, int]]:
        found: list[tuple[TensorPlace | BundlePlace, Units, Units, int]] = []
        bundled: set[int] = set()
        for bundle in self.schema.bundles:
            bundled.update(bundle.members)
            old = np.concatenate([self._before[index] for index in bundle.members])
            new = np.concatenate([arrays[index] for index in bundle.members])
            found.append((BundlePlace(bundle.members, bundle.starts), old, new, 0))
        for index, spec in enumerate(self.schema.tensors):
            for part in (
                () if index in bundled else cut_flat(spec.unit_count, self._piece_unit_count)
            ):
                run = slice(part.first_unit, part.end_unit)
                place = TensorPlace(index, part.first_unit, part.unit_count)
                found.append((place, self._before[index][run], arrays[index][run], part.first_unit))
        return found

    def _put_pack(self, names: _Names, builder: PackBuilder) -> PackRef:
        piece_count = builder.piece_count
        data = b"".join(builder.finish())
        key = pack_key(
            names.run,
            names.epoch,
            names.version,
            names.attempt,
            0,
            self.store.entropy.hex128(),
        )
        ref = self._put(key, data)
        return PackRef(
            key=key, size_bytes=len(data), sha256=ref.sha256, rank=0, piece_count=piece_count
        )

    def _put(self, key: str, data: bytes) -> ObjectRef:
        self.blobs.put_if_absent(key, data)
        return ObjectRef(
            key=key, size_bytes=len(data), sha256=Sha256(hashlib.sha256(data).hexdigest())
        )

    def _commit(
        self,
        names: _Names,
        table: NDArray[np.uint64],
        delta: DeltaForm | None,
        full: FullForm | None,
    ) -> VersionRecord:
        below = self._manifest
        if self._schema_ref is None:
            key = schema_key(names.run, names.epoch, names.version, names.commit_id)
            self._schema_ref = self._put(key, self.schema.to_bytes())
        table_key = digest_table_key(names.run, names.epoch, names.version, names.commit_id)
        manifest = Manifest(
            version=names.version,
            run=names.run,
            epoch=names.epoch,
            session=self.trainer.writer.session,
            commit_id=names.commit_id,
            attempt=names.attempt,
            step=Step(len(self.records)),
            base=Base(version=below.version, digest=below.digest) if below else None,
            schema_ref=self._schema_ref,
            schema_id=self.schema.id,
            digests=self._put(table_key, encode_table(table, self.schema)),
            digest=state_digest(self.schema, table),
            delta=delta,
            full=full,
            chain_count=0 if full or below is None else below.chain_count + 1,
            chain_size_bytes=0
            if full or below is None or delta is None
            else below.chain_size_bytes + delta.size_bytes,
        )
        key = manifest_key(names.run, names.epoch, names.version, names.commit_id)
        ref = self._put(key, encode_model(manifest))
        record = commit_version(
            self.trainer.writer, self.trainer.claim, _publication(manifest, ref)
        )
        self._manifest = manifest
        self.records.append(record)
        return record


def _publication(manifest: Manifest, ref: ObjectRef) -> Publication:
    return Publication(
        commit_id=manifest.commit_id,
        version=manifest.version,
        attempt=manifest.attempt,
        step=manifest.step,
        base=manifest.base,
        schema_id=manifest.schema_id,
        digest=manifest.digest,
        manifest_size_bytes=ref.size_bytes,
        manifest_sha256=ref.sha256,
        world_size=1,
    )


@dataclass(frozen=True, slots=True)
class ThreeVersions:
    """Versions 1 (full), 2 and 3 (deltas of several packs) in memory, and their bits."""

    blobs: MemoryBlobStore
    versions: RealVersions
    weights: tuple[dict[str, Units], ...]


def three_versions() -> ThreeVersions:
    """A new store with three versions of `mixed_schema`."""
    blobs = MemoryBlobStore()
    schema = mixed_schema()
    versions = RealVersions(blobs, schema, pieces_per_pack=2, piece_unit_count=40_000)
    weights = [random_weights(schema, 0)]
    for seed in (1, 2):
        weights.append(next_weights(weights[-1], seed))
    for each in weights:
        versions.put(each)
    return ThreeVersions(blobs, versions, tuple(weights))
