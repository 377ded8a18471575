"""What a receiver reads of a store: the tail of the log, and the way to a version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weightstore.clock import Clock
from weightstore.errors import NotFoundError, ObjectMissingError
from weightstore.format.records import VersionRecord
from weightstore.format.rules import Prefix
from weightstore.history import chain, versions
from weightstore.history.delta_path import DeltaPath, NoDeltaPath, VersionRef, plan_delta_path
from weightstore.history.existence import check_kept
from weightstore.history.log import Log
from weightstore.history.manifests import SchemaCache, load_manifest, load_schema
from weightstore.layout.schema import Schema
from weightstore.receiver.serve_policy import TailView
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

    def find(self, selector: int | str) -> VersionRecord:
        """The record of the version that a selector names now.

        Raises:
            SelectorError, VersionNotFoundError, VersionGoneError, TagNotFoundError: as
                `find_version`.
        """
        return self.find_in(self._log.tail(), selector)

    def kept(self, ref: VersionRef) -> VersionRecord | None:
        """The record of a version, if it is still there and holds the same."""
        try:
            record = self.find(ref.version)
        except NotFoundError:
            return None
        return record if VersionRef.of(record) == ref else None

    def look(self, clock: Clock) -> tuple[Prefix, TailView]:
        """Read the tail of the log: all of it that stood there when this was called.

        Args:
            clock: Read before the log is, so that a slow answer counts as an old one.

        Raises:
            UnavailableError, CorruptLogError: the tail cannot be read.
        """
        read_at_s = clock.monotonic_s()
        prefix = self._log.tail()
        now = prefix.now
        view = TailView(
            newest=now.newest.version if now.newest else None,
            active=now.active.version if now.active else None,
            active_slot=now.active.slot if now.active else None,
            read_at_s=read_at_s,
        )
        return prefix, view

    def find_in(self, prefix: Prefix, selector: int | str) -> VersionRecord:
        """The record of the version that a selector names in a prefix.

        Raises:
            SelectorError, VersionNotFoundError, VersionGoneError, TagNotFoundError: as
                `find_version`.
        """
        return versions.find_version(self._log, prefix, selector)

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
    def gone_if_retired(self, record: VersionRecord | VersionRef) -> Iterator[None]:
        """Tell a version that was retired under its reader from one that is damaged (P9).

        Raises:
            VersionGoneError: it was retired; names the newest kept one.
        """
        try:
            yield
        except ObjectMissingError:
            check_kept(self._log.tail().now, record.version)
            raise
