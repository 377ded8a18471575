"""Verifying many versions with one read of each object, where chains share most of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.errors import WeightStoreError
from weightstore.format.manifest import Manifest
from weightstore.format.records import VersionRecord
from weightstore.history.anchors import AnchorReader
from weightstore.history.chain import delta_form
from weightstore.history.manifests import (
    check_state_digest,
    load_manifest,
    load_schema,
    load_table,
)
from weightstore.history.progress import Progress
from weightstore.history.replay import Replay
from weightstore.history.workers import Workers
from weightstore.ids import VersionId
from weightstore.layout.schema import Schema
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore

Outcome = tuple[VersionId, WeightStoreError | None]
"""A version, and the first thing that is wrong with what it alone adds to its chain."""


def verify_each(
    blobs: BlobStore, records: Iterable[VersionRecord], settings: Settings, progress: Progress
) -> Iterator[Outcome]:
    """Verify what each version consists of, without the versions below it.

    Every size, hash, stream and count, and that the pieces of each delta lead from the
    digest table of its base to its own. If all versions of a chain pass, the chain does.

    Memory: one pack and one block per thread, two digest tables, two schemas, and the name of
    each schema object.

    Args:
        blobs: The store.
        records: Rising.
        settings: Threads and limits.
        progress: Told the bytes of full forms (`"full"`) and of packs (`"delta"`).
    """
    verifier = _Verifier(blobs, settings, progress)
    with Workers(settings.thread_count) as workers:
        for record in records:
            try:
                verifier.verify(record, workers)
            except WeightStoreError as error:
                yield record.version, error
            else:
                yield record.version, None


class _Verifier:
    """What stays in memory between two versions."""

    def __init__(self, blobs: BlobStore, settings: Settings, progress: Progress) -> None:
        self._blobs = blobs
        self._settings = settings
        self._progress = progress
        self._codec = PieceCodec(limits=settings.limits)
        self._verified: set[tuple[str, int, str, str]] = set()
        self._newest: Schema | None = None
        self._below: tuple[VersionId, NDArray[np.uint64]] | None = None

    def verify(self, record: VersionRecord, workers: Workers) -> None:
        """Verify one version; its digest table stays for the next one."""
        below, self._below = self._below, None
        limits = self._settings.limits
        manifest = load_manifest(self._blobs, record, limits)
        schema = self._schema(manifest)
        table = load_table(self._blobs, manifest, schema, limits)
        check_state_digest(manifest, schema, table)
        self._below = (record.version, table)
        if manifest.full is not None:
            anchor = AnchorReader(self._blobs, manifest, schema, workers=workers, limits=limits)
            anchor.run(None, self._progress)
        if manifest.delta is not None:
            self._verify_delta(record, manifest, schema, below, workers)

    def _schema(self, manifest: Manifest) -> Schema:
        """Read each schema object (P1), also if it holds the schema that is known already.

        The newest schema stays, so that versions side by side share one; an object of an
        earlier one is read again.
        """
        ref = manifest.schema_ref
        known = (ref.key, ref.size_bytes, ref.sha256, manifest.schema_id)
        newest = self._newest
        is_newest = newest is not None and newest.id == manifest.schema_id
        if newest is None or not is_newest or known not in self._verified:
            schema = load_schema(self._blobs, manifest, self._settings.limits)
            self._verified.add(known)
            newest = newest if newest is not None and is_newest else schema
            self._newest = newest
        return newest

    def _verify_delta(
        self,
        record: VersionRecord,
        manifest: Manifest,
        schema: Schema,
        below: tuple[VersionId, NDArray[np.uint64]] | None,
        workers: Workers,
    ) -> None:
        assert self._below is not None
        table = self._below[1]
        base = record.base.version if record.base else None
        is_base_known = below is not None and below[0] == base and below[1].shape == table.shape
        step = _Step(
            schema=schema,
            manifest=manifest,
            first_table=below[1] if below is not None and is_base_known else table,
            last_table=table,
        )
        replay = Replay(
            self._blobs, step, codec=self._codec, workers=workers, limits=self._settings.limits
        )
        if is_base_known:
            replay.run(None, self._progress)
        else:
            # The base was retired, or is damaged itself: no table says what the sum must be.
            replay.check_delta(manifest, self._progress)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One delta, from the table of its base to its own."""

    schema: Schema
    manifest: Manifest
    first_table: NDArray[np.uint64]
    last_table: NDArray[np.uint64]

    @property
    def deltas(self) -> tuple[Manifest, ...]:
        """The one."""
        return (self.manifest,)

    @property
    def delta_size_bytes(self) -> int:
        """Bytes of its packs."""
        return delta_form(self.manifest).size_bytes
