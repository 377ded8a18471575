"""Which objects a version names, and which versions its chain runs through."""

from __future__ import annotations

from collections.abc import Iterator

from weightstore.errors import CorruptLogError, LimitError
from weightstore.format.keys import anchor_key, manifest_key
from weightstore.format.manifest import Manifest
from weightstore.format.records import VersionRecord
from weightstore.history.log import Log
from weightstore.history.manifests import load_manifest
from weightstore.history.retire import StoredObject
from weightstore.ids import RunId, VersionId
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobInfo, BlobStore


class References:
    """What collection must know of versions. Keeps nothing but whether a version is whole.

    Args:
        blobs: The store.
        log: Its log.
        limits: Bounds chains and objects.
    """

    def __init__(self, blobs: BlobStore, log: Log, limits: Limits) -> None:
        self._blobs = blobs
        self._log = log
        self._limits = limits
        self._has_full: dict[VersionId, bool] = {}

    def chain_of(self, record: VersionRecord) -> Iterator[VersionId]:
        """The versions that a checkout reads, from this one down to a full form.

        Raises:
            LimitError: the chain is longer than `Limits.chain_count`.
            CorruptError: a manifest of it cannot be read.
        """
        first = record.version
        for _ in range(self._limits.chain_count + 1):
            yield record.version
            if record.base is None or self.is_full(record):
                return
            record = self._base_of(record)
        raise LimitError(
            f"the chain of version {first} is longer than {self._limits.chain_count}",
            do="Put a version with its full form, or raise Limits.chain_count.",
            facts={"version": first},
        )

    def is_full(self, record: VersionRecord) -> bool:
        """Whether a version has a full form, as its manifest says.

        Raises:
            CorruptError: its manifest cannot be read.
        """
        if record.version not in self._has_full:
            self._manifest(record)
        return self._has_full[record.version]

    def objects_of(self, record: VersionRecord) -> tuple[BlobInfo, ...]:
        """Every object that must be there for a version itself, without its chain.

        Raises:
            CorruptError: its manifest cannot be read.
        """
        run = RunId(record.run or "")
        key = manifest_key(run, record.epoch, record.version, record.commit_id)
        manifest = self._manifest(record)
        refs: list[StoredObject] = [manifest.schema_ref, manifest.digests]
        files: list[BlobInfo] = []
        if manifest.delta is not None:
            refs += manifest.delta.packs
        if manifest.full is not None:
            refs.append(manifest.full.blocks)
            anchor_id = manifest.full.anchor_id
            files = [
                BlobInfo(anchor_key(anchor_id, file.name), file.size_bytes)
                for file in manifest.full.files
            ]
        return (
            BlobInfo(key, record.manifest_size_bytes),
            *(BlobInfo(ref.key, ref.size_bytes) for ref in refs),
            *files,
        )

    def _manifest(self, record: VersionRecord) -> Manifest:
        manifest = load_manifest(self._blobs, record, self._limits)
        self._has_full[record.version] = manifest.full is not None
        return manifest

    def _base_of(self, record: VersionRecord) -> VersionRecord:
        """A delta's base is the newest version below its own record, by the rules."""
        newest = record.now.newest
        below = self._log.stored_at(newest.slot).record if newest is not None else None
        if not isinstance(below, VersionRecord):
            raise CorruptLogError(
                f"version {record.version} has a base, and its record knows of none",
                do="Verify the store.",
                facts={"version": record.version},
            )
        return below
