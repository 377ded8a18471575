"""From a version that somebody holds to a later one by deltas alone, without a full form."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import CorruptObjectError, ObjectMissingError, WrongBaseError
from weightstore.format.manifest import Manifest
from weightstore.format.records import VersionRecord
from weightstore.history.chain import RecordReader, base_record, check_link, delta_form
from weightstore.history.manifests import (
    SchemaCache,
    check_state_digest,
    load_manifest,
    load_schema,
    load_table,
)
from weightstore.ids import Sha256, VersionId
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore


@dataclass(frozen=True, slots=True)
class VersionRef:
    """A version by number and by what it holds.

    Attributes:
        version: Its number.
        digest: Its state digest.
    """

    version: VersionId
    digest: Sha256

    @classmethod
    def of(cls, record: VersionRecord) -> VersionRef:
        """The version that a record made."""
        return cls(record.version, record.digest)

    def __str__(self) -> str:
        return f"version {self.version} ({self.digest[:12]}...)"


@dataclass(frozen=True, slots=True, eq=False)
class DeltaPath:
    """Deltas that lead from one version to another, their links checked.

    Attributes:
        base: Where the first delta starts.
        target: Where the last one ends.
        schema: Shared by all.
        deltas: Manifests, oldest first; at least one, each has a delta.
        last_table: Lanes of the target, shape (tensors, 2).
    """

    base: VersionRef
    target: VersionRef
    schema: Schema
    deltas: tuple[Manifest, ...]
    last_table: NDArray[np.uint64]

    @property
    def size_bytes(self) -> int:
        """Bytes of all packs."""
        return sum(delta_form(each).size_bytes for each in self.deltas)

    @property
    def changed_count(self) -> int:
        """Changed units of all deltas; a unit counts once for each that changes it."""
        return sum(delta_form(each).changed_count for each in self.deltas)


class PathBreak(enum.Enum):
    """Why no deltas lead from one version to another."""

    OLDER = "it is not later than the one that is held"
    NO_DELTA = "a version on the way has no delta"
    SCHEMA = "the schema is another one"
    GONE = "a version on the way was retired, or is damaged"
    LONG = "the way has more deltas than a chain may have"


@dataclass(frozen=True, slots=True)
class NoDeltaPath:
    """That the version must be taken from a full form, and why.

    Attributes:
        reason: Why.
        version: Where the way breaks.
    """

    reason: PathBreak
    version: VersionId

    def __str__(self) -> str:
        return f"version {self.version}: {self.reason.value}"


def plan_delta_path(
    blobs: BlobStore,
    log: RecordReader,
    record: VersionRecord,
    base: VersionRef,
    limits: Limits,
    *,
    cache: SchemaCache | None = None,
) -> DeltaPath | NoDeltaPath:
    """Find the deltas from a version to a later one and check their links. Reads no weights.

    Nothing of the base itself is read: it may be retired.

    Args:
        blobs: The store.
        log: Gives the record at a slot.
        record: Of the later version; valid, from a verified prefix of the log.
        base: The version that is held.
        limits: Bounds the path and every object.
        cache: Schemas that the caller has already.

    Raises:
        WrongBaseError: the base has another digest than the log says (P8 b).
        ObjectMissingError: something of the later version itself is not there.
        CorruptObjectError: something of it is damaged, or two links do not fit.
        CorruptLogError: the log contradicts itself about a base.
        DigestMismatchError: the digest table does not sum to the version's digest.
    """
    if record.version <= base.version:
        return NoDeltaPath(PathBreak.OLDER, record.version)
    found = _walk(blobs, log, record, base, limits)
    if isinstance(found, NoDeltaPath):
        return found
    newest = found[-1]
    schema = load_schema(blobs, newest, limits, cache)
    last_table = load_table(blobs, newest, schema, limits)
    check_state_digest(newest, schema, last_table)
    return DeltaPath(base, VersionRef.of(record), schema, found, last_table)


def _walk(
    blobs: BlobStore,
    log: RecordReader,
    record: VersionRecord,
    base: VersionRef,
    limits: Limits,
) -> tuple[Manifest, ...] | NoDeltaPath:
    """Manifests of the deltas, oldest first."""
    newest_first: list[Manifest] = []
    while True:
        try:
            manifest = load_manifest(blobs, record, limits)
        except (ObjectMissingError, CorruptObjectError):
            if not newest_first:
                raise
            return NoDeltaPath(PathBreak.GONE, record.version)
        found = _break(manifest, newest_first, limits)
        if found is not None:
            return NoDeltaPath(found, record.version)
        newest_first.append(manifest)
        assert record.base is not None
        if record.base.version <= base.version:
            _check_base(record, base)
            return tuple(reversed(newest_first))
        record = base_record(log, record)


def _break(manifest: Manifest, newer: list[Manifest], limits: Limits) -> PathBreak | None:
    if newer and manifest.schema_id != newer[-1].schema_id:
        return PathBreak.SCHEMA
    if newer:
        check_link(manifest, newer[-1])
    if manifest.delta is None or manifest.base is None:
        return PathBreak.NO_DELTA
    return PathBreak.LONG if len(newer) >= limits.chain_count else None


def _check_base(record: VersionRecord, base: VersionRef) -> None:
    """Compare the base of the oldest delta with the version that is held (P8 b)."""
    expected = record.base
    assert expected is not None
    if (expected.version, expected.digest) != (base.version, base.digest):
        raise WrongBaseError(
            f"the delta of version {record.version} starts from version {expected.version} with "
            f"the digest {expected.digest}; what is held is version {base.version} with the "
            f"digest {base.digest}; nothing was written",
            do="Take the whole version in place (recover), or attach to the right store.",
            facts={
                "version": record.version,
                "base": expected.version,
                "expected": expected.digest,
                "found": base.digest,
            },
        )
