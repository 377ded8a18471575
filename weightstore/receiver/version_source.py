"""What a receiver reads of a store: the tail of the log, and the way to a version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weightstore.errors import ObjectMissingError
from weightstore.format.records import VersionRecord
from weightstore.history import chain, versions
from weightstore.history.delta_path import DeltaPath, NoDeltaPath, VersionRef, plan_delta_path
from weightstore.history.existence import check_kept
from weightstore.history.log import Log
from weightstore.history.manifests import SchemaCache, load_manifest, load_schema
from weightstore.ids import VersionId
from weightstore.layout.schema import Schema
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore


class VersionSource:
    """Reads one store. Safe from several threads.

    Args:
        blobs: The store.
        log: Its log.
        settings: Threads and limits.
    """

    def __init__(self, blobs: BlobStore, log: Log, settings: Settings) -> None:
        self.blobs = blobs
        self.settings = settings
        self._log = log
        self._schemas: SchemaCache = {}

    def find(self, selector: int | str) -> tuple[VersionRecord, VersionId | None]:
        """The record of the version that a selector names, and the newest version's number.

        Raises:
            SelectorError, VersionNotFoundError, VersionGoneError, TagNotFoundError: as
                `find_version`.
        """
        prefix = self._log.tail()
        newest = prefix.now.newest
        record = versions.find_version(self._log, prefix, selector)
        return record, newest.version if newest else None

    def schema(self, record: VersionRecord) -> Schema:
        """The schema of a version."""
        with self.gone_if_retired(record):
            manifest = load_manifest(self.blobs, record, self.settings.limits)
            return load_schema(self.blobs, manifest, self.settings.limits, self._schemas)

    def path(self, record: VersionRecord, base: VersionRef) -> DeltaPath | NoDeltaPath:
        """The deltas from a version that is held; as `plan_delta_path`."""
        with self.gone_if_retired(record):
            limits = self.settings.limits
            return plan_delta_path(self.blobs, self._log, record, base, limits, cache=self._schemas)

    def plan(self, record: VersionRecord) -> chain.CheckoutPlan:
        """The way from a full form; as `plan_checkout`."""
        with self.gone_if_retired(record):
            limits = self.settings.limits
            return chain.plan_checkout(self.blobs, self._log, record, limits, cache=self._schemas)

    @contextmanager
    def gone_if_retired(self, record: VersionRecord) -> Iterator[None]:
        """Tell a version that was retired under its reader from one that is damaged (P9).

        Raises:
            VersionGoneError: it was retired; names the newest kept one.
        """
        try:
            yield
        except ObjectMissingError:
            check_kept(self._log.tail().now, record.version)
            raise
